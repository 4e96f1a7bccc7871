"""The papers' tables as data: printed values and the measurements that match them.

The YAML files beside this module hold them, times 100 as printed.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from raysts.recipes.tree import read_data

PAPERS = {"sed": "sed.yaml", "gausscse": "gausscse.yaml", "latte-mix": "latte_mix.yaml"}
"""Files by the name that ``raysts report --paper`` knows."""


UNPRINTED = "?"
"""Text of a cell that is measured and not printed."""


class Backbone(NamedTuple):
    """A backbone of the papers. `originals.yaml` beside this file describes the fields."""

    name: str
    names: str
    layers: int


BACKBONES = {paper: Backbone(**fields) for paper, fields in read_data(__file__, "originals.yaml")["backbones"].items()}
SIZES: dict[str, int] = read_data(__file__, "originals.yaml")["rows"]


def is_static(backbone: str | None) -> bool:
    """Return True if a backbone of the papers is word vectors."""
    return backbone in BACKBONES and not BACKBONES[backbone].layers


class Measure(NamedTuple):
    """Conditions on the results rows behind a value. None accepts any."""

    dataset: str
    metric: str
    split: str | None = None
    aggregation: str | None = None
    pooling: str | None = None
    layers: str | None = None
    similarity: str | None = None


class PrintedValue(NamedTuple):
    """A printed number, perhaps with its deviation. None: the paper has no such row."""

    value: float | None
    std: float | None = None
    measures: tuple[Measure, ...] = ()  # a measurement is the mean over these
    statistic: Literal["mean", "max", "std"] = "mean"
    settings: Mapping[str, Any] = {}  # of the run, by dotted paths below its stages
    remark: str | None = None  # a misprint, or a contradiction


class PrintedRow(NamedTuple):
    """A row. ``name`` and ``group`` (its heading) are as in the paper."""

    name: str
    group: str | None
    system: str | None  # in the grammar
    backbone: str | None
    unmade: str | None  # the reason why raysts has no such system
    remark: str | None
    scale: str  # that of the command
    conditions: Mapping[str, str]  # those of this row alone
    cells: tuple[tuple[PrintedValue | None, ...], ...]  # by column one value per metric, None if nothing is printed

    @property
    def title(self) -> str:
        """The name behind its group."""
        return f"{self.group}, {self.name}" if self.group else self.name


class PrintedColumn(NamedTuple):
    """A column in the paper's words. A cell of several metrics has them in this order."""

    name: str
    metrics: tuple[str, ...]


class PrintedTable(NamedTuple):
    """A table. ``about`` describes it in a few words, ``conditions`` holds those that no column changes."""

    number: int
    about: str
    notes: tuple[str, ...]
    conditions: Mapping[str, str]
    columns: tuple[PrintedColumn, ...]
    rows: tuple[PrintedRow, ...]

    @property
    def values(self) -> dict[tuple[int, int, int], PrintedValue]:
        """Return the printed values by index of row, column and metric."""
        cells = [(i, j, cell) for i, row in enumerate(self.rows) for j, cell in enumerate(row.cells)]
        return {(i, j, k): value for i, j, cell in cells for k, value in enumerate(cell) if value is not None}


class Paper(NamedTuple):
    """A paper. ``short`` is its name in recipes and docstrings."""

    name: str
    short: str
    title: str
    notes: tuple[str, ...]
    tables: tuple[PrintedTable, ...]


@lru_cache
def load(paper: str) -> Paper:
    """Return the tables of a paper: ``sed``, ``gausscse`` or ``latte-mix``."""
    plain = read_data(__file__, PAPERS[paper])
    tables = tuple(_table(table, plain.get("settings", {})) for table in plain["tables"])
    return Paper(paper, plain["short"], plain["title"], tuple(plain["notes"]), tables)


def _table(plain: Mapping[str, Any], by_system: Mapping[str, Mapping[str, Any]]) -> PrintedTable:
    shared = {"metrics": plain.get("metrics"), "datasets": plain.get("datasets", [])}
    columns = {column["name"]: {**shared, **column} for column in plain["columns"]}
    remarks = {(r.get("group"), r["row"], r.get("column")): r["text"] for r in plain.get("remarks", [])}

    def remark(group: str | None, row: str, column: str | None) -> str | None:
        """Return the remark on a row or cell, once."""
        return remarks.pop((group, row, column), None) or remarks.pop((None, row, column), None)

    def measures(column: Mapping[str, Any], metric: int, row: Mapping[str, Any]) -> tuple[Measure, ...]:
        if "mean_of" in column:
            return tuple(m for name in column["mean_of"] for m in measures(columns[name], metric, row))
        conditions = _conditions(plain, column, row)
        sets = [column["dataset"]] if "dataset" in column else column["datasets"]
        return tuple(Measure(name, column["metrics"][metric], **conditions) for name in sets)

    def read_row(row: Mapping[str, Any], group: str | None) -> PrintedRow:
        name, system, unmade = row["name"], row.get("system", plain.get("system")), row.get("unmade")
        assert (system is None) == bool(unmade), f"table {plain['number']}, {name}: a system, or why there is none"
        cells = []
        texts = row["cells"].split() if "cells" in row else [UNPRINTED] * len(columns)
        for (title, column), text in zip(columns.items(), texts, strict=True):
            numbers = text.split("/") if text not in ("-", UNPRINTED) else [text] * len(column["metrics"])
            assert len(numbers) == len(column["metrics"]), f"table {plain['number']}, {name}: {text}"
            levels = ({"settings": by_system.get(system or "", {})}, plain, column, row)
            traits: dict[str, Any] = {
                "statistic": column.get("statistic", "mean"),
                "settings": {key: value for level in levels for key, value in level.get("settings", {}).items()},
                "remark": remark(group, name, title),
            }
            conditions = [measures(column, metric, row) if system else () for metric in range(len(numbers))]
            cells.append(tuple(_value(*pair, traits) for pair in zip(numbers, conditions, strict=True)))
        backbone, note = row.get("backbone", plain.get("backbone")), remark(group, name, None) or unmade
        traits = {"unmade": unmade, "remark": note, "scale": row.get("scale", "paper"), "conditions": _conditions(row)}
        return PrintedRow(name, group, system, backbone, cells=tuple(cells), **traits)

    rows, group = [], None
    for row in plain["rows"]:
        if isinstance(row, str):
            group = row
        else:
            rows.append(read_row(row, group))
    assert not remarks, f"table {plain['number']}: no such cells: {list(remarks)}"
    varied = {name for column in plain["columns"] for name in column.get("where", {})}
    return PrintedTable(
        number=plain["number"],
        about=plain["about"],
        notes=tuple(plain.get("notes", ())),
        conditions={name: value for name, value in _conditions(plain).items() if name not in varied},
        columns=tuple(PrintedColumn(name, tuple(column["metrics"])) for name, column in columns.items()),
        rows=tuple(rows),
    )


def _value(number: str, measures: tuple[Measure, ...], traits: Mapping[str, Any]) -> PrintedValue | None:
    if number == "-":
        return None
    if number == UNPRINTED:
        return PrintedValue(None, None, measures, **traits)
    value, _, std = number.partition("±")
    return PrintedValue(float(value), float(std) if std else None, measures, **traits)


def _conditions(*levels: Mapping[str, Any]) -> dict[str, str]:
    return {name: str(value) for level in levels for name, value in level.get("where", {}).items()}
