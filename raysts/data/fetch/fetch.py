"""Public data sets from the Hugging Face hub and GitHub into the canonical layout, at pinned revisions.

``raysts.data.fetch.sources`` says for every table where it comes from, ``raysts.data.fetch.convert`` turns each shape of source
into canonical columns. Everything is streamed, written aside and renamed; ``manifest.json`` records what was read and
written.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from raysts.data.fetch import manifest
from raysts.data.fetch.hub import SHA, Located, locate, read_split, resolve
from raysts.data.fetch.sources import SHARDED, SOURCES, VECTORS
from raysts.data.fetch.web import fetch_vectors, local_archive
from raysts.errors import InputError, RunFailed, nearest
from raysts.storage.atomic import atomic_write, remove_drafts, writable

ROW_GROUP_ROWS = 65_536
ROW_GROUP_BYTES = 64 << 20
"""A row group, which is what memory holds, ends at whichever of the two it reaches first."""
SHARD_BYTES = 512 << 20
"""Uncompressed bytes of a shard of a sharded table."""


def fetch(
    root: Path,
    tables: Sequence[str] | None = None,
    source: str | Path | None = None,
    progress: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Write public data sets below ``root`` in the canonical layout; a table already fetched is not fetched again.

    Args:
        root: the data folder; made if need be.
        tables: table names (``sts/stsb_dev``), word vectors (``words/glove.6B.300d``) or folders of them (``sts``); None
            for all of ``SOURCES``, without word vectors.
        source: a local folder with the files of the repositories, one folder each (``<source>/mteb/sts12-sts/`` or
            ``<source>/sts12-sts/``), and the archives of word vectors; None for the hub (or the mirror that the variable
            HF_ENDPOINT names), GitHub and the vectors' own site.
        progress: called with one line of text per step.

    Returns:
        ``root`` and, by table, ``status`` (``fetched``; ``present``: fetched before; ``kept``: files that are not as
        raysts wrote them) and the entry in ``manifest.json`` (rows, rows dropped, sha256 per file, sources, date); of word
        vectors the status, ``file`` and, just fetched, sources.

    Raises:
        InputError: an unknown table, or a ``root`` or ``source`` that cannot be used.
        RuntimeError: the hub cannot be reached or does not hold what was asked for. Finished tables stay, a rerun goes
            on after them.
    """
    names, vectors = _select(tables)
    if source is not None and not Path(source).is_dir():
        raise InputError(f"--source '{source}' is not a folder: it must hold the data sets' files, one folder each")
    for name in vectors if source is not None else ():
        local_archive(name, source or "")
    located = {name: [locate(part, source) for part in SOURCES[name]] for name in names}
    writable(root, "--data")
    done: dict[str, Any] = {}
    with manifest.writing(root, "raysts data fetch"):
        remove_drafts(root)
        for name, parts in located.items():
            done[name] = _fetch_table(root, name, parts, progress)
        done |= fetch_vectors(root, vectors, source, progress)
    return {"root": str(root), "tables": done}


def _select(tables: Sequence[str] | None) -> tuple[list[str], list[str]]:
    if tables is None:
        return list(SOURCES), []
    known = [*SOURCES, *VECTORS]
    chosen: dict[str, None] = {}
    problems = []
    for wanted in tables:
        found = [name for name in known if name == wanted or name.startswith(f"{wanted.rstrip('/')}/")]
        if not found:
            problems.append(
                f"table '{wanted}' cannot be fetched{nearest(wanted, known)}; "
                f"tables with a public source: {', '.join(known)}"
            )
        chosen |= dict.fromkeys(found)
    if problems:
        raise InputError(problems)
    return [name for name in chosen if name in SOURCES], [name for name in chosen if name in VECTORS]


def _fetch_table(root: Path, name: str, parts: list[Located], progress: Callable[[str], None]) -> dict[str, Any]:
    entry = manifest.read(root).get(name)
    ours = entry is not None and "sources" in entry and manifest.is_intact(root, name, entry)
    if manifest.table_files(root, name) and not ours:
        progress(f"{name}: kept as it is, raysts did not write it like this (remove it to fetch the public set)")
        return {"status": "kept"}
    if entry is not None and ours and _same(entry["sources"], parts):
        progress(f"{name}: present ({entry['rows']:,} rows)")
        return {"status": "present", **entry}
    progress(f"{name}: reading {', '.join(part.source.dataset for part in parts)}")
    parts = [resolve(part, progress) for part in parts]
    dropped = 0

    def batches() -> Iterator[pa.Table]:
        nonlocal dropped
        for given, rows in _mixed(parts):
            dropped += given - rows.num_rows
            yield rows

    if name in SHARDED:
        with atomic_write(root / name) as draft:
            _write_shards(draft, batches())
    else:
        with atomic_write(root / f"{name}.parquet") as draft:
            _write(draft, batches())
    entry = manifest.record(root, name, {"dropped": dropped, "sources": [part.facts() for part in parts]})
    progress(f"{name}: {entry['rows']:,} rows" + (f", {dropped:,} without label or text left out" if dropped else ""))
    return {"status": "fetched", **entry}


def _mixed(parts: list[Located]) -> Iterator[tuple[int, pa.Table]]:
    """Batches of all parts, each in step with its share: training shuffles within windows, which then hold them all."""
    streams = {index: read_split(part) for index, part in enumerate(parts)}
    read = [0] * len(parts)
    while streams:
        index = min(streams, key=lambda i: read[i] / parts[i].source.rows)
        batch = next(streams[index], None)
        if batch is not None:
            read[index] += batch[0]
            yield batch
            continue
        del streams[index]
        part = parts[index]
        pinned = not part.local and part.revision == part.source.revision
        if read[index] != part.source.rows and pinned and part.source.file is None:
            raise RunFailed(
                f"{part.source.dataset} ({part.source.split}) gave {read[index]:,} rows, {part.source.rows:,} were "
                "expected at its pinned commit: the download was cut short or the mirror differs; run it again"
            )


def _same(recorded: list[dict[str, Any]], parts: list[Located]) -> bool:
    """Whether a recorded table came from these sources; an unpinned branch counts as whatever it was resolved to."""
    return len(recorded) == len(parts) and all(
        old["dataset"] == part.source.dataset
        and old.get("file") == part.source.file
        and (part.local == (old["revision"] == "local copy"))
        and (part.local or old["revision"] == part.revision or not SHA.fullmatch(part.revision or ""))
        for old, part in zip(recorded, parts, strict=True)
    )


def _write(path: Path, batches: Iterator[pa.Table]) -> None:
    writer: pq.ParquetWriter | None = None
    pending: list[pa.Table] = []
    rows = size = 0
    try:
        for batch in batches:
            writer = writer or pq.ParquetWriter(path, batch.schema, compression="zstd")
            pending.append(batch)
            rows, size = rows + batch.num_rows, size + batch.nbytes
            if rows >= ROW_GROUP_ROWS or size >= ROW_GROUP_BYTES:
                writer.write_table(pa.concat_tables(pending), row_group_size=rows)
                pending, rows, size = [], 0, 0
        if writer is None:
            raise RunFailed(f"nothing to write to {path.name}: the source has no rows")
        if rows:
            writer.write_table(pa.concat_tables(pending), row_group_size=rows)
    finally:
        if writer is not None:
            writer.close()


def _write_shards(folder: Path, batches: Iterator[pa.Table]) -> None:
    folder.mkdir()
    for number, first in enumerate(batches):
        _write(folder / f"part-{number:05d}.parquet", _shard(first, batches))
    if not any(folder.iterdir()):
        raise RunFailed(f"nothing to write to {folder.name}: the source has no rows")


def _shard(first: pa.Table, others: Iterator[pa.Table]) -> Iterator[pa.Table]:
    yield first
    size = first.nbytes
    while size < SHARD_BYTES and (batch := next(others, None)) is not None:
        size += batch.nbytes
        yield batch
