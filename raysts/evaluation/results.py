"""The results table of a storage, and the summary of it that people look at."""

import os
import re
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from raysts.errors import InputError
from raysts.ids import sources
from raysts.schema import RESULTS, SCHEMA_VERSION
from raysts.storage.store import Store

ResultRow = dict[str, Any]
"""One row of the results table, or the columns of it that its maker knows."""

EVALUATION = "evaluate-"
"""Begins the names of parts that ``raysts evaluate`` wrote; the others are a pipeline's."""

TEACHER = "teacher "
"""How a member's role begins where tables call it by the name that it was given (:func:`by_name`)."""
ROLES = ("backbone", "member", "ensemble", "soup", "greedy-soup", "student", "baseline")
AVERAGED = ("sts12", "sts13", "sts14", "sts15", "sts16", "stsb", "sickr")
"""The sets of the average column (those of them that the table has); sickr-all overlaps sickr and stays out."""


def write(storage: Path, name: str, rows: Sequence[Mapping[str, Any]]) -> Path:
    """Write ``rows`` as the part ``name`` of the storage's results; an earlier part of that name is replaced.

    The part is visible only when complete.
    """
    assert re.fullmatch(r"[\w+=][\w.+=-]*", name), f"'{name}' does not name a file"
    return write_rows(storage / "results" / f"{name}.parquet", rows)


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    """Write rows of the results table to a file; complete or absent."""
    unknown = {column for row in rows for column in row} - set(RESULTS.names)
    assert not unknown, f"not a column of the results table: {sorted(unknown)}"
    with Store.of(path).put(path) as draft:
        pq.write_table(pa.Table.from_pylist([dict(row) for row in rows], schema=RESULTS), draft)
    return path


def read(storage: Path) -> pa.Table:
    """All parts of the storage's results in order of their names; columns an older part lacks are null.

    Raises:
        InputError: a part cannot be read or was written by a newer version.
    """
    store = Store.of(storage)
    parts = [_part(path) for path in store.get_all(storage / "results", "*.parquet") if store.get(path)]
    return pa.concat_tables(parts) if parts else RESULTS.empty_table()


def read_part(storage: Path, name: str) -> list[ResultRow]:
    """The rows of one part; none when it is not there."""
    return read_rows(storage / "results" / f"{name}.parquet")


def read_rows(path: Path) -> list[ResultRow]:
    """The rows of a file that :func:`write_rows` wrote; none when it is not there."""
    found = Store.of(path).get(path)
    return _part(found).to_pylist() if found else []


def _part(path: Path) -> pa.Table:
    try:
        # A ParquetFile: read_table would take '<key>=<value>' in the path for a partition and add a column.
        table = pq.ParquetFile(path).read()
        columns = [
            table.column(field.name).cast(field.type)
            if field.name in table.column_names
            else pa.nulls(table.num_rows, field.type)
            for field in RESULTS
        ]
    except (pa.ArrowException, OSError) as error:
        raise InputError(
            f"{path}: not a readable part of a results table ({error}); remove it and run again what made it"
        ) from error
    result = pa.Table.from_arrays(columns, schema=RESULTS)
    versions = [version for version in result.column("schema_version").to_pylist() if version is not None]
    if max(versions, default=0) > SCHEMA_VERSION:
        raise InputError(
            f"{path}: has schema version {max(versions)}, this raysts reads up to {SCHEMA_VERSION}; update raysts"
        )
    return result


def git_commit() -> str:
    """What ran: ``$RAYSTS_COMMIT``, or the commit of the source tree raysts runs from; without either (clusters get copies
    of the tree) ``sources-`` and the digest that ``raysts --version`` shows."""
    return os.environ.get("RAYSTS_COMMIT") or commit_of(Path(__file__).parents[2]) or f"sources-{sources()}"


def commit_of(tree: Path) -> str | None:
    """Return the commit that a source tree is at, read from its ``.git``; None where that does not say."""
    folder = tree / ".git"
    try:
        if folder.is_file():  # of a worktree
            folder = tree / folder.read_text().removeprefix("gitdir:").strip()
        common = folder / (folder / "commondir").read_text().strip() if (folder / "commondir").is_file() else folder
        head = (folder / "HEAD").read_text().strip()
        name = head.removeprefix("ref: ")
        if name != head and (common / name).is_file():
            head = (common / name).read_text().strip()
        elif name != head:
            packed = (line.split(" ") for line in (common / "packed-refs").read_text().splitlines())
            head = next((commit for commit, *names in packed if names == [name]), "")
    except (OSError, ValueError):
        return None
    return head if re.fullmatch(r"[0-9a-f]{40,64}", head) else None


@dataclass(frozen=True, slots=True)
class Cell:
    """Mean, standard deviation (ddof 1; None for a single value) and number of values, not multiplied by 100."""

    mean: float
    std: float | None
    n: int


@dataclass(frozen=True, slots=True)
class Line:
    """One system in one role at one pooling; ``individuals`` are the rows of each of its models by data set."""

    system: str | None
    study: str | None
    trial: str | None
    role: str | None
    pooling: str | None
    layers: str | None
    similarity: str | None
    individuals: list[dict[str, ResultRow]]
    cells: dict[str, Cell]
    average: Cell | None
    """Over the table's sets of ``AVERAGED``; None when this line lacks one of them."""


@dataclass(frozen=True, slots=True)
class Summary:
    """Systems by role, times data sets; the columns in the order of ``datasets``."""

    metric: str
    aggregation: str | None
    datasets: tuple[str, ...]
    lines: tuple[Line, ...]


def summary(
    rows: pa.Table | Iterable[Mapping[str, Any]],
    metric: str = "spearman",
    aggregation: str | None = "all",
    split: str = "test",
    which: str = "all",
) -> Summary:
    """The table people look at: one line per system, role and pooling; members (or students) are averaged in a line.

    A value that was measured again for the same run, member and seed counts once, the latest. ``which`` is the value of
    the column ``rows`` (``all`` or ``clean``). Ordered by pooled layers, then role, then first appearance.
    """
    found: dict[tuple[str | None, ...], dict[tuple[Any, ...], dict[str, ResultRow]]] = {}
    for row in rows.to_pylist() if isinstance(rows, pa.Table) else rows:
        wanted = {"metric": metric, "aggregation": aggregation, "split": split, "rows": which}
        if any(row[column] != value for column, value in wanted.items()):
            continue
        key = tuple(row[column] for column in ("system", "study", "trial", "role", "pooling", "layers", "similarity"))
        individual = tuple(row[column] for column in ("run_id", "member", "seed"))
        values = found.setdefault(key, {}).setdefault(individual, {})
        earlier = values.get(row["dataset"])
        if earlier is None or (row["created_at"] or "") >= (earlier["created_at"] or ""):
            values[row["dataset"]] = dict(row)
    seen = dict.fromkeys(name for individuals in found.values() for values in individuals.values() for name in values)
    datasets = (*(name for name in AVERAGED if name in seen), *(name for name in seen if name not in AVERAGED))
    averaged = [name for name in datasets if name in AVERAGED]
    lines = [_line(key, list(individuals.values()), datasets, averaged) for key, individuals in found.items()]
    lines.sort(key=_order)
    return Summary(metric, aggregation, datasets, tuple(lines))


def by_name(rows: Iterable[ResultRow], names: Mapping[str, str]) -> list[ResultRow]:
    """The rows, where each member whose run id has a name is in a role of its own: the mean of models that have nothing in
    common but their student says nothing."""
    return [
        {**row, "role": f"{TEACHER}{names[row['run_id']]}"}
        if row["role"] == "member" and row["run_id"] in names
        else row
        for row in rows
    ]


def kind_of(role: str | None) -> str:
    """The one of ``ROLES`` that a role is of; ``baseline`` for what is none."""
    role = "member" if role and role.startswith(TEACHER) else role
    return role if role in ROLES else "baseline"


def _order(line: Line) -> tuple[int, str, int]:
    layers = line.layers or ""
    # By length first: '2' comes before '12'.
    return len(layers), layers, ROLES.index(kind_of(line.role))


def _line(
    key: tuple[str | None, ...],
    individuals: list[dict[str, ResultRow]],
    datasets: Sequence[str],
    averaged: Sequence[str],
) -> Line:
    numbers = [{name: row["value"] for name, row in values.items()} for values in individuals]
    cells = {name: _cell([values[name] for values in numbers if name in values]) for name in datasets}
    averages = [
        float(np.mean([values[name] for name in averaged]))
        for values in numbers
        if averaged and all(name in values for name in averaged)
    ]
    present = {name: cell for name, cell in cells.items() if cell is not None}
    system, study, trial, role, pooling, layers, similarity = key
    return Line(system, study, trial, role, pooling, layers, similarity, individuals, present, _cell(averages))


def _cell(values: Sequence[float]) -> Cell | None:
    if not values:
        return None
    std = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return Cell(float(np.mean(values)), std, len(values))


def aligned(rows: Sequence[Sequence[str]], left: Container[int]) -> list[str]:
    """Rows of cells as lines of text, each column under itself; those of ``left`` begin together, the others end together."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if number in left else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def format_table(table: Summary) -> str:
    """A summary as aligned plain text: values times 100 with two decimals, empty where nothing was measured.

    Several values are shown as mean ± standard deviation, their number behind the role; a cell that has fewer says so.
    """
    header = ["system", "role", "pooling", "layers", "similarity", *table.datasets]
    show_average = sum(name in AVERAGED for name in table.datasets) > 1
    if show_average:
        header.append("avg")
    lines = [header]
    for line in table.lines:
        n = max(cell.n for cell in line.cells.values())
        where = [part for part in (line.system, line.study, line.trial) if part]
        role = f"{line.role or '-'} ({n})" if n > 1 else line.role or "-"
        cells = [line.cells.get(name) for name in table.datasets] + ([line.average] if show_average else [])
        lines.append(
            ["/".join(where) or "-", role, line.pooling or "-", line.layers or "-", line.similarity or "-"]
            + [_format_cell(cell, n) for cell in cells]
        )
    text = aligned(lines, range(5))
    title = ", ".join(filter(None, (table.metric, table.aggregation, "x100")))
    return "\n".join([title, text[0], "-" * max(map(len, text)), *text[1:]])


def format_results(rows: Sequence[ResultRow]) -> str:
    """The table of rank correlations, then one for every metric that has no aggregation (accuracy, ...).

    Test rows and cross-validated ones stand side by side: a set has the one or the other.
    """
    whole = [
        {**row, "split": "test" if row["split"] == "cv" else row["split"]}
        for row in rows
        if row["aggregation"] is None and row["subset"] is None
    ]
    tables = [
        summary(rows),
        *(summary(whole, metric, None) for metric in dict.fromkeys(row["metric"] for row in whole)),
    ]
    return "\n\n".join(format_table(table) for table in tables if table.lines) or format_table(tables[0])


def _format_cell(cell: Cell | None, n: int) -> str:
    if cell is None:
        return ""
    spread = "" if cell.std is None else f" ±{100 * cell.std:.2f}"
    return f"{100 * cell.mean:.2f}{spread}" + (f" ({cell.n})" if cell.n != n else "")
