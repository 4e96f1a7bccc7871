"""Parquet files: opened and read so that damage is one message with the file's name.

The pages must decode, agree with their checksums if they have some, and hold valid UTF-8. A changed byte cannot be seen
if its page has no checksum, decodes, and holds valid text.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from raysts.errors import InputError, lacking
from raysts.storage.foreign import check_ordinary
from raysts.storage.store import Store

READ_ROWS = 65_536

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


def open_parquet(path: Path | str, remedy: str) -> pq.ParquetFile:
    """Open a file and read its footer.

    Raises:
        ParquetError: the file is not Parquet, or a part of one.
    """
    Store.of(Path(path)).bring(Path(path))
    check_ordinary(Path(path))
    try:
        file = pq.ParquetFile(path, buffer_size=BUFFER, page_checksum_verification=True)
    except (pa.ArrowException, OSError) as error:
        if lacking(error):
            raise
        raise unreadable(path, f"not a readable Parquet file ({_line(error)})", remedy) from error
    if twice := [name for name, count in Counter(file.schema_arrow.names).items() if count > 1]:
        raise unreadable(path, f"has more than one column of a name: {', '.join(twice)}", remedy)
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
            if lacking(error):
                raise
            place = f" of row group {groups[0]}" if row_groups is not None and len(groups) == 1 else ""
            raise unreadable(path, f"its pages{place} cannot be read ({_line(error)})", remedy) from error
        if batch.num_rows:
            yield batch


def is_text(kind: pa.DataType) -> bool:
    """Return True if a column of this type holds text."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _line(error: Exception) -> str:
    return " ".join(str(error).split())
