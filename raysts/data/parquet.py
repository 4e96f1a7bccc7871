"""Parquet files of tables: those that a table leaves out because they are damaged."""

from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from raysts.schema import TRAINING_TABLES

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
