"""The papers' tables with measurements beside published values.

A measurement matches a value if system, data set, metric, split, aggregation, pooling, layers, similarity and, if the
table varies them, settings are equal. The backbone may differ, because the papers' are rarely available; it has its
own column. If a table has rows of that backbone, the measurement matches only those. Word vectors and encoders never
replace each other.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from raysts.errors import InputError
from raysts.evaluation.harness import TASKS
from raysts.evaluation.results import ResultRow
from raysts.evaluation.standings import Value
from raysts.evaluation.standings import remarks as remarks_of
from raysts.evaluation.transfer import TRANSFER_SETS
from raysts.evaluation.words import SETS
from raysts.models import pretrained
from raysts.papers import published
from raysts.papers.experiments import commands
from raysts.papers.published import BACKBONES, SIZES, Measure, PrintedRow, PrintedTable, PrintedValue, is_static
from raysts.pipeline.outcome import system_of
from raysts.recipes import names
from raysts.recipes.catalog import CATALOG
from raysts.recipes.tree import has_path, leaves, to_plain

OTHER_DATA = "other data"

PROTOCOL = ("split", "aggregation", "pooling", "layers", "similarity")
"""Columns that say how a value was measured; a probe stands under similarity. A cell holds values of one protocol."""

_NAMED = 6  # changed settings that a remark names


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRow:
    """A results row with values that the results table lacks."""

    row: ResultRow
    run: str  # name of the run in the storage, of study and trial, or else of the evaluation
    backbone: str  # the starting model; models of one name are told apart by their content
    backbone_id: str
    stages: Mapping[str, Any]  # the plain recipe of each stage by the stage's name

    @property
    def system(self) -> str | None:
        """Return the measured system in the words of the grammar, or None without a name."""
        return _system_of(self.row["system"] or "", self.row["role"])

    @property
    def created_at(self) -> str:
        return self.row["created_at"] or ""

    @property
    def column(self) -> str:
        """Return the column name: the backbone, with a note on data other than the paper's."""
        size = self.published_size
        return f"{self.backbone}, {OTHER_DATA}" if abs((self.row["n"] or size) - size) > size / 50 else self.backbone

    @property
    def published_size(self) -> int:
        """Return the number of rows of the paper's set, or of the measured one if that is unknown."""
        dataset, split = self.row["dataset"], self.row["split"]
        return SIZES.get(dataset if split in ("test", "cv") else f"{dataset}-{split}", self.row["n"] or 0)

    def setting(self, path: str) -> Any:
        return _lookup(self.stages, path)


_system_of = lru_cache(system_of)

Fitting = Mapping[tuple[str | None, str, str], Sequence[MeasuredRow]]
"""Measurements by system, data set and metric."""


class Origin(NamedTuple):
    """The run behind a measurement."""

    run: str
    backbone: str
    role: str
    ids: tuple[str, ...]  # run ids of the models (of an ensemble's members; content id of a backbone)
    remarks: tuple[str, ...]  # use of labels or test sentences, other data, other settings than the recipe's


class MeasuredValue(NamedTuple):
    """Measurement over ``n`` models with their standard deviation (ddof 1), not times 100."""

    value: float
    std: float | None
    n: int
    source: Origin


class PaperTable(NamedTuple):
    """A published table with its measurements."""

    table: PrintedTable
    backbones: tuple[str, ...]  # names of the columns of measurements
    measured: Mapping[tuple[int, int, int], Mapping[str, MeasuredValue]]  # by row, column and metric, then by name
    empty: Sequence[tuple[PrintedRow, str]] = ()  # the rows without any, each with the reason

    @property
    def sources(self) -> tuple[Origin, ...]:
        return tuple(dict.fromkeys(value.source for values in self.measured.values() for value in values.values()))


def paper_tables(paper: str, rows: Sequence[MeasuredRow]) -> list[PaperTable]:
    """Return a paper's tables (``sed``, ``gausscse``, ``latte-mix``) with matching measurements."""
    fitting: dict[tuple[str | None, str, str], list[MeasuredRow]] = {}
    for row in sorted(rows, key=lambda row: row.created_at):  # what is measured again replaces what was before
        fitting.setdefault((row.system, row.row["dataset"], row.row["metric"]), []).append(row)
    filled = []
    for table in published.load(paper).tables:
        backbones = frozenset(row.backbone for row in table.rows)
        measured = {}
        for place, value in table.values.items():
            system, backbone = table.rows[place[0]].system, table.rows[place[0]].backbone
            if system and backbone and (values := match_value(value, system, backbone, backbones, fitting)):
                measured[place] = values
        columns = {column for values in measured.values() for column in values}
        names = tuple(sorted(columns, key=lambda column: (OTHER_DATA in column, column)))
        filled.append(PaperTable(table, names, measured, empty_rows(paper, table, {i for i, *_ in measured}, rows)))
    return filled


def match_value(
    value: PrintedValue, system: str, backbone: str, backbones: frozenset[str | None], fitting: Fitting
) -> dict[str, MeasuredValue]:
    """Return the measurements of a value: by column, the latest run with all of it, in one protocol."""
    runs: dict[tuple[Any, ...], list[dict[tuple[Any, ...], MeasuredRow]]] = {}
    for index, measure in enumerate(value.measures):
        for row in fitting.get((system, measure.dataset, measure.metric), ()):
            if fits(row, measure, value.settings) and stands_beside(row.backbone, backbone, backbones):
                unasked = (row.row[name] for name in PROTOCOL if getattr(measure, name) is None)
                parts = runs.setdefault((row.column, row.run, *unasked), [{} for _ in value.measures])
                if any(other.row["dataset_sha256"] != row.row["dataset_sha256"] for other in parts[index].values()):
                    parts[index].clear()  # what was measured on another copy of the set
                parts[index][tuple(row.row[name] for name in ("run_id", "member", "seed"))] = row
    latest: dict[str, tuple[str, MeasuredValue]] = {}
    for (column, *_), parts in runs.items():
        complete = [[part[model] for part in parts] for model in parts[0] if all(model in part for part in parts)]
        measured = _over_models(complete, value)
        if measured is not None:
            when = max(row.created_at for rows in complete for row in rows)
            if column not in latest or latest[column][0] <= when:
                latest[column] = when, measured
    return {column: measured for column, (_, measured) in latest.items()}


def fits(row: MeasuredRow, measure: Measure, settings: Mapping[str, Any]) -> bool:
    """Return True if a measurement meets the conditions of a measure (its set and metric aside)."""
    is_measured_so = all(getattr(measure, name) in (None, row.row[name]) for name in PROTOCOL)
    return is_measured_so and all(row.setting(path) == value for path, value in settings.items())


def _lookup(tree: Any, path: str) -> Any:
    for part in path.split("."):
        tree = tree.get(part) if isinstance(tree, Mapping) else None
    return tree


@lru_cache
def stands_beside(measured: str, published: str, backbones: frozenset[str | None]) -> bool:
    """Return True if a measured backbone fits a published one of a table with these ``backbones``."""
    name = measured.rsplit("/", 1)[-1].split(" ")[0].lower()
    identity = next((paper for paper, backbone in BACKBONES.items() if re.fullmatch(backbone.names, name)), None)
    return identity == published if identity and identity in backbones else is_static(identity) == is_static(published)


def _over_models(models: Sequence[Sequence[MeasuredRow]], value: PrintedValue) -> MeasuredValue | None:
    """Return the value's statistic over models, each with one row per measure."""
    if not models or (value.statistic == "std" and len(models) < 2):
        return None
    values = [Value.mean_of([row.row["value"] for row in model]).value for model in models]
    mean = Value.mean_of(values)
    number = {"mean": mean.value, "max": max(values), "std": mean.std}[value.statistic]
    assert number is not None
    std = mean.std if value.statistic == "mean" else None
    return MeasuredValue(number, std, mean.n, _source(models, value))


def _source(models: Sequence[Sequence[MeasuredRow]], value: PrintedValue) -> Origin:
    first, stages = models[0][0], models[0][0].stages
    rows = [row.row for model in models for row in model]
    ids = [i for row in rows for i in ([row["run_id"]] if row["run_id"] else row["parent_run_ids"] or ())]
    remarks = list(remarks_of(rows))
    if OTHER_DATA in first.column:
        remarks.append(f"{OTHER_DATA} than the paper's, by their number of rows")
    else:
        sizes = {row.row["dataset"]: (row.row["n"], row.published_size) for row in models[0] if row.row["n"]}
        remarks += [f"{name}: {n:,} rows, the paper's has {size:,}" for name, (n, size) in sizes.items() if n != size]
    last = list(stages)[-1] if stages else ""
    fitted = last and CATALOG[stages[last]["objective"]].head and all(measure.layers for measure in value.measures)
    stated = {*value.settings} | ({f"{last}.layers"} if fitted else set())  # by the cell: the table varies them
    if changes := [] if first.row["role"] == "backbone" else _changes(first, stated):
        rest = f" and {len(changes) - _NAMED} more" if len(changes) > _NAMED else ""
        remarks.append(f"other settings than the recipe's: {', '.join(changes[:_NAMED])}{rest}")
    return Origin(first.run, first.backbone, first.row["role"], tuple(dict.fromkeys(ids)), tuple(remarks))


def _changes(row: MeasuredRow, stated: set[str]) -> list[str]:
    """Return the unstated settings that differ from the named recipe and its paper scale."""
    usual, paper = _recipes(row.row["system"])
    return [
        f"{path}={row.setting(path)}"
        for path, value in leaves(usual).items()
        if has_path(row.stages, path)  # an older record has not every option of today
        and path not in stated
        and row.setting(path) not in (value, _lookup(paper, path))
    ]


@lru_cache
def _recipes(system: str) -> list[dict[str, Any]]:
    recipes = [names.pipeline(name).recipes for name in (system, f"{system}@paper")]
    return [{stage: to_plain(recipe) for stage, recipe in by_stage.items()} for by_stage in recipes]


# -- rows without a measurement --------------------------------------------------------------------------------------------

_TABLES = {name: table for table, names in SETS.items() for name in names} | {
    source.name: source.tables[-1] for source in TRANSFER_SETS
}
"""Tables of the sets of words and of transfer. Every other set is a task."""


def empty_rows(
    paper: str, table: PrintedTable, filled: Collection[int], rows: Sequence[MeasuredRow]
) -> list[tuple[PrintedRow, str]]:
    """Return the rows of a table that are not ``filled``, with the reasons.

    ``rows``: the measurements in the storage, on sets of other tables too.
    """
    command = commands()[paper, table.number].partition("@")[0]
    backbones = frozenset(row.backbone for row in table.rows)
    empty = []
    for row in (row for i, row in enumerate(table.rows) if i not in filled):
        of_system = [result for result in rows if result.system == row.system and row.backbone]
        fitting = [result for result in of_system if stands_beside(result.backbone, row.backbone or "", backbones)]
        empty.append((row, row.unmade or _why(row, fitting, f"{command}@{row.scale}")))
    return empty


def _why(row: PrintedRow, measured: Sequence[MeasuredRow], command: str) -> str:
    values = [value for cell in row.cells for value in cell if value]
    measures = [(measure, value.settings) for value in values for measure in value.measures]
    sets = dict.fromkeys(measure.dataset for measure, _ in measures)
    if not measured:
        name, shortage = BACKBONES[row.backbone or ""].name, ""
        if is_static(row.backbone):
            shortage = "" if Path(name).is_file() else f", which needs the file {name} in the working directory"
        else:
            try:
                pretrained.find(name, fetch=False)
            except InputError:
                shortage = f", with {name}, which is not on this machine"
        return f"not run: '{command}'{shortage}"
    by_set = {name: [result for result in measured if result.row["dataset"] == name] for name in sets}
    fitting = {m.dataset for m, settings in measures if any(fits(r, m, settings) for r in by_set[m.dataset])}
    if fitting or not any(by_set.values()):
        missing = [name for name in sets if name not in fitting]
        tables = ", ".join(dict.fromkeys(_TABLES.get(name) or TASKS[name].expected_tables()[0] for name in missing))
        return f"{row.system} was not measured on {', '.join(missing)}: '{command}', with {tables} in the data"
    measure, settings = measures[0]
    named = {name: getattr(measure, name) for name in ("layers", "pooling", "similarity", "aggregation", "split")}
    conditions = ", ".join(f"{name}={value}" for name, value in {**named, **settings}.items() if value is not None)
    return f"{row.system} was measured, but not with {conditions}: '{command}'"
