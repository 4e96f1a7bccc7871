"""Targets and agreement of several teachers.

Shapes: N texts, D dimensions of a teacher, E those of all, M teachers, K dimensions of the student.
"""

from collections.abc import Callable, Sequence
from typing import Literal, get_args

import numpy as np

Target = Literal["mean", "unit-mean", "concat", "similarity", "gaussian"]
"""``mean``: sum of w v / sum of w over the teachers (SED equation 1). ``unit-mean``: the same of v / |v|. ``concat``: sqrt(w /
sum of w) v / |v|, one after the other; its cosines are the weighted means of the teachers'. ``similarity``: those cosines,
kept as the same vectors. ``gaussian``: mean and log variance of one teacher, side by side."""
TARGETS: tuple[Target, ...] = get_args(Target)

WIDE, MOST_ROWS = 8_192, 4_096
"""Dimensions above which a reduction uses the dot products of rows, and the number of rows. Moments would take many minutes.
Mixtures have thousands of dimensions each."""


def unit(vectors_ND: np.ndarray) -> np.ndarray:
    """Return the rows at length 1. A row of zeros stays."""
    return vectors_ND / np.maximum(np.linalg.norm(vectors_ND, axis=1, keepdims=True), 1e-12)  # type: ignore[no-any-return]


def added(target: Target, total: np.ndarray | None, vectors_ND: np.ndarray, weight: float = 1.0) -> np.ndarray:
    """Add the vectors of one more teacher to ``total`` (None: the first teacher), float32.

    Weights of 1 give the unweighted sum bit for bit: ((v0 + v1) + v2) / 3.
    """
    part = vectors_ND if target in ("mean", "gaussian") else unit(vectors_ND)
    if target not in ("concat", "similarity"):
        part = part if weight == 1.0 else part * np.float32(weight)
        return part if total is None else total + part
    part = part * np.float32(np.sqrt(weight))
    return part if total is None else np.concatenate([total, part], axis=1)


def combine(target: Target, total: np.ndarray, weights: Sequence[float]) -> np.ndarray:
    """Return the target of all teachers from the total of :func:`added` -> float32 [N, D or E]."""
    weight = float(sum(weights))
    return total / np.float32(np.sqrt(weight) if target in ("concat", "similarity") else weight)


def reduction(parts: Sequence[np.ndarray], width: int) -> np.ndarray:
    """Return the map that keeps most of the vectors' second moment -> float32 [E, width].

    Without centring it changes dot products, and so cosines, least of all maps of that width (Eckart and Young).
    Deterministic: the largest number of an eigenvector is positive. Dimensions beyond E are zero. ``parts``: vectors
    [N, E] to fit, up to ``MOST_ROWS`` of them if E is above ``WIDE``.
    """
    if parts[0].shape[1] > WIDE:
        step = -(-sum(map(len, parts)) // MOST_ROWS)
        rows_NE = np.concatenate([part[::step] for part in parts]).astype(np.float64)
        values_N, vectors_NN = np.linalg.eigh(rows_NE @ rows_NE.T)
        nonzero_K = np.flatnonzero(values_N > 1e-10 * values_N[-1])[::-1][:width]
        largest_EK = rows_NE.T @ (vectors_NN[:, nonzero_K] / np.sqrt(values_N[nonzero_K]))
    else:
        moment_EE = np.zeros((parts[0].shape[1],) * 2)
        for part in parts:
            moment_EE += part.T.astype(np.float64) @ part.astype(np.float64)
        vectors_EE: np.ndarray = np.linalg.eigh(moment_EE).eigenvectors
        largest_EK = vectors_EE[:, ::-1][:, :width]
    signs_K = np.sign(largest_EK[np.abs(largest_EK).argmax(0), np.arange(largest_EK.shape[1])])
    return np.pad(largest_EK * signs_K, ((0, 0), (0, width - largest_EK.shape[1]))).astype(np.float32)


def turn(target_NK: np.ndarray, start_NK: np.ndarray) -> np.ndarray:
    """Return the orthogonal map from the target to the untrained student -> float32 [K, K].

    Procrustes (Schoenemann 1966) of the unit vectors. No cosine of the target changes. The student then need not learn
    the teachers' axes for directions that it knows already.
    """
    target, start = (unit(vectors.astype(np.float64)) for vectors in (target_NK, start_NK))
    left_KK, _, right_KK = np.linalg.svd(target.T @ start)
    return (left_KK @ right_KK).astype(np.float32)  # type: ignore[no-any-return]


STEPS = 0.25, 0.1, 0.04
"""Moves of a weight, of all weights together 1."""


def best_weights(score: Callable[[tuple[float, ...]], float], count: int) -> tuple[float, ...]:
    """Return the weights, which sum to 1, that a search from equal ones finds.

    It moves one weight at a time, up or down, as long as the best move of a step raises the score, by ``STEPS`` in their
    order. Deterministic.
    """
    weights, reached = (1 / count,) * count, score((1 / count,) * count)
    for step in STEPS:
        while True:
            moved = [
                [max(0.0, weight + (move if number == m else 0.0)) for m, weight in enumerate(weights)]
                for number in range(count)
                for move in (step, -step)
            ]
            candidates = [tuple(w / sum(row) for w in row) for row in moved]
            value, best = max(((score(row), row) for row in candidates), key=lambda pair: pair[0])
            if value <= reached:
                break
            weights, reached = best, value
    return weights


def agreement(vectors: Sequence[np.ndarray]) -> list[float]:
    """Return how well each teacher's cosines rank all pairs of texts as the others' do.

    The mean Spearman correlation with the others: 0 if negative, 1 for a single teacher.
    """
    ranks = []
    for teacher_ND in vectors:
        units_ND = unit(teacher_ND.astype(np.float64))
        cosines = (units_ND @ units_ND.T)[np.triu_indices(len(units_ND), 1)]
        rank = np.empty(len(cosines))
        rank[np.argsort(cosines, kind="stable")] = np.arange(len(cosines))  # numbers of real texts hardly ever tie
        ranks.append(rank)
    if len(ranks) == 1:
        return [1.0]
    correlations_MM: np.ndarray = np.atleast_2d(np.corrcoef(ranks))
    return [float(max(0.0, np.delete(correlations_MM[m], m).mean())) for m in range(len(ranks))]
