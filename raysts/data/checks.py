"""Checks of the files of a table: missing columns, wrong types, rows that cannot be used, damage."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from raysts.data.derive import label_codes
from raysts.errors import nearest
from raysts.schema import TRAINING_TABLES, Column, table_columns
from raysts.storage.parquet import ParquetError, is_text, open_parquet, pages, unreadable

VERSION = 1
"""Raise it when a check is added: tables that were sound are checked again."""

MOST_ROWS = 5
"""Bad rows of a batch and a column that are named."""

READERS = 4
"""Files that are searched for damage at the same time."""

BATCH_ROWS = 8_192
"""Rows that are made at once; a divisor of ``READ_ROWS``."""


def remedy(table: str) -> str:
    """Return what a user can do about an unreadable file of ``table``."""
    if table in TRAINING_TABLES:
        return "write it again or remove it, or go on with the table's other files with --skip-bad"
    return "write it again or remove it"


class SkippedFile(NamedTuple):
    """A file that a table leaves out. ``rows`` is None if not even the footer can be read."""

    path: Path
    rows: int | None
    reason: str

    def plain(self, table: str, root: Path) -> dict[str, Any]:
        """Return the form that records hold, with the file relative to the data folder."""
        file = self.path.relative_to(root) if self.path.is_relative_to(root) else self.path
        return {"table": table, "file": file.as_posix(), "rows": self.rows, "reason": self.reason}


def skipped_line(entry: dict[str, Any]) -> str:
    """Return :meth:`SkippedFile.plain` for people."""
    rows = "number of rows unknown" if entry["rows"] is None else f"{entry['rows']:,} rows"
    return f"left out of {entry['table']}: {entry['file']} ({rows}): {entry['reason']}"


def narrow(values: pa.Array) -> pa.Array:
    """Return values with one type per kind of column, so that files of different tools can be joined."""
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if pa.types.is_large_string(values.type) or pa.types.is_string_view(values.type):
        return values.cast(pa.string())
    if pa.types.is_decimal(values.type):
        return values.cast(pa.float64())
    return values.cast(pa.int64()) if pa.types.is_integer(values.type) and values.type != pa.uint64() else values


def table_problems(files: Sequence[Path], name: str) -> Iterator[str]:
    """Yield the problems of the files of a table, with file, row (0-based within the file) and column."""
    rows = 0
    for path in files:
        first = 0
        try:
            file = open_file(path, table_columns(name), remedy(name))
            columns = [column for column in table_columns(name) if column.name in file.schema_arrow.names]
            for batch in pages(path, file, [column.name for column in columns], remedy(name)):
                for column in columns:
                    for row, message in _column_problems(narrow(batch.column(column.name)), column):
                        yield f"{path}: row {first + row}, column '{column.name}': {message}"
                first += batch.num_rows
        except ParquetError as error:
            first = 1  # it may hold rows
            yield str(error)
        rows += first
    if files and not rows:
        problem = "the table has no rows; a table that is there must hold data"
        yield str(unreadable(files[0], problem, remedy(name)))


def _column_problems(values: pa.Array, column: Column) -> Iterator[tuple[int, str]]:
    """Yield (row, message) for the first bad values of a column with a right type."""
    valid = values.is_valid().to_numpy(zero_copy_only=False)
    for row in () if column.nulls or column.blank else np.flatnonzero(~valid)[:MOST_ROWS]:
        yield int(row), "null; every row needs a value, remove the row or fill it in"
    if column.kind == "text" and not column.blank:
        empty = pc.equal(pc.utf8_length(pc.utf8_trim_whitespace(values.cast(pa.string()))), 0)
        for row in np.flatnonzero(pc.fill_null(empty, False).to_numpy(zero_copy_only=False))[:MOST_ROWS]:
            yield int(row), "empty sentence; every text needs at least one character, remove the row"
    elif column.kind == "number":
        numbers = values.cast(pa.float64()).to_numpy(zero_copy_only=False)
        bad = ~np.isfinite(numbers)
        if column.low is not None and column.high is not None:
            bad |= (numbers < column.low) | (numbers > column.high)
        if column.integer:
            bad |= numbers != np.trunc(numbers)
        for row in np.flatnonzero(bad & valid)[:MOST_ROWS]:
            yield int(row), f"score {numbers[row]:g} must be {column.rule}; correct or remove the row"
    elif column.labels:
        choices = f"{', '.join(column.labels)} or its index 0 to {len(column.labels) - 1}"
        for row in np.flatnonzero((label_codes(values, column.labels) < 0) & valid)[:MOST_ROWS]:
            label = values[int(row)].as_py()
            yield int(row), f"unknown label {label!r}; must be one of {choices}; remove unlabelled rows"


def open_file(path: Path, columns: Sequence[Column], remedy: str) -> pq.ParquetFile:
    """Open a file of a table with these columns.

    Raises:
        ParquetError: the file cannot be opened, lacks a column, or has one of a wrong type.
    """
    file = open_parquet(path, remedy)
    if reason := footer_problem(file, columns):
        raise unreadable(path, reason, remedy)
    return file


def footer_problem(file: pq.ParquetFile, columns: Sequence[Column]) -> str | None:
    """Return why the footer of a file is not that of a table with these columns, in one line, or None."""
    schema, reasons = file.schema_arrow, []
    if reason := missing_columns(columns, schema.names):
        reasons.append(reason)
    if file.metadata.num_rows:  # a writer of a file without rows may not know their types
        for column in columns:
            if column.name in schema.names and (rule := type_rule(schema.field(column.name).type, column)):
                reasons.append(f"column '{column.name}' has type {schema.field(column.name).type}; {rule}")
    return "; ".join(reasons) or None


def readable_files(paths: Sequence[Path], columns: Sequence[Column]) -> tuple[list[Path], list[SkippedFile]]:
    """Return the readable files of a table, and the others.

    A table without a readable file keeps all of them, so that a check gives the reason.
    """

    def search(path: Path) -> SkippedFile | None:
        rows = None
        try:
            file = open_parquet(path, "")
            rows = file.metadata.num_rows
            if reason := footer_problem(file, columns):
                return SkippedFile(path, rows, reason)
            for _ in pages(path, file, [c.name for c in columns if c.name in file.schema_arrow.names], ""):
                pass
        except ParquetError as error:
            return SkippedFile(path, rows, error.reason)
        return None

    if len(paths) < 2:
        return [*paths], []
    with ThreadPoolExecutor(READERS) as pool:  # decoding releases the interpreter
        skipped = list(filter(None, pool.map(search, paths)))
    bad = {file.path for file in skipped}
    return ([path for path in paths if path not in bad], skipped) if len(bad) < len(paths) else ([*paths], [])


def missing_columns(columns: Sequence[Column], present: list[str]) -> str | None:
    """Return which of a table's columns a file lacks, or None."""
    missing = [column.name for column in columns if column.required and column.name not in present]
    if not missing:
        return None
    names = ", ".join(f"'{column}'" for column in missing)
    near = nearest(missing[0], present) if len(missing) == 1 else ""
    words = ("columns", "are", "them") if len(missing) > 1 else ("column", "is", "it")
    return (
        f"{words[0]} {names} {words[1]} missing (columns found: {', '.join(present)}){near}; "
        f"the canonical layout needs {words[2]}"
    )


def type_rule(kind: pa.DataType, column: Column) -> str | None:
    """Return the rule that a column of this type breaks, or None."""
    if column.kind == "text":
        return None if is_text(kind) else "text must be a string column"
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if column.kind == "number":
        number = pa.types.is_floating(kind) or pa.types.is_integer(kind) or pa.types.is_decimal(kind)
        return None if number or (column.nulls and pa.types.is_null(kind)) else "scores must be numbers"
    return "labels must be strings or integers" if pa.types.is_nested(kind) else None
