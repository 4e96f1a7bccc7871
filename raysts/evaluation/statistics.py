"""Correlations and their bootstrap intervals.

Legend: N rows (pairs), R resamples, G groups of equal values.

A resample of N rows is kept as how often each row was drawn (counts [N, R]). The average ranks inside a resample are
then cumulative sums of counts in the order of the full sample, so that no resample is ever sorted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Literal

import numpy as np

from raysts.errors import InputError

Metric = Literal["pearson", "spearman"]
METRICS: tuple[Metric, ...] = ("pearson", "spearman")

_BLOCK = 64  # resamples worked on together: N x 64 numbers of a set of 4,000 rows stay in the second-level cache
_DEGENERATE = 1e-12  # below this share of the sample's variance a resample has one distinct value, the rest is rounding


class UndefinedCorrelationError(RuntimeError):
    """The predicted values have no correlation with anything: all are equal, or some are not finite."""


def pearson(predicted: np.ndarray, gold: np.ndarray) -> float:
    """Pearson's product-moment correlation of two vectors [N].

    Raises:
        UndefinedCorrelationError: ``predicted`` is constant or holds values that are not finite.
        InputError: fewer than two rows, or ``gold`` is constant.
    """
    predicted, gold = _checked(predicted, gold)
    return _pearson(predicted, gold)


def spearman(predicted: np.ndarray, gold: np.ndarray) -> float:
    """Spearman's rank correlation of two vectors [N], ties at their average rank; raises as :func:`pearson`."""
    predicted, gold = _checked(predicted, gold)
    return _pearson(average_ranks(predicted), average_ranks(gold))


CORRELATIONS: dict[Metric, Callable[[np.ndarray, np.ndarray], float]] = {"pearson": pearson, "spearman": spearman}


def average_ranks(values: np.ndarray) -> np.ndarray:
    """Ranks 1..N [N] float64; equal values share the average of their ranks."""
    _, group, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2.0)[group]


@lru_cache(maxsize=64)
def resample_counts(n: int, seed: tuple[int, ...], resamples: int) -> np.ndarray:
    """How often each of ``n`` rows occurs in each resample of ``n`` draws with replacement: uint8 [N, R], read-only.

    A function of its arguments alone, and remembered: systems compared on one set share their resamples.
    """
    rng = np.random.default_rng(seed)
    counts = np.empty((n, resamples), dtype=np.uint8)
    for start in range(0, resamples, _BLOCK):
        width = min(_BLOCK, resamples - start)
        cells = rng.integers(0, n, size=(n, width)) * width + np.arange(width)
        block = np.bincount(cells.ravel(), minlength=n * width)
        assert block.max() <= np.iinfo(np.uint8).max
        counts[:, start : start + width] = block.reshape(n, width)
    counts.flags.writeable = False
    return counts


def correlation_samples(
    predicted: np.ndarray, gold: np.ndarray, counts: np.ndarray, metrics: Sequence[Metric] = METRICS
) -> dict[Metric, np.ndarray]:
    """The correlations of every resample: one vector [R] per metric, NaN where a resample has none.

    Args:
        predicted: [N] finite.
        gold: [N] finite.
        counts: [N, R] of :func:`resample_counts`; the columns of two systems on the same rows are paired.
    """
    order, group, starts = _groups(predicted)
    gold_order, gold_group, gold_starts = _groups(gold)
    gold_group_in_order = gold_group[order]
    moments = _moments(predicted[order], gold[order])
    samples: dict[Metric, np.ndarray] = {metric: np.empty(counts.shape[1]) for metric in metrics}
    for start in range(0, counts.shape[1], _BLOCK):
        block = slice(start, start + _BLOCK)
        drawn = counts[order, block].astype(np.float64)
        if "pearson" in samples:
            samples["pearson"][block] = _weighted_pearson(moments, drawn)
        if "spearman" in samples:
            gold_drawn = np.add.reduceat(counts[gold_order, block], gold_starts, axis=0, dtype=np.float64)
            ranks = _centred_ranks(drawn if len(starts) == len(order) else np.add.reduceat(drawn, starts, axis=0))
            gold_ranks = _centred_ranks(gold_drawn)
            if len(starts) != len(order):
                ranks = ranks[group[order]]
            weighted = drawn * ranks
            covariance = np.einsum("nr,nr->r", weighted, gold_ranks[gold_group_in_order])
            variance = np.einsum("nr,nr->r", weighted, ranks)
            gold_variance = np.einsum("gr,gr,gr->r", gold_drawn, gold_ranks, gold_ranks)
            samples["spearman"][block] = _ratio(covariance, variance, gold_variance, 0.0, 0.0)
    return samples


def percentile_interval(samples: np.ndarray, level: float = 0.95) -> tuple[float, float] | None:
    """The central ``level`` of the bootstrap samples [R], leaving out those without a value; None when none has one."""
    defined = samples[np.isfinite(samples)]
    if not len(defined):
        return None
    low, high = np.quantile(defined, [(1.0 - level) / 2.0, (1.0 + level) / 2.0])
    return float(low), float(high)


def bootstrap_interval(
    predicted: np.ndarray,
    gold: np.ndarray,
    statistic: Metric,
    seed: int | tuple[int, ...],
    resamples: int = 1000,
    level: float = 0.95,
) -> tuple[float, float] | None:
    """Percentile bootstrap interval of a correlation (rows drawn with replacement); raises as :func:`pearson`."""
    predicted, gold = _checked(predicted, gold)
    counts = resample_counts(len(gold), (seed,) if isinstance(seed, int) else seed, resamples)
    return percentile_interval(correlation_samples(predicted, gold, counts, [statistic])[statistic], level)


def _checked(predicted: np.ndarray, gold: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    predicted, gold = np.asarray(predicted, dtype=np.float64), np.asarray(gold, dtype=np.float64)
    assert predicted.shape == gold.shape and gold.ndim == 1, (predicted.shape, gold.shape)
    if len(gold) < 2:
        raise InputError(f"{len(gold)} row(s): a correlation needs at least two rows; add rows or leave the set out")
    bad = int(len(predicted) - np.isfinite(predicted).sum())
    if bad:
        raise UndefinedCorrelationError(
            f"{bad} of {len(predicted)} predicted similarities are not finite: the model gives NaN or infinite values "
            f"(training diverged?); use an earlier checkpoint or a lower learning rate"
        )
    if predicted.min() == predicted.max():
        raise UndefinedCorrelationError(
            f"all {len(predicted)} predicted similarities are {predicted[0]:g}, so their correlation with the gold "
            f"scores is undefined: the model has collapsed or gives every sentence the same vector"
        )
    if not np.isfinite(gold).all():
        raise InputError("gold scores must be finite numbers; correct or remove the rows")
    if gold.min() == gold.max():
        raise InputError(
            f"all {len(gold)} gold scores are {gold[0]:g}: a correlation needs scores that differ; leave the set out"
        )
    return predicted, gold


def _pearson(x: np.ndarray, y: np.ndarray) -> float:
    x, y = x - x.mean(), y - y.mean()
    # Scaled before squaring: differences of 1e-170 would underflow to a variance of zero.
    x, y = x / np.abs(x).max(), y / np.abs(y).max()
    return float(np.clip((x @ y) / np.sqrt((x @ x) * (y @ y)), -1.0, 1.0))


def _groups(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Ascending order of the rows [N], each row's group of equal values [N], each group's start in the order [G]."""
    order = np.argsort(values, kind="stable")
    new = np.diff(values[order], prepend=-np.inf) > 0
    group = np.empty(len(values), dtype=np.int64)
    group[order] = np.cumsum(new) - 1
    return order, group, np.flatnonzero(new)


def _centred_ranks(drawn: np.ndarray) -> np.ndarray:
    """Average ranks minus their mean, from the counts [G, R] of ascending values; exact (halves of integers)."""
    ranks = np.cumsum(drawn, axis=0)
    centre = ranks[-1] / 2.0
    ranks -= drawn / 2.0
    ranks -= centre
    return ranks


def _moments(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Rows x, y, xx, yy, xy [5, N] of the standardised vectors: sums over a resample are one matrix product."""
    x, y = x - x.mean(), y - y.mean()
    x, y = x / np.abs(x).max(), y / np.abs(y).max()
    return np.stack([x, y, x * x, y * y, x * y])


def _weighted_pearson(moments: np.ndarray, drawn: np.ndarray) -> np.ndarray:
    n = moments.shape[1]
    x, y, xx, yy, xy = (moments @ drawn) / n
    floor_x, floor_y = _DEGENERATE * moments[2].mean(), _DEGENERATE * moments[3].mean()
    return _ratio(xy - x * y, xx - x * x, yy - y * y, floor_x, floor_y)


def _ratio(
    covariance: np.ndarray, variance_x: np.ndarray, variance_y: np.ndarray, floor_x: float, floor_y: float
) -> np.ndarray:
    defined = (variance_x > floor_x) & (variance_y > floor_y)
    product = np.where(defined, variance_x * variance_y, 1.0)
    return np.where(defined, np.clip(covariance / np.sqrt(product), -1.0, 1.0), np.nan)
