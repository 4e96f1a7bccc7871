"""The papers' tables as data: printed values and the measurements that match them.

The YAML files beside this module hold them, times 100 as printed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, get_args

import yaml

PAPERS = {"sed": "sed.yaml", "gausscse": "gausscse.yaml", "latte-mix": "latte_mix.yaml"}
"""Files by the name that ``raysts report --paper`` knows."""

STATIC = ("GloVe", "Skip-Gram")
"""Backbones that are vectors of words."""

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

    ``unmade``: the reason why raysts has no such system. ``cells``: by column one value per metric, None if nothing is
    printed.
    """

    name: str
    group: str | None
    system: str | None
    unmade: str | None
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


def read_yaml(name: str) -> dict[str, Any]:
    """Return the content of a YAML file beside this module."""
    text = Path(__file__).with_name(name).read_text(encoding="utf-8")
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # C is ten times as fast
    return dict(yaml.load(text, loader))


@lru_cache
def load(paper: str) -> Paper:
    """Return the tables of a paper: ``sed``, ``gausscse`` or ``latte-mix``."""
    plain = read_yaml(PAPERS[paper])
    _expect(plain, "paper", "short", "title", "notes", "settings", "tables")
    tables = tuple(_table(table, plain.get("settings", {})) for table in plain["tables"])
    return Paper(name=paper, short=plain["short"], title=plain["title"], notes=tuple(plain["notes"]), tables=tables)


_WHERE = {field.name for field in fields(Measure)} - {"dataset", "metric"}
_DEFAULTS = ("system", "backbone", "where", "settings")
"""What a table may say for all of its rows, and a row for itself."""


def _table(plain: Mapping[str, Any], by_system: Mapping[str, Mapping[str, Any]]) -> Table:
    _expect(plain, "number", "about", "notes", "columns", "rows", "remarks", "metrics", "datasets", *_DEFAULTS)
    columns: dict[str, Mapping[str, Any]] = {}
    for column in plain["columns"]:
        _expect(column, "name", "dataset", "mean_of", "metrics", "statistic", "where", "settings")
        datasets = [column["dataset"]] if "dataset" in column else plain.get("datasets", [])
        columns[column["name"]] = {"metrics": plain.get("metrics"), "datasets": datasets, **column}
    remarks = {}
    for remark in plain.get("remarks", []):
        _expect(remark, "row", "group", "column", "text")
        remarks[remark.get("group"), remark["row"], remark.get("column")] = remark["text"]
    rows, group = [], None
    for row in plain["rows"]:
        if isinstance(row, str):
            group = row
            continue
        _expect(row, "name", "cells", "unmade", *_DEFAULTS)
        rows.append(_row(row, group, plain, columns, by_system, remarks))
    assert not remarks, f"table {plain['number']}: no such cells: {list(remarks)}"
    return Table(
        number=plain["number"],
        about=plain["about"],
        notes=tuple(plain.get("notes", ())),
        columns=tuple(Column(name=name, metrics=tuple(column["metrics"])) for name, column in columns.items()),
        rows=tuple(rows),
    )


def _row(
    row: Mapping[str, Any],
    group: str | None,
    table: Mapping[str, Any],
    columns: Mapping[str, Mapping[str, Any]],
    by_system: Mapping[str, Mapping[str, Any]],
    remarks: dict[tuple[str | None, str, str | None], str],
) -> Row:
    def remark_on(column: str | None) -> str | None:
        return remarks.pop((group, row["name"], column), None) or remarks.pop((None, row["name"], column), None)

    where = f"table {table['number']}, {row['name']}"
    system, backbone = (row.get(key, table.get(key)) for key in ("system", "backbone"))
    printed = row["cells"].split()
    assert len(printed) == len(columns), f"{where}: {len(printed)} cells"
    cells = []
    for (name, column), text in zip(columns.items(), printed, strict=True):
        levels = [{"settings": by_system.get(system or "", {})}, table, column, row]
        numbers = text.split("/") if text != "-" else ["-"] * len(column["metrics"])
        assert len(numbers) == len(column["metrics"]), f"{where}: {text}"
        shared: dict[str, Any] = {
            "statistic": column.get("statistic", "mean"),
            "settings": _merged("settings", levels),
            "remark": remark_on(name),
        }
        assert shared["statistic"] in get_args(Statistic), where
        cells.append(
            tuple(
                _value(number, {**shared, "measures": _measures(column, index, columns, table, row) if system else ()})
                for index, number in enumerate(numbers)
            )
        )
    assert (system is None) == ("unmade" in row), f"{where}: a system, or why there is none"
    return Row(
        name=row["name"],
        group=group,
        system=system,
        unmade=row.get("unmade"),
        backbone=backbone,
        remark=remark_on(None) or row.get("unmade"),
        cells=tuple(cells),
    )


def _value(text: str, fields: Mapping[str, Any]) -> Value | None:
    number, _, std = text.partition("±")
    return None if text == "-" else Value(value=float(number), std=float(std) if std else None, **fields)


def _measures(
    column: Mapping[str, Any],
    metric: int,
    columns: Mapping[str, Mapping[str, Any]],
    table: Mapping[str, Any],
    row: Mapping[str, Any],
) -> tuple[Measure, ...]:
    if "mean_of" in column:
        return tuple(m for name in column["mean_of"] for m in _measures(columns[name], metric, columns, table, row))
    where = {name: str(value) for name, value in _merged("where", [table, column, row]).items()}
    assert where.keys() <= _WHERE, f"not in the results table: {where.keys() - _WHERE}"
    return tuple(Measure(dataset=name, metric=column["metrics"][metric], **where) for name in column["datasets"])


def _merged(key: str, levels: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {name: value for level in levels for name, value in level.get(key, {}).items()}


def _expect(plain: Mapping[str, Any], *allowed: str) -> None:
    assert plain.keys() <= set(allowed), f"unknown: {plain.keys() - set(allowed)}"
