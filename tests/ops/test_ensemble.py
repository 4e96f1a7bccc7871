import numpy as np
import pytest
import scipy.spatial.distance
import scipy.stats
import sklearn.decomposition

from raysts.ops import ensemble

GENERATOR = np.random.default_rng(0)
VECTORS = [GENERATOR.normal(size=(9, 6)).astype(np.float32) * length for length in (1, 3, 0.5)]


def of(target: ensemble.Target, vectors: list[np.ndarray], weights: list[float]) -> np.ndarray:
    total = None
    for each, weight in zip(vectors, weights, strict=True):
        total = ensemble.added(target, total, each, weight)
    assert total is not None
    return ensemble.combine(target, total, weights)


@pytest.mark.parametrize("target", ensemble.TARGETS)
def test_a_weight_is_how_often_a_teacher_counts(target: ensemble.Target) -> None:
    twice = of(target, [VECTORS[0], *VECTORS], [1.0] * 4)
    weighted = of(target, VECTORS, [2.0, 1.0, 1.0])
    np.testing.assert_allclose(weighted @ weighted.T, twice @ twice.T, atol=1e-5)
    assert twice.dtype == weighted.dtype == np.float32
    a, b, c = VECTORS
    np.testing.assert_array_equal(of("mean", VECTORS, [1.0, 1.0, 1.0]), ((a + b) + c) / np.float32(3), "in this order")


def test_cosines_of_concatenated_vectors_are_the_mean_of_the_teachers_cosines() -> None:
    wide = [VECTORS[0], GENERATOR.normal(size=(9, 11)).astype(np.float32)]
    found = of("concat", wide, [3.0, 1.0])
    assert found.shape == (9, 17)
    cosines = [1 - scipy.spatial.distance.cdist(each, each, "cosine") for each in wide]
    np.testing.assert_allclose(found @ found.T, 0.75 * cosines[0] + 0.25 * cosines[1], atol=1e-6)


@pytest.mark.parametrize("wide", [ensemble.WIDE, 5])
def test_a_reduction_is_that_of_scikit_learn(wide: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ensemble, "WIDE", wide)
    x = GENERATOR.normal(size=(40, 10)).astype(np.float32) * np.arange(1, 11, dtype=np.float32)
    expected = sklearn.decomposition.TruncatedSVD(3, algorithm="arpack", random_state=0).fit(x).components_.T
    found = ensemble.reduction([x[:25], x[25:]], 3)
    np.testing.assert_allclose(np.abs(found), np.abs(expected), atol=1e-5)
    assert (found[np.abs(found).argmax(0), range(3)] > 0).all()
    more = ensemble.reduction([x], 12)
    assert more.shape == (10, 12) and not more[:, 10:].any()
    np.testing.assert_allclose((x @ more) @ (x @ more).T, x @ x.T, atol=1e-3)


def test_a_turn_finds_the_axes_again_and_is_closest_of_all() -> None:
    start, axes = GENERATOR.normal(size=(60, 7)) + 2, scipy.stats.ortho_group.rvs(7, random_state=0)
    np.testing.assert_allclose(start @ axes @ ensemble.turn(start @ axes, 3 * start), start, atol=1e-5)
    other = GENERATOR.normal(size=(60, 7)).astype(np.float32)
    turned = ensemble.turn(other, start)
    np.testing.assert_allclose(turned.T @ turned, np.eye(7), atol=1e-6)
    closest = (ensemble.unit(other @ turned) * ensemble.unit(start)).sum()
    tried = (ensemble.unit(other @ scipy.stats.ortho_group.rvs(7, random_state=seed)) for seed in range(5))
    assert all(closest > (each * ensemble.unit(start)).sum() for each in tried)


def test_agreement_is_the_mean_rank_correlation_with_the_others() -> None:
    good = GENERATOR.normal(size=(30, 8))
    vectors = [good, good + 0.3 * GENERATOR.normal(size=good.shape), GENERATOR.normal(size=(30, 5))]
    pairs = np.triu_indices(30, 1)
    cosines = [(1 - scipy.spatial.distance.cdist(each, each, "cosine"))[pairs] for each in vectors]
    rho = scipy.stats.spearmanr(np.stack(cosines, 1)).statistic
    expected = [max(0.0, np.delete(rho[m], m).mean()) for m in range(3)]
    found = ensemble.agreement(vectors)
    assert found == pytest.approx(expected, abs=1e-6)
    assert found[2] < 0.2 < found[0] and ensemble.agreement(vectors[:1]) == [1.0]


def test_weights_are_found_where_the_score_is_highest() -> None:
    # One move from equal weights: (1/3 + 1/4) / (5/4) is 7/15.
    for best, most in (((0.6, 0.1, 0.3), 0.03), ((7 / 15, 4 / 15, 4 / 15), 1e-9)):
        found = ensemble.best_weights(lambda w, best=best: -float(np.square(np.subtract(w, best)).sum()), 3)
        assert found == pytest.approx(best, abs=most) and sum(found) == pytest.approx(1)
    assert ensemble.best_weights(lambda w: 0.0, 2) == (0.5, 0.5), "equal ones stay where none is better"
    assert ensemble.best_weights(lambda w: -abs(w[0] - 1 / 3), 3) == (1 / 3,) * 3
