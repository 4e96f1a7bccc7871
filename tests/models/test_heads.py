"""What every head must do: saved with its model it comes back here and in sentence-transformers, and once more from there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from raysts.models.embedders import open_embedder
from raysts.models.head import CategoricalHead, Dense, FlowHead, GaussianHead, Head, NormalHead, PointHead
from raysts.models.pretrained import load
from raysts.models.sentence_model import SentenceModel
from raysts.models.shipped.glow import Glow
from raysts.models.shipped.latent import Categorical, Normal, Point

TEXTS = ["a dog runs", "a cat", "the small dog and the cat are sleeping near the house", "dog", ""]


def flow(width: int) -> FlowHead:
    head = FlowHead(Glow(width, levels=3, depth=2, width=7))
    head.shipped.initialize(torch.randn(50, width), lambda x_BD: x_BD.mean(0))
    return head


HEADS: dict[str, tuple[Callable[[int], Head], int | str]] = {
    "tanh": (lambda width: Dense(width, 7, "tanh"), 2), "linear": (lambda width: Dense(width, 7, "identity"), 2),
    "gauss": (lambda width: GaussianHead(width, width, "tanh", "per_dimension"), 1),
    "gauss of the paper": (lambda width: GaussianHead(width, width, "identity", "paper"), 1), "flow": (flow, 2),
    "categorical": (lambda width: CategoricalHead(Categorical(width, 4, 5, 0.3, 2, 11)), 1),
    "single": (lambda width: CategoricalHead(Categorical(width, 1, 7, 0.5, 2, 11)), "only-1"),
    "normal": (lambda width: NormalHead(Normal(width, 6, 2, 11)), "only-1"),
    "point": (lambda width: PointHead(Point(width, 6, 2, 11)), 1),
}  # fmt: skip
"""A head by the width of its encoder, and the layers that it reads."""


ALIKE = ("linear", "gauss of the paper", "single", "point")
"""Another setting, or parent, of a head that stands before it."""


@pytest.mark.parametrize("name", [pytest.param(of, marks=pytest.mark.slow if of in ALIKE else ()) for of in HEADS])
def test_a_head_is_saved_and_read_by_both(
    name: str, tiny_backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sentence_transformers = pytest.importorskip("sentence_transformers")
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))
    make, layers = HEADS[name]
    base = load(tiny_backbone, pooling="cls", layers=layers, max_length=9, device="cpu")  # type: ignore[arg-type]
    torch.manual_seed(0)
    head = make(base.encoder.width).eval()
    with torch.no_grad():
        for parameter in head.parameters():  # so that no flow is the identity
            parameter += 0.05 * torch.randn_like(parameter)
    model = SentenceModel(base.encoder.followed_by(head), base.tokenizer, 9)
    model.save(tmp_path / "model")

    again = load(tmp_path / "model", device="cpu")
    expected, found = model.represent(TEXTS), again.represent(TEXTS)
    assert expected.keys() == found.keys() and list(again.similarities) == list(model.similarities)
    for key, values in expected.items():
        for ours, theirs in zip(values, found[key], strict=True):
            np.testing.assert_array_equal(ours, theirs)
    (kept,) = again.encoder.heads
    assert type(kept) is type(head) and kept.config() == head.config()
    assert getattr(getattr(kept, "shipped", None), "initialized", True)
    opened = open_embedder(tmp_path / "model")
    assert (opened.dim, list(opened.similarities)) == (model.dim, list(model.similarities))
    other = load(tmp_path / "model", pooling="max", layers=1, device="cpu")
    assert (other.pooling, other.layers) == (model.pooling, layers), "a head belongs to what it reads"
    plain = load(tmp_path / "model", device="cpu", heads=False)
    assert not len(plain.encoder.heads) and plain.layers == layers
    if plain.pooling == "cls":
        np.testing.assert_array_equal(plain.encode(TEXTS), base.encode(TEXTS))

    options: dict[str, Any] = {"device": "cpu", "local_files_only": True}
    shipped = hasattr(head, "shipped")
    if shipped:
        with pytest.raises(ValueError, match="trust_remote_code"):
            sentence_transformers.SentenceTransformer(str(tmp_path / "model"), **options)
        options["trust_remote_code"] = True
    for place in ("model", "theirs"):
        theirs = sentence_transformers.SentenceTransformer(str(tmp_path / place), **options)
        copied = [part for part in theirs if type(part).__module__.startswith("transformers_modules.")]
        assert len(copied) == shipped and all(not isinstance(part, type(head.shipped)) for part in copied)
        assert theirs.get_embedding_dimension() == model.dim
        np.testing.assert_allclose(theirs.encode(TEXTS), expected["vectors"], rtol=0, atol=1e-5)
        theirs.save(str(tmp_path / "theirs"))
    np.testing.assert_allclose(load(tmp_path / "theirs", device="cpu").encode(TEXTS), expected["vectors"], atol=1e-5)
