"""What happens to files: real damage to real Parquet shards, and to the bytes of any file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq


def shards(data: Path, table: str, count: int = 4, **options: object) -> list[Path]:
    """Cut the file of a table into ``count`` shards; their paths."""
    file, folder = data / f"{table}.parquet", data / table
    whole = pq.read_table(file)
    file.unlink()
    folder.mkdir()
    paths = [folder / f"part-{number}.parquet" for number in range(count)]
    for path, rows in zip(paths, np.array_split(np.arange(whole.num_rows), count), strict=True):
        pq.write_table(whole.take(pa.array(rows)), path, **options)
    return paths


def truncated(path: Path) -> None:
    """A copy that was interrupted."""
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def flipped(path: Path, column: int = -1, mask: int = 0xFF) -> None:
    """Some bytes of the first row group are others; the footer still reads. ``column``: in which; default: the widest."""
    group = pq.ParquetFile(path).metadata.row_group(0)
    sizes = [group.column(index).total_compressed_size for index in range(group.num_columns)]
    chunk = group.column(int(np.argmax(sizes)) if column < 0 else column)
    begin = chunk.dictionary_page_offset or chunk.data_page_offset
    middle = begin + chunk.total_compressed_size // 2
    content = bytearray(path.read_bytes())
    content[middle : middle + 64] = bytes(byte ^ mask for byte in content[middle : middle + 64])
    path.write_bytes(content)


def other_columns(path: Path) -> None:
    """The file of another table."""
    found = pq.read_table(path)
    pq.write_table(found.rename_columns([f"other_{name}" for name in found.column_names]), path)


def other_types(path: Path) -> None:
    """Numbers where text should be."""
    found = pq.read_table(path)
    numbers = pa.array(np.arange(found.num_rows))
    for index, name in enumerate(found.column_names):
        found = found.set_column(index, name, numbers)
    pq.write_table(found, path)


def flipped_bit(content: bytearray) -> bytes:
    """One bit in the middle is another."""
    content[len(content) // 2] ^= 4
    return bytes(content)


DAMAGE: dict[str, Callable[[Path], None]] = {
    "truncated": truncated, "empty file": lambda path: path.write_bytes(b""), "flipped": flipped,
    "other columns": other_columns, "other types": other_types,
}  # fmt: skip

BYTES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda content: b"", "torn": lambda content: content[: len(content) // 2],
    "zeros": lambda content: bytes(len(content)), "flipped": lambda content: flipped_bit(bytearray(content)),
}  # fmt: skip
"""What becomes of the bytes of a file of any kind."""
