"""Public data sets from the Hugging Face hub and GitHub as canonical tables, at pinned revisions.

``sources.yaml`` has the source of every table, and the columns of each shape of source. Rows are streamed into a draft that is
renamed; ``manifest.json`` records what was read and written.
"""

import csv
import unicodedata
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from raysts.data import manifest
from raysts.data.derive import label_codes
from raysts.data.vectors import ALONE, TIMEOUT, VECTORS, fetch_vectors, local_archive
from raysts.errors import InputError, RunFailed, first_line, nearest
from raysts.log import say
from raysts.recipes.tree import read_data
from raysts.schema import NLI_LABELS
from raysts.storage.atomic import atomic_write, remove_drafts, writable

BATCH_ROWS = 1_000
ROW_GROUP_ROWS = 65_536
ROW_GROUP_BYTES = 64 << 20
"""A row group, which is what memory holds, ends at the first of the two."""
SHARD_BYTES = 512 << 20
"""Uncompressed bytes of a shard of a sharded table."""
SHARDED = frozenset({"wikipedia/articles"})
"""Tables that are written as a folder of shards."""
BEIR = "beir/"
"""Begins the names of BEIR's sets, which become tables below ``retrieval/``."""
GITHUB = "https://raw.githubusercontent.com"


@dataclass(frozen=True, kw_only=True, slots=True)
class Download:
    """Split of a data set on the hub, or file of a GitHub repository."""

    dataset: str
    rows: int
    """Rows that the split holds; 0: not known."""
    shape: str
    split: str = "test"
    config: str | None = None
    file: str | None = None
    name: str | None = None
    """Name of the source in a table with several sources."""
    revision: str | None = None
    """Full commit; None: no commit could be verified."""
    branch: str = "main"
    """Branch to look up and record without a ``revision``."""
    pinned: bool = True
    """The revision is that of ``sources.yaml``."""
    folder: Path | None = None
    """Local copy of the repository."""

    def facts(self) -> dict[str, Any]:
        """Return the source as the manifest records it."""
        place = {"file": self.file} if self.file else {"config": self.config, "split": self.split}
        revision = "local copy" if self.folder else self.revision
        return {"dataset": self.dataset, **place, "revision": revision, "pinned": self.pinned and not self.folder}

    def join_folder(self, folder: Path) -> "Download":
        """Return the source with its local copy below ``folder``, or raise InputError."""
        places = [folder / self.dataset, folder / self.dataset.split("/")[-1]]
        if place := next((place for place in places if place.is_dir()), None):
            return replace(self, folder=place)
        raise InputError(
            f"--source '{folder}' does not hold data set {self.dataset}: expected its files in {places[0]}/ "
            f"or {places[1]}/; copy the repository there"
        )

    def resolve(self) -> "Download":
        """Return the source with a full commit. Only without one it asks the hub, with a warning.

        Raises:
            RunFailed: the hub cannot be reached or does not have the branch.
        """
        if self.folder or self.file or self.revision:
            return self
        from huggingface_hub import HfApi

        taken = f"taking what '{self.branch}' holds today. manifest.json records the commit"
        say(f"WARNING {self.dataset}: not a pinned commit; {taken}")
        try:
            sha = HfApi().dataset_info(self.dataset, revision=self.branch).sha
        except Exception as error:
            raise self._unreachable(error) from error
        return replace(self, revision=sha, pinned=False)

    def batches(self) -> Iterator[tuple[int, pa.Table]]:
        """Yield (rows read, the canonical columns of those that can be used).

        Raises:
            RunFailed: the hub or the copy cannot be read, or does not hold the source.
        """
        try:
            for rows in self._read_file(self.file) if self.file else self._read_split():
                yield rows.num_rows, convert(rows, self.shape, self.name)
        # A dozen libraries (HTTP, file systems, formats) raise their own exceptions: the user needs the name and the remedy.
        except Exception as error:
            raise self._unreachable(error) from error

    def _read_split(self) -> Iterator[pa.Table]:
        from datasets import ClassLabel, get_dataset_config_names, load_dataset

        path, config = str(self.folder or self.dataset), self.config
        options: dict[str, Any] = {} if self.folder else {"revision": self.revision}
        if self.folder and config is not None and config not in get_dataset_config_names(path):
            # A copy without the repository's README: the config is the folder of that name, if it exists.
            options["data_dir"] = config if (self.folder / config).is_dir() else None
            config = None
        stream = load_dataset(path, config, split=self.split, streaming=True, **options)
        classes = {name: kind.names for name, kind in (stream.features or {}).items() if isinstance(kind, ClassLabel)}
        for batch in stream.with_format("arrow").iter(batch_size=BATCH_ROWS):
            for column, labels in classes.items():
                codes = batch.column(column).to_pylist()
                names = [labels[code] if code is not None and 0 <= code < len(labels) else None for code in codes]
                batch = batch.set_column(batch.schema.get_field_index(column), column, pa.array(names, pa.string()))
            yield batch

    def _read_file(self, file: str) -> Iterator[pa.Table]:
        """Yield the rows of a CSV file with a header, or of a text file with two words and their score a line."""
        if self.folder:
            content = (self.folder / file).read_bytes()
        else:
            url = f"{GITHUB}/{self.dataset}/{self.revision}/{file}"
            with urllib.request.urlopen(url, timeout=TIMEOUT) as answer:
                content = answer.read()
        lines = content.decode("utf-8").splitlines()
        if file.endswith(".csv"):
            rows: list[dict[str, str | None]] = list(csv.DictReader(lines))
        else:
            rows = [dict(zip(("word1", "word2", "score"), line.split(), strict=True)) for line in lines if line.strip()]
        yield pa.Table.from_pylist(rows)

    def _unreachable(self, error: Exception) -> RunFailed:
        place = "GitHub" if self.file else "the Hugging Face hub"
        mirror = "" if self.file else "or name a mirror in HF_ENDPOINT, "
        remedy = f"check the network, {mirror}or give a local copy with --source FOLDER"
        if self.folder:
            remedy = "it must hold the files of the repository (of the hub: Parquet or JSON lines, one file per split)"
        return RunFailed(
            f"data set {self.dataset} ({self.file or f'split {self.split}'}) could not be read from "
            f"{self.folder or f'{place} at revision {self.revision or self.branch}'}: "
            f"{first_line(error)}; {remedy}"
        )


_file: Callable[[], dict[str, Any]] = cache(partial(read_data, __file__, "sources.yaml"))


@cache
def sources() -> dict[str, tuple[Download, ...]]:
    """Return the sources of each canonical table that can be fetched."""
    return {name: tuple(Download(**part) for part in parts) for name, parts in _file()["tables"].items()}


@cache
def beir_sources() -> dict[str, tuple[Download, ...]]:
    """Return the sources of each table of BEIR's sets, which are fetched by name alone."""
    return {
        f"retrieval/{name}/{part}": (Download(**{**place, **options}),)
        for name, place in _file()["beir"].items()
        for part, options in _file()["beir_parts"].items()
    }


def fetch(root: Path, tables: Sequence[str] | None = None, source: str | Path | None = None) -> dict[str, Any]:
    """Write public data sets below ``root`` in the canonical layout. A fetched table is not fetched again.

    Args:
        root: the data folder.
        tables: names of tables (``sts/stsb_dev``), word vectors (``words/glove.6B.300d``) or BEIR's sets (``beir/nfcorpus``,
            the tables ``retrieval/nfcorpus/...``), or folders (``sts``, ``beir``); None: all tables without those of BEIR.
        source: folder with copies of the repositories (``<source>/sts12-sts/``) and archives; None:
            the hub (or the mirror that HF_ENDPOINT names), GitHub and the vectors' own site.

    Returns:
        ``root`` and, by table, ``status`` (``fetched``; ``present``: fetched before; ``kept``: files that raysts did not write
        like this) and the entry in ``manifest.json``; of word vectors the status, ``file`` and, just fetched, sources.

    Raises:
        InputError: an unknown table, or a ``root`` or ``source`` that cannot be used.
        RunFailed: a source cannot be reached or does not hold the table. Finished tables stay, and a rerun fetches the others.
    """
    names = _choose(tables)
    vectors = [name for name in names if name in VECTORS]
    located = {name: [*(sources() | beir_sources())[name]] for name in names if name not in VECTORS}
    if source is not None:
        if not Path(source).is_dir():
            raise InputError(f"--source '{source}' is not a folder: it must hold the data sets' files, one folder each")
        for name in vectors:
            local_archive(name, source)
        located = {name: [part.join_folder(Path(source)) for part in parts] for name, parts in located.items()}
    writable(root, "--data")
    with manifest.writing(root, "raysts data fetch"):
        remove_drafts(root)
        entries = {name: _fetch_table(root, name, parts) for name, parts in located.items()}
        entries |= fetch_vectors(root, vectors, source)
    return {"root": str(root), "tables": entries}


def _choose(tables: Sequence[str] | None) -> list[str]:
    """Return the names of the tables to fetch."""
    if tables is None:
        return [*sources()]
    choices, names, problems = [*sources(), *VECTORS, *beir_sources()], dict[str, None](), []
    listed = [*sources(), *VECTORS, *(f"{BEIR}{name}" for name in _file()["beir"])]
    for table in tables:
        place, (folder, _, rest) = table.rstrip("/"), table.partition("/")
        if folder == "beir":
            place = f"retrieval/{rest}".rstrip("/")
        fetched = [name for name in choices if name == place or (name.startswith(f"{place}/") and name != ALONE)]
        names |= dict.fromkeys(fetched)
        if not fetched:
            public = f"tables with a public source: {', '.join(listed)}"
            problems.append(f"table '{table}' cannot be fetched{nearest(table, listed)}; {public}")
    if problems:
        raise InputError(problems)
    return [*names]


def _fetch_table(root: Path, name: str, parts: list[Download]) -> dict[str, Any]:
    entry = manifest.read(root).get(name, {})
    fetched = "sources" in entry and manifest.is_intact(root, name, entry)
    if manifest.table_files(root, name) and not fetched:
        say(f"{name}: kept as it is, raysts did not write it like this (remove it to fetch the public set)")
        return {"status": "kept"}
    if fetched and _are_same(entry["sources"], parts):
        say(f"{name}: present ({entry['rows']:,} rows)")
        return {"status": "present", **entry}
    say(f"{name}: reading {', '.join(part.dataset for part in parts)}")
    parts = [part.resolve() for part in parts]
    read = dict.fromkeys(parts, 0)
    with atomic_write(root / name if name in SHARDED else root / f"{name}.parquet") as draft:
        written = _write(draft, _row_groups(_mix(read)), name in SHARDED)
    dropped = sum(read.values()) - written
    entry = manifest.record(root, name, {"dropped": dropped, "sources": [part.facts() for part in parts]})
    say(f"{name}: {entry['rows']:,} rows" + (f", {dropped:,} without label or text left out" if dropped else ""))
    return {"status": "fetched", **entry}


def _are_same(recorded: list[dict[str, Any]], parts: list[Download]) -> bool:
    """Return True if a recorded table came from these sources. A branch counts as any commit."""
    return len(recorded) == len(parts) and all(
        old["dataset"] == part.dataset
        and old.get("file") == part.file
        and (part.folder is not None) == (old["revision"] == "local copy")
        and (part.folder is not None or part.revision in (None, old["revision"]))
        for old, part in zip(recorded, parts, strict=True)
    )


def _mix(read: dict[Download, int]) -> Iterator[pa.Table]:
    """Yield batches of all parts in proportion, so that a training window holds all, and count rows."""
    streams = {part: part.batches() for part in read}
    while streams:
        part = min(streams, key=lambda part: read[part] / max(part.rows, 1))
        if batch := next(streams[part], None):
            read[part] += batch[0]
            yield batch[1]
            continue
        del streams[part]
        if part.rows and read[part] != part.rows and part.facts()["pinned"] and not part.file:
            raise RunFailed(
                f"{part.dataset} ({part.split}) gave {read[part]:,} rows, {part.rows:,} were expected at its pinned commit: "
                f"the download was cut short or the mirror differs; run it again"
            )


def _write(draft: Path, row_groups: Iterator[pa.Table], sharded: bool) -> int:
    """Write a file, or a folder of shards, and return the number of rows."""
    rows = number = 0
    if (table := next(row_groups, None)) is None:
        raise RunFailed(f"nothing to write to {draft.name}: the source has no rows")
    while table is not None:
        path, size = draft / f"part-{number:05d}.parquet" if sharded else draft, 0
        path.parent.mkdir(exist_ok=True)
        with pq.ParquetWriter(path, table.schema, compression="zstd") as writer:
            while table is not None and not (sharded and size >= SHARD_BYTES):
                writer.write_table(table, row_group_size=table.num_rows)
                rows, size = rows + table.num_rows, size + table.nbytes
                table = next(row_groups, None)
        number += 1
    return rows


def _row_groups(batches: Iterator[pa.Table]) -> Iterator[pa.Table]:
    waiting: list[pa.Table] = []
    for batch in batches:
        waiting.append(batch)
        if sum(map(len, waiting)) >= ROW_GROUP_ROWS or sum(b.nbytes for b in waiting) >= ROW_GROUP_BYTES:
            yield pa.concat_tables(waiting)
            waiting = []
    if any(map(len, waiting)):
        yield pa.concat_tables(waiting)


def convert(rows: pa.Table, shape: str, name: str | None = None) -> pa.Table:
    """Return the rows of a source that have a value in every canonical column.

    Raises:
        KeyError: a column is missing.
    """
    columns = {}
    for column, (kind, *names) in _file()["shapes"][shape].items():
        if kind == "name":
            columns[column] = pa.array([name] * rows.num_rows, pa.string())
            continue
        present = next((name for name in names if name in rows.column_names), None)
        if present is None:
            raise KeyError(f"column '{names[-1]}' is missing (columns found: {', '.join(rows.column_names)})")
        columns[column] = KINDS[kind](rows.column(present))
    if shape == "sts" and {"genre", "dataset"} <= set(rows.column_names):
        genre, dataset = _text(rows.column("genre")), _text(rows.column("dataset"))
        columns["subset"] = pc.binary_join_element_wise(genre, dataset, "/")
    return pa.table(columns).drop_null()


def _text(values: pa.ChunkedArray) -> pa.Array:
    """Return NFC with runs of white space collapsed, null for no text."""
    return pa.array([" ".join(_normal(text).split()) or None for text in values.to_pylist()], pa.string())


def _paragraphs(values: pa.ChunkedArray) -> pa.Array:
    texts = ([" ".join(line.split()) for line in _normal(text).splitlines()] for text in values.to_pylist())
    return pa.array(["\n".join(filter(None, lines)) or None for lines in texts], pa.string())


def _normal(text: str | None) -> str:
    return unicodedata.normalize("NFC", text or "")


def _nli_label(values: pa.ChunkedArray) -> pa.Array:
    """Return label names in lower case, null for an unknown one. Integers index NLI_LABELS."""
    codes = label_codes(values, NLI_LABELS).tolist()
    return pa.array([NLI_LABELS[code] if code >= 0 else None for code in codes], pa.string())


def _class(values: pa.ChunkedArray) -> pa.Array:
    """Return names of classes, or their numbers as text, null for no label (-1)."""
    return pa.array([None if label in (None, -1) else str(label) for label in values.to_pylist()], pa.string())


KINDS: dict[str, Callable[[pa.ChunkedArray], pa.Array]] = {
    "text": _text,
    # As it is: a retrieval set gives BEIR's numbers on its own texts alone.
    "raw": lambda values: pc.fill_null(pc.cast(values, pa.string()), ""),
    "paragraphs": _paragraphs,
    "whole": lambda values: pc.cast(values, pa.int64()),
    # Without the noise of scores stored as float32: 3.29999995 is 3.3.
    "number": lambda values: pc.round(pc.cast(values, pa.float64()).combine_chunks(), 4),
    "nli_label": _nli_label,
    "class": _class,
}
"""How the values of a column are made, by the names in ``sources.yaml``."""
