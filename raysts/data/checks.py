"""Checks of tables: missing columns, wrong types, rows that cannot be used."""

from collections.abc import Generator, Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from raysts.data.derive import label_codes
from raysts.data.parquet import remedy
from raysts.errors import nearest
from raysts.schema import Column, table_columns
from raysts.storage.parquet import ParquetError, is_text, open_parquet, pages, unreadable

VERSION = 1
"""Raise it when a check is added: tables that were sound are checked again."""


def table_problems(files: Sequence[Path], name: str) -> Iterator[str]:
    """Yield what is wrong with the files of a table, with file, row (0-based within the file) and column."""
    rows = 0
    for path in files:
        rows += yield from _file_problems(path, name)
    if files and not rows:
        problem = "the table has no rows; a table that is there must hold data"
        yield str(unreadable(files[0], problem, remedy(name)))


def _file_problems(path: Path, name: str) -> Generator[str, None, int]:
    """Yield the problems of a file, and return the number of its rows, or 1 if it cannot be read."""
    try:
        file = open_parquet(path, remedy(name))
        if problem := footer_problem(name, file):
            yield str(unreadable(path, problem, remedy(name)))
            return 1
        columns = [column for column in table_columns(name) if column.name in file.schema_arrow.names]
        first = 0
        for batch in pages(path, file, [column.name for column in columns], remedy(name)):
            for column in columns:
                for row, message in _column_problems(batch.column(column.name), column):
                    yield f"{path}: row {first + row}, column '{column.name}': {message}"
            first += batch.num_rows
        return first
    except ParquetError as error:
        yield str(error)
        return 1


def _column_problems(values: pa.Array, column: Column, most: int = 5) -> Iterator[tuple[int, str]]:
    """Yield (row, message) for the first bad values of a column with a right type."""
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    valid = values.is_valid().to_numpy(zero_copy_only=False)
    for row in () if column.nulls else np.flatnonzero(~valid)[:most]:
        yield int(row), "null; every row needs a value, remove the row or fill it in"
    if column.kind == "text":
        empty = pc.equal(pc.utf8_length(pc.utf8_trim_whitespace(values.cast(pa.string()))), 0)
        for row in np.flatnonzero(pc.fill_null(empty, False).to_numpy(zero_copy_only=False))[:most]:
            yield int(row), "empty sentence; every text needs at least one character, remove the row"
    elif column.kind == "number":
        numbers = values.cast(pa.float64()).to_numpy(zero_copy_only=False)
        bad = ~np.isfinite(numbers)
        if column.low is not None and column.high is not None:
            bad |= (numbers < column.low) | (numbers > column.high)
        if column.whole:
            bad |= numbers != np.trunc(numbers)
        for row in np.flatnonzero(bad & valid)[:most]:
            yield int(row), f"score {numbers[row]:g} must be {column.rule}; correct or remove the row"
    elif column.labels:
        choices = f"{', '.join(column.labels)} or its index 0 to {len(column.labels) - 1}"
        for row in np.flatnonzero((label_codes(values, column.labels) < 0) & valid)[:most]:
            label = values[int(row)].as_py()
            yield int(row), f"unknown label {label!r}; must be one of {choices}; remove unlabelled rows"


def columns_of(name: str, file: pq.ParquetFile) -> list[str]:
    """Return the canonical columns of table ``name`` that a file has."""
    return [column.name for column in table_columns(name) if column.name in file.schema_arrow.names]


def footer_problem(name: str, file: pq.ParquetFile) -> str | None:
    """Return one line with all that the footer of a file tells against it as a file of table ``name``."""
    schema = file.schema_arrow
    wrong = [
        f"column '{column.name}' has type {schema.field(column.name).type}; {rule}"
        for column in table_columns(name)
        if column.name in schema.names and (rule := type_rule(schema.field(column.name).type, column))
    ]
    wrong = wrong if file.metadata.num_rows else []  # a writer of a file without rows may not know their types
    return "; ".join(filter(None, [missing_columns(name, schema.names), *wrong])) or None


def missing_columns(name: str, present: list[str]) -> str | None:
    """Return what a file with these columns lacks as a file of table ``name``."""
    missing = [column.name for column in table_columns(name) if column.required and column.name not in present]
    if not missing:
        return None
    names = ", ".join(f"'{column}'" for column in missing)
    near = nearest(missing[0], present) if len(missing) == 1 else ""
    return (
        f"column{'s' if len(missing) > 1 else ''} {names} {'are' if len(missing) > 1 else 'is'} missing (columns found: "
        f"{', '.join(present)}){near}; the canonical layout needs {'them' if len(missing) > 1 else 'it'}"
    )


def type_rule(kind: pa.DataType, column: Column) -> str | None:
    """Return the rule that a column of this type breaks."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if column.kind == "text":
        return None if is_text(kind) else "text must be a string column"
    if column.kind == "number":
        number = pa.types.is_floating(kind) or pa.types.is_integer(kind) or pa.types.is_decimal(kind)
        return None if number or (column.nulls and pa.types.is_null(kind)) else "scores must be numbers"
    return "labels must be strings or integers" if pa.types.is_nested(kind) else None
