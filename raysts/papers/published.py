"""The papers' tables as data: printed values and the measurements that match them.

The YAML files beside this module hold them, times 100 as printed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

import yaml

PAPERS = {"sed": "sed.yaml", "gausscse": "gausscse.yaml", "latte-mix": "latte_mix.yaml"}
"""Files by the name that ``raysts report --paper`` knows."""


def read_yaml(name: str) -> dict[str, Any]:
    """Return the content of a YAML file beside this module."""
    text = Path(__file__).with_name(name).read_text(encoding="utf-8")
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # C is ten times as fast
    return dict(yaml.load(text, loader))


class Backbone(NamedTuple):
    """A backbone of the papers. `originals.yaml` beside this file describes the fields."""

    name: str
    names: str
    layers: int


BACKBONES = {paper: Backbone(**fields) for paper, fields in read_yaml("originals.yaml")["backbones"].items()}
SIZES: dict[str, int] = read_yaml("originals.yaml")["rows"]


def is_static(backbone: str | None) -> bool:
    """Return True if a backbone of the papers is word vectors."""
    return backbone in BACKBONES and not BACKBONES[backbone].layers


Statistic = Literal["mean", "max", "std"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """Conditions on the results rows behind a value. None accepts any."""

    dataset: str
    metric: str
    split: str | None = None
    aggregation: str | None = None
    pooling: str | None = None
    layers: str | None = None
    similarity: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """A printed number.

    Attributes:
        measures: a measurement is the mean over these; empty if raysts has no such system.
        settings: required settings of the run: dotted paths below its stages.
        remark: a misprint, or a contradiction.
    """

    value: float
    std: float | None = None
    measures: tuple[Measure, ...] = ()
    statistic: Statistic = "mean"
    settings: Mapping[str, Any]
    remark: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row: ``name`` and ``group`` (its heading) as in the paper, ``system`` in the grammar.

    ``unmade``: the reason why raysts has no such system. ``scale``: that of the command. ``cells``: by column one value
    per metric, None if nothing is printed.
    """

    name: str
    group: str | None
    system: str | None
    unmade: str | None
    scale: str
    backbone: str | None
    remark: str | None
    cells: tuple[tuple[Value | None, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column in the paper's words. A cell of several metrics has them in this order."""

    name: str
    metrics: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table. ``about`` describes it in a few words."""

    number: int
    about: str
    notes: tuple[str, ...]
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Paper:
    """A paper. ``short`` is its name in recipes and docstrings."""

    name: str
    short: str
    title: str
    notes: tuple[str, ...]
    tables: tuple[Table, ...]


@lru_cache
def load(paper: str) -> Paper:
    """Return the tables of a paper: ``sed``, ``gausscse`` or ``latte-mix``."""
    plain = read_yaml(PAPERS[paper])
    tables = tuple(_table(table, plain.get("settings", {})) for table in plain["tables"])
    return Paper(name=paper, short=plain["short"], title=plain["title"], notes=tuple(plain["notes"]), tables=tables)


@dataclass(frozen=True)
class _Context:
    """Defaults of a table for its rows, and those of all tables by system."""

    table: Mapping[str, Any]
    columns: Mapping[str, Mapping[str, Any]]
    by_system: Mapping[str, Mapping[str, Any]]
    remarks: dict[tuple[str | None, str, str | None], str]

    def remark(self, group: str | None, row: str, column: str | None) -> str | None:
        """Return the remark on a row or cell, once."""
        return self.remarks.pop((group, row, column), None) or self.remarks.pop((None, row, column), None)

    def measures(self, column: Mapping[str, Any], metric: int, row: Mapping[str, Any]) -> tuple[Measure, ...]:
        if "mean_of" in column:
            parts = [self.measures(self.columns[name], metric, row) for name in column["mean_of"]]
            return tuple(measure for part in parts for measure in part)
        where = {name: str(value) for name, value in _merged("where", [self.table, column, row]).items()}
        return tuple(Measure(dataset=name, metric=column["metrics"][metric], **where) for name in column["datasets"])


def _table(plain: Mapping[str, Any], by_system: Mapping[str, Mapping[str, Any]]) -> Table:
    columns: dict[str, Mapping[str, Any]] = {}
    for column in plain["columns"]:
        datasets = [column["dataset"]] if "dataset" in column else plain.get("datasets", [])
        columns[column["name"]] = {"metrics": plain.get("metrics"), "datasets": datasets, **column}
    remarks = {(r.get("group"), r["row"], r.get("column")): r["text"] for r in plain.get("remarks", [])}
    context, rows, group = _Context(plain, columns, by_system, remarks), [], None
    for row in plain["rows"]:
        if isinstance(row, str):
            group = row
        else:
            rows.append(_row(row, group, context))
    assert not remarks, f"table {plain['number']}: no such cells: {list(remarks)}"
    return Table(
        number=plain["number"],
        about=plain["about"],
        notes=tuple(plain.get("notes", ())),
        columns=tuple(Column(name=name, metrics=tuple(column["metrics"])) for name, column in columns.items()),
        rows=tuple(rows),
    )


def _row(row: Mapping[str, Any], group: str | None, context: _Context) -> Row:
    name, (system, backbone) = row["name"], (row.get(key, context.table.get(key)) for key in ("system", "backbone"))
    levels = [{"settings": context.by_system.get(system or "", {})}, context.table]
    cells = []
    for (title, column), text in zip(context.columns.items(), row["cells"].split(), strict=True):
        remark, settings = context.remark(group, name, title), _merged("settings", [*levels, column, row])
        values: list[Value | None] = []
        numbers = text.split("/") if text != "-" else ["-"] * len(column["metrics"])
        for metric, number in enumerate(numbers):
            value, _, std = number.partition("±")
            if value == "-":
                values.append(None)
                continue
            printed = Value(
                value=float(value),
                std=float(std) if std else None,
                measures=context.measures(column, metric, row) if system else (),
                statistic=column.get("statistic", "mean"),
                settings=settings,
                remark=remark,
            )
            values.append(printed)
        assert len(values) == len(column["metrics"]), f"table {context.table['number']}, {name}: {text}"
        cells.append(tuple(values))
    unmade = row.get("unmade")
    assert (system is None) == bool(unmade), f"table {context.table['number']}, {name}: a system, or why there is none"
    remark = context.remark(group, name, None) or unmade
    traits: dict[str, Any] = {"system": system, "unmade": unmade, "backbone": backbone, "remark": remark}
    return Row(name=name, group=group, scale=row.get("scale", "paper"), cells=tuple(cells), **traits)


def _merged(key: str, levels: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {name: value for level in levels for name, value in level.get(key, {}).items()}
