"""Parquet files of tables: those that a table leaves out because they are damaged."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from raysts.schema import TRAINING_TABLES
from raysts.storage.parquet import ParquetError, open_parquet, pages

BATCH_ROWS = 8_192
"""Rows that are made at once; a divisor of ``READ_ROWS``."""

READERS = 4
"""Files that are searched for damage at the same time."""


def remedy(table: str) -> str:
    """Return what a user can do about an unreadable file of ``table``."""
    if table in TRAINING_TABLES:
        return "write it again or remove it, or go on with the table's other files with --skip-bad"
    return "write it again or remove it"


class Skipped(NamedTuple):
    """A file that a table leaves out."""

    path: Path
    rows: int | None
    """None: not even the footer can be read."""
    reason: str

    def plain(self, table: str, root: Path) -> dict[str, Any]:
        """Return the form that records hold, with the file relative to the data folder."""
        file = self.path.relative_to(root) if self.path.is_relative_to(root) else self.path
        return {"table": table, "file": file.as_posix(), "rows": self.rows, "reason": self.reason}


def skipped_line(entry: dict[str, Any]) -> str:
    """Return :meth:`Skipped.plain` for people."""
    rows = "number of rows unknown" if entry["rows"] is None else f"{entry['rows']:,} rows"
    return f"left out of {entry['table']}: {entry['file']} ({rows}): {entry['reason']}"


def sound_files(
    paths: Sequence[Path],
    problem: Callable[[pq.ParquetFile], str | None],
    columns: Callable[[pq.ParquetFile], Sequence[str]],
) -> tuple[list[Path], list[Skipped]]:
    """Return the readable files, and the files to leave out: never all of them, so that a check says why.

    Args:
        problem: finds what the footer of a file tells against it.
        columns: chooses the columns of which every page is read.
    """

    def search(path: Path) -> Skipped | None:
        rows = None
        try:
            file = open_parquet(path, "")
            rows = file.metadata.num_rows
            if reason := problem(file):
                return Skipped(path, rows, reason)
            for _ in pages(path, file, columns(file), ""):
                pass
        except ParquetError as error:
            return Skipped(path, rows, error.reason)
        return None

    with ThreadPoolExecutor(READERS) as pool:  # decoding lets go of the interpreter
        results = list(pool.map(search, paths)) if len(paths) > 1 else [None for _ in paths]
    sound = [path for path, skipped in zip(paths, results, strict=True) if skipped is None]
    return (sound, [skipped for skipped in results if skipped]) if sound else (list(paths), [])


def narrow(values: pa.Array) -> pa.Array:
    """Return values with one type per kind of column, so that files of different tools can be joined."""
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if pa.types.is_large_string(values.type) or pa.types.is_string_view(values.type):
        return values.cast(pa.string())
    if pa.types.is_decimal(values.type):
        return values.cast(pa.float64())
    return values.cast(pa.int64()) if pa.types.is_integer(values.type) and values.type != pa.uint64() else values
