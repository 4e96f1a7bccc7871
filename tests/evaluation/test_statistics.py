import math

import numpy as np
import pytest
from scipy import stats

from raysts.errors import InputError
from raysts.evaluation import statistics
from raysts.evaluation.statistics import UndefinedCorrelationError, correlation_samples, pearson, spearman


def correlated(rng: np.random.Generator, n: int, steps: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Predictions and gold scores; with ``steps`` the predictions too have ties."""
    gold = np.round(rng.uniform(0, 5, n) * 5) / 5
    predicted = gold + rng.normal(size=n)
    return (np.round(predicted * steps) / steps if steps else predicted), gold


@pytest.mark.parametrize(("n", "steps"), [(2, None), (3, 1), (50, 1), (50, None), (4000, 3)])
def test_point_values_agree_with_scipy(n: int, steps: int | None) -> None:
    for seed in range(2):
        predicted, gold = correlated(np.random.default_rng([n, seed]), n, steps)
        if np.ptp(predicted) == 0 or np.ptp(gold) == 0:
            continue
        np.testing.assert_allclose(statistics.average_ranks(predicted), stats.rankdata(predicted), atol=0)
        assert pearson(predicted, gold) == pytest.approx(stats.pearsonr(predicted, gold).statistic, abs=1e-12)
        assert spearman(predicted, gold) == pytest.approx(stats.spearmanr(predicted, gold).statistic, abs=1e-12)


def test_pearson_survives_tiny_and_offset_values() -> None:
    gold = np.array([0.0, 1.0, 2.0, 4.0])
    assert pearson(gold * 1e-200, gold) == pytest.approx(1.0, abs=1e-12)
    assert pearson(gold * 1e-6 + 1.0, gold) == pytest.approx(1.0, abs=1e-8)


@pytest.mark.parametrize("steps", [None, 2])
def test_every_resample_has_the_correlation_of_its_rows(steps: int | None) -> None:
    predicted, gold = correlated(np.random.default_rng(1), 200, steps)
    counts = statistics.resample_counts(200, (7,), 150)
    assert counts.shape == (200, 150) and (counts.sum(axis=0) == 200).all()
    samples = correlation_samples(predicted, gold, counts)
    for column in range(0, 150, 5):
        rows = np.repeat(np.arange(200), counts[:, column])
        for metric, of_scipy in (("pearson", stats.pearsonr), ("spearman", stats.spearmanr)):
            expected = of_scipy(predicted[rows], gold[rows]).statistic
            assert samples[metric][column] == pytest.approx(expected, abs=1e-12)


def test_resamples_without_a_correlation_are_left_out() -> None:
    predicted, gold = np.array([0.3, 0.1, 0.7]), np.array([1.0, 2.0, 2.0])
    counts = np.array([[3, 1, 0, 2], [0, 1, 2, 1], [0, 1, 1, 0]], dtype=np.uint8)
    samples = correlation_samples(predicted, gold, counts)
    for metric in ("pearson", "spearman"):
        assert np.isnan(samples[metric]).tolist() == [True, False, True, False]
        low, high = statistics.percentile_interval(samples[metric])
        assert low <= high
    assert statistics.percentile_interval(np.full(3, np.nan)) is None


def test_resampling_draws_rows_uniformly_and_independently() -> None:
    counts = statistics.resample_counts(20, (3,), 20_000).astype(float)
    # A count is binomial(20, 1/20): mean 1, variance .95, covariance of two rows -1/20.
    np.testing.assert_allclose(counts.mean(axis=1), 1.0, atol=0.04)
    covariance = np.cov(counts)
    np.testing.assert_allclose(np.diag(covariance), 0.95, atol=0.06)
    np.testing.assert_allclose(covariance[~np.eye(20, dtype=bool)], -0.05, atol=0.04)


def test_interval_agrees_with_scipy_and_narrows_with_the_level() -> None:
    predicted, gold = correlated(np.random.default_rng(5), 400)
    samples = correlation_samples(predicted, gold, statistics.resample_counts(400, (0,), 2000), ["pearson"])["pearson"]
    low, high = statistics.percentile_interval(samples)
    reference = stats.bootstrap(
        (predicted, gold), lambda x, y: np.corrcoef(x, y)[0, 1], paired=True, vectorized=False,
        n_resamples=2000, method="percentile", rng=np.random.default_rng(9),
    ).confidence_interval  # fmt: skip
    assert (low, high) == pytest.approx((reference.low, reference.high), abs=0.004)
    inner = statistics.percentile_interval(samples, 0.5)
    assert low < inner[0] < inner[1] < high


def test_undefined_correlations_say_what_and_why() -> None:
    gold = np.array([1.0, 2.0, 3.0])
    for correlation in (pearson, spearman):
        with pytest.raises(UndefinedCorrelationError, match=r"all 3 predicted similarities are 0\.5.*collapsed"):
            correlation(np.full(3, 0.5), gold)
        with pytest.raises(UndefinedCorrelationError, match="1 of 3 predicted similarities are not finite"):
            correlation(np.array([0.1, np.nan, 0.3]), gold)
        with pytest.raises(InputError, match="all 3 gold scores are 2"):
            correlation(gold, np.full(3, 2.0))
        with pytest.raises(InputError, match=r"1 row\(s\)"):
            correlation(gold[:1], gold[:1])


# -- two systems on the same rows --------------------------------------------------------------------------------------
def by_determinant(r_a: float, r_b: float, r_ab: float, n: int) -> float:
    """Williams' t as Steiger writes it, from the matrix of correlations itself."""
    matrix = np.array([[1, r_a, r_b], [r_a, 1, r_ab], [r_b, r_ab, 1]])
    mean = 0.5 * (r_a + r_b)
    below = 2 * ((n - 1) / (n - 3)) * np.linalg.det(matrix) + mean**2 * (1 - r_ab) ** 3
    return (r_a - r_b) * math.sqrt((n - 1) * (1 + r_ab) / below)


@pytest.mark.parametrize("r_a, r_b, r_ab, n", [(0.7, 0.65, 0.8, 1379), (-0.2, 0.3, 0.1, 20), (0.9, 0.91, 0.99, 50)])
def test_williams_against_the_determinant(r_a: float, r_b: float, r_ab: float, n: int) -> None:
    found, turned = statistics.williams(r_a, r_b, r_ab, n), statistics.williams(r_b, r_a, r_ab, n)
    assert found is not None and turned is not None
    assert found.t == pytest.approx(by_determinant(r_a, r_b, r_ab, n), rel=1e-9)
    assert turned.t == pytest.approx(-found.t) and turned.p == pytest.approx(found.p)


def test_williams_of_a_published_example_and_at_the_edges() -> None:
    """Steiger (1980, p. 246): n = 103, r_a = .4, r_b = .5, r_ab = .1, T2 = -.89 with 100 degrees of freedom."""
    found, same = statistics.williams(0.4, 0.5, 0.1, 103), statistics.williams(0.8, 0.8, 1.0, 100)
    assert found is not None and found.df == 100 and found.t == pytest.approx(-0.89, abs=0.005)
    assert found.p == pytest.approx(2 * stats.t.cdf(found.t, 100)) and same == (0.0, 97, 1.0)
    assert statistics.williams(0.5, 0.4, 0.3, 3) is None and statistics.williams(0.5, 0.4, 0.3, 4) is not None
    assert statistics.williams(0.8, 0.9, 1.0, 50) is None, "equal ranks cannot correlate differently"
    assert statistics.williams(0.5, -0.4, -1.0, 50) is None, "nor can opposite ones, but for the sign"


def test_paired_t_by_hand() -> None:
    # Mean 2, standard error sqrt(2) / sqrt(2): t = 2 with 1 degree of freedom, p = 1 - 2 arctan(2) / pi.
    assert statistics.paired_t(np.array([1.0, 3.0])) == pytest.approx((2.0, 1, 1 - 2 * math.atan(2) / math.pi))
    assert statistics.paired_t(np.zeros(3)) == (0.0, 2, 1.0) and statistics.paired_t(np.zeros(1)) is None
    assert statistics.paired_t(np.ones(3)) is None, "without a deviation t is infinite"


def test_p_values_by_hand_and_against_scipy() -> None:
    # 1 of 6 in favour of B: 2 (1 + 6) / 2^6.
    assert statistics.mcnemar(5, 1) == statistics.mcnemar(1, 5) == pytest.approx(14 / 64)
    assert statistics.mcnemar(0, 0) == statistics.mcnemar(4, 4) == 1.0
    assert statistics.mcnemar(30, 12) == pytest.approx(min(1.0, 2 * stats.binom.cdf(12, 42, 0.5)))
    assert statistics.bootstrap_p(np.array([1.0, 2.0, 3.0])) == pytest.approx(2 / 4)
    assert statistics.bootstrap_p(np.r_[np.ones(998), -1.0]) == pytest.approx(2 * 2 / 1000)
    assert statistics.bootstrap_p(np.array([0.0, 0.0])) == 1.0, "ties count on both sides"
    assert statistics.bootstrap_p(np.array([np.nan, 1.0])) == 1.0 and statistics.bootstrap_p(np.array([np.nan])) is None
    assert statistics.holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert statistics.holm([0.9, 0.8]) == pytest.approx([1.0, 1.0]) and statistics.holm([]) == []
