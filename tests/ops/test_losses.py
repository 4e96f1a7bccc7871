from __future__ import annotations

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


def cross_entropy_by_scipy(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    return -scipy.special.log_softmax(logits, axis=1)[np.arange(len(labels)), labels]


def contrastive_tension_restated(a: np.ndarray, b: np.ndarray, identical: np.ndarray) -> np.ndarray:
    found = []
    for left, right, same in zip(a, b, identical, strict=True):
        probability = 1 / (1 + np.exp(-sum(x * y for x, y in zip(left, right, strict=True))))
        found.append(-np.log(probability) if same else -np.log(1 - probability))
    return np.array(found)


def sts_restated(u: np.ndarray, v: np.ndarray, scores: np.ndarray, lower_bound: float) -> np.ndarray:
    cosines = np.array([1 - scipy.spatial.distance.cosine(a, b) for a, b in zip(u, v, strict=True)])
    targets = np.array([np.interp(score, [0, 5], [lower_bound, 1]) for score in scores])
    return (cosines - targets) ** 2


def info_nce(views_VBD: Tensor, temperature: float = 0.05) -> Tensor:
    """Anchors, positives and, where there are any, hard negatives -> [B]; example 2 does not count."""
    anchors, *others = views_VBD
    weight = torch.tensor(COUNTED).repeat(len(others))
    logits = losses.batch_logits(anchors, torch.cat(others), weight, temperature)
    return losses.softmax_cross_entropy(logits, torch.arange(len(anchors)))


def info_nce_restated(views: np.ndarray, temperature: float = 0.05) -> np.ndarray:
    anchors, candidates = views[0], np.concatenate(list(views[1:]))
    counted = np.tile(COUNTED, len(views) - 1) > 0
    found = []
    for i, anchor in enumerate(anchors):
        cosines = np.array([1 - scipy.spatial.distance.cosine(anchor, other) for other in candidates])
        mine = counted | (np.arange(len(candidates)) == i)
        found.append(scipy.special.logsumexp(cosines[mine] / temperature) - cosines[i] / temperature)
    return np.array(found)


def similarity_mse_restated(student: np.ndarray, teacher: np.ndarray) -> np.ndarray:
    """Of cosines; the teacher may have another width. Example 2 is nobody's other."""
    errors = [
        scipy.spatial.distance.cdist(vectors, vectors, "cosine") for vectors in (student, teacher)
    ]  # fmt: skip
    found = (errors[0] - errors[1]) ** 2
    return np.array([np.mean([found[i, j] for j in range(5) if j != i and COUNTED[j]]) for i in range(5)])


CASES: dict[str, tuple[Callable[..., Tensor], np.ndarray, np.ndarray]] = {
    "softmax_cross_entropy": (
        lambda x: losses.softmax_cross_entropy(x, torch.tensor(LABELS)), LOGITS, cross_entropy_by_scipy(LOGITS, LABELS),
    ),
    "contrastive_tension": (
        lambda x: losses.contrastive_tension(x, torch.tensor(V), torch.tensor(IDENTICAL)),
        U, contrastive_tension_restated(U, V, IDENTICAL),
    ),
    "sts_regression": (
        lambda x: losses.sts_regression(torch.tensor(U), x, torch.tensor(SCORES), 0.35), V,
        sts_restated(U, V, SCORES, 0.35),
    ),
    "info_nce": (lambda x: info_nce(x, 0.5), VIEWS[:2], info_nce_restated(VIEWS[:2], 0.5)),
    "info_nce with hard negatives": (info_nce, VIEWS, info_nce_restated(VIEWS)),
    "embedding_cosine": (
        lambda x: losses.embedding_cosine(x, torch.tensor(V)), U,
        np.array([scipy.spatial.distance.cosine(u, v) for u, v in zip(U, V, strict=True)]),
    ),
    "similarity_mse": (
        lambda x: losses.similarity_mse(x, torch.tensor(V[:, :3]), torch.tensor(COUNTED)), U,
        similarity_mse_restated(U, V[:, :3]),
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


def test_extreme_logits_stay_finite() -> None:
    size = 1e15
    x = torch.tensor([[size, -size, 0.0], [-size, size, 0.0]], requires_grad=True)
    loss = losses.softmax_cross_entropy(x, torch.tensor([1, 1]))
    loss.sum().backward()
    assert torch.isfinite(loss).all() and torch.isfinite(x.grad).all()
    assert loss.detach().tolist() == [pytest.approx(2 * size), 0.0]

    a = torch.tensor([[size, 0.0], [-size, 0.0], [size, 0.0], [-size, 0.0]], requires_grad=True)
    b = torch.ones(4, 2)
    pairs = losses.contrastive_tension(a, b, torch.tensor([1.0, 1.0, 0.0, 0.0]))
    pairs.sum().backward()
    assert torch.isfinite(a.grad).all()
    assert pairs.detach().tolist() == [0.0, pytest.approx(size), pytest.approx(size), 0.0]


def test_zero_vectors_have_finite_gradients() -> None:
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
