from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raysts.models.layers import as_layers, check_layers, layer_indices, layer_weights, layers_of
from raysts.models.pretrained import load

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
    with pytest.raises(ValueError, match="the encoder has 2 layers and the embedding layer"):
        layer_indices(layers, 2)
    for wrong in ("weights-1,-1", "weights-1,x", "weights-nan,1"):
        with pytest.raises(ValueError):
            check_layers(wrong)


@pytest.mark.parametrize("layers", ["first_last", "only-0"])
def test_a_choice_of_layers_is_read_by_sentence_transformers(
    layers: int | str, tiny_backbone: Path, tmp_path: Path
) -> None:
    from sentence_transformers import SentenceTransformer

    model = load(tiny_backbone, layers=layers, device="cpu")
    model.save(tmp_path / "model")
    again = load(tmp_path / "model", device="cpu")
    assert layer_indices(again.layers, 2) == layer_indices(layers, 2)  # of two layers first_last is the last two
    theirs = SentenceTransformer(str(tmp_path / "model"), device="cpu").encode(TEXTS)
    np.testing.assert_allclose(again.encode(TEXTS), theirs, rtol=0, atol=1e-5)
    np.testing.assert_array_equal(again.encode(TEXTS), model.encode(TEXTS))
