"""The results table of a storage."""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from raysts.errors import InputError
from raysts.ids import sources
from raysts.schema import RESULTS, SCHEMA_VERSION
from raysts.storage.store import Store

ResultRow = dict[str, Any]
"""One row of the results table, or the columns of it that its maker knows."""

EVALUATION = "evaluate-"
"""Begins the names of parts that ``raysts evaluate`` wrote; the others are a pipeline's."""


def write(storage: Path, name: str, rows: Sequence[Mapping[str, Any]]) -> Path:
    """Write ``rows`` as the part ``name`` of the storage's results, complete or absent."""
    assert re.fullmatch(r"[\w+=][\w.+=-]*", name), f"'{name}' does not name a file"
    unknown = {column for row in rows for column in row} - set(RESULTS.names)
    assert not unknown, f"not a column of the results table: {sorted(unknown)}"
    path = storage / "results" / f"{name}.parquet"
    with Store.of(path).put(path) as draft:
        pq.write_table(pa.Table.from_pylist([dict(row) for row in rows], schema=RESULTS), draft)
    return path


def read_rows(path: Path) -> list[ResultRow]:
    """Return the rows of a part, null in columns of later versions, or nothing if the part is missing.

    Raises:
        InputError: the part cannot be read or was written by a newer version.
    """
    file = Store.of(path).get(path)
    if file is None:
        return []
    try:
        # A ParquetFile: read_table would take '<key>=<value>' in the path for a partition and add a column.
        table = pa.concat_tables([RESULTS.empty_table(), pq.ParquetFile(file).read()], promote_options="permissive")
        result = table.select(RESULTS.names).cast(RESULTS)
    except (pa.ArrowException, OSError, ValueError) as error:
        remedy = "remove it and run again what made it"
        raise InputError(f"{file}: not a readable part of a results table ({error}); {remedy}") from error
    version = pc.max(result.column("schema_version")).as_py() or 0
    if version > SCHEMA_VERSION:
        raise InputError(
            f"{file}: has schema version {version}, this raysts reads up to {SCHEMA_VERSION}; update raysts"
        )
    return list(result.to_pylist())


def git_commit() -> str:
    """Return the version that runs: ``$RAYSTS_COMMIT``, or the commit of the source tree of raysts.

    Without either (clusters get copies of the tree) it is ``sources-`` and the digest that ``raysts --version`` shows.
    """
    return os.environ.get("RAYSTS_COMMIT") or commit_of(Path(__file__).parents[2]) or f"sources-{sources()}"


def commit_of(tree: Path) -> str | None:
    """Return the commit of a source tree from its ``.git``, or None."""
    folder = tree / ".git"
    try:
        if folder.is_file():  # of a worktree
            folder = tree / folder.read_text().removeprefix("gitdir:").strip()
        common = folder / (folder / "commondir").read_text().strip() if (folder / "commondir").is_file() else folder
        head = (folder / "HEAD").read_text().strip()
        name = head.removeprefix("ref: ")
        if name != head and (common / name).is_file():
            head = (common / name).read_text().strip()
        elif name != head:
            packed = (line.split(" ") for line in (common / "packed-refs").read_text().splitlines())
            head = next((commit for commit, *names in packed if names == [name]), "")
    except (OSError, ValueError):
        return None
    return head if re.fullmatch(r"[0-9a-f]{40,64}", head) else None
