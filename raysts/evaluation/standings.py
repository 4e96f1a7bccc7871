"""Standings of systems on test sets, for terminal, page, card, claims and the papers' tables.

The members (or students) of a system are one line. No other part of the house averages results rows.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from raysts.evaluation.results import ResultRow
from raysts.models.layers import Layers, as_layers, layers_text

AVERAGED = ("sts12", "sts13", "sts14", "sts15", "sts16", "stsb", "sickr")
"""The sets of the average column, as far as the table has them; sickr-all overlaps sickr and stays out."""
AVERAGE = "avg"
"""The mean over the sets of ``AVERAGED`` that were measured."""

ROLES = ("backbone", "member", "ensemble", "soup", "greedy-soup", "student", "baseline")
TEACHER = "teacher "
"""Beginning of the role of a member that tables call by a name (:func:`named_teachers`)."""

RETRIEVAL = "retrieval:"
"""Beginning of the names of retrieval sets."""
AS_DISTRIBUTED = "as distributed"
"""Remark of the backbone that pools as its folder says."""
AGREEMENT = "agreement"
"""Agreement with an ensemble: the name of the set in results, and of what selects."""

AGGREGATIONS = {
    "all": "all subsets concatenated", "mean": "mean of the subsets", "wmean": "subsets weighted by their pairs"
}  # fmt: skip
METRICS = {
    "auc_pr": "PR-AUC", "average_precision": "Average precision", "ndcg@10": "nDCG@10", "mrr@10": "MRR@10", "map": "MAP",
}  # fmt: skip


def named_teachers(rows: Iterable[ResultRow], names: Mapping[str, str]) -> list[ResultRow]:
    """Return the rows, in which each member with a name (by its run id) has a separate role.

    The mean of models that have nothing in common but their student says nothing. An ensemble needs two.
    """
    named = []
    for row in rows:
        if row["role"] == "member" and row["run_id"] in names:
            row = {**row, "role": f"{TEACHER}{names[row['run_id']]}"}
        if row["role"] != "ensemble" or len(row["parent_run_ids"] or ()) != 1:
            named.append(row)
    return named


def kind_of(role: str | None) -> str:
    """Return the one of ``ROLES`` that a role belongs to, or ``baseline``."""
    role = "member" if role and role.startswith(TEACHER) else role
    return role if role in ROLES else "baseline"


def describe_pooled(layers: str | None) -> str:
    """Return in words how many layers were pooled, or nothing without a record."""
    return "" if layers is None else f"{layers_text(as_layers(layers))} pooled"


class View(NamedTuple):
    """Columns of the results table that select the numbers of a table. ``layers`` None: any."""

    layers: str | None
    metric: str = "spearman"
    aggregation: str | None = "all"
    split: str = "test"
    rows: str = "all"

    @classmethod
    def of(cls, row: ResultRow) -> View:
        return cls(*(row[column] for column in cls._fields))

    @property
    def description(self) -> str:
        parts = [
            f"{METRICS.get(self.metric, self.metric.capitalize())} × 100 on {self.split}",
            AGGREGATIONS.get(self.aggregation or "", self.aggregation),
            describe_pooled(self.layers),
            "rows that do not occur in the training text" if self.rows == "clean" else None,
        ]
        return ", ".join(part for part in parts if part)


@dataclass(frozen=True, slots=True)
class Value:
    """Score, or mean of ``n`` scores with their standard deviation (ddof 1), not times 100."""

    value: float
    std: float | None = None
    n: int = 1
    low: float | None = None
    high: float | None = None
    member: int | None = None

    @classmethod
    def mean_of(cls, values: Sequence[float]) -> Value:
        std = float(np.std(values, ddof=1)) if len(values) > 1 else None
        return cls(float(np.mean(values)), std, len(values))

    @property
    def number(self) -> str:
        return f"{100 * self.value:.2f}"

    @property
    def interval(self) -> str:
        """``[69.80, 72.61]``, times 100, or nothing without an interval."""
        return "" if self.low is None or self.high is None else f"[{100 * self.low:.2f}, {100 * self.high:.2f}]"

    @property
    def spread_text(self) -> str:
        """``71.20 ± 0.31``, times 100."""
        return self.number + (f" ± {100 * self.std:.2f}" if self.std is not None else "")

    @property
    def cell(self) -> str:
        """``71.20 ±0.31``, times 100."""
        return self.spread_text.replace("± ", "±")

    @property
    def text(self) -> str:
        """``71.20  [69.80, 72.61]``, ``71.20 ± 0.31``, times 100."""
        return self.spread_text if self.n > 1 else f"{self.number}  {self.interval}".rstrip()


@dataclass(frozen=True, slots=True)
class Standing:
    """System in one role at one pooling.

    Attributes:
        role: one of ``ROLES``, or of a teacher that has a name.
        mean: by set the mean over models; a single model has its interval.
        best: by set the largest value of a model; of the average the best model's.
        individuals: by set the value of each model.
        remarks: labels or test sentences that its rows used, and other layers than the view's.
    """

    system: str | None
    study: str | None
    trial: str | None
    role: str | None
    pooling: str | None
    layers: str | None
    similarity: str | None
    mean: dict[str, Value]
    best: dict[str, Value]
    individuals: dict[str, list[Value]]
    remarks: tuple[str, ...]

    @property
    def n(self) -> int:
        """The most models that a value is over."""
        return max((value.n for value in self.mean.values()), default=0)


@dataclass(frozen=True, slots=True)
class Standings:
    """The systems in one view. ``columns``: the sets, then perhaps the average of the ``averaged`` ones."""

    view: View
    columns: tuple[str, ...]
    averaged: tuple[str, ...]
    sizes: dict[str, int]
    lines: tuple[Standing, ...]

    def first(self, role: str, column: str | None = None) -> Standing | None:
        """Return the first line of a role, with a value in ``column`` if one is named."""
        lines = (line for line in self.lines if line.role == role and (column is None or column in line.mean))
        return next(lines, None)

    @property
    def plot_lines(self) -> list[Standing]:
        backbone = self.first("backbone")
        return [line for line in self.lines if line.role != "backbone" or line is backbone]


_KEY = ("system", "study", "trial", "role", "pooling", "layers", "similarity")


def usable(rows: Iterable[Mapping[str, Any]]) -> list[ResultRow]:
    """Return the rows of whole sets (not of subsets) that hold a finite number."""
    whole_sets = (row for row in rows if row["subset"] is None and row["value"] is not None)
    return [dict(row) for row in whole_sets if math.isfinite(row["value"])]


def views(rows: Sequence[ResultRow], compare_layers: Layers) -> list[View]:
    """Return every view that has rows, first Spearman on all test rows at ``compare_layers``."""
    usual, order = View(str(compare_layers)), ("split", "rows", "layers", "metric", "aggregation")

    def rank(view: View) -> tuple[object, ...]:
        unusual = (getattr(view, name) != getattr(usual, name) for name in order)
        return (*unusual, *(str(field or "") for field in view))

    return sorted(set(map(View.of, usable(rows))), key=rank)


def standings(
    rows: Iterable[Mapping[str, Any]], view: View, as_distributed: Mapping[str, str] | None = None
) -> Standings:
    """Return the systems of results rows in one view, by layers, role and first appearance.

    A value that was measured again for the same run, member and seed counts once, the latest.

    Args:
        rows: of the results table.
        view: without ``layers`` lines of all layers stand below each other.
        as_distributed: columns of the lines that come first, with a remark.
    """
    by_key: dict[tuple[str | None, ...], dict[tuple[Any, ...], dict[str, ResultRow]]] = {}
    any_layers = as_distributed is not None or view.layers is None
    for row in usable(rows):
        if View.of(row)._replace(layers=view.layers if any_layers else row["layers"]) != view:
            continue
        key, model = (tuple(row[name] for name in names) for names in (_KEY, ("run_id", "member", "seed")))
        values = by_key.setdefault(key, {}).setdefault(model, {})
        earlier = values.get(row["dataset"])
        if earlier is None or (row["created_at"] or "") >= (earlier["created_at"] or ""):
            values[row["dataset"]] = row
    used = [row for models in by_key.values() for values in models.values() for row in values.values()]
    sets = dict.fromkeys(row["dataset"] for row in used)
    averaged = tuple(name for name in AVERAGED if name in sets)
    columns = (*averaged, *(name for name in sets if name not in AVERAGED)) + ((AVERAGE,) if len(averaged) > 1 else ())
    lines = [_standing(key, [*models.values()], averaged, view, as_distributed) for key, models in by_key.items()]
    lines.sort(key=lambda line: (len(line.layers or ""), line.layers or "", ROLES.index(kind_of(line.role))))
    if view.layers is not None:
        lines.sort(key=lambda line: (AS_DISTRIBUTED not in line.remarks, ROLES.index(kind_of(line.role))))
    return Standings(view, columns, averaged, {row["dataset"]: row["n"] for row in used if row["n"]}, tuple(lines))


def _standing(
    key: tuple[str | None, ...], models: Sequence[Mapping[str, ResultRow]], averaged: Sequence[str], view: View,
    as_distributed: Mapping[str, str] | None,
) -> Standing:  # fmt: skip
    rows = [row for model in models for row in model.values()]
    rows.sort(key=lambda row: (-1 if row["member"] is None else row["member"], row["seed"] or 0))
    individuals: dict[str, list[Value]] = {}
    for row in rows:
        value = Value(row["value"], None, 1, row["ci_low"], row["ci_high"], row["member"])
        individuals.setdefault(row["dataset"], []).append(value)
    best = {name: max(values, key=lambda value: value.value) for name, values in individuals.items()}
    mean = {
        name: values[0] if len(values) == 1 else Value.mean_of([value.value for value in values])
        for name, values in individuals.items()
    }
    complete = [[model[name]["value"] for name in averaged] for model in models if model.keys() >= {*averaged}]
    if len(averaged) > 1 and complete:
        averages = [float(np.mean(values)) for values in complete]
        mean[AVERAGE], best[AVERAGE] = Value.mean_of(averages), Value(max(averages))
    columns: dict[str, Any] = dict(zip(_KEY, key, strict=True))
    notes = remarks(rows)
    if view.layers not in (None, columns["layers"]):
        notes = (describe_pooled(columns["layers"]), *notes)
    if as_distributed and as_distributed.items() <= columns.items():
        notes = (AS_DISTRIBUTED, *notes)
    return Standing(**columns, mean=mean, best=best, individuals=individuals, remarks=notes)


def main_standings(
    rows: Sequence[ResultRow], compare_layers: Layers, distributed: tuple[str, Layers]
) -> Standings | None:
    """Return the table that comes first, or None if nothing is measured on a test set.

    It has rank correlations, of retrieval sets nDCG@10: every system at the compared layers, a system that has others alone at
    these, and before all of them the backbone as it was ``distributed`` (pooling and layers).
    """
    as_correlation = {"metric": "spearman", "aggregation": "all"}
    rows = [
        {**row, **as_correlation} if row["dataset"].startswith(RETRIEVAL) and row["metric"] == "ndcg@10" else row
        for row in rows
    ]
    view = next(iter(views(rows, compare_layers)), None)
    if view is None or view.split != "test":
        return None
    as_distributed = {"role": "backbone", "pooling": distributed[0], "layers": str(distributed[1])}
    of_sets = usable(rows)
    compared = {row["role"] for row in of_sets if View.of(row) == view}
    shown = [
        row
        for row in of_sets
        if row["layers"] == view.layers or row["role"] not in compared or as_distributed.items() <= row.items()
    ]
    return standings(shown, view, as_distributed)


def remarks(rows: Sequence[ResultRow]) -> tuple[str, ...]:
    """Return the labels or test sentences that rows say were used."""
    chose = sorted({row["selected_by"] for row in rows if row["selected_by"]})
    labels = [name for name in chose if name != AGREEMENT]
    notes = [f"checkpoints chosen by {' and '.join(labels)} labels"] if labels else []
    notes += ["checkpoints chosen by agreement with the teachers"] if len(labels) < len(chose) else []
    if any(row["transductive"] for row in rows):
        notes.append("fitted on the sentences of the test sets (transductive)")
    return tuple(notes)


def align_columns(rows: Sequence[Sequence[str]], left: Container[int]) -> list[str]:
    """Return rows of cells as aligned lines of text, the columns ``left`` aligned left."""
    columns = []
    for number, cells in enumerate(zip(*rows, strict=True)):
        width = max(map(len, cells))
        columns.append([cell.ljust(width) if number in left else cell.rjust(width) for cell in cells])
    return ["  ".join(cells).rstrip() for cells in zip(*columns, strict=True)]


def format_standings(table: Standings) -> str:
    """Return aligned plain text, values times 100.

    Of several models their number stands behind the role; a cell with fewer has its own number.
    """
    lines = [["system", "role", "pooling", "layers", "similarity", *table.columns]]
    for line in table.lines:
        name = "/".join(part for part in (line.system, line.study, line.trial) if part)
        role = f"{line.role or '-'} ({line.n})" if line.n > 1 else line.role
        cells = []
        for value in map(line.mean.get, table.columns):
            number = f" ({value.n})" if value and value.n != line.n else ""
            cells.append(value.cell + number if value else "")
        lines.append([*(text or "-" for text in (name, role, line.pooling, line.layers, line.similarity)), *cells])
    text = align_columns(lines, range(5))
    title = ", ".join(filter(None, (table.view.metric, table.view.aggregation, "x100")))
    return "\n".join([title, text[0], "-" * max(map(len, text)), *text[1:]])


def format_results(rows: Sequence[ResultRow], brief: bool = False) -> str:
    """Return the table of rank correlations, then one for every other metric.

    Test rows and cross-validated ones stand side by side. ``brief``: the rank correlations alone, if there are any.
    """
    plain = [{**row, "split": "test" if row["split"] == "cv" else row["split"]} for row in rows]
    correlations = standings(rows, View(None))
    by_metric = [standings(plain, View(None, metric, None)) for metric in dict.fromkeys(row["metric"] for row in plain)]
    tables = [correlations] if brief and correlations.lines else [correlations, *by_metric]
    return "\n\n".join(format_standings(table) for table in tables if table.lines) or format_standings(correlations)
