from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.distributions import Independent, Normal, kl_divergence

from raysts.errors import InputError
from raysts.models.head import LOG_VAR, NAMES, Dense, GaussianHead
from raysts.models.pretrained import load
from raysts.models.sentence_model import SentenceModel
from raysts.ops.gaussian import KINDS, Gaussians, Kind
from raysts.ops.gaussian import similarity as similarity_of_torch
from raysts.ops.similarity import cosine

TEXTS = ["a dog runs", "the small dog and the cat are sleeping near the house", "a cat"]


def representation(rows: int, dims: int, seed: int) -> dict[str, np.ndarray]:
    vectors, log_var = np.random.default_rng(seed).normal(size=(2, rows, dims)).astype(np.float32)
    return {"vectors": np.tanh(vectors), "log_var": log_var}


@pytest.mark.parametrize("kind", KINDS)
def test_a_models_similarities_are_its_own_and_the_cosine_of_its_means(kind: Kind) -> None:
    """The first as torch has it, and as it is trained on."""
    rows = 2500  # more than are compared together
    a, b = representation(rows, 6, 0), representation(rows, 6, 1)
    moments = ((torch.tensor(value).double() for value in x.values()) for x in (a, b))
    p, q = (Normal(mean, (log_variance / 2).exp()) for mean, log_variance in moments)
    if kind == "per_dimension":
        expected = (1 / (1 + kl_divergence(p, q))).mean(-1)
    else:
        expected = 1 / (1 + kl_divergence(Independent(p, 1), Independent(q, 1)))
    similarities = GaussianHead(6, 6, kind=kind).similarities()
    assert list(similarities) == [NAMES[kind], "cosine"]
    found, of_means = (similarity(a, b) for similarity in similarities.values())
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, expected.numpy(), rtol=0, atol=1e-12)
    trained_on = similarity_of_torch(*(Gaussians(*map(torch.tensor, x.values())) for x in (a, b)), kind)
    np.testing.assert_allclose(found, trained_on.numpy(), rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(of_means, cosine(a["vectors"], b["vectors"]))
    nothing = {name: values[:0] for name, values in a.items()}
    assert similarities[NAMES[kind]](nothing, nothing).shape == (0,)


def saved_with_head(backbone: Path, folder: Path) -> tuple[SentenceModel, Path]:
    """A model with a Gaussian head in ``folder``, and its file of the variances."""
    model = load(backbone, pooling="cls", device="cpu")
    torch.manual_seed(0)
    head = GaussianHead(model.dim, model.dim, "tanh", "per_dimension").eval()
    model = SentenceModel(model.encoder.followed_by(head), model.tokenizer, 24)
    model.save(folder)
    (written,) = folder.rglob(LOG_VAR)
    return model, written


def test_without_log_var_it_is_the_dense_head_that_its_files_say(tiny_backbone: Path, tmp_path: Path) -> None:
    """Saved again by sentence-transformers the variances are gone; what is left is a model of points."""
    model, written = saved_with_head(tiny_backbone, tmp_path)
    written.unlink()
    again = load(tmp_path, device="cpu")
    assert isinstance(again.encoder.heads[-1], Dense) and list(again.similarities) == ["cosine"]
    np.testing.assert_array_equal(again.encode(TEXTS), model.encode(TEXTS))


def test_damaged_files_are_named(tiny_backbone: Path, tmp_path: Path) -> None:
    _, written = saved_with_head(tiny_backbone, tmp_path)
    shutil.copyfile(written.parent / "model.safetensors", written)  # weights of another shape, no similarity
    with pytest.raises(InputError, match=r"_Dense.*similarity=None must be one of per_dimension, paper"):
        load(tmp_path, device="cpu")
