"""Parquet files of tables, opened and read so that damage is one message with the file's name.

The footer gives a file's columns and their types before anything starts. Its pages must decode, agree with their checksums if
there are some, and hold valid UTF-8. A changed byte is invisible if its page has no checksum, decodes, and holds valid text.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from raysts.errors import InputError
from raysts.schema import TRAINING_TABLES
from raysts.storage.foreign import check_ordinary
from raysts.storage.store import Store

READ_ROWS = 65_536
BATCH_ROWS = 8_192
"""Rows that are made at once; a divisor of ``READ_ROWS``."""

BUFFER = 1 << 20
"""Bytes of a column chunk that are read at once before they are decoded; Arrow's default is all of them."""


class ParquetError(InputError):
    """A fault of a file: the message names the file, the ``reason`` and the remedy."""

    reason = ""


def unreadable(path: Path | str, reason: str, remedy: str) -> ParquetError:
    """Return the error of a file."""
    error = ParquetError(f"{path}: {reason}; {remedy}")
    error.reason = reason
    return error


def remedy(table: str) -> str:
    """Return what a user can do about an unreadable file of ``table``."""
    if table in TRAINING_TABLES:
        return "write it again or remove it, or go on with the table's other files with --skip-bad"
    return "write it again or remove it"


class Skipped(NamedTuple):
    """A file that a table leaves out. ``rows`` is None if not even the footer can be read."""

    path: Path
    rows: int | None
    reason: str

    def plain(self, table: str, root: Path) -> dict[str, Any]:
        """Return the form that records hold, with the file relative to the data folder."""
        file = self.path.relative_to(root) if self.path.is_relative_to(root) else self.path
        return {"table": table, "file": file.as_posix(), "rows": self.rows, "reason": self.reason}


def skipped_line(entry: dict[str, Any]) -> str:
    """Return :meth:`Skipped.plain` for people."""
    rows = "number of rows unknown" if entry["rows"] is None else f"{entry['rows']:,} rows"
    return f"left out of {entry['table']}: {entry['file']} ({rows}): {entry['reason']}"


def open_parquet(path: Path | str, remedy: str) -> pq.ParquetFile:
    """Open a file and read its footer.

    Raises:
        ParquetError: the file is not a complete Parquet file.
    """
    Store.of(Path(path)).bring(Path(path))
    check_ordinary(Path(path))
    try:
        file = pq.ParquetFile(path, buffer_size=BUFFER, page_checksum_verification=True)
    except (pa.ArrowException, OSError) as error:
        raise unreadable(path, f"not a readable Parquet file ({_reason(error)})", remedy) from error
    if twice := [name for name, count in Counter(file.schema_arrow.names).items() if count > 1]:
        raise unreadable(path, f"has {len(twice)} columns twice: {', '.join(twice)}", remedy)
    return file


def pages(
    path: Path | str,
    file: pq.ParquetFile,
    columns: Sequence[str],
    remedy: str,
    row_groups: Sequence[int] | None = None,
    rows: int = READ_ROWS,
) -> Iterator[pa.RecordBatch]:
    """Yield batches of up to ``rows`` rows of all or some row groups. Memory is one batch.

    Raises:
        ParquetError: pages do not decode, disagree with their checksum, or hold text that is not UTF-8.
    """
    groups = list(range(file.num_row_groups) if row_groups is None else row_groups)
    decoded = file.iter_batches(batch_size=rows, row_groups=groups, columns=list(columns))
    while True:
        try:
            batch = next(decoded, None)
            if batch is None:
                return
            batch.validate(full=True)
        except (pa.ArrowException, OSError) as error:
            place = f" of row group {groups[0]}" if row_groups is not None and len(groups) == 1 else ""
            raise unreadable(path, f"its pages{place} cannot be read ({_reason(error)})", remedy) from error
        if batch.num_rows:
            yield batch


def narrow(values: pa.Array) -> pa.Array:
    """Return values with one type per kind of column, so that files of different tools can be joined."""
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if pa.types.is_large_string(values.type) or pa.types.is_string_view(values.type):
        return values.cast(pa.string())
    if pa.types.is_decimal(values.type):
        return values.cast(pa.float64())
    return values.cast(pa.int64()) if pa.types.is_integer(values.type) and values.type != pa.uint64() else values


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())
