"""Results rows -> the standings that tables, dot plots and the headline share."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from raysts.evaluation.results import AVERAGED, Cell, Line, ResultRow, summary
from raysts.models.layers import Layers, as_layers, in_words
from raysts.report.html import hundredfold, with_spread

AVERAGE = "avg"
"""Name of the column that averages the table's sets of ``AVERAGED``."""

_LINE = ("system", "study", "trial", "role", "pooling", "layers", "similarity")


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

    @property
    def described(self) -> str:
        """In words, as a table's caption."""
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
        role: backbone, member, ensemble, student, baseline.
        system: name, where the rows have one.
        similarity: how pairs were compared.
        mean: by data set: the mean over its individuals, the interval of the one where there is one.
        best: by data set: the largest of the individuals, whichever that is; for the average, the best individual's.
        individuals: by data set: each individual's value, in order of member and seed.
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
        """Number of individuals."""
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


def usable(rows: Iterable[ResultRow]) -> list[ResultRow]:
    """Rows of whole sets (not of subsets) that hold a finite number."""
    return [row for row in rows if row["subset"] is None and row["value"] is not None and math.isfinite(row["value"])]


def views(rows: Sequence[ResultRow], compare_layers: Layers) -> list[View]:
    """Every view that has rows, the one to show first in front: Spearman, all, test, at ``compare_layers``."""
    found = {View(*(row[c] for c in ("layers", "metric", "aggregation", "split", "rows"))) for row in usable(rows)}

    def rank(view: View) -> tuple[object, ...]:
        return (
            view.split != "test",
            view.rows != "all",
            view.layers != str(compare_layers),
            view.metric != "spearman",
            view.aggregation != "all",
            *(str(field or "") for field in (view.layers, view.metric, view.aggregation, view.split, view.rows)),
        )

    return sorted(found, key=rank)


def standings(rows: Sequence[ResultRow], view: View) -> Table:
    """The systems of ``rows`` in one view, averaged by ``raysts.evaluation.results.summary``."""
    chosen = [row for row in usable(rows) if row["layers"] == view.layers]
    # ``summary`` compares the aggregation for equality, so the null of tasks without one works as well.
    found = summary(chosen, view.metric, view.aggregation, view.split, view.rows)  # type: ignore[arg-type]
    wanted = [
        row
        for row in chosen
        if (row["metric"], row["aggregation"], row["split"], row["rows"])
        == (view.metric, view.aggregation, view.split, view.rows)
    ]
    averaged = tuple(name for name in found.datasets if name in AVERAGED)
    columns = (*found.datasets, *((AVERAGE,) if len(averaged) > 1 else ()))
    sizes = {row["dataset"]: row["n"] for row in wanted if row["n"]}
    return Table(view, columns, averaged, sizes, tuple(_standing(line, wanted, averaged) for line in found.lines))


def _standing(line: Line, rows: Sequence[ResultRow], averaged: Sequence[str]) -> Standing:
    mine = [row for row in rows if all(row[column] == getattr(line, column) for column in _LINE)]
    latest: dict[str, dict[tuple[object, ...], ResultRow]] = {}
    for row in sorted(mine, key=lambda row: row["created_at"] or ""):
        latest.setdefault(row["dataset"], {})[(row["run_id"], row["member"], row["seed"])] = row
    individuals = {
        name: [_value(row) for row in sorted(by_individual.values(), key=_member_order)]
        for name, by_individual in latest.items()
    }
    cells: dict[str, Cell] = dict(line.cells)
    best = {name: max(values, key=lambda value: value.value) for name, values in individuals.items()}
    if len(averaged) > 1 and line.average:
        cells[AVERAGE] = line.average
        best[AVERAGE] = Value(max(_averages(latest, averaged)))
    mean = {
        name: individuals[name][0] if name in individuals and cell.n == 1 else Value(cell.mean, cell.std, cell.n)
        for name, cell in cells.items()
    }
    return Standing(line.role or "?", line.system or "", line.similarity or "", mean, best, individuals, remarks(mine))


def _averages(latest: dict[str, dict[tuple[object, ...], ResultRow]], averaged: Sequence[str]) -> list[float]:
    complete = set.intersection(*(set(latest.get(name, {})) for name in averaged))
    return [sum(latest[name][who]["value"] for name in averaged) / len(averaged) for who in complete]


def _member_order(row: ResultRow) -> tuple[int, int]:
    return row["member"] if row["member"] is not None else -1, row["seed"] or 0


def _value(row: ResultRow) -> Value:
    return Value(row["value"], None, 1, row["ci_low"], row["ci_high"], row["member"])


def remarks(rows: Sequence[ResultRow]) -> tuple[str, ...]:
    """Labels or test sentences that rows say were used."""
    chose = sorted({row["selected_by"] for row in rows if row["selected_by"]})
    found = [f"checkpoints chosen by {' and '.join(chose)} labels"] if chose else []
    if any(row["transductive"] for row in rows):
        found.append("fitted on the sentences of the test sets (transductive)")
    return tuple(found)
