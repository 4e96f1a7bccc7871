"""Layers of a model: those that are pooled, and those that are kept of it, which give the vectors that the whole model gives at
that layer, in every family, saved and loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers
from small_runs import write_backbone

from raysts.data.world import world_tokenizer, world_vocabulary
from raysts.models.layers import as_layers, check_layers, layer_indices, layer_weights, layers_of, layers_text
from raysts.models.pretrained import load
from raysts.models.weights import keep_layers, spaced_layers

TEXTS = ["a dog runs", "the small dog and the cat are sleeping near the house"]


@pytest.mark.parametrize(
    ("layers", "indices"),
    [(1, (3,)), (2, (2, 3)), (3, (1, 2, 3)), ("first_last", (1, 3)), ("only-0", (0,)), ("only-2", (2,))],
)
def test_indices(layers: int | str, indices: tuple[int, ...]) -> None:
    assert layer_indices(layers, 3) == indices
    found = layers_of([0.5 * (i in indices) for i in range(4)])
    assert layer_indices(found, 3) == indices and as_layers(str(layers)) == layers and layer_weights(found) is None


def test_what_is_no_choice_of_layers_is_refused() -> None:
    assert layer_indices("first_last", 1) == (1,), "which is one layer"
    assert [*map(layers_text, (1, 2, "only-2"))] == ["last layer", "last 2 layers", "layer 2"]
    no_choices: tuple[Any, ...] = (0, -1, "last", "only-", "only-x", "2", (1, 2), 1.5)
    for layers in no_choices:
        with pytest.raises(ValueError, match="must be a number of last layers"):
            check_layers(layers)
    for layers in (4, "only-4", 10**15):
        with pytest.raises(ValueError, match="the encoder has 3 layers"):
            layer_indices(layers, 3)


@pytest.mark.parametrize("weights", [(1.0, 0.0, 1.0, 0.0), (0.0, 0.25, -0.5, 1.0)])
def test_weights_of_layers(weights: tuple[float, ...]) -> None:
    layers = layers_of(weights)
    assert layer_weights(layers) == weights and layers_of(weights) == layers
    assert layers_text(layers) == "all layers, by trained weights"
    with pytest.raises(ValueError, match="the encoder has 2 layers and the embedding layer"):
        layer_indices(layers, 2)
    for wrong in ("weights-1,-1", "weights-1,x", "weights-nan,1"):
        with pytest.raises(ValueError):
            check_layers(wrong)


def test_layers_are_evenly_spaced_from_the_first_to_the_last() -> None:
    counts = ((3, 6), (4, 6), (6, 6), (1, 12), (2, 12))
    expected = [(0, 2, 5), (0, 2, 3, 5), (0, 1, 2, 3, 4, 5), (0,), (0, 11)]
    assert [spaced_layers(count, depth) for count, depth in counts] == expected


@pytest.mark.parametrize("family", ["bert", "distilbert", "mpnet", "modernbert", "qwen3"])
def test_kept_layers_are_saved_and_loaded(family: str, tmp_path: Path) -> None:
    whole = load(write_backbone(tmp_path / "whole", family), device="cpu")
    expected = whole.encode(TEXTS)
    has_plain_layers = family not in ("modernbert", "qwen3")  # which normalise what the last layer gives
    if has_plain_layers:
        first = load(tmp_path / "whole", device="cpu", layers="only-1").encode(TEXTS)
    keep_layers(whole, [0, 1])
    np.testing.assert_array_equal(whole.encode(TEXTS), expected)
    keep_layers(whole, [0])
    kept = whole.encode(TEXTS)
    assert whole.encoder.depth == 1 and not np.allclose(kept, expected, atol=1e-3)
    whole.save(tmp_path / "kept")
    again = load(tmp_path / "kept", device="cpu")
    assert again.encoder.depth == 1 and again.prompts == whole.prompts
    np.testing.assert_allclose(again.encode(TEXTS), kept, atol=1e-6)
    if has_plain_layers:
        np.testing.assert_allclose(kept, first, atol=1e-6)


@pytest.mark.parametrize("family", ["modernbert", "t5"])
def test_layers_without_the_first_have_what_it_alone_has(family: str, tmp_path: Path) -> None:
    if family == "t5":
        shape = {"d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 3, "num_heads": 2}
        config = transformers.T5Config(vocab_size=len(world_vocabulary()), **shape)
        transformers.T5EncoderModel(config).save_pretrained(tmp_path / "whole")
        world_tokenizer().save_pretrained(tmp_path / "whole")
    else:
        write_backbone(tmp_path / "whole", family, depth=3)
    model = load(tmp_path / "whole", device="cpu")
    keep_layers(model, [1, 2])
    model.save(tmp_path / "kept")
    again = load(tmp_path / "kept", device="cpu")
    np.testing.assert_allclose(again.encode(TEXTS), model.encode(TEXTS), atol=1e-6)
