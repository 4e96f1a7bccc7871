"""Precision and recall of scores against a yes or no, and the threshold that tells them apart best.

Shapes: N rows, R resamples.
"""

from __future__ import annotations

import numpy as np

_BLOCK = 64  # resamples worked on together, as in ``statistics``


def precision_recall_areas(
    scores_N: np.ndarray, positive_N: np.ndarray, counts_NR: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Area under the precision-recall curve by the trapezoidal rule, and average precision.

    The points of the curve are the distinct scores and (recall 0, precision 1). GaussCSE's AUC is the trapezoidal one.

    Args:
        scores_N: larger for what is called positive first.
        positive_N: bool, what is positive.
        counts_NR: how often each row counts; every column has its own result.

    Returns:
        two vectors [R]; NaN where no positive row counts.
    """
    order = np.argsort(-scores_N, kind="stable")
    positive = positive_N[order, None]
    last_of_equals = np.flatnonzero(np.append(np.diff(scores_N[order]) != 0, True))
    areas = np.empty((2, counts_NR.shape[1]))
    for first in range(0, counts_NR.shape[1], _BLOCK):
        drawn = counts_NR[order, first : first + _BLOCK].astype(np.float64)
        called = np.cumsum(drawn, axis=0)[last_of_equals]
        right = np.cumsum(drawn * positive, axis=0)[last_of_equals]
        precision = np.divide(right, called, out=np.ones_like(right), where=called > 0)
        precision = np.concatenate([np.ones_like(precision[:1]), precision])
        with np.errstate(invalid="ignore"):
            recall = np.concatenate([np.zeros_like(right[:1]), right]) / right[-1]
        width = np.diff(recall, axis=0)
        areas[0, first : first + _BLOCK] = (width * (precision[1:] + precision[:-1])).sum(axis=0) / 2
        areas[1, first : first + _BLOCK] = (width * precision[1:]).sum(axis=0)
    return areas[0], areas[1]


def best_threshold(scores_N: np.ndarray, positive_N: np.ndarray, candidates: np.ndarray) -> float:
    """The first of the ``candidates`` with the highest accuracy of ``score >= threshold``."""
    positives, negatives = np.sort(scores_N[positive_N]), np.sort(scores_N[~positive_N])
    right = len(positives) - np.searchsorted(positives, candidates) + np.searchsorted(negatives, candidates)
    return float(candidates[np.argmax(right)])
