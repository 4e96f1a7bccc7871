"""Reasons why rows of a paper's table have no measurement, and what fills them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from raysts.errors import InputError
from raysts.evaluation.harness import TASKS
from raysts.evaluation.transfer import TRANSFER_SETS
from raysts.evaluation.words import SETS
from raysts.models import pretrained
from raysts.papers.experiments import commands
from raysts.papers.match import EmptyRow, MeasuredRow, PaperTable, fits, stands_beside
from raysts.papers.published import BACKBONES, Measure, Row, is_static
from raysts.recipes import names

_TABLES = {name: table for table, names in SETS.items() for name in names} | {
    source.name: source.tables[-1] for source in TRANSFER_SETS
}
"""Tables of the sets of words and of transfer. Every other set is a task."""


def empty_rows(paper: str, shown: PaperTable, rows: Sequence[MeasuredRow]) -> list[EmptyRow]:
    """Return the rows of a table without any measurement, with the reasons.

    ``rows``: the measurements in the storage, on sets of other tables too.
    """
    filled = {i for i, *_ in shown.measured}
    command = commands()[paper, shown.table.number].partition("@")[0]
    backbones = {row.backbone for row in shown.table.rows}
    return [
        EmptyRow(row=row, why=row.unmade or _why(row, _system_rows(row, rows, backbones), f"{command}@{row.scale}"))
        for i, row in enumerate(shown.table.rows)
        if i not in filled
    ]


def _system_rows(row: Row, rows: Sequence[MeasuredRow], backbones: set[str | None]) -> list[MeasuredRow]:
    """Return the measurements of a row's system on a backbone that fits, on any set."""
    return [
        result
        for result in rows
        if result.system == row.system and row.backbone and stands_beside(result.backbone, row.backbone, backbones)
    ]


def _why(row: Row, measured: Sequence[MeasuredRow], command: str) -> str:
    values = [value for cell in row.cells for value in cell if value]
    measures = [(measure, value.settings) for value in values for measure in value.measures]
    sets = dict.fromkeys(measure.dataset for measure, _ in measures)
    command = _command(row, {measure.pooling for measure, _ in measures if measure.pooling}, command)
    if not measured:
        return f"not run: '{command}'{_shortage(row)}"
    datasets = {result.row["dataset"] for result in measured}
    fitting = {
        measure.dataset
        for measure, settings in measures
        if any(result.row["dataset"] == measure.dataset and fits(result, measure, settings) for result in measured)
    }
    if fitting or not datasets & {*sets}:
        missing = [name for name in sets if name not in fitting]
        tables = ", ".join(dict.fromkeys(_TABLES.get(name) or TASKS[name].expected()[0] for name in missing))
        return f"{row.system} was not measured on {', '.join(missing)}: '{command}', with {tables} in the data"
    return f"{row.system} was measured, but not with {_conditions(*measures[0])}: '{command}'"


def _conditions(measure: Measure, settings: Mapping[str, Any]) -> str:
    named = {name: getattr(measure, name) for name in ("layers", "pooling", "similarity", "aggregation", "split")}
    return ", ".join(f"{name}={value}" for name, value in {**named, **settings}.items() if value is not None)


def _command(row: Row, poolings: set[str], command: str) -> str:
    """Return the command that fills a row: its table's, or an evaluation of a model."""
    if poolings and poolings != {_pooling(row.system or "")}:
        model = BACKBONES[row.backbone or ""].name if row.system == "raw" else "MODEL"
        return f"raysts evaluate {model} --pooling {', '.join(poolings)}"
    return command


def _pooling(system: str) -> str:
    """Return the pooling at which a pipeline measures its system."""
    recipes = list(names.pipeline(f"{system}@paper").recipes.values())
    return recipes[-1].pooling if recipes else "mean"


def _shortage(row: Row) -> str:
    """Return the end of a reason that names a missing backbone, empty if this machine has it."""
    name = BACKBONES[row.backbone or ""].name
    if is_static(row.backbone):
        return "" if Path(name).is_file() else f", which needs the file {name} in the working directory"
    try:
        pretrained.find(name, fetch=False)
    except InputError:
        return f", with {name}, which is not on this machine"
    return ""
