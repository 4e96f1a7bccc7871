"""The papers' tables with what was measured beside what was published, never mixed.

A measurement stands beside a value when its system, data set, metric, split, aggregation, pooling, pooled layers,
similarity and, where the table varies them, settings are those of the value. The backbone is free, because the papers'
are rarely at hand; it has a column of its own. In a table that has rows of that very backbone it stands beside those
alone, and word vectors and encoders never stand in for each other.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from raysts.evaluation.results import ResultRow
from raysts.objectives import OBJECTIVES
from raysts.pipeline.outcome import system_of
from raysts.recipes import names
from raysts.recipes.tree import paths, to_plain
from raysts.report.paper import published
from raysts.report.paper.published import STATIC, Measure, Table, Value
from raysts.report.run import scores

BACKBONES = {
    "BERT-distil": r"distilbert-base-(un)?cased",
    "BERT-base": r"bert-base-(un)?cased",
    "BERT-large": r"bert-large-(un)?cased",
    "RoBERTa-base": r"roberta-base",
    "RoBERTa-large": r"roberta-large",
    "GloVe": r"glove.*",
    "Skip-Gram": r"(googlenews|word2vec).*",
}
"""The papers' backbones and the names that people give them."""

PAIRS = {
    "sts12": 3108, "sts13": 1500, "sts14": 3750, "sts15": 3000, "sts16": 1186, "stsb": 1379, "sickr": 4927,
    "snli-2way": 9824, "sick-2way": 4927, "snli-direction": 3368, "sick-direction": 1414, "cr": 3775, "mr": 10662,
    "mpqa": 10606, "subj": 10000, "sst2": 1821, "sst5": 2210, "trec": 500, "mrpc": 1725, "sick-e": 4927,
    "sickr-relatedness": 4927, "stsb-relatedness": 1379, "snli-2way-dev": 9842,
}  # fmt: skip
"""Rows of the public test sets (and of a dev set). Copies differ by a few; more than two in a hundred make other data."""

OTHER_DATA = "other data"

_NAMED = 6  # changed settings that a remark names


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One results row, with what the results table does not say of it.

    Attributes:
        row: the row.
        run: name of the run in the storage, of study and trial, or else of the evaluation.
        backbone: what it started from; models of one name are told apart by their content.
        backbone_id: content id of the backbone.
        stages: the plain recipe of each of its stages by the stage's name.
    """

    row: ResultRow
    run: str
    backbone: str
    backbone_id: str
    stages: Mapping[str, Any]

    @property
    def system(self) -> str | None:
        """What it measures, in the words of the grammar; None where it has no name there."""
        return system_of(self.row["system"] or "", self.row["role"])


Fitting = Mapping[tuple[str, str, str], Sequence[Measured]]
"""Measurements by system, data set and metric."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The run behind a measurement.

    Attributes:
        run: its name in the storage.
        backbone: what it started from.
        role: member, ensemble, student or backbone.
        ids: run ids of the models (of an ensemble's members; content id of a backbone).
        remarks: labels or test sentences that were used, other data, other settings than the recipe's.
    """

    run: str
    backbone: str
    role: str
    ids: tuple[str, ...]
    remarks: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What was measured for one value, not times 100: over ``n`` models, with their standard deviation (ddof 1)."""

    value: float
    std: float | None
    n: int
    source: Source


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperTable:
    """A published table and what was measured.

    Attributes:
        table: as published.
        backbones: names of the columns of measurements.
        found: by index of row, column and metric, then by name of the column of measurements.
    """

    table: Table
    backbones: tuple[str, ...]
    found: Mapping[tuple[int, int, int], Mapping[str, Found]]

    @property
    def sources(self) -> tuple[Source, ...]:
        """Every run behind a measurement, in order of appearance."""
        return tuple(dict.fromkeys(each.source for cell in self.found.values() for each in cell.values()))


def paper_tables(paper: str, rows: Iterable[Measured]) -> list[PaperTable]:
    """The tables of a paper (``sed``, ``gausscse``, ``latte-mix``) with the measurements that fit their cells."""
    fitting: dict[tuple[str, str, str], list[Measured]] = {}
    for each in rows:
        if each.system is not None:
            fitting.setdefault((each.system, each.row["dataset"], each.row["metric"]), []).append(each)
    return [_filled(table, fitting) for table in published.load(paper).tables]


def _filled(table: Table, fitting: Fitting) -> PaperTable:
    there = {row.backbone for row in table.rows}
    found: dict[tuple[int, int, int], Mapping[str, Found]] = {}
    for i, row in enumerate(table.rows):
        for j, cell in enumerate(row.cells):
            for k, value in enumerate(cell):
                if value is not None and row.system is not None and row.backbone is not None:
                    beside = _beside(value, row.system, row.backbone, there, fitting)
                    if beside:
                        found[i, j, k] = beside
    columns = dict.fromkeys(column for cell in found.values() for column in cell)
    return PaperTable(table=table, backbones=tuple(sorted(columns, key=lambda c: (OTHER_DATA in c, c))), found=found)


def _beside(value: Value, system: str, backbone: str, there: set[str | None], fitting: Fitting) -> dict[str, Found]:
    """What stands beside one value: per column of measurements the latest run that has all of it."""
    runs: dict[tuple[str, str], list[dict[tuple[Any, ...], Measured]]] = {}
    for index, measure in enumerate(value.measures):
        for each in fitting.get((system, measure.dataset, measure.metric), ()):
            if _fits(each, measure, value.settings) and _stands_beside(each.backbone, backbone, there):
                parts = runs.setdefault((_column(each), each.run), [{} for _ in value.measures])
                individual = tuple(each.row[name] for name in ("run_id", "member", "seed"))
                earlier = parts[index].get(individual)
                if earlier is None or _time(earlier) <= _time(each):
                    parts[index][individual] = each
    latest: dict[str, tuple[str, Found]] = {}
    for (column, _), parts in runs.items():
        complete = [[part[who] for part in parts] for who in parts[0] if all(who in part for part in parts)]
        result = _over_models(complete, value)
        if result is not None:
            when = max(_time(each) for model in complete for each in model)
            if column not in latest or latest[column][0] <= when:
                latest[column] = (when, result)
    return {column: result for column, (_, result) in latest.items()}


def _fits(each: Measured, measure: Measure, settings: Mapping[str, Any]) -> bool:
    wanted = ((name, getattr(measure, name)) for name in ("split", "aggregation", "pooling", "layers", "similarity"))
    return all(value is None or each.row[name] == value for name, value in wanted) and all(
        _at(each.stages, path) == value for path, value in settings.items()
    )


def _at(tree: Any, path: str) -> Any:
    for part in path.split("."):
        tree = tree.get(part) if isinstance(tree, Mapping) else None
    return tree


def _stands_beside(measured: str, published_backbone: str, there: set[str | None]) -> bool:
    name = measured.rsplit("/", 1)[-1].split(" ")[0].lower()
    identity = next((known for known, names in BACKBONES.items() if re.fullmatch(names, name)), None)
    if identity is not None and identity in there:
        return identity == published_backbone
    return (identity in STATIC) == (published_backbone in STATIC)


def _column(each: Measured) -> str:
    dataset, split = each.row["dataset"], each.row["split"]
    size = PAIRS.get(dataset if split in ("test", "cv") else f"{dataset}-{split}")
    other = size is not None and each.row["n"] is not None and abs(each.row["n"] - size) > size / 50
    return f"{each.backbone}, {OTHER_DATA}" if other else each.backbone


def _time(each: Measured) -> str:
    return each.row["created_at"] or ""


def _over_models(models: Sequence[Sequence[Measured]], value: Value) -> Found | None:
    """The value's statistic over models, each of which has one row per measure."""
    if not models or (value.statistic == "std" and len(models) < 2):
        return None
    values = [statistics.fmean(each.row["value"] for each in model) for model in models]
    std = statistics.stdev(values) if len(values) > 1 else None
    number = {"mean": statistics.fmean(values), "max": max(values), "std": std}[value.statistic]
    assert number is not None
    return Found(
        value=number, std=std if value.statistic == "mean" else None, n=len(values), source=_source(models, value)
    )


def _source(models: Sequence[Sequence[Measured]], value: Value) -> Source:
    first = models[0][0]
    rows = [each.row for model in models for each in model]
    ids = [i for row in rows for i in ([row["run_id"]] if row["run_id"] else row["parent_run_ids"] or ())]
    remarks = list(scores.remarks(rows))
    if OTHER_DATA in _column(first):
        remarks.append(f"{OTHER_DATA} than the paper's, by their number of rows")
    changes = [] if first.row["role"] == "backbone" else _changes(first, _stated(first, value))
    if changes:
        more = f" and {len(changes) - _NAMED} more" if len(changes) > _NAMED else ""
        remarks.append(f"other settings than the recipe's: {', '.join(changes[:_NAMED])}{more}")
    return Source(
        run=first.run,
        backbone=first.backbone,
        role=first.row["role"],
        ids=tuple(dict.fromkeys(ids)),
        remarks=tuple(remarks),
    )


def _stated(each: Measured, value: Value) -> set[str]:
    """Settings of the run that the cell states itself: the table is about them."""
    last = list(each.stages)[-1] if each.stages else ""
    fitted = last and OBJECTIVES[each.stages[last]["objective"]].post
    layers = {f"{last}.layers"} if fitted and all(measure.layers for measure in value.measures) else set()
    return {*value.settings, *layers}


def _changes(each: Measured, stated: set[str]) -> list[str]:
    """``ct.batch=32`` for every setting that is neither stated, nor that of the named recipe, nor of its paper scale."""
    usual = _recipes(each.row["system"])
    return [
        f"{path}={_at(each.stages, path)}"
        for path in paths(usual[0])
        if path.split(".")[0] in each.stages
        and path not in stated
        and not isinstance(_at(usual[0], path), Mapping)
        and _at(each.stages, path) not in [_at(tree, path) for tree in usual]
    ]


@lru_cache
def _recipes(system: str) -> list[dict[str, Any]]:
    made = [names.pipeline(name) for name in (system, f"{system}@paper")]
    return [{stage: to_plain(recipe) for stage, recipe in each.recipes.items()} for each in made]
