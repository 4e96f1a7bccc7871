"""Two systems on the same rows: the difference, its interval, and whether it may be chance.

A system is one model, or several that differ in their seeds; its value is then the mean over them. Shapes: N rows,
R resamples, M models of a system.
"""

import itertools
import math
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from raysts.errors import InputError
from raysts.evaluation import statistics
from raysts.evaluation.scores import ModelScores, RowScores
from raysts.evaluation.standings import align_columns

OVERALL = "overall"
"""Name of the mean over the sets."""

MAIN = ("spearman", "accuracy", "ndcg@10")
"""The metric of each kind of set that decides."""

_Z_975, _Z_80 = 1.959964, 0.841621
"""Quantiles of the normal distribution."""

APART = frozenset({"sickr-all"})
"""Sets that stay out of the mean over sets, because they hold another one."""

ComparisonRow = dict[str, Any]
"""``COLUMNS``, for one set and metric."""
COLUMNS = (
    "dataset", "split", "dataset_sha256", "metric", "aggregation", "n", "similarity_a", "similarity_b",
    "a", "b", "a_std", "b_std", "a_models", "b_models", "difference", "ci_low", "ci_high", "p",
    "test", "t", "df", "only_a", "only_b", "test_p",
)  # fmt: skip
"""Columns of a comparison. ``a``, ``b``, ``difference`` (a - b) and the interval are not times 100; ``p`` is that of the
bootstrap; ``test`` is ``williams`` or ``paired-t`` (``t``, ``df``), or ``mcnemar`` (``only_a``, ``only_b``: rows that one alone
has right)."""


def compare_systems(
    a: Sequence[ModelScores],
    b: Sequence[ModelScores],
    resamples: int,
    metrics: Sequence[str] = statistics.METRICS,
    draw_sets: bool = False,
) -> list[ComparisonRow]:
    """Return a row for each set and metric, in the order of A, then one for the mean over sets.

    Every resample draws the same rows for both systems, and from a system of several models as many models with
    replacement, so that the interval covers another draw of rows and of seeds. Williams' and McNemar's tests are of two
    models, and left out where a system has more.

    Args:
        a: the models of one system; each model has the same sets.
        b: the models of the other system.
        resamples: 0 leaves intervals and the bootstrap's p out.
        metrics: of sets that are measured by correlation.
        draw_sets: draw as many sets with replacement for each resample of the mean over sets. Its interval then
            covers other sets of their kind.

    Raises:
        InputError: a set of A is not the same rows as that of B.
    """
    sets = list(a[0])
    counted = _sets_of_mean(sets)
    assert all(list(model) == sets for model in (*a, *b)), "models with different sets"
    draws = _drawn("models/a", len(a), resamples), _drawn("models/b", len(b), resamples)
    rows: list[ComparisonRow] = []
    in_mean: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {}
    sizes: dict[str, int] = Counter()
    for name in sets:
        first, second = [model[name] for model in a], [model[name] for model in b]
        for metric in metrics if first[0].gold is not None else first[0].metrics:
            sides = _sample(first, second, metric, resamples)
            if name in counted:
                in_mean.setdefault(metric, []).append(sides)
                sizes[metric] += len(first[0].values)
            columns = {
                "dataset": first[0].dataset, "split": first[0].split, "dataset_sha256": first[0].sha256, "metric": metric,
                "n": len(first[0].values), "aggregation": "all" if first[0].gold is not None else None,
                "similarity_a": first[0].similarity, "similarity_b": second[0].similarity,
            }  # fmt: skip
            rows.append(columns | _difference(*sides, draws) | _test(first, second, metric))
    for metric, pairs in in_mean.items():
        first_MR, second_MR = (_mean_over_sets([pair[side] for pair in pairs], draw_sets) for side in (0, 1))
        columns = {"dataset": OVERALL, "metric": metric, "n": sizes[metric]}
        columns["aggregation"] = "all" if metric in statistics.METRICS else None
        rows.append(columns | _difference(first_MR, second_MR, draws))
    return [{column: row.get(column) for column in COLUMNS} for row in rows]


def _sets_of_mean(sets: Sequence[str]) -> list[str]:
    """Return the sets of the mean over sets."""
    return [name for name in sets if name not in APART] or [*sets]


def _mean_over_sets(sets: Sequence[np.ndarray], draw_sets: bool) -> np.ndarray:
    """Return the mean over sets [M, 1 + R], or over those that each resample draws."""
    values_SMR = np.stack(sets)
    if draw_sets:
        drawn_SR = _drawn("sets", len(sets), values_SMR.shape[-1] - 1)
        values_SMR[..., 1:] = np.take_along_axis(values_SMR[..., 1:], drawn_SR[:, None], axis=0)
    return np.asarray(values_SMR.mean(axis=0))


@dataclass(frozen=True, slots=True)
class Difference:
    """Difference of two systems on the same rows, not times 100, perhaps with its paired 95 % interval."""

    value: float
    low: float | None
    high: float | None

    @property
    def sign(self) -> int:
        """Sign of an interval without 0, otherwise 0."""
        if self.low is None or self.high is None:
            return 0
        return int(self.low > 0) - int(self.high < 0)

    @property
    def interval(self) -> str:
        return f"[{100 * (self.low or 0.0):z.2f}, {100 * (self.high or 0.0):z.2f}]"

    def within(self, margin: float) -> bool | None:
        """Return True if it lies above ``-margin``, False if below, None if neither is shown."""
        if self.low is None or self.high is None or self.low <= -margin <= self.high:
            return None
        return self.low > -margin

    def rows_needed(self, margin: float, n: int) -> int | None:
        """Return the number of rows that would show it to lie above ``-margin``, or None.

        That is with a power of 80 %, if the true difference is this one. The standard error is that of the interval over
        ``n`` rows and shrinks as their root: n' = n ((z_.975 + z_.80) se / (difference + margin))^2.
        """
        if self.low is None or self.high is None or self.value <= -margin:
            return None
        error = (self.high - self.low) / (2 * _Z_975)
        return max(1, math.ceil(n * ((_Z_975 + _Z_80) * error / (self.value + margin)) ** 2))

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Self:
        return cls(row["difference"], row["ci_low"], row["ci_high"])

    def describe(self, name: str) -> str:
        """Return the words for the difference: ``1.82 [1.13, 2.31] above the backbone``."""
        signed = f"{100 * self.value:+z.2f}"
        if self.low is None or self.high is None:
            return f"with no interval that would tell it from {name} ({signed})"
        if not self.sign:
            return f"not shown to differ from {name} ({signed} {self.interval})"
        if self.sign > 0:
            return f"{100 * self.value:.2f} {self.interval} above {name}"
        return f"{-100 * self.value:.2f} {Difference(-self.value, -self.high, -self.low).interval} below {name}"


def margins(rows: Sequence[ComparisonRow], margin: float, draw_sets: bool = False) -> list[dict[str, Any]]:
    """Return for each set, and for their mean, if A is less than ``margin`` below B.

    Returns:
        dataset, metric, margin, difference, ci_low, ci_high, n, unit (of n: pairs, queries, or sets where these are drawn),
        within (None: not shown) and rows_needed.
    """
    main = [row for row in rows if row["metric"] in MAIN]
    decided = []
    for row in main:
        gap, n, unit = Difference.of(row), row["n"], "queries" if row["metric"] == "ndcg@10" else "pairs"
        if row["dataset"] == OVERALL:
            sets = [of_set["dataset"] for of_set in main if of_set["metric"] == row["metric"]][:-1]
            if len(sets) == 1:
                continue
            n, unit = (len(_sets_of_mean(sets)), "sets") if draw_sets else (n, unit)
        shared = {name: row[name] for name in ("dataset", "metric", "difference", "ci_low", "ci_high")}
        answers = {"within": gap.within(margin), "rows_needed": gap.rows_needed(margin, n)}
        decided.append({**shared, "margin": margin, "n": n, "unit": unit, **answers})
    return decided


def margin_sentence(a: str, b: str, row: Mapping[str, Any]) -> str:
    """Return a row of :func:`margins` in words."""
    gap, unit, limit = Difference.of(row), row["unit"], f"{100 * row['margin']:.2f}"
    place = "below" if round(100 * gap.value, 2) < 0 else "above"
    begin = f"{row['metric']} on {row['dataset']}: {a} is {100 * abs(gap.value):.2f} points {place} {b}"
    if row["within"] is not None:
        return f"{begin}, {'not more' if row['within'] else 'and more'} than {limit} below (95 %, {gap.interval})."
    need = "at this difference no number would show it"
    if row["rows_needed"] is not None:
        need = f"about {row['rows_needed']:,} {unit} would show it in 80 of 100 tests"
    return (
        f"{begin}; it is not shown to be less than {limit} below {gap.interval}: these are {row['n']:,} {unit}, {need}."
    )


def difference(a: Sequence[ModelScores], b: Sequence[ModelScores], on: Sequence[str], resamples: int) -> Difference:
    """Return the difference of the means over the sets ``on``, of rank correlation or accuracy."""
    of_a, of_b = ([{name: model[name] for name in on} for model in models] for models in (a, b))
    return Difference.of(compare_systems(of_a, of_b, resamples, ("spearman",))[-1])


def compare_spread(a: Sequence[ModelScores], b: Sequence[ModelScores], resamples: int) -> ComparisonRow:
    """Return how much more the models of A differ from each other than those of B.

    That is the standard deviation (ddof 1) over models of their mean over the sets. Resamples are of rows alone: drawn with
    replacement, models of a system would differ less than they do.
    """
    of_a, of_b = (mean_MR.std(axis=0, ddof=1) for mean_MR in _means(a, b, resamples))
    return _columns(of_a, of_b, len(a), len(b))


def compare_gains(
    a: Sequence[ModelScores], a_over: Sequence[ModelScores], b: Sequence[ModelScores], b_over: Sequence[ModelScores],
    resamples: int,
) -> ComparisonRow:  # fmt: skip
    """Return how much further A is above ``a_over`` than B above ``b_over``, by the mean over the sets.

    Resamples are of rows, the same for all four systems, and of the models of each.
    """
    gains = []
    for label, models, baseline in (("models/a", a, a_over), ("models/b", b, b_over)):
        means_MR = _means(models, baseline, resamples)
        draws = _drawn(label, len(models), resamples), _drawn(f"{label}/over", len(baseline), resamples)
        gains.append(_mean_over_models(means_MR[0], draws[0]) - _mean_over_models(means_MR[1], draws[1]))
    of_a, of_b = gains
    return _columns(of_a, of_b, len(a), len(b))


def _means(a: Sequence[ModelScores], b: Sequence[ModelScores], resamples: int) -> list[np.ndarray]:
    """Return for both systems the mean over the sets of each model [M, 1 + R]."""
    pairs = (([model[name] for model in a], [model[name] for model in b]) for name in a[0])
    by_set = [_sample(*pair, "spearman", resamples) for pair in pairs]
    return [np.mean([sides[i] for sides in by_set], axis=0) for i in (0, 1)]


def _drawn(label: str, count: int, resamples: int) -> np.ndarray:
    """Return the models or sets that each resample draws [count, R], by the label's random numbers."""
    rng = np.random.default_rng((statistics.BOOTSTRAP_SEED, zlib.crc32(label.encode())))
    return rng.integers(0, count, size=(count, resamples))


def _sample(
    a: Sequence[RowScores], b: Sequence[RowScores], metric: str, resamples: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the values of the models of both systems, then those of each resample of rows [M, 1 + R]."""
    if len({(system.sha256, system.split, len(system.values)) for system in (a[0], b[0])}) > 1:
        problem = "the two systems were measured on different rows; measure both on one data folder"
        raise InputError(f"{a[0].dataset}: {problem}")
    metric = metric if a[0].gold is not None else a[0].metrics[0]
    sides = []
    for letter, models in (("A", a), ("B", b)):
        try:
            sides.append(np.stack([model.sample(resamples, [metric])[metric] for model in models]))
        except statistics.UndefinedCorrelationError as error:
            raise statistics.UndefinedCorrelationError(f"{letter}, {error}") from error
    return sides[0], sides[1]


def _difference(a_MR: np.ndarray, b_MR: np.ndarray, draws: tuple[np.ndarray, np.ndarray]) -> ComparisonRow:
    """Return the columns of the difference of two systems' means, with models ``draws`` in each resample."""
    of_a, of_b = _mean_over_models(a_MR, draws[0]), _mean_over_models(b_MR, draws[1])
    a_std, b_std = (float(x_MR[:, 0].std(ddof=1)) if len(x_MR) > 1 else None for x_MR in (a_MR, b_MR))
    return {**_columns(of_a, of_b, len(a_MR), len(b_MR)), "a_std": a_std, "b_std": b_std}


def _mean_over_models(values_MR: np.ndarray, drawn_MR: np.ndarray) -> np.ndarray:
    """Return the mean over models, followed by that over the models drawn in each resample [1 + R]."""
    drawn = np.take_along_axis(values_MR[:, 1:], drawn_MR, axis=0)
    return np.append(values_MR[:, 0].mean(), drawn.mean(axis=0))


def _columns(of_a_R: np.ndarray, of_b_R: np.ndarray, a_models: int, b_models: int) -> ComparisonRow:
    """Return the columns of two values, which are followed by those of each resample [1 + R]."""
    differences_R = of_a_R - of_b_R
    low, high = statistics.percentile_interval(differences_R[1:]) or (None, None)
    return {
        "a": float(of_a_R[0]), "b": float(of_b_R[0]), "a_models": a_models, "b_models": b_models,
        "difference": float(differences_R[0]), "ci_low": low, "ci_high": high, "p": statistics.bootstrap_p(differences_R[1:]),
    }  # fmt: skip


def _test(a: Sequence[RowScores], b: Sequence[RowScores], metric: str) -> ComparisonRow:
    """Return the test of two models, or nothing if a system has several.

    It is Williams' of two correlations, McNemar's of two accuracies, and the paired t-test of other means.
    """
    if len(a) > 1 or len(b) > 1:
        return {}
    (first,), (second,) = a, b
    if first.gold is None and metric == "accuracy":
        sides = itertools.permutations((first.values, second.values))
        only_a, only_b = (int(((x == 1) & (y == 0)).sum()) for x, y in sides)
        return {"test": "mcnemar", "only_a": only_a, "only_b": only_b, "test_p": statistics.mcnemar(only_a, only_b)}
    if first.gold is None:
        name, result = "paired-t", statistics.paired_t(first.values - second.values)
    else:
        correlation = statistics.CORRELATIONS[metric]  # type: ignore[index]
        pairs = ((first.values, first.gold), (second.values, first.gold), (first.values, second.values))
        r_a, r_b, r_ab = (correlation(x, y) for x, y in pairs)
        name, result = "williams", statistics.williams(r_a, r_b, r_ab, len(first.values))
    return {} if result is None else {"test": name, "t": result.t, "df": result.df, "test_p": result.p}


def conclusion(a: str, b: str, rows: Sequence[ComparisonRow], level: float = 0.05) -> str:
    """Return in words which system is better overall, or that no difference is shown."""
    metrics = [row["metric"] for row in rows]
    metric = next((name for name in ("spearman", "accuracy") if name in metrics), metrics[0])
    (mean,) = (row for row in rows if row["dataset"] == OVERALL and row["metric"] == metric)
    single = [row for row in rows if row["dataset"] != OVERALL and row["metric"] == metric]
    sets = _sets_of_mean([row["dataset"] for row in single])
    name = f"the mean {metric} over {len(sets)} sets" if len(sets) > 1 else f"the {metric} on {sets[0]}"
    values = f"{100 * mean['a']:.2f} against {100 * mean['b']:.2f} (x100)"
    numbers = f"{name} is {values}, a difference of {100 * mean['difference']:+z.2f}"
    if mean["p"] is None:
        text = f"No interval was asked for (resamples 0), so nothing is concluded overall about {a} and {b}: {numbers}."
    else:
        interval = f"95 % interval {100 * mean['ci_low']:+z.2f} to {100 * mean['ci_high']:+z.2f}, p = {mean['p']:.3g}"
        # Of an interval and a p that disagree at the edge, the more careful one counts.
        shown = mean["p"] < level and not mean["ci_low"] <= 0 <= mean["ci_high"]
        better, worse = (a, b) if mean["difference"] > 0 else (b, a)
        verdict = f"{better} is better than {worse}" if shown else f"No difference is shown between {a} and {b}"
        text = f"{verdict}: {numbers} ({interval}, paired bootstrap)."
    tested = [row for row in single if row["test_p"] is not None]
    if tested:
        adjusted = statistics.holm([row["test_p"] for row in tested])
        sure = [row for row, p in zip(tested, adjusted, strict=True) if p < level]
        up = sum(row["difference"] > 0 for row in sure)
        test = {"spearman": "Williams'", "accuracy": "McNemar's"}.get(metric, "paired t")
        text += (
            f" Set by set ({test} test, p < {level:g} after Holm's correction): {a} is better on {up}, {b} on "
            f"{len(sure) - up}, neither on {len(tested) - len(sure)}."
        )
    return text


def format_comparison(a: str, b: str, rows: Sequence[ComparisonRow], width: int = 120) -> str:
    """Return the rows as aligned plain text, values and differences times 100.

    Test, statistic and its p are not in a table that has none, or would be wider than ``width`` characters.
    """
    lines = [["dataset", "metric", "n", "A", "B", "A - B", "95 % interval", "p", "test", "t (df)", "p of test"]]
    for row in rows:
        interval = "" if row["ci_low"] is None else f"[{100 * row['ci_low']:+z.2f}, {100 * row['ci_high']:+z.2f}]"
        statistic = "" if row["test"] is None else f"{row['only_a']}:{row['only_b']}"
        statistic = f"{row['t']:+z.2f} ({row['df']})" if row["t"] is not None else statistic
        values = []
        for side in "ab":
            std, models = row[f"{side}_std"], row[f"{side}_models"]
            values.append(f"{100 * row[side]:.2f}" + ("" if std is None else f" ±{100 * std:.2f} ({models})"))
        tested = [row["test"] or "", statistic, format_p(row["test_p"])]
        difference = [f"{100 * row['difference']:+z.2f}", interval, format_p(row["p"])]
        lines.append([row["dataset"], row["metric"], f"{row['n']:,}", *values, *difference, *tested])
    text = align_columns(lines, (0, 1, 8))
    if max(map(len, text)) > width or not any(row["test"] for row in rows):
        text = align_columns([line[:8] for line in lines], (0, 1))
    return "\n".join([f"A: {a}", f"B: {b}", "x100", text[0], "-" * max(map(len, text)), *text[1:]])


def format_p(p: float | None) -> str:
    """Return a p value with two digits, nothing for None."""
    if p is None:
        return ""
    return f"{p:.2g}" if p >= 1e-4 else "<1e-4"
