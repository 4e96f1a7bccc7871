"""``manifest.json`` of a data folder: the tables that raysts made there, from what, and their files."""

import contextlib
import datetime
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from raysts.errors import InputError
from raysts.ids import file_digest
from raysts.storage.atomic import lock, write_json
from raysts.storage.foreign import read_json

NAME = "manifest.json"


@contextlib.contextmanager
def writing(root: Path, holder: str) -> Iterator[None]:
    """Hold the data folder for writing, or raise InputError while another process holds it."""
    file = root / ".writing.lock"
    with lock(file, holder):
        try:
            yield
        except InputError:  # what is refused leaves nothing behind
            file.unlink()
            raise


def read(root: Path) -> dict[str, dict[str, Any]]:
    """Return the entries by table name, or none without a manifest.

    Raises:
        InputError: raysts did not write the manifest like this.
    """
    tables: dict[str, dict[str, Any]] = (read_json(root / NAME) or {}).get("tables", {})
    try:
        for entry in tables.values():
            if not all(isinstance(n, int) for n in (entry["rows"], *(f["bytes"] for f in entry["files"].values()))):
                raise TypeError
    except (KeyError, TypeError, AttributeError):
        raise InputError(
            f"{root / NAME}: its 'tables' are not as raysts writes them; get it again, or move it away: tables stay as they are"
        ) from None
    return tables


def record(root: Path, table: str, facts: dict[str, Any]) -> dict[str, Any]:
    """Add the entry of ``table`` (its files as they are now, the date, and ``facts``) and return it."""
    files = {}
    for path in table_files(root, table):
        size, rows = path.stat().st_size, pq.ParquetFile(path).metadata.num_rows
        files[path.relative_to(root).as_posix()] = {"rows": rows, "bytes": size, "sha256": file_digest(path).hex()}
    date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    entry = {"rows": sum(file["rows"] for file in files.values()), "files": files, "date": date, **facts}
    manifest = read_json(root / NAME) or {}  # other keys of it stay
    write_json(root / NAME, {**manifest, "tables": {**read(root), table: entry}})
    return entry


def table_files(root: Path, table: str) -> list[Path]:
    """Return the Parquet files of a table: that of its name, else the shards in the folder of its name."""
    single = root / f"{table}.parquet"
    return [single] if single.is_file() else sorted((root / table).glob("*.parquet"))


def is_intact(root: Path, table: str, entry: dict[str, Any]) -> bool:
    """Return True if the files of ``table`` have the names and sizes of its entry."""
    sizes = {path.relative_to(root).as_posix(): path.stat().st_size for path in table_files(root, table)}
    return bool(sizes) and sizes == {name: file["bytes"] for name, file in entry["files"].items()}
