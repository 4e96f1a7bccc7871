"""Two systems on the same rows: the difference, its interval, and whether it may be chance.

A system is one model, or several that differ in their seeds; its value is then the mean over them. Shapes: N rows,
R resamples, M models of a system.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from raysts.errors import InputError
from raysts.evaluation.outcomes import Outcome
from raysts.evaluation.paired import bootstrap_p, mcnemar, williams
from raysts.evaluation.statistics import (
    CORRELATIONS,
    METRICS,
    correlation_samples,
    percentile_interval,
    resample_counts,
)
from raysts.evaluation.sts import BOOTSTRAP_SEED

OVERALL = "overall"
"""What the mean over the sets is called."""

APART = frozenset({"sickr-all"})
"""Sets that stay out of the mean over sets, because they hold another one."""

Row = dict[str, Any]
Outcomes = Mapping[str, Outcome]
"""Those of one model by set."""

COLUMNS = (
    "dataset", "split", "dataset_sha256", "metric", "aggregation", "n", "similarity_a", "similarity_b",
    "a", "b", "a_std", "b_std", "a_models", "b_models", "difference", "ci_low", "ci_high", "p",
    "test", "t", "df", "only_a", "only_b", "test_p",
)  # fmt: skip
"""Columns of a comparison. ``a``, ``b``, ``difference`` (a - b) and the interval are not times 100; ``p`` is that of the
bootstrap; ``test`` is ``williams`` (``t``, ``df``) or ``mcnemar`` (``only_a``, ``only_b``: rows that one alone has right)."""


@dataclass(frozen=True, slots=True)
class _Sampled:
    """Values of a system's models [M] and of every resample of rows [M, R]."""

    values: np.ndarray
    samples: np.ndarray

    def drawn(self, models_MR: np.ndarray) -> np.ndarray:
        """Means [R] of the models drawn in each resample."""
        return np.take_along_axis(self.samples, models_MR, axis=0).mean(axis=0)


def compare_outcomes(a: Sequence[Outcomes], b: Sequence[Outcomes], resamples: int) -> list[Row]:
    """A row for each set and metric, then one for the mean over the sets of each metric, in the order of A's sets.

    All rows of a set are concatenated (aggregation ``all``). Every resample draws the same rows for both systems, and
    from a system of several models as many models with replacement, so that the interval covers another draw of rows and
    of seeds; those are few, so a system of one model is compared as that model, not as its recipe. Williams' and
    McNemar's tests are of two models, and left out where a system has more.

    Args:
        a: the models of one system.
        b: the models of the other; each model has the same sets.
        resamples: 0 leaves intervals and the bootstrap's p out.

    Raises:
        InputError: a set of A is not the same rows as that of B.
    """
    sets = list(a[0])
    assert all(list(one) == sets for one in (*a, *b)), "models with different sets"
    draws = _models_drawn(len(a), "a", resamples), _models_drawn(len(b), "b", resamples)
    rows: list[Row] = []
    whole: dict[str, list[tuple[_Sampled, _Sampled]]] = {}
    for name in sets:
        _same_rows(a[0][name], b[0][name])
        for metric in METRICS if a[0][name].gold is not None else ("accuracy",):
            sides = tuple(_sampled([one[name] for one in side], metric, resamples) for side in (a, b))
            if name not in APART or not set(sets) - APART:
                whole.setdefault(metric, []).append((sides[0], sides[1]))
            rows.append(
                _known(a[0][name], b[0][name], metric)
                | _difference(sides[0], sides[1], draws)
                | _test([one[name] for one in a], [one[name] for one in b], metric)
            )
    for metric, found in whole.items():
        means = tuple(
            _Sampled(
                np.mean([pair[i].values for pair in found], axis=0),
                np.mean([pair[i].samples for pair in found], axis=0),
            )
            for i in (0, 1)
        )
        known = {"dataset": OVERALL, "metric": metric, "n": sum(row["n"] for row in rows if _counts(row, metric, sets))}
        known["aggregation"] = "all" if metric in METRICS else None
        rows.append(known | _difference(means[0], means[1], draws))
    return [{column: row.get(column) for column in COLUMNS} for row in rows]


def _counts(row: Row, metric: str, sets: Sequence[str]) -> bool:
    return row["metric"] == metric and (row["dataset"] not in APART or not set(sets) - APART)


def _models_drawn(models: int, side: str, resamples: int) -> np.ndarray:
    """Which models each resample draws [M, R], the same for every set: a model is drawn with all that it says."""
    rng = np.random.default_rng((BOOTSTRAP_SEED, zlib.crc32(f"models/{side}".encode())))
    return rng.integers(0, models, size=(models, resamples))


def _same_rows(a: Outcome, b: Outcome) -> None:
    if (a.sha256, a.split, len(a.values)) != (b.sha256, b.split, len(b.values)):
        raise InputError(
            f"{a.dataset}: the two systems were measured on different rows; measure both on one data folder"
        )


def _sampled(outcomes: Sequence[Outcome], metric: str, resamples: int) -> _Sampled:
    first = outcomes[0]
    counts_NR = resample_counts(len(first.values), (BOOTSTRAP_SEED, zlib.crc32(_label(first).encode())), resamples)
    if first.gold is None:
        values_MN = np.stack([outcome.values for outcome in outcomes])
        return _Sampled(values_MN.mean(axis=1), (values_MN @ counts_NR) / len(first.values))
    correlation: Callable[..., float] = CORRELATIONS[metric]  # type: ignore[index]
    return _Sampled(
        np.array([correlation(outcome.values, first.gold) for outcome in outcomes]),
        np.stack([correlation_samples(o.values, first.gold, counts_NR, [metric])[metric] for o in outcomes]),  # type: ignore[list-item,index]
    )


def _label(outcome: Outcome) -> str:
    """The resamples are those of the intervals that an evaluation of either system gives."""
    return f"{outcome.label}/all" if outcome.gold is not None else outcome.label


def _known(a: Outcome, b: Outcome, metric: str) -> Row:
    return {
        "dataset": a.dataset, "split": a.split, "dataset_sha256": a.sha256, "metric": metric, "n": len(a.values),
        "aggregation": "all" if a.gold is not None else None, "similarity_a": a.similarity, "similarity_b": b.similarity,
    }  # fmt: skip


def _difference(a: _Sampled, b: _Sampled, draws: tuple[np.ndarray, np.ndarray]) -> Row:
    differences_R = a.drawn(draws[0]) - b.drawn(draws[1])
    low, high = percentile_interval(differences_R) or (None, None)
    of_a, of_b = float(a.values.mean()), float(b.values.mean())
    return {
        "a": of_a, "b": of_b, "a_std": _std(a.values), "b_std": _std(b.values), "a_models": len(a.values),
        "b_models": len(b.values), "difference": of_a - of_b, "ci_low": low, "ci_high": high,
        "p": bootstrap_p(differences_R),
    }  # fmt: skip


def _std(values_M: np.ndarray) -> float | None:
    return float(values_M.std(ddof=1)) if len(values_M) > 1 else None


def _test(a: Sequence[Outcome], b: Sequence[Outcome], metric: str) -> Row:
    """Williams' test of two correlations, McNemar's of two accuracies; nothing where a system has several models."""
    if len(a) > 1 or len(b) > 1:
        return {}
    one, two = a[0], b[0]
    if one.gold is None:
        only_a, only_b = (
            int(((x == 1) & (y == 0)).sum()) for x, y in ((one.values, two.values), (two.values, one.values))
        )
        return {"test": "mcnemar", "only_a": only_a, "only_b": only_b, "test_p": mcnemar(only_a, only_b)}
    correlation = CORRELATIONS[metric]  # type: ignore[index]
    found = williams(
        correlation(one.values, one.gold),
        correlation(two.values, one.gold),
        correlation(one.values, two.values),
        len(one.values),
    )
    return {} if found is None else {"test": "williams", "t": found.t, "df": found.df, "test_p": found.p}
