"""Logistic regression on frozen features, as SentEval's probes.

The test rows do not choose its strength.

Features are standardised with the mean and deviation of the rows that a fit sees, so that one grid of strengths serves
vectors of any length and the solver converges in tens of steps. Fits that do not depend on each other run side by side,
each on one thread, so that the number of threads changes no digit. Folds come from one seed.

Shapes: N rows, D features.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from raysts.evaluation.statistics import pearson

# scikit-learn takes a second to import, and most runs evaluate no transfer: the functions import it.
if TYPE_CHECKING:
    from sklearn.pipeline import Pipeline

GRID = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
"""Inverse strengths of the L2 penalty that are tried (scikit-learn's ``C``); of equals the first, the strongest penalty."""

FOLDS = 10
"""Folds of a set without a standard split (SentEval, section 3.1); as many as the smallest class has rows where that is less."""

INNER_FOLDS = 5
"""Folds of the training rows that choose the strength where there are no development rows."""

FOLD_SEED = 0
TOLERANCE = 1e-4
MOST_STEPS = 200
"""A fit ends at a gradient of the mean loss below the tolerance, or after so many steps of L-BFGS."""

Rows = tuple[np.ndarray, np.ndarray]
"""Features [N, D] float32, and what is predicted from them [N]: codes of classes, or scores."""

Split = tuple[np.ndarray, np.ndarray]
"""Rows to fit on, rows to ask about."""

Item = TypeVar("Item")
Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class Probe:
    """Predictions of a probe [N] (codes of classes, or expected scores), and its strength."""

    predicted: np.ndarray
    strength: float


def folds(codes_N: np.ndarray, count: int, seed: int = FOLD_SEED) -> list[Split]:
    """Return folds with the same share of every class, each as (the other rows, its rows)."""
    from sklearn.model_selection import StratifiedKFold

    return list(StratifiedKFold(count, shuffle=True, random_state=seed).split(np.zeros(len(codes_N)), codes_N))


def fold_count(most: int, *codes: np.ndarray) -> int:
    """Return the number of folds: ``most``, or the rows of the smallest class if these are fewer."""
    smallest = min(int(np.unique(codes_N, return_counts=True)[1].min()) for codes_N in codes)
    return max(2, min(most, smallest))


def cross_validate(
    codes_N: np.ndarray, splits: Sequence[Split], most: int, seed: int, grid: Sequence[float],
    score: Callable[[Split], Any], fit: Callable[[Split, float], Probe],
) -> list[Probe]:  # fmt: skip
    """Return a probe of each split, with the strength that is best over folds of its first rows.

    ``score`` gives a score for each strength of ``grid`` on one inner fold, ``fit`` the probe of a split.
    """
    count = fold_count(most, *(codes_N[rows] for rows, _ in splits))
    inner = [(rows[a], rows[b]) for rows, _ in splits for a, b in folds(codes_N[rows], count, seed)]
    means = np.array(side_by_side(score, inner)).reshape(len(splits), count, len(grid)).mean(axis=1)
    strengths = [grid[best] for best in np.round(100 * means, 2).argmax(axis=1)]
    return side_by_side(lambda chosen: fit(*chosen), list(zip(splits, strengths, strict=True)))


def classify(features_ND: np.ndarray, codes_N: np.ndarray, splits: Sequence[Split]) -> list[Probe]:
    """Return by split the classes of its second rows, by a probe that is fitted on its first rows."""

    def right(split: Split) -> list[int]:
        path = _path(features_ND[split[0]], codes_N[split[0]])
        return [int((fitted.predict(features_ND[split[1]]) == codes_N[split[1]]).sum()) for _, fitted in path]

    def final(split: Split, strength: float) -> Probe:
        ((_, fitted),) = _path(features_ND[split[0]], codes_N[split[0]], grid=(strength,))
        return Probe(fitted.predict(features_ND[split[1]]), strength)

    return cross_validate(codes_N, splits, INNER_FOLDS, FOLD_SEED, GRID, right, final)


def classify_by_dev(train: Rows, dev: Rows, asked_ND: np.ndarray) -> Probe:
    """Return the asked rows' classes, at the strength with the best accuracy on development rows."""
    return _best(
        (float(np.mean(fitted.predict(dev[0]) == dev[1])), Probe(fitted.predict(asked_ND), strength))
        for strength, fitted in _path(*train)
    )


def regress_by_dev(train: Rows, dev: Rows, asked_ND: np.ndarray) -> Probe:
    """Return the asked rows' scores, at the strength with the best Pearson on development rows.

    A score is the expected value of a softmax regression over the whole numbers, which is fitted to the distribution
    :func:`soft_rows` (Tai et al. 2015, section 4.2, as SentEval does).
    """
    rows, bins, weights = soft_rows(train[1])

    def mean_scores(fitted: Pipeline, features_ND: np.ndarray) -> np.ndarray:
        return np.asarray(fitted.predict_proba(features_ND).astype(np.float64) @ fitted.classes_)

    return _best(
        (pearson(mean_scores(fitted, dev[0]), dev[1]), Probe(mean_scores(fitted, asked_ND), strength))
        for strength, fitted in _path(train[0][rows], bins, weights=weights)
    )


def soft_rows(scores_N: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return rows, numbers, weights: a score is the weighted mean of two whole numbers.

    A score of 3.2 is one row with 3 at weight 0.8 and one with 4 at 0.2; a whole number is one row.
    """
    below_N = np.floor(scores_N)
    above_N = scores_N - below_N
    number = np.arange(len(scores_N))
    rows, bins = np.concatenate([number, number]), np.concatenate([below_N, below_N + 1]).astype(np.int64)
    weights = np.concatenate([1 - above_N, above_N])
    return rows[weights > 0], bins[weights > 0], weights[weights > 0]


def _path(
    features_ND: np.ndarray, codes_N: np.ndarray, weights: np.ndarray | None = None, grid: Sequence[float] = GRID
) -> Iterator[tuple[float, Pipeline]]:
    """Yield logistic regression at every strength, from where the last fit ended, which it replaces."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    scale = StandardScaler().fit(features_ND, sample_weight=weights)
    scaled_ND = scale.transform(features_ND)
    model = LogisticRegression(tol=TOLERANCE, max_iter=MOST_STEPS, warm_start=True)
    for strength in grid:
        model.set_params(C=strength).fit(scaled_ND, codes_N, sample_weight=weights)
        yield strength, make_pipeline(scale, model)


def _best(tried: Iterable[tuple[float, Probe]]) -> Probe:
    """Return the probe with the highest score, of equals the first."""
    with one_thread_each():
        return max(tried, key=lambda pair: pair[0])[1]


def side_by_side(work: Callable[[Item], Found], items: Sequence[Item]) -> list[Found]:
    """Return the results in order, from as many threads as torch may use."""
    import torch

    with one_thread_each(), ThreadPoolExecutor(torch.get_num_threads()) as pool:
        return list(pool.map(work, items))


@contextmanager
def one_thread_each() -> Iterator[None]:
    """Fit on one thread, and accept a fit that stops after ``MOST_STEPS``."""
    from sklearn.exceptions import ConvergenceWarning
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        yield
