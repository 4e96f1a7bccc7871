import numpy as np
import pytest
import scipy.integrate
import scipy.spatial.distance
import scipy.stats

from raysts.ops import similarity
from raysts.ops.similarity import cosine, jensen_shannon, l2_mixture, l2_of_vectors


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_cosine_against_scipy(dtype: type) -> None:
    generator = np.random.default_rng(1)
    a, b = generator.normal(size=(50, 9)).astype(dtype), generator.normal(size=(50, 9)).astype(dtype)
    expected = 1 - scipy.spatial.distance.cdist(a.astype(np.float64), b.astype(np.float64), "cosine").diagonal()
    found = cosine(a, b)
    assert found.dtype == np.float64 and found.shape == (50,)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
    np.testing.assert_allclose(cosine(3 * a, b / 100), found, atol=1e-3 if dtype == np.float16 else 1e-12)
    assert set(cosine(a, a)) == {1.0}, "pairs of equal texts are ties"


def test_zero_rows_have_similarity_zero_and_lengths_do_not_matter() -> None:
    a = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 0.0], [1e-30, 1e-30], [1e30, 1e30]], np.float32)
    b = np.array([[1.0, 2.0], [0.0, 0.0], [0.0, 0.0], [1e-30, 0.0], [1e30, 0.0]], np.float32)
    np.testing.assert_allclose(cosine(a, b), [0.0, 0.0, 0.0, np.sqrt(0.5), np.sqrt(0.5)], rtol=1e-6)


def distributions(rows: int, variables: int, classes: int, seed: int = 0) -> np.ndarray:
    """Some of the probabilities are 0."""
    values = np.random.default_rng(seed).exponential(size=(rows, variables, classes))
    values *= np.random.default_rng(seed + 1).random(values.shape) < 0.7
    values[..., 0] += 0.1
    return values / values.sum(-1, keepdims=True)


def mixtures(rows: int, dims: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """(mu, log_var) with 1 to 5 components a row."""
    generator = np.random.default_rng(seed)
    mu, log_var = np.empty(rows, object), np.empty(rows, object)
    for row in range(rows):
        tokens = int(generator.integers(1, 6))
        mu[row] = generator.normal(size=(tokens, dims))
        log_var[row] = generator.normal(size=(tokens, dims))
    return mu, log_var


def density(x: float, mu: np.ndarray, log_var: np.ndarray) -> float:
    return float(scipy.stats.norm.pdf(x, mu[:, 0], np.exp(log_var[:, 0] / 2)).mean())


def test_the_deviation_of_the_cosines_of_all_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(similarity, "BLOCK", 70)  # ten rows at once
    vectors = np.random.default_rng(0).normal(2.0, size=(37, 7)).astype(np.float32)
    vectors[20] = 0
    expected = 1 - scipy.spatial.distance.pdist(vectors.astype(np.float64), "cosine")
    expected[np.isnan(expected)] = 0.0  # the cosines of a row of zeros
    assert similarity.cosine_deviation(vectors) == pytest.approx(expected.std(), rel=1e-9)
    assert similarity.cosine_deviation(vectors[:1]) == 0 == similarity.cosine_deviation(vectors[:0])
    assert similarity.cosine_deviation(vectors[:1].repeat(4, axis=0)) < 1e-6


def test_jensen_shannon_against_scipy() -> None:
    a, b = distributions(6, 4, 9, 1), distributions(6, 4, 9, 2)
    expected = -(scipy.spatial.distance.jensenshannon(a, b, axis=-1) ** 2).mean(-1)
    found = jensen_shannon(a, b)
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
    np.testing.assert_allclose(jensen_shannon(a.astype(np.float32), b.astype(np.float32)), expected, atol=1e-6)
    assert jensen_shannon(a, a).tolist() == [0.0] * 6
    apart = np.array([[[1.0, 0.0]]]), np.array([[[0.0, 1.0]]])
    assert jensen_shannon(*apart) == pytest.approx(-np.log(2), abs=1e-15)


def test_l2_against_scipy_and_blocks_of_rows_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = distributions(11, 2, 5, 3), distributions(11, 2, 5, 4)
    flat = a.reshape(11, -1), b.reshape(11, -1)
    vectors = [{"vectors": part} for part in flat]
    whole = cosine(*flat), l2_of_vectors(*vectors), jensen_shannon(a, b)
    expected = [-scipy.spatial.distance.euclidean(x, y) for x, y in zip(*flat, strict=True)]
    np.testing.assert_allclose(whole[1], expected, rtol=0, atol=1e-12)
    blocks = [-scipy.spatial.distance.cityblock(x, y) for x, y in zip(*flat, strict=True)]
    np.testing.assert_allclose(similarity.manhattan_of_vectors(*vectors), blocks, rtol=0, atol=1e-12)
    monkeypatch.setattr(similarity, "BLOCK", 40)
    parts = cosine(*flat), l2_of_vectors(*vectors), jensen_shannon(a, b)
    for one, other in zip(whole, parts, strict=True):
        np.testing.assert_array_equal(one, other)
    assert cosine(a[:0, 0], b[:0, 0]).shape == jensen_shannon(a[:0], b[:0]).shape == (0,)


def test_l2_of_mixtures_against_numerical_integration() -> None:
    a, b = mixtures(5, 1, 1), mixtures(5, 1, 2)
    found = l2_mixture(*a, *b)
    assert found.dtype == np.float64 and len({len(mu) for mu in a[0]}) > 1
    for row in range(5):
        p, q = (a[0][row], a[1][row]), (b[0][row], b[1][row])
        centres = sorted({float(m) for m in (*p[0][:, 0], *q[0][:, 0])})
        squared, _ = scipy.integrate.quad(
            lambda x, p=p, q=q: (density(x, *p) - density(x, *q)) ** 2, -25, 25, points=centres, limit=500, epsabs=1e-13
        )
        assert found[row] == pytest.approx(-np.sqrt(squared), abs=1e-6)
    none, one = np.zeros((0, 1)), np.zeros((1, 1))  # a text without tokens has density zero
    found = l2_mixture([none, none], [none, none], [none, one], [none, one])
    assert found == pytest.approx([0.0, -np.sqrt(scipy.stats.norm.pdf(0, scale=np.sqrt(2)))], abs=1e-12)


@pytest.mark.parametrize("log_var", [-12.0, 8.0])
def test_l2_of_mixtures_ranks_in_many_dimensions(log_var: float) -> None:
    """The squared densities integrate to e^-670 or e^600; nearer means are more similar, and a text is most similar to itself."""
    generator = np.random.default_rng(5)
    mu = generator.normal(size=(3, 128))
    away = np.exp(log_var / 2) * generator.normal(size=(3, 128))
    shifts, spread = [0.0, 0.01, 0.02, 0.05, 0.1, 0.2], np.full((3, 128), log_var)
    found = l2_mixture([mu] * 6, [spread] * 6, [mu + shift * away for shift in shifts], [spread] * 6)
    assert np.isfinite(found).all() and found[0] == 0.0 and (np.diff(found) < 0).all()
