from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest
import torch
from small_runs import MAX_LENGTH, share_of, tiny_encoder

from raysts.models.encoder import Encoder
from raysts.models.head import Dense
from raysts.models.pretrained import load
from raysts.models.sentence_model import SentenceModel
from raysts.models.tokens import Tokens
from raysts.objectives.whiten import Centre, Whiten, whitening_matrix
from raysts.recipes.catalog import CentreSettings, WhitenSettings

T = TypeVar("T", Whiten, Centre)
DIM = 16
LENGTHS = np.random.default_rng(1).integers(2, 9, 80)
TEXTS = Tokens(np.random.default_rng(0).integers(1, 50, LENGTHS.sum()).astype(np.int32), np.r_[0, np.cumsum(LENGTHS)])


def encoder(layers: int = 2) -> Encoder:
    """With random weights in its layer norms too, as trained ones have."""
    made, generator = tiny_encoder(layers=layers), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
    return made


def made(dimensions: int | None = None, layers: int = 2) -> Whiten:
    return Whiten(WhitenSettings(dimensions=dimensions), encoder(layers))


def fitted(objective: T, rows: int = 80, batch: int = 33) -> T:
    """After one pass in batches; every batch ends with a filler, which does not count."""
    for first in range(0, rows, batch):
        examples = [(row,) for row in [*range(first, min(first + batch, rows)), 0]]
        weight = np.array([1.0] * (len(examples) - 1) + [0.0], np.float32)
        objective(objective.collate(share_of({"sentence": TEXTS}, examples, weight)))
    return objective


def whitened(objective: Whiten | Centre) -> np.ndarray:
    (model,) = objective.candidates().values()
    with torch.no_grad():
        return model(*TEXTS.pad(0)).double().numpy()


def vectors(rows: int = 80) -> np.ndarray:
    with torch.no_grad():
        return encoder()(*TEXTS.take(np.arange(rows)).pad(0)).double().numpy()


def test_it_is_numpys_whitening() -> None:
    """(x - mean) W with W = U S^(-1/2) of numpy's SVD, up to the sign of each dimension; covariance: the identity."""
    found = whitened(fitted(made()))
    x = vectors()
    u, s, _ = np.linalg.svd(np.cov(x.T))
    expected = (x - x.mean(0)) @ (u / np.sqrt(s))
    assert s[0] / s[-1] > 20, "the embeddings are far from white"
    np.testing.assert_allclose(np.abs(found), np.abs(expected), atol=1e-3)
    np.testing.assert_allclose(np.cov(found.T), np.eye(DIM), atol=1e-3)
    np.testing.assert_allclose(found.mean(0), 0, atol=1e-4)
    few = whitened(fitted(made(dimensions=5)))
    np.testing.assert_allclose(few, found[:, :5], atol=1e-5, err_msg="the first dimensions have the largest variance")


def test_the_loss_is_the_variance_so_far_and_has_no_gradient() -> None:
    objective = fitted(made(), rows=40)
    loss, scalars = objective(objective.collate(share_of({"sentence": TEXTS}, [(0,)], np.zeros(1, np.float32))))
    assert float(loss) == pytest.approx(vectors(40).var(0).mean(), rel=1e-5)
    assert not loss.requires_grad and scalars == {}
    assert not any(parameter.requires_grad for parameter in objective.parameters())


def test_directions_without_variance_stay_empty() -> None:
    """Of fewer sentences than dimensions; and of one layer, whose tokens sum to 0, weighted by 1 / gamma: numpy's whitening
    blows the rounding error up there."""
    few, of_one_layer = whitened(fitted(made(), rows=9))[:9], whitened(fitted(made(layers=1)))
    np.testing.assert_allclose(np.cov(few.T), np.diag([1.0] * 8 + [0.0] * 8), atol=2e-3)
    np.testing.assert_allclose(np.cov(of_one_layer.T), np.diag([1.0] * (DIM - 1) + [0.0]), atol=1e-3)
    np.testing.assert_array_equal(whitening_matrix(torch.zeros(4, 4).double(), 4), torch.zeros(4, 4).double())
    small = whitening_matrix(torch.tensor([1e-4, 1e-12]).diag().double(), 2)  # of which the second is rounding error
    np.testing.assert_allclose(small.abs(), [[100, 0], [0, 0]], rtol=1e-5)


def test_before_it_has_seen_two_sentences_vectors_stay() -> None:
    for rows in (0, 1):
        np.testing.assert_allclose(whitened(fitted(made(dimensions=3), rows)), vectors()[:, :3], atol=1e-6)


def test_it_stands_behind_other_heads(tiny_backbone: Path, tmp_path: Path) -> None:
    """The vectors that are whitened are those of the finished model."""
    model = load(tiny_backbone, device="cpu")
    torch.manual_seed(0)
    objective = Whiten(WhitenSettings(), model.encoder.followed_by(Dense(32, 12, "tanh")).eval())
    fitted(objective)
    (whitening,) = objective.candidates().values()
    SentenceModel(whitening, model.tokenizer, MAX_LENGTH).save(tmp_path / "model")
    again = load(tmp_path / "model", device="cpu")
    assert [head.dim for head in again.encoder.heads] == [12, 12]
    with torch.no_grad():
        x = again.encoder(*TEXTS.pad(0)).double().numpy()
    np.testing.assert_allclose(np.cov(x.T), np.eye(12), atol=1e-3)


def test_wrong_dimensions_are_refused() -> None:
    with pytest.raises(ValueError, match="dimensions=17 .* 16"):
        made(dimensions=17)
    assert made(dimensions=16).settings.dimensions == 16


def test_centred_vectors_keep_their_differences() -> None:
    before = vectors()
    found = whitened(fitted(Centre(CentreSettings(), encoder())))
    np.testing.assert_allclose(found, before - before.mean(0), atol=1e-5)
