"""``manifest.json`` of a data folder: which tables raysts made there, from what, and what their files should be."""

import contextlib
import datetime
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from raysts.errors import InputError
from raysts.storage.atomic import lock, write_json
from raysts.storage.foreign import read_json

NAME = "manifest.json"


@contextlib.contextmanager
def writing(root: Path, who: str) -> Iterator[None]:
    """Hold the data folder for writing: one writer at a time (InputError while another process holds it)."""
    file = root / ".writing.lock"
    with lock(file, who):
        try:
            yield
        except InputError:  # what is refused leaves nothing behind
            file.unlink()
            raise


def read(root: Path) -> dict[str, dict[str, Any]]:
    """Entries by table name; empty when nothing was recorded.

    Raises:
        InputError: it holds what raysts does not write.
    """
    found = (read_json(root / NAME) or {}).get("tables", {})
    if not (isinstance(found, dict) and all(map(_is_entry, found.values()))):
        raise InputError(
            f"{root / NAME}: its 'tables' are not as raysts writes them; get it again, or move it away: tables stay as they are"
        )
    return found


def record(root: Path, table: str, facts: dict[str, Any]) -> dict[str, Any]:
    """Add the entry of ``table`` (its files as they are now, the date, and ``facts``) and return it."""
    files = {path.relative_to(root).as_posix(): _describe(path) for path in table_files(root, table)}
    entry = {
        "rows": sum(file["rows"] for file in files.values()),
        "files": files,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        **facts,
    }
    whole = read_json(root / NAME) or {}  # what others keep there stays
    write_json(root / NAME, {**whole, "tables": {**read(root), table: entry}})
    return entry


def table_files(root: Path, table: str) -> list[Path]:
    """The Parquet files of a table: the file of that name, else the shards in the folder of that name."""
    single = root / f"{table}.parquet"
    return [single] if single.is_file() else sorted((root / table).glob("*.parquet"))


def is_intact(root: Path, table: str, entry: dict[str, Any]) -> bool:
    """Whether the files of ``table`` are those recorded (names and sizes; contents are not read)."""
    found = {path.relative_to(root).as_posix(): path.stat().st_size for path in table_files(root, table)}
    return bool(found) and found == {name: file["bytes"] for name, file in entry["files"].items()}


def _is_entry(value: Any) -> bool:
    try:
        return all(
            isinstance(number, int) for number in (value["rows"], *(f["bytes"] for f in value["files"].values()))
        )
    except (KeyError, TypeError, AttributeError):
        return False


def _describe(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"rows": pq.ParquetFile(path).metadata.num_rows, "bytes": path.stat().st_size, "sha256": digest}
