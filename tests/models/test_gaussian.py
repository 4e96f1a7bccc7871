from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.distributions import Independent, Normal, kl_divergence

from raysts.errors import InputError
from raysts.models.head import LOG_VAR, NAMES, Dense, GaussianHead, gaussian_similarity
from raysts.models.pretrained import load
from raysts.models.sentence_model import SentenceModel
from raysts.ops.gaussian import KINDS, Gaussians, Kind
from raysts.ops.gaussian import similarity as similarity_of_torch
from raysts.ops.similarity import cosine

TEXTS = ["a dog runs", "the small dog and the cat are sleeping near the house", "a cat"]
both = pytest.mark.parametrize("kind", KINDS)


def representation(rows: int, dims: int, seed: int) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(seed)
    return {
        "vectors": np.tanh(generator.normal(size=(rows, dims))).astype(np.float32),
        "log_var": generator.normal(size=(rows, dims)).astype(np.float32),
    }


@both
def test_similarity_against_torch(kind: Kind) -> None:
    rows = 2500  # more than are compared together
    a, b = representation(rows, 6, 0), representation(rows, 6, 1)
    p, q = (
        Normal(torch.tensor(x["vectors"]).double(), (torch.tensor(x["log_var"]).double() / 2).exp()) for x in (a, b)
    )
    if kind == "per_dimension":
        expected = (1 / (1 + kl_divergence(p, q))).mean(-1)
    else:
        expected = 1 / (1 + kl_divergence(Independent(p, 1), Independent(q, 1)))
    found = gaussian_similarity(a, b, kind)
    assert found.dtype == np.float64 and gaussian_similarity(
        representation(0, 6, 0), representation(0, 6, 1), kind
    ).shape == (0,)
    np.testing.assert_allclose(found, expected.numpy(), rtol=0, atol=1e-12)
    trained_on = similarity_of_torch(*(Gaussians(*map(torch.tensor, x.values())) for x in (a, b)), kind)
    np.testing.assert_allclose(found, trained_on.numpy(), rtol=1e-4, atol=1e-6)


@both
def test_the_models_own_similarity_comes_first(kind: Kind) -> None:
    found = GaussianHead(4, 4, kind=kind).similarities()
    assert list(found) == [NAMES[kind], "cosine"]
    a, b = representation(5, 4, 0), representation(5, 4, 1)
    own, of_means = (function(a, b) for function in found.values())
    np.testing.assert_array_equal(own, gaussian_similarity(a, b, kind))
    np.testing.assert_array_equal(of_means, cosine(a["vectors"], b["vectors"]))
    assert not np.allclose(own, found[NAMES[kind]](b, a)), "it depends on the order"


def model_with_head(backbone: Path, activation: str, kind: Kind) -> SentenceModel:
    model = load(backbone, pooling="cls", device="cpu")
    torch.manual_seed(0)
    head = GaussianHead(model.dim, model.dim, activation, kind).eval()
    return SentenceModel(model.encoder.followed_by(head), model.tokenizer, 24)


def test_without_log_var_it_is_the_dense_head_that_its_files_say(tiny_backbone: Path, tmp_path: Path) -> None:
    """Saved again by sentence-transformers the variances are gone; what is left is a model of points."""
    model = model_with_head(tiny_backbone, "tanh", "per_dimension")
    model.save(tmp_path / "model")
    (written,) = tmp_path.rglob(LOG_VAR)
    written.unlink()
    again = load(tmp_path / "model", device="cpu")
    assert isinstance(again.encoder.heads[-1], Dense) and list(again.similarities) == ["cosine"]
    np.testing.assert_array_equal(again.encode(TEXTS), model.encode(TEXTS))


def test_damaged_files_are_named(tiny_backbone: Path, tmp_path: Path) -> None:
    model_with_head(tiny_backbone, "tanh", "per_dimension").save(tmp_path / "model")
    (written,) = tmp_path.rglob(LOG_VAR)
    shutil.copyfile(written.parent / "model.safetensors", written)  # weights of another shape, no similarity
    with pytest.raises(InputError, match=r"_Dense.*similarity=None must be one of per_dimension, paper"):
        load(tmp_path / "model", device="cpu")
