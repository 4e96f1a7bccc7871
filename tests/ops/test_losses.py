from collections.abc import Callable

import numpy as np
import pytest
import scipy.spatial.distance
import scipy.special
import scipy.stats
import torch
from torch import Tensor

from raysts.ops import losses

GENERATOR = np.random.default_rng(0)
U, V = GENERATOR.normal(size=(5, 7)), GENERATOR.normal(size=(5, 7))
LABELS = np.array([0, 2, 1, 1, 2])
LOGITS = GENERATOR.normal(size=(5, 3)) * 3
SCORES = np.array([0.0, 5.0, 2.5, 1.2, 4.9])
IDENTICAL = np.array([1.0, 0.0, 0.0, 1.0, 0.0])
VIEWS = np.stack([U, V, GENERATOR.normal(size=(5, 7))])
COUNTED = np.array([1.0, 1.0, 0.0, 1.0, 1.0])


def info_nce(views_VBD: Tensor, temperature: float = 0.05) -> Tensor:
    """Anchors, positives and, where there are any, hard negatives -> [B]; example 2 does not count."""
    anchors, *others = views_VBD
    weight = torch.tensor(COUNTED).repeat(len(others))
    logits = losses.batch_logits(anchors, torch.cat(others), weight, temperature)
    return losses.softmax_cross_entropy(logits, torch.arange(len(anchors)))


def info_nce_by_scipy(views: np.ndarray, temperature: float = 0.05) -> np.ndarray:
    candidates = np.concatenate(list(views[1:]))
    scores = (1 - scipy.spatial.distance.cdist(views[0], candidates, "cosine")) / temperature
    counted = np.tile(COUNTED, len(views) - 1) + np.eye(*scores.shape) > 0
    return scipy.special.logsumexp(scores, axis=1, b=counted) - scores.diagonal()


def similarity_mse_by_scipy(student: np.ndarray, teacher: np.ndarray) -> np.ndarray:
    """Of cosines; the teacher may have another width. Example 2 is nobody's other."""
    distances = [scipy.spatial.distance.cdist(vectors, vectors, "cosine") for vectors in (student, teacher)]
    return np.average((distances[0] - distances[1]) ** 2, axis=1, weights=COUNTED * (1 - np.eye(5)))


COSINES = 1 - scipy.spatial.distance.cdist(U, V, "cosine").diagonal()
CASES: dict[str, tuple[Callable[..., Tensor], np.ndarray, np.ndarray]] = {
    "softmax_cross_entropy": (
        lambda x: losses.softmax_cross_entropy(x, torch.tensor(LABELS)), LOGITS,
        -scipy.special.log_softmax(LOGITS, axis=1)[range(5), LABELS],
    ),
    "contrastive_tension": (
        lambda x: losses.contrastive_tension(x, torch.tensor(V), torch.tensor(IDENTICAL)), U,
        -scipy.special.log_expit(np.where(IDENTICAL, 1, -1) * (U * V).sum(axis=1)),
    ),
    "sts_regression": (
        lambda x: losses.sts_regression(torch.tensor(U), x, torch.tensor(SCORES), 0.35), V,
        (COSINES - np.interp(SCORES, [0, 5], [0.35, 1])) ** 2,
    ),
    "info_nce": (lambda x: info_nce(x, 0.5), VIEWS[:2], info_nce_by_scipy(VIEWS[:2], 0.5)),
    "info_nce with hard negatives": (info_nce, VIEWS, info_nce_by_scipy(VIEWS)),
    "embedding_cosine": (lambda x: losses.embedding_cosine(x, torch.tensor(V)), U, 1 - COSINES),
    "similarity_mse": (
        lambda x: losses.similarity_mse(x, torch.tensor(V[:, :3]), torch.tensor(COUNTED)), U,
        similarity_mse_by_scipy(U, V[:, :3]),
    ),
    "embedding_mse": (lambda x: losses.embedding_mse(x, torch.tensor(V)), U, ((U - V) ** 2).mean(axis=1)),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_loss_is_its_reference_has_its_gradient_and_is_reduced_in_float32(case: str) -> None:
    function, x, expected = CASES[case]
    np.testing.assert_allclose(function(torch.tensor(x)).numpy(), expected, rtol=0, atol=1e-10)
    assert torch.autograd.gradcheck(function, torch.tensor(x, requires_grad=True), atol=1e-6)
    for dtype in (torch.float16, torch.bfloat16):
        half = torch.tensor(x).to(dtype)
        found = function(half)
        # The inputs were rounded, the arithmetic was not: what float64 makes of the rounded inputs.
        assert found.dtype in (torch.float32, torch.float64)
        torch.testing.assert_close(found.double(), function(half.double()), rtol=1e-5, atol=1e-5)


def test_cosines_are_not_rounded_to_bfloat16() -> None:
    views = torch.tensor(VIEWS).float()
    with torch.autocast("cpu", torch.bfloat16):
        found = info_nce(views)
    torch.testing.assert_close(found, info_nce(views), rtol=0, atol=0)


def test_extremes_and_zeros_stay_finite() -> None:
    size = 1e15
    x = torch.tensor([[size, -size, 0.0], [-size, size, 0.0]], requires_grad=True)
    loss = losses.softmax_cross_entropy(x, torch.tensor([1, 1]))
    loss.sum().backward()
    assert torch.isfinite(loss).all() and torch.isfinite(x.grad).all()
    assert loss.detach().tolist() == [pytest.approx(2 * size), 0.0]

    a = torch.tensor([[size, 0.0], [-size, 0.0], [size, 0.0], [-size, 0.0]], requires_grad=True)
    pairs = losses.contrastive_tension(a, torch.ones(4, 2), torch.tensor([1.0, 1.0, 0.0, 0.0]))
    pairs.sum().backward()
    assert torch.isfinite(a.grad).all()
    assert pairs.detach().tolist() == [0.0, pytest.approx(size), pytest.approx(size), 0.0]

    u = torch.zeros(2, 3, requires_grad=True)
    loss = losses.sts_regression(u, torch.ones(2, 3), torch.tensor([0.0, 5.0]), 0.0)
    loss.sum().backward()
    assert loss.detach().tolist() == [0.0, 1.0] and torch.isfinite(u.grad).all()
    views = torch.zeros(2, 5, 3, requires_grad=True)
    info_nce(views).sum().backward()
    assert torch.isfinite(views.grad).all()


def test_half_precision_does_not_overflow() -> None:
    wide = torch.full((1, 1024), 100.0, dtype=torch.float16)  # dot product 10,240,000 is beyond float16
    assert losses.contrastive_tension(wide, wide, torch.zeros(1)).tolist() == [pytest.approx(1024 * 1e4)]
    assert losses.embedding_mse(wide * 5, -wide * 5).tolist() == [pytest.approx(1e6)]
    assert losses.sts_regression(wide, wide, torch.tensor([5.0]), 0.0).tolist() == [pytest.approx(0.0, abs=1e-6)]


def test_false_negatives_are_the_anchors_own_text_and_what_its_text_entails() -> None:
    anchors, positives = [1, 2, 1, 3], [10, 20, 11, 10]
    candidates = [*positives, 11, 30, 2, 31]
    entailed = {anchor: {p for a, p in zip(anchors, positives, strict=True) if a == anchor} for anchor in anchors}
    expected = [[text == anchor or text in entailed[anchor] for text in candidates] for anchor in anchors]
    found = losses.false_negatives(*(torch.tensor(texts) for texts in (anchors, anchors, positives, candidates)))
    assert found.tolist() == expected and [sum(row) for row in expected] == [4, 2, 4, 2]
    some = losses.false_negatives(*(torch.tensor(texts) for texts in (anchors[2:], anchors, positives, candidates)))
    assert some.tolist() == expected[2:]
