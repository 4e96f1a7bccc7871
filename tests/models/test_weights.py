"""Some layers of a model: the same vectors as the whole model gives at that layer, in every family, saved and loaded."""

from pathlib import Path

import numpy as np
import pytest
import small_runs
import transformers

from raysts.data.world import world_tokenizer, world_vocabulary
from raysts.models import pretrained
from raysts.models.weights import keep_layers, spaced_layers

TEXTS = ["a man plays a guitar", "the dog runs", "two"]


def test_layers_are_evenly_spaced_from_the_first_to_the_last() -> None:
    counts = ((3, 6), (4, 6), (6, 6), (1, 12), (2, 12))
    expected = [(0, 2, 5), (0, 2, 3, 5), (0, 1, 2, 3, 4, 5), (0,), (0, 11)]
    assert [spaced_layers(count, depth) for count, depth in counts] == expected


@pytest.mark.parametrize("family", ["bert", "distilbert", "mpnet", "modernbert", "qwen3"])
def test_kept_layers_are_saved_and_loaded(family: str, tmp_path: Path) -> None:
    whole = pretrained.load(small_runs.write_backbone(tmp_path / "whole", family), device="cpu")
    expected = whole.encode(TEXTS)
    has_plain_layers = family not in ("modernbert", "qwen3")  # which normalise what the last layer gives
    if has_plain_layers:
        first = pretrained.load(tmp_path / "whole", device="cpu", layers="only-1").encode(TEXTS)
    keep_layers(whole, [0, 1])
    np.testing.assert_array_equal(whole.encode(TEXTS), expected)
    keep_layers(whole, [0])
    kept = whole.encode(TEXTS)
    assert whole.encoder.depth == 1 and not np.allclose(kept, expected, atol=1e-3)
    whole.save(tmp_path / "kept")
    again = pretrained.load(tmp_path / "kept", device="cpu")
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
        small_runs.write_backbone(tmp_path / "whole", family, depth=3)
    model = pretrained.load(tmp_path / "whole", device="cpu")
    keep_layers(model, [1, 2])
    model.save(tmp_path / "kept")
    again = pretrained.load(tmp_path / "kept", device="cpu")
    np.testing.assert_allclose(again.encode(TEXTS), model.encode(TEXTS), atol=1e-6)
