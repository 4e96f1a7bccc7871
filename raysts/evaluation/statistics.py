"""Correlations, accuracies and areas, their bootstrap intervals, and tests of two systems.

Legend: N rows (pairs), R resamples, G groups of equal values.

A resample of N rows is kept as how often each row was drawn (counts [N, R]). The average ranks inside a resample are
then cumulative sums of counts in the order of the full sample, so that no resample is ever sorted.
"""

import math
import zlib
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Literal, NamedTuple

import numpy as np

from raysts.errors import InputError, RunFailed

Metric = Literal["pearson", "spearman"]
METRICS: tuple[Metric, ...] = ("pearson", "spearman")

BOOTSTRAP_SEED = 0
RESAMPLES = 1000

_BLOCK = 64  # resamples worked on together: N x 64 numbers of a set of 4,000 rows stay in the second-level cache
_MOST_REMEMBERED = 1 << 25  # bytes of a set's resamples
_DEGENERATE = 1e-12  # below this share of the sample's variance a resample has one distinct value, the rest is rounding


class UndefinedCorrelationError(RunFailed):
    """The predicted values have no correlation with anything: all are equal, or some are not finite."""


def require_finite(values: np.ndarray, before: str, after: str) -> None:
    """Raise UndefinedCorrelationError unless all rows of a model's values are finite.

    The message has the number of those that are not between the two texts.
    """
    if values.dtype == object:  # arrays of a text's tokens, of many lengths
        finite = [np.isfinite(row).all() for row in values]
    else:
        finite = np.isfinite(values.reshape(len(values), -1)).all(axis=1)
    if bad := len(values) - int(np.sum(finite)):
        raise UndefinedCorrelationError(
            f"{before}{bad} of {len(values)} {after} not finite: the model gives NaN or infinite values (training diverged?); "
            f"use an earlier checkpoint or a lower learning rate"
        )


def pearson(predicted: np.ndarray, gold: np.ndarray) -> float:
    """Return Pearson's product-moment correlation of two vectors [N].

    Raises:
        UndefinedCorrelationError: ``predicted`` is constant or holds values that are not finite.
        InputError: fewer than two rows, or ``gold`` is constant.
    """
    return _pearson(*_check(predicted, gold))


def spearman(predicted: np.ndarray, gold: np.ndarray) -> float:
    """Return Spearman's rank correlation of two vectors [N]. Raises as :func:`pearson`."""
    return _pearson(*map(average_ranks, _check(predicted, gold)))


CORRELATIONS: dict[Metric, Callable[[np.ndarray, np.ndarray], float]] = {"pearson": pearson, "spearman": spearman}


def average_ranks(values: np.ndarray) -> np.ndarray:
    """Return ranks 1..N [N] float64. Equal values share the average of their ranks."""
    _, group, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2.0)[group]


@lru_cache(maxsize=64)
def resample_counts(n: int, seed: tuple[int, ...], resamples: int) -> np.ndarray:
    """Return how often each row occurs in each resample of ``n`` draws -> uint8 [N, R], read-only.

    The result is cached, because systems that are compared on one set share their resamples.
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


def resample_set(label: str, n: int, resamples: int) -> np.ndarray:
    """Return :func:`resample_counts` with random numbers named by ``label``. Large ones are not cached."""
    draw = resample_counts if n * resamples <= _MOST_REMEMBERED else resample_counts.__wrapped__
    return draw(n, (BOOTSTRAP_SEED, zlib.crc32(label.encode())), resamples)


def correlation_samples(
    predicted: np.ndarray, gold: np.ndarray, counts: np.ndarray, metrics: Sequence[Metric] = METRICS
) -> dict[Metric, np.ndarray]:
    """Return the correlations of every resample, [R] per metric, NaN if undefined.

    ``counts`` [N, R] are of :func:`resample_counts`; the columns of two systems on the same rows are paired.
    """
    order, group, starts = _groups(predicted)
    gold_order, gold_group, gold_starts = _groups(gold)
    gold_group_in_order = gold_group[order]
    x, y = _standardise(predicted[order]), _standardise(gold[order])
    moments = np.stack([x, y, x * x, y * y, x * y])  # for one matrix product
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
    """Return the central ``level`` of the bootstrap samples [R] that have a value, or None."""
    defined = samples[np.isfinite(samples)]
    if not len(defined):
        return None
    low, high = np.quantile(defined, [(1.0 - level) / 2.0, (1.0 + level) / 2.0])
    return float(low), float(high)


def _check(predicted: np.ndarray, gold: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    predicted, gold = np.asarray(predicted, dtype=np.float64), np.asarray(gold, dtype=np.float64)
    assert predicted.shape == gold.shape and gold.ndim == 1, (predicted.shape, gold.shape)
    if len(gold) < 2:
        raise InputError(f"{len(gold)} row(s): a correlation needs at least two rows; add rows or remove the set")
    require_finite(predicted, "", "predicted similarities are")
    if predicted.min() == predicted.max():
        raise UndefinedCorrelationError(
            f"all {len(predicted)} predicted similarities are {predicted[0]:g}, so their correlation with the gold "
            f"scores is undefined: the model has collapsed, it gives every sentence the same vector; train it again with a "
            f"lower learning rate, or use an earlier checkpoint"
        )
    if not np.isfinite(gold).all():
        raise InputError("gold scores must be finite numbers; correct or remove the rows")
    if gold.min() == gold.max():
        raise InputError(
            f"all {len(gold)} gold scores are {gold[0]:g}: a correlation needs scores that differ; remove the set"
        )
    return predicted, gold


def _pearson(x: np.ndarray, y: np.ndarray) -> float:
    x, y = _standardise(x), _standardise(y)
    return float(np.clip((x @ y) / np.sqrt((x @ x) * (y @ y)), -1.0, 1.0))


def _groups(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the ascending order [N], each row's group of equal values [N], the groups' starts [G]."""
    order = np.argsort(values, kind="stable")
    new = np.diff(values[order], prepend=-np.inf) > 0
    group = np.empty(len(values), dtype=np.int64)
    group[order] = np.cumsum(new) - 1
    return order, group, np.flatnonzero(new)


def _centred_ranks(drawn: np.ndarray) -> np.ndarray:
    """Return average ranks minus their mean, from counts [G, R] of ascending values, exact."""
    ranks = np.cumsum(drawn, axis=0)
    centre = ranks[-1] / 2.0
    ranks -= drawn / 2.0
    ranks -= centre
    return ranks


def _standardise(values: np.ndarray) -> np.ndarray:
    """Return values minus their mean, at most 1: squares of 1e-170 would underflow to a variance of 0."""
    centred = values - values.mean()
    return np.asarray(centred / np.abs(centred).max())


def _weighted_pearson(moments: np.ndarray, drawn: np.ndarray) -> np.ndarray:
    """Return Pearson's correlation of each resample, from x, y, xx, yy, xy [5, N] of standardised vectors."""
    x, y, xx, yy, xy = (moments @ drawn) / moments.shape[1]
    floor_x, floor_y = _DEGENERATE * moments[2].mean(), _DEGENERATE * moments[3].mean()
    return _ratio(xy - x * y, xx - x * x, yy - y * y, floor_x, floor_y)


def _ratio(
    covariance: np.ndarray, variance_x: np.ndarray, variance_y: np.ndarray, floor_x: float, floor_y: float
) -> np.ndarray:
    defined = (variance_x > floor_x) & (variance_y > floor_y)
    product = np.where(defined, variance_x * variance_y, 1.0)
    return np.where(defined, np.clip(covariance / np.sqrt(product), -1.0, 1.0), np.nan)


def precision_recall_areas(
    scores_N: np.ndarray, positive_N: np.ndarray, counts_NR: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Area under the precision-recall curve by the trapezoidal rule, and average precision.

    The points of the curve are the distinct scores and (recall 0, precision 1). GaussCSE's AUC is the trapezoidal one. Every
    column of ``counts_NR``, how often each row counts, has its own result.

    Returns:
        two vectors [R]; NaN without a positive row that counts.
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
    """Return the first of the ``candidates`` with the highest accuracy of ``score >= threshold``."""
    positives, negatives = np.sort(scores_N[positive_N]), np.sort(scores_N[~positive_N])
    right = len(positives) - np.searchsorted(positives, candidates) + np.searchsorted(negatives, candidates)
    return float(candidates[np.argmax(right)])


class TTest(NamedTuple):
    """A statistic t, its degrees of freedom, its two-sided p."""

    t: float
    df: int
    p: float


def williams(r_a: float, r_b: float, r_ab: float, n: int) -> TTest | None:
    """Return the test of two correlations with one variable (the gold scores), measured on the same rows.

    Williams (1959) in the form that Steiger (1980, eq. 7, "T2") recommends:

        t = (r_a - r_b) sqrt((n - 1)(1 + r_ab) / (2 (n - 1)/(n - 3) |R| + ((r_a + r_b)/2)^2 (1 - r_ab)^3)),

    |R| = 1 - r_a^2 - r_b^2 - r_ab^2 + 2 r_a r_b r_ab, df = n - 3. With rank correlations it holds approximately.

    Returns:
        None for fewer than four rows. Equal systems have t 0 and p 1.
    """
    if n < 4:
        return None
    if r_a == r_b:
        return TTest(0.0, n - 3, 1.0)
    # rounding makes the determinant of systems that agree perfectly negative
    determinant = max(0.0, 1.0 - r_a**2 - r_b**2 - r_ab**2 + 2.0 * r_a * r_b * r_ab)
    mean = (r_a + r_b) / 2.0
    variance = 2.0 * (n - 1) / (n - 3) * determinant + mean**2 * (1.0 - r_ab) ** 3
    top = (n - 1) * (1.0 + r_ab)
    if variance <= 0.0 or top <= 0.0:
        return None
    return _t_test((r_a - r_b) * math.sqrt(top / variance), n - 3)


def paired_t(differences_N: np.ndarray) -> TTest | None:
    """Return Student's t-test of the mean of paired differences (a metric of every query).

    Smucker et al. (2007) find it as good as a randomisation test for such metrics. A single row has None; rows without any
    difference have t 0 and p 1.
    """
    n = len(differences_N)
    if n < 2:
        return None
    mean, deviation = float(differences_N.mean()), float(differences_N.std(ddof=1))
    if deviation == 0.0:
        return TTest(0.0, n - 1, 1.0) if mean == 0.0 else None
    return _t_test(mean / (deviation / math.sqrt(n)), n - 1)


def _t_test(t: float, freedom: int) -> TTest:
    from scipy import special  # not above: it takes a fifth of a second, and every process that trains comes by here

    return TTest(t, freedom, float(2.0 * special.stdtr(freedom, -abs(t))))


def mcnemar(only_a: int, only_b: int) -> float:
    """Return McNemar's exact two-sided p from the rows that one of two systems alone has right."""
    from scipy import special

    if only_a + only_b == 0:
        return 1.0
    return float(min(1.0, 2.0 * special.bdtr(min(only_a, only_b), only_a + only_b, 0.5)))


def bootstrap_p(differences_R: np.ndarray) -> float | None:
    """Return the two-sided p of no difference, from the smaller share of resamples on a side of 0.

    One resample is added to each side (Davison & Hinkley 1997, section 4.2), so that p is never 0; the smallest that R
    resamples can give is 2 / (R + 1). None if no resample has a value.
    """
    defined = differences_R[np.isfinite(differences_R)]
    if not len(defined):
        return None
    below, above = int((defined <= 0).sum()), int((defined >= 0).sum())
    return float(min(1.0, 2.0 * (min(below, above) + 1) / (len(defined) + 1)))


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p values adjusted so that one false alarm among all tests has the stated rate (Holm 1979)."""
    order = np.argsort(p_values, kind="stable")
    adjusted = np.empty(len(order))
    adjusted[order] = np.maximum.accumulate(np.arange(len(order), 0, -1) * np.asarray(p_values)[order]).clip(max=1.0)
    return [float(p) for p in adjusted]
