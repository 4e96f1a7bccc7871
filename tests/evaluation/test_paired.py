from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from raysts.evaluation.paired import bootstrap_p, holm, mcnemar, williams


def by_determinant(r_a: float, r_b: float, r_ab: float, n: int) -> float:
    """Williams' t as Steiger writes it, from the matrix of correlations itself."""
    matrix = np.array([[1, r_a, r_b], [r_a, 1, r_ab], [r_b, r_ab, 1]])
    mean = 0.5 * (r_a + r_b)
    below = 2 * ((n - 1) / (n - 3)) * np.linalg.det(matrix) + mean**2 * (1 - r_ab) ** 3
    return (r_a - r_b) * math.sqrt((n - 1) * (1 + r_ab) / below)


def test_williams_of_a_published_example() -> None:
    """Steiger (1980, p. 246): n = 103, r_a = .4, r_b = .5, r_ab = .1, T2 = -.89 with 100 degrees of freedom."""
    found = williams(0.4, 0.5, 0.1, 103)
    assert found is not None and found.df == 100
    assert found.t == pytest.approx(-0.89, abs=0.005)
    assert found.p == pytest.approx(2 * stats.t.cdf(found.t, 100))


@pytest.mark.parametrize(
    ("r_a", "r_b", "r_ab", "n"), [(0.7, 0.65, 0.8, 1379), (-0.2, 0.3, 0.1, 20), (0.9, 0.91, 0.99, 50)]
)
def test_williams_against_the_determinant(r_a: float, r_b: float, r_ab: float, n: int) -> None:
    found, turned = williams(r_a, r_b, r_ab, n), williams(r_b, r_a, r_ab, n)
    assert found is not None and turned is not None
    assert found.t == pytest.approx(by_determinant(r_a, r_b, r_ab, n), rel=1e-9)
    assert turned.t == pytest.approx(-found.t) and turned.p == pytest.approx(found.p)


def test_williams_at_the_edges() -> None:
    assert williams(0.5, 0.4, 0.3, 3) is None
    same = williams(0.8, 0.8, 1.0, 100)
    assert same is not None and (same.t, same.p) == (0.0, 1.0)


def trials(rng: np.random.Generator, count: int, n: int, noise_b: float) -> list[tuple[np.ndarray, ...]]:
    """Gold scores and two systems whose errors are partly shared; B's own errors are ``noise_b`` times as large."""
    found = []
    for _ in range(count):
        gold, shared = rng.normal(size=(2, n))
        own_a, own_b = rng.normal(size=(2, n))
        found.append((gold, gold + shared + own_a, gold + shared + noise_b * own_b))
    return found


@pytest.mark.parametrize("rank", [False, True])
def test_williams_raises_false_alarms_at_the_stated_rate_and_sees_a_difference(rank: bool) -> None:
    rng = np.random.default_rng(3)

    def share_below(noise_b: float) -> float:
        alarms = 0
        for variables in trials(rng, 500, 80, noise_b):
            values = [stats.rankdata(v) for v in variables] if rank else variables
            r = np.corrcoef(values)
            found = williams(r[0, 1], r[0, 2], r[1, 2], 80)
            assert found is not None
            alarms += found.p < 0.05
        return alarms / 500

    # 500 tests at .05: standard deviation .0097
    assert 0.02 <= share_below(1.0) <= 0.085
    assert share_below(3.0) > 0.6


def test_mcnemar_by_hand_and_against_scipy() -> None:
    # 1 of 6 in favour of B: 2 (1 + 6) / 2^6.
    assert mcnemar(5, 1) == mcnemar(1, 5) == pytest.approx(14 / 64)
    assert mcnemar(0, 0) == mcnemar(4, 4) == 1.0
    assert mcnemar(30, 12) == pytest.approx(min(1.0, 2 * stats.binom.cdf(12, 42, 0.5)))


def test_bootstrap_p_by_hand() -> None:
    assert bootstrap_p(np.array([1.0, 2.0, 3.0])) == pytest.approx(2 / 4)
    assert bootstrap_p(np.r_[np.ones(998), -1.0]) == pytest.approx(2 * 2 / 1000)
    assert bootstrap_p(np.array([0.0, 0.0])) == 1.0, "ties count on both sides"
    assert bootstrap_p(np.array([np.nan, 1.0])) == 1.0
    assert bootstrap_p(np.array([np.nan])) is None


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.9, 0.8]) == pytest.approx([1.0, 1.0]) and holm([]) == []
