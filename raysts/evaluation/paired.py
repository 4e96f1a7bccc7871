"""Tests of two systems on the same rows. Shapes: N rows, R resamples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats


class Williams(NamedTuple):
    """Williams' t, its degrees of freedom, its two-sided p."""

    t: float
    df: int
    p: float


def williams(r_a: float, r_b: float, r_ab: float, n: int) -> Williams | None:
    """Whether two correlations with one variable (the gold scores) differ, all three measured on the same rows.

    Williams (1959) in the form that Steiger (1980, eq. 7, "T2") recommends:

        t = (r_a - r_b) sqrt((n - 1)(1 + r_ab) / (2 (n - 1)/(n - 3) |R| + ((r_a + r_b)/2)^2 (1 - r_ab)^3)),

    |R| = 1 - r_a^2 - r_b^2 - r_ab^2 + 2 r_a r_b r_ab, df = n - 3. With rank correlations it holds approximately.

    Args:
        r_a: correlation of system A with the gold scores.
        r_b: correlation of system B with them.
        r_ab: correlation of A with B.
        n: number of rows.

    Returns:
        None for fewer than four rows. Equal systems have t 0 and p 1.
    """
    if n < 4:
        return None
    if r_a == r_b:
        return Williams(0.0, n - 3, 1.0)
    # rounding makes the determinant of systems that agree perfectly negative
    determinant = max(0.0, 1.0 - r_a**2 - r_b**2 - r_ab**2 + 2.0 * r_a * r_b * r_ab)
    mean = (r_a + r_b) / 2.0
    variance = 2.0 * (n - 1) / (n - 3) * determinant + mean**2 * (1.0 - r_ab) ** 3
    top = (n - 1) * (1.0 + r_ab)
    if variance <= 0.0 or top <= 0.0:
        return None
    t = (r_a - r_b) * math.sqrt(top / variance)
    return Williams(t, n - 3, float(2.0 * stats.t.sf(abs(t), n - 3)))


def mcnemar(only_a: int, only_b: int) -> float:
    """McNemar's exact two-sided p: of the rows that one of two systems alone has right, either may as well be the one.

    Args:
        only_a: rows that A has right and B wrong.
        only_b: rows that B has right and A wrong.
    """
    if only_a + only_b == 0:
        return 1.0
    return float(stats.binomtest(only_a, only_a + only_b, 0.5).pvalue)


def bootstrap_p(differences_R: np.ndarray) -> float | None:
    """Two-sided p of no difference: twice the smaller share of resamples on either side of 0, both counting ties.

    One resample is added to each side (Davison & Hinkley 1997, section 4.2), so that p is never 0; the smallest that R
    resamples can give is 2 / (R + 1). None where no resample has a value.
    """
    defined = differences_R[np.isfinite(differences_R)]
    if not len(defined):
        return None
    below, above = int((defined <= 0).sum()), int((defined >= 0).sum())
    return float(min(1.0, 2.0 * (min(below, above) + 1) / (len(defined) + 1)))


def holm(p_values: Sequence[float]) -> list[float]:
    """p values of several tests, adjusted so that one false alarm among all of them has the stated rate (Holm 1979)."""
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = largest
    return adjusted
