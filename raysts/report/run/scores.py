"""Results rows -> the standings that tables, dot plots and the headline share, and the headline in words."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from raysts.evaluation.agreement import AGREEMENT
from raysts.evaluation.results import AVERAGED, ROLES, TEACHER, Line, ResultRow, kind_of, summary
from raysts.models.layers import Layers, as_layers, in_words
from raysts.pipeline.deliver import AVERAGE, TITLES, Difference
from raysts.report.html import hundredfold, with_spread

AS_DISTRIBUTED = "as distributed"
"""Remark of the backbone that pools as its folder says."""
Differences = Mapping[str, Mapping[str, Difference]]
"""By role and set, how far what comes out is above the others (:func:`raysts.pipeline.deliver.against`)."""

AGGREGATIONS = {
    "all": "all subsets concatenated", "mean": "mean of the subsets", "wmean": "subsets weighted by their pairs"
}  # fmt: skip
METRICS = {"auc_pr": "PR-AUC", "average_precision": "Average precision"}


def pooled(layers: str | None) -> str:
    """How many layers were pooled, in words; empty when that is not recorded."""
    return "" if layers is None else f"{in_words(as_layers(layers))} pooled"


@dataclass(frozen=True, slots=True, order=True)
class View:
    """Which numbers a table holds; every field is a column of the results table."""

    layers: str | None
    metric: str
    aggregation: str | None
    split: str = "test"
    rows: str = "all"

    @classmethod
    def of(cls, row: ResultRow) -> View:
        return cls(row["layers"], row["metric"], row["aggregation"], row["split"], row["rows"])

    @property
    def described(self) -> str:
        parts = [
            f"{METRICS.get(self.metric, self.metric.capitalize())} × 100 on {self.split}",
            AGGREGATIONS.get(self.aggregation or "", self.aggregation),
            pooled(self.layers),
            "rows that do not occur in the training text" if self.rows == "clean" else None,
        ]
        return ", ".join(part for part in parts if part)


@dataclass(frozen=True, slots=True)
class Value:
    """A score or a mean of scores, not multiplied by 100, with what is known of its spread."""

    value: float
    std: float | None = None
    n: int = 1
    low: float | None = None
    high: float | None = None
    member: int | None = None

    @property
    def text(self) -> str:
        """``71.20  [69.80, 72.61]``, ``71.20 ± 0.31``, times 100."""
        if self.n > 1 or self.low is None or self.high is None:
            return with_spread(self.value, self.std if self.n > 1 else None)
        return f"{hundredfold(self.value)}  {self.interval}"

    @property
    def interval(self) -> str:
        """``[69.80, 72.61]``, times 100; empty where there is none."""
        return "" if self.low is None or self.high is None else f"[{hundredfold(self.low)}, {hundredfold(self.high)}]"


@dataclass(frozen=True, slots=True)
class Standing:
    """One system in one role.

    Attributes:
        role: one of ``results.ROLES``, or of a teacher that has a name.
        mean: by data set: the mean over its individuals, the interval of the one where there is one.
        best: by data set: the largest of the individuals, whichever that is; for the average, the best individual's.
        remarks: what its rows say about labels or test sentences that were used.
    """

    role: str
    system: str
    similarity: str
    mean: dict[str, Value]
    best: dict[str, Value]
    individuals: dict[str, list[Value]]
    remarks: tuple[str, ...]

    @property
    def n(self) -> int:
        return max((value.n for value in self.mean.values()), default=0)


@dataclass(frozen=True, slots=True)
class Table:
    """The standings of one view; ``columns`` are the data sets, then perhaps the average of the ``averaged`` ones."""

    view: View
    columns: tuple[str, ...]
    averaged: tuple[str, ...]
    sizes: dict[str, int]
    standings: tuple[Standing, ...]

    def first(self, role: str, column: str | None = None) -> Standing | None:
        """The first standing of a role, that has a value in ``column`` if one is named."""
        return next((s for s in self.standings if s.role == role and (column is None or column in s.mean)), None)

    @property
    def plotted(self) -> list[Standing]:
        backbone = self.first("backbone")
        return [standing for standing in self.standings if standing.role != "backbone" or standing is backbone]


def usable(rows: Iterable[ResultRow]) -> list[ResultRow]:
    """Rows of whole sets (not of subsets) that hold a finite number."""
    return [row for row in rows if row["subset"] is None and row["value"] is not None and math.isfinite(row["value"])]


def views(rows: Sequence[ResultRow], compare_layers: Layers) -> list[View]:
    """Every view that has rows, the one to show first in front: Spearman, all, test, at ``compare_layers``."""

    def rank(view: View) -> tuple[object, ...]:
        return (
            view.split != "test",
            view.rows != "all",
            view.layers != str(compare_layers),
            view.metric != "spearman",
            view.aggregation != "all",
            *(str(field or "") for field in (view.layers, view.metric, view.aggregation, view.split, view.rows)),
        )

    return sorted(set(map(View.of, usable(rows))), key=rank)


def main_table(rows: Sequence[ResultRow], compare_layers: Layers, distributed: tuple[str, Layers]) -> Table | None:
    """The table that comes first: every system at the compared layers, where it has another choice alone at that, and the
    backbone as it was distributed, before all others; None where nothing is measured on a test set."""
    view = next(iter(views(rows, compare_layers)), None)
    if view is None or view.split != "test":
        return None
    as_distributed = {"role": "backbone", "pooling": distributed[0], "layers": str(distributed[1])}
    here = {row["role"] for row in usable(rows) if View.of(row) == view}
    shown = [
        row
        for row in usable(rows)
        if replace(View.of(row), layers=view.layers) == view
        if row["layers"] == view.layers
        or row["role"] not in here
        or all(row[key] == value for key, value in as_distributed.items())
    ]
    return standings(shown, view, as_distributed)


def standings(rows: Sequence[ResultRow], view: View, as_distributed: Mapping[str, str] | None = None) -> Table:
    """The systems of ``rows`` in one view, averaged by ``raysts.evaluation.results.summary``.

    With ``as_distributed``, the columns that say of the backbone's rows which these are, all ``rows`` are shown, whatever
    layers they pool, and what is not as the view has it is remarked.
    """
    own = [row for row in usable(rows) if as_distributed or View.of(row) == view]
    table = summary(own, view.metric, view.aggregation, view.split, view.rows)
    averaged = tuple(name for name in table.datasets if name in AVERAGED)
    columns = (*table.datasets, *((AVERAGE,) if len(averaged) > 1 else ()))
    sizes = {row["dataset"]: row["n"] for row in own if row["n"]}
    found = [_standing(line, averaged, view, as_distributed or {}) for line in table.lines]
    found.sort(key=lambda standing: ROLES.index(kind_of(standing.role)))
    found.sort(key=lambda standing: AS_DISTRIBUTED not in standing.remarks)
    return Table(view, columns, averaged, sizes, tuple(found))


def _standing(line: Line, averaged: Sequence[str], view: View, as_distributed: Mapping[str, str]) -> Standing:
    rows = [row for one in line.individuals for row in one.values()]
    rows.sort(key=lambda row: (-1 if row["member"] is None else row["member"], row["seed"] or 0))
    individuals: dict[str, list[Value]] = {}
    for row in rows:
        value = Value(row["value"], None, 1, row["ci_low"], row["ci_high"], row["member"])
        individuals.setdefault(row["dataset"], []).append(value)
    best = {name: max(values, key=lambda value: value.value) for name, values in individuals.items()}
    cells = dict(line.cells)
    if len(averaged) > 1 and line.average:
        cells[AVERAGE] = line.average
        complete = [[one[name]["value"] for name in averaged] for one in line.individuals if one.keys() >= {*averaged}]
        best[AVERAGE] = Value(max(map(fmean, complete)))
    mean = {
        name: individuals[name][0] if name in individuals and cell.n == 1 else Value(cell.mean, cell.std, cell.n)
        for name, cell in cells.items()
    }
    said = remarks(rows)
    if line.layers != view.layers:
        said = (pooled(line.layers), *said)
    if as_distributed and all(getattr(line, key) == value for key, value in as_distributed.items()):
        said = (AS_DISTRIBUTED, *said)
    return Standing(line.role or "?", line.system or "", line.similarity or "", mean, best, individuals, said)


def remarks(rows: Sequence[ResultRow]) -> tuple[str, ...]:
    """Labels or test sentences that rows say were used."""
    chose = sorted({row["selected_by"] for row in rows if row["selected_by"]})
    labels = [name for name in chose if name != AGREEMENT]
    said = [f"checkpoints chosen by {' and '.join(labels)} labels"] if labels else []
    said += ["checkpoints chosen by agreement with the ensemble"] if len(labels) < len(chose) else []
    if any(row["transductive"] for row in rows):
        said.append("fitted on the sentences of the test sets (transductive)")
    return tuple(said)


def headline(table: Table | None, differences: Differences) -> list[str]:
    """The result in words: one sentence on the main data set, and one on the average where there is one; for no result, that."""
    roles = ("student", "soup", "greedy-soup", "ensemble", "member", "baseline", "backbone")
    subject = next((standing for role in roles if table and (standing := table.first(role))), None)
    if table is None or subject is None:
        return ["There is no result on a test set yet."]
    tests = [name for name in table.columns if name in subject.mean and name != AGREEMENT]
    if not tests:
        return [
            f"There are no scored pairs to test on. Agreement of the {subject.role} with the ensemble: "
            f"{_number(subject.mean[AGREEMENT])} (× 100)."
        ]
    own = [name for name in tests if name not in (*TITLES, AVERAGE)]
    main = next(name for name in (*own, "stsb", *tests) if name in tests)
    return [_sentence(table, subject, column, differences) for column in (main, AVERAGE) if column in subject.mean]


def _sentence(table: Table, subject: Standing, column: str, differences: Differences) -> str:
    view = table.view
    who, verb = (f"{subject.n} {subject.role}s", "score") if subject.n > 1 else (subject.role, "scores")
    result = f"{who} {verb} {_number(subject.mean[column])}"
    against = _against(table, subject, column, differences)
    if column == AVERAGE:
        return f"Averaged over {len(table.averaged)} sets, the {result}{against}."
    how = ", ".join(part for part in (view.aggregation, view.metric.capitalize(), pooled(view.layers)) if part)
    return f"The {result} on {column} {view.split} ({how}){against}."


def _number(value: Value) -> str:
    if value.n > 1:
        return f"{with_spread(value.value, value.std)} on average"
    return f"{hundredfold(value.value)} {value.interval}".rstrip()


def _against(table: Table, subject: Standing, column: str, differences: Differences) -> str:
    """How the subject compares with the other roles, in the words that the paired intervals allow; values alone without."""
    names: dict[str, Callable[[Value], str]] = {
        "member": _members,
        "soup": lambda value: f"the weight average ({hundredfold(value.value)})",
        "greedy-soup": lambda value: f"the greedy weight average ({hundredfold(value.value)})",
        "ensemble": lambda value: f"the ensemble ({hundredfold(value.value)})",
        "backbone": lambda value: f"the backbone ({hundredfold(value.value)})",
    }
    parts = []
    named = [other for other in table.standings if other.role.startswith(TEACHER) and column in other.mean]
    if named:
        best = max(named, key=lambda other: other.mean[column].value).role
        who = f"the best teacher, {best.removeprefix(TEACHER)}" if len(named) > 1 else f"the {best}"
        names = {best: lambda value: f"{who} ({hundredfold(value.value)})", **names}
    for role, name in names.items():
        other = table.first(role, column)
        if other is not None and role != subject.role:
            tested = differences.get(role, {}).get(column)
            said = name(other.mean[column])
            parts.append(tested.over(said) if tested else f"beside {said}, not compared row by row")
    if not parts:
        return ""
    return ": " + (parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " and " + parts[-1])


def _members(value: Value) -> str:
    if value.n == 1:
        return f"the member ({hundredfold(value.value)})"
    return f"the members' mean {with_spread(value.value, value.std)} (n={value.n})"
