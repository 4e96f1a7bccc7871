"""The Parquet files of a table: opened and read so that damage is one message with the file's name.

What the footer of a file tells (that it is one, its columns and their types) is told before anything starts; its pages
must decode, agree with their checksums where the writer left some, and hold valid UTF-8. A changed byte that leaves a
page without a checksum decodable and its text valid cannot be seen.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from raysts.errors import InputError, nearest
from raysts.schema import TRAINING_TABLES, Column, table_columns
from raysts.storage.foreign import check_ordinary
from raysts.storage.store import Store

READ_ROWS = 65_536
BUFFER = 1 << 20
"""Bytes of a column chunk that are held at once before they are decoded; Arrow's default is all of them."""

READERS = 4
"""Files that are searched for damage at the same time."""


class ShardError(InputError):
    """A file of a table cannot be read; the message names it and says why and what to do. ``reason``: why alone."""

    reason = ""


def unreadable(path: Path | str, reason: str, remedy: str) -> ShardError:
    """The error of a file."""
    error = ShardError(f"{path}: {reason}; {remedy}")
    error.reason = reason
    return error


def remedy(table: str) -> str:
    """What to do about a file of ``table`` that cannot be read."""
    if table in TRAINING_TABLES:
        return "write it again or remove it, or go on with the table's other files with --skip-bad"
    return "write it again or remove it"


class Skipped(NamedTuple):
    """A file that was left out of a table."""

    path: Path
    rows: int | None
    """None where not even its footer can be read."""
    reason: str

    def plain(self, table: str, root: Path) -> dict[str, Any]:
        """As records hold it, the file relative to the data folder."""
        file = self.path.relative_to(root) if self.path.is_relative_to(root) else self.path
        return {"table": table, "file": file.as_posix(), "rows": self.rows, "reason": self.reason}


def skipped_line(entry: dict[str, Any]) -> str:
    """A file that was left out (:meth:`Skipped.plain`), for people."""
    rows = "number of rows unknown" if entry["rows"] is None else f"{entry['rows']:,} rows"
    return f"left out of {entry['table']}: {entry['file']} ({rows}): {entry['reason']}"


def open_shard(path: Path | str, remedy: str) -> pq.ParquetFile:
    """Open a file and read its footer.

    Raises:
        ShardError: it is no Parquet file, or not a whole one.
    """
    Store.of(Path(path)).bring(Path(path))
    check_ordinary(Path(path))
    try:
        file = pq.ParquetFile(path, buffer_size=BUFFER, page_checksum_verification=True)
    except (pa.ArrowException, OSError) as error:
        raise unreadable(path, f"not a readable Parquet file ({_line(error)})", remedy) from error
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
    """Batches of up to ``rows`` rows of some columns of all row groups, or of these; memory is that of a batch.

    Raises:
        ShardError: pages do not decode or have another checksum, or their text is no UTF-8.
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
            where = f" of row group {groups[0]}" if row_groups is not None and len(groups) == 1 else ""
            raise unreadable(path, f"its pages{where} cannot be read ({_line(error)})", remedy) from error
        if batch.num_rows:
            yield batch


def source_column(path: Path, file: pq.ParquetFile, row_group: int, remedy: str) -> pa.ChunkedArray | None:
    """The column ``source`` of a row group, where the file has one."""
    if "source" not in file.schema_arrow.names:
        return None
    columns = (batch.column(0) for batch in pages(path, file, ["source"], remedy, [row_group]))
    return pa.chunked_array([_narrow(values) for values in columns], pa.string())


def batches(path: Path, name: str, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
    """Record batches of one file with the canonical columns (and ``subset``/``source`` where present).

    Raises:
        ShardError: a required column is missing, or as :func:`pages`.
    """
    file = open_shard(path, remedy(name))
    present = file.schema_arrow.names
    if problem := _missing(name, present):
        raise unreadable(path, problem, remedy(name))
    wanted = (
        [column.name for column in table_columns(name)] + ["subset", "source"] if columns is None else list(columns)
    )
    chosen = [column for column in wanted if column in present]
    for batch in pages(path, file, chosen, remedy(name)):
        yield pa.RecordBatch.from_arrays([_narrow(batch.column(column)) for column in chosen], names=chosen)


def columns_of(name: str, file: pq.ParquetFile) -> list[str]:
    """The canonical columns of table ``name`` that a file has."""
    return [column.name for column in table_columns(name) if column.name in file.schema_arrow.names]


def footer_problem(name: str, file: pq.ParquetFile) -> str | None:
    """Why a file cannot be one of table ``name``, as far as its footer tells; one line with everything."""
    schema = file.schema_arrow
    wrong = [
        f"column '{column.name}' has type {schema.field(column.name).type}; {rule}"
        for column in table_columns(name)
        if column.name in schema.names and (rule := type_rule(schema.field(column.name).type, column))
    ]
    wrong = wrong if file.metadata.num_rows else []  # who writes a shard without rows may not know their types
    return "; ".join(filter(None, [_missing(name, schema.names), *wrong])) or None


def sound_shards(
    paths: Sequence[Path],
    problem: Callable[[pq.ParquetFile], str | None],
    columns: Callable[[pq.ParquetFile], Sequence[str]],
) -> tuple[list[Path], list[Skipped]]:
    """The files that can be read, and those that are left out: never all of them, for then a check says why. ``problem``: what
    is wrong with one as far as its footer tells. ``columns``: those of it that matter; every page of them is read."""

    def search(path: Path) -> Skipped | None:
        rows = None
        try:
            file = open_shard(path, "")
            rows = file.metadata.num_rows
            if wrong := problem(file):
                return Skipped(path, rows, wrong)
            for _ in pages(path, file, columns(file), ""):
                pass
        except ShardError as error:
            return Skipped(path, rows, error.reason)
        return None

    with ThreadPoolExecutor(READERS) as pool:  # decoding lets go of the interpreter
        found = list(pool.map(search, paths)) if len(paths) > 1 else [None for _ in paths]
    sound = [path for path, skipped in zip(paths, found, strict=True) if skipped is None]
    return (sound, [skipped for skipped in found if skipped]) if sound else (list(paths), [])


def _missing(name: str, present: list[str]) -> str | None:
    missing = [column.name for column in table_columns(name) if column.required and column.name not in present]
    if not missing:
        return None
    named = ", ".join(f"'{column}'" for column in missing)
    near = nearest(missing[0], present) if len(missing) == 1 else ""
    return (
        f"column{'s' if len(missing) > 1 else ''} {named} {'are' if len(missing) > 1 else 'is'} missing (columns found: "
        f"{', '.join(present)}){near}; the canonical layout needs {'them' if len(missing) > 1 else 'it'}"
    )


def type_rule(kind: pa.DataType, column: Column) -> str | None:
    """The rule that a column of this type breaks."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if column.kind == "text":
        text = pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
        return None if text else "text must be a string column"
    if column.kind == "number":
        number = pa.types.is_floating(kind) or pa.types.is_integer(kind) or pa.types.is_decimal(kind)
        return None if number or (column.nulls and pa.types.is_null(kind)) else "scores must be numbers"
    return "labels must be strings or integers" if pa.types.is_nested(kind) else None


def _narrow(values: pa.Array) -> pa.Array:
    """One type per kind of column, so that shards written by different tools can be joined."""
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if pa.types.is_large_string(values.type) or pa.types.is_string_view(values.type):
        return values.cast(pa.string())
    if pa.types.is_decimal(values.type):
        return values.cast(pa.float64())
    return values.cast(pa.int64()) if pa.types.is_integer(values.type) and values.type != pa.uint64() else values


def _line(error: Exception) -> str:
    return " ".join(str(error).split())
