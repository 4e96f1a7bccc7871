"""A corpus: a folder in the canonical layout, opened, checked and fingerprinted table by table."""

from __future__ import annotations

import copy
import hashlib
import os
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from raysts.data.derived import DERIVED, label_codes
from raysts.data.derived import VERSION as DERIVED_VERSION
from raysts.data.known import Known
from raysts.data.own import BATCH_ROWS, DEV, TEXT, Own, OwnTable, Text
from raysts.data.shards import (
    READ_ROWS,
    ShardError,
    Skipped,
    batches,
    columns_of,
    footer_problem,
    open_shard,
    pages,
    remedy,
    sound_shards,
    source_column,
    unreadable,
)
from raysts.errors import InputError, RunFailed, nearest
from raysts.ids import content_id
from raysts.schema import RETRIEVAL, TABLES, TESTS, TRAINING_TABLES, Column, table_columns
from raysts.storage.store import FolderStore, Store

CHECKS_VERSION = 1
"""Of what is asked of a table's rows: raise it when more is, and tables that were sound are looked at again."""


class RowGroup(NamedTuple):
    """One row group of a table: the unit of reading."""

    path: Path
    number: int
    rows: int
    source: Callable[[], pa.ChunkedArray | None]
    """The column ``source``, where the table has one."""


class Corpus:
    """The tables below one folder, and those that are derived from them.

    Args:
        root: the folder; or the URI of one in an object store, whose tables are brought here, to the mirror, when they are
            read. A table whose files change in the store is brought again. None: there is nothing but ``own``.
        skip_bad: leave the files that cannot be read out of training tables that have others (:meth:`skipped` says
            which). Tables that select or are reported on are never cut: their scores would not compare.
        own: data of the user's own that stands where canonical tables are read.

    Raises:
        InputError: the folder is not there, or the store does not answer.
    """

    def __init__(self, root: str | Path | None, skip_bad: bool = False, own: Own | None = None) -> None:
        self.empty, self.given = root is None, own or Own()
        self.own: dict[str, OwnTable] = self.given.open()
        root = root or os.devnull
        self.root = Store.open(root, "--data").root if "://" in str(root) else Path(root)
        self.store = Store.of(self.root)
        self.skip_bad = skip_bad
        self._made: Path | None = None
        self._listed: dict[Path, list[Path]] = {}
        if not self.empty:
            self.store.check(option="--data")
        if isinstance(self.store, FolderStore) and not self.root.is_dir() and not self.empty:
            what = "is not a folder" if self.root.exists() else "does not exist"
            raise InputError(
                f"data folder '{root}' {what}: --data must name a folder in the canonical layout "
                f"(sts/stsb_dev.parquet, nli/train.parquet, ...); make one with 'raysts data fetch --data {root}'"
            )
        self._fingerprints: dict[str, str] = {}
        self._derived: dict[str, pa.Table] = {}
        self._kept: dict[str, np.ndarray] = {}
        self._sound: dict[str, tuple[list[Path], list[Skipped]]] = {}

    def files(self, name: str) -> list[Path]:
        """The Parquet files of table ``name`` in order, without those that are skipped; empty when it is not there."""
        if not table_columns(name):
            raise InputError(f"unknown table '{name}'{nearest(name, TABLES)}")
        if name in self.own:
            return [self.own[name].path]
        paths = [] if self.empty else self._files(self.root / name)
        if not self.skip_bad or name not in TRAINING_TABLES:
            return paths
        if name not in self._sound:  # every page is read, once
            self._sound[name] = sound_shards(paths, partial(footer_problem, name), partial(columns_of, name))
        return self._sound[name][0]

    def _files(self, folder: Path) -> list[Path]:
        single = folder.with_name(f"{folder.name}.parquet")
        if isinstance(self.store, FolderStore):
            return [single] if single.is_file() else sorted(folder.glob("*.parquet"))
        if folder.parent not in self._listed:  # a request for each of the tables would take seconds
            self._listed[folder.parent] = self.store.list(folder.parent, recursive=True)
        files = [path for path in self._listed[folder.parent] if path.suffix == ".parquet"]
        return [path for path in files if path == single] or [path for path in files if path.parent == folder]

    @property
    def where(self) -> str:
        """The folder, or its URI, as people name it and :class:`Corpus` takes it."""
        return "an absent data folder (--data)" if self.empty else self.store.uri

    @property
    def uri(self) -> str | None:
        """The folder, or its URI, as :class:`Corpus` takes it; None where there is none."""
        return None if self.empty else self.store.uri

    @property
    def described(self) -> str:
        """Where all of it comes from, for reports."""
        own = [path for path in (self.given.text, *self.given.dev.values(), *self.given.test.values()) if path]
        return ", ".join(dict.fromkeys([*([self.uri] if self.uri else []), *own]))

    def title(self, name: str) -> str:
        return self.own[name].title if name in self.own else name.removeprefix(TESTS)

    @property
    def text(self) -> Text | None:
        text = self.own.get(TEXT)
        return text if isinstance(text, Text) else None

    def holding_out(self) -> Corpus:
        """This corpus, whose own text is without the texts that it holds out."""
        assert self.text is not None
        corpus = copy.copy(self)
        corpus.own, corpus._derived = {**self.own, TEXT: self.text.holding_out()}, {}
        return corpus

    def skipped(self, names: Iterable[str]) -> list[dict[str, Any]]:
        """The files that are left out of the named tables and of those that they are derived from: table, file, rows,
        reason."""
        tables = dict.fromkeys(table for name in names for table in (self.sources(name) or [name]) if self.files(table))
        return [shard.plain(table, self.root) for table in tables for shard in self._sound.get(table, ([], []))[1]]

    def tables(self) -> list[str]:
        of_sets = (f"retrieval/{name}/{part}" for name in self.retrieval_sets() for part in RETRIEVAL)
        return [*(name for name in TABLES if self.files(name)), *self.tests(), *filter(self.files, of_sets)]

    def retrieval_sets(self) -> list[str]:
        """Names of the folders in ``retrieval`` that hold some table of a retrieval set, and of those of the user's own."""
        own = [name.split("/")[1] for name in self.own if name.startswith("retrieval/")]
        folders = [] if self.empty else [path.name for path in self.store.list(self.root / "retrieval")]
        named = dict.fromkeys([*folders, *own])
        return [name for name in named if any(self.files(f"retrieval/{name}/{part}") for part in RETRIEVAL)]

    def tests(self) -> list[str]:
        folder = self.root / TESTS
        held = () if self.empty else self.store.list(folder)
        names = {f"{TESTS}{path.name.removesuffix('.parquet')}" for path in held}
        return sorted({*filter(self.files, names)} | {name for name in self.own if name.startswith(TESTS)})

    def sources(self, name: str) -> list[str]:
        """The tables that ``name`` is derived from; none when the folder holds it, or when it is not derived."""
        if name not in DERIVED or self.files(name):
            return []
        return [table for table in DERIVED[name].sources if not DERIVED[name].some or self.files(table)]

    def writing_to(self, folder: Path) -> Corpus:
        """This corpus, whose derived tables are written to ``folder`` when they are needed."""
        corpus = copy.copy(self)
        corpus._made = folder
        return corpus

    def keeping(self, rows: Mapping[str, np.ndarray]) -> Corpus:
        """This corpus, of whose tables :meth:`read` gives the ``rows`` alone (bool, one for each row of the table)."""
        corpus = copy.copy(self)
        corpus._kept = {**self._kept, **rows}
        return corpus

    def row_groups(self, name: str) -> Iterator[RowGroup]:
        """The row groups of a table in order; those of a derived table before it is written (:meth:`write_derived`).

        Text of the user's own is read from a copy of that kind too.
        """
        if own := self.own.get(name):
            for index, first in enumerate(range(0, own.rows, READ_ROWS)):
                yield RowGroup(self._derived_file(name), index, min(READ_ROWS, own.rows - first), lambda: None)
            return
        if self.sources(name):
            path, rows = self._derived_file(name), self._derived_rows(name)
            for index, first in enumerate(range(0, rows, READ_ROWS)):
                yield RowGroup(
                    path,
                    index,
                    min(READ_ROWS, rows - first),
                    partial(self._derived_column, name, "source", first, READ_ROWS),
                )
            return
        for path in self.files(name):
            file = open_shard(path, remedy(name))
            for index in range(file.num_row_groups):
                source = partial(source_column, path, file, index, remedy(name))
                yield RowGroup(path, index, file.metadata.row_group(index).num_rows, source)

    def made(self, name: str, column: str) -> list[pa.ChunkedArray] | None:
        """A column of a table whose file :meth:`write_derived` may not have written yet, by row group; None of any other."""
        own = self.own.get(name)
        if own is None and not self.sources(name):
            return None
        table = pa.Table.from_batches(list(own.batches([column]))) if own else self._derive(name)
        return [table.column(column).slice(first, READ_ROWS) for first in range(0, table.num_rows, READ_ROWS)]

    def write_derived(self, name: str) -> None:
        """Write a derived table that is not there, or text of the user's own; nothing to do for any other."""
        if self.sources(name) or name in self.own:
            path = self._derived_file(name)
            store = Store.of(path)
            if store.get(path, fresh=True):  # another machine may have made it
                return
            with store.put(path) as draft:
                if own := self.own.get(name):
                    _write_streamed(own, draft)
                else:
                    pq.write_table(self._derive(name), draft, row_group_size=READ_ROWS)

    def _derived_file(self, name: str) -> Path:
        assert self._made is not None, "no folder to write derived tables to"
        return self._made / f"{name.replace('/', '-')}-{self.fingerprint(name)}.parquet"

    def _derive(self, name: str) -> pa.Table:
        if name not in self._derived:
            self._derived[name] = DERIVED[name].make({table: self.read(table) for table in self.sources(name)})
        return self._derived[name]

    def _derived_rows(self, name: str) -> int:
        if name in self._derived or any(source in self._kept for source in self.sources(name)):
            return self._derive(name).num_rows
        known = Known("rows", name, self.fingerprint(name))
        rows = known.facts().get("rows")
        if not isinstance(rows, int):
            rows = self._derive(name).num_rows
            known.add(rows=rows)
        return rows

    def _derived_column(self, name: str, column: str, first: int, rows: int) -> pa.ChunkedArray:
        return self._derive(name).column(column).slice(first, rows)

    def require(self, names: Iterable[str]) -> None:
        """Raise one InputError that names every missing table and where it belongs."""
        names = [table for name in names for table in (self.sources(name) or [name])]
        missing = [name for name in dict.fromkeys(names) if not self.files(name)]
        made_of = {name: f" (or what it is made of, {' or '.join(DERIVED[name].sources)})" for name in DERIVED}
        if missing:
            raise InputError(
                [
                    f"table '{name}' is missing: expected {self.where}/{name}.parquet or Parquet shards in "
                    f"{self.where}/{name}/{made_of.get(name, '')}; 'raysts data fetch' makes it, 'raysts data check' lists "
                    f"what is there{self.instead(name)}"
                    if not self.empty
                    else f"table '{name}'{made_of.get(name, '')} is missing: no data folder is given; name one in the "
                    f"canonical layout with --data PATH, which 'raysts data fetch' or 'raysts data import' makes"
                    f"{self.instead(name)}"
                    for name in missing
                ]
            )

    def instead(self, name: str) -> str:
        """What to do without a table where there is text of the user's own."""
        if name == DEV:
            return "; scored pairs of your own select with --dev NAME=FILE"
        if not name.startswith("nli/") or self.text is None:
            return ""
        return (
            "; with text alone run ct-sed or simcse-unsup-sed, or have encoders that are there taught to one with "
            "'raysts distill MODEL MODEL --text PATH'"
        )

    def has_labels(self, name: str) -> bool:
        """Whether the table is there, and has labels where the layout lets them be left out (SICK)."""
        files = self.files(name)
        if all(column.required for column in table_columns(name) if column.name == "label"):
            return bool(files)
        try:
            return bool(files) and all("label" in open_shard(path, remedy(name)).schema_arrow.names for path in files)
        except ShardError:
            return True  # whoever checks its rows says what is wrong with the file

    def rows(self, name: str) -> int:
        if own := self.own.get(name):
            return own.rows
        return sum(group.rows for group in self.row_groups(name))

    def read(self, name: str, columns: Sequence[str] | None = None) -> pa.Table:
        """The whole table with its canonical columns (those present), strings as ``string``, labels as in the file."""
        self.require([name])
        if own := self.own.get(name):
            table = pa.Table.from_batches(list(own.batches(columns)))
        else:
            parts = (list(batches(path, name, columns)) for path in self.files(name))
            tables = [pa.Table.from_batches(part) for part in parts if part]  # a shard may have no rows
            table = pa.concat_tables(_as_text_together(tables), promote_options="permissive")
        return table.filter(pa.array(self._kept[name])) if name in self._kept else table

    def batches(self, name: str, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        if own := self.own.get(name):
            yield from own.batches(columns)
            return
        for path in self.files(name):
            yield from pages(path, open_shard(path, remedy(name)), columns, remedy(name))

    def head(self, name: str, column: str, rows: int) -> list[str]:
        if self.sources(name):
            return self._derived_column(name, column, 0, rows).to_pylist()
        first = next(self.batches(name, [column]))
        return first.column(0).slice(0, rows).to_pylist()

    def fingerprint(self, name: str) -> str:
        """sha256 over the bytes of the table's files in order: the same data under another path is the same data."""
        if self.sources(name):
            return content_id([name, DERIVED_VERSION, [self.fingerprint(table) for table in self.sources(name)]])
        if name in self.own:
            return self.own[name].sha256
        if name not in self._fingerprints:
            known = self._known(name)
            sha256 = known.facts().get("sha256") if known else None
            if sha256 is None:
                digest = hashlib.sha256()
                for path in self.files(name):
                    self.store.bring(path)
                    with path.open("rb") as file:
                        digest.update(hashlib.file_digest(file, "sha256").digest())
                sha256 = digest.hexdigest()
                if known:
                    known.add(sha256=sha256)
            self._fingerprints[name] = sha256
        return self._fingerprints[name]

    def check_unchanged(self, names: Iterable[str]) -> None:
        """Make sure that tables that were read are those of which the fingerprints were taken, before what was made of them is
        kept under these. Text of the user's own says so itself when it is read.
        """
        for table in dict.fromkeys(table for name in names for table in (self.sources(name) or [name])):
            before = self.fingerprint(table)
            if self._fingerprints.pop(table, before) != self.fingerprint(table):
                raise RunFailed(
                    f"table '{table}' of {self.where} was changed while it was read; leave it as it is, and run the same command "
                    f"again: what is made of the new one has other ids"
                )

    def contents(self, names: Iterable[str]) -> list[tuple[str, str, str | None]]:
        """What names the rows that :meth:`read` gives of tables: each with its fingerprint, and the digest of which rows
        :meth:`keeping` has left."""
        kept = {name: hashlib.sha256(self._kept[name].tobytes()).hexdigest() for name in names if name in self._kept}
        return [(name, self.fingerprint(name), kept.get(name)) for name in names]

    def _known(self, name: str) -> Known | None:
        """What this machine knows of a table's files: ``sha256``, and ``sound`` if every row was checked; None where nobody
        can say that they are the same as before: in a bucket, or where damaged ones are looked for."""
        if self.skip_bad or name in self.own or not isinstance(self.store, FolderStore) or not self.files(name):
            return None
        return Known(CHECKS_VERSION, name, files=self.files(name))

    def problems(self, names: Iterable[str], most: int = 20) -> list[str]:
        """What is wrong with the rows of the named tables: missing columns, null or empty text, values out of range.

        Each message names file, row (0-based within the file) and column. At most ``most`` are returned.
        """
        tables = [name for name in names if name not in self.own]  # whose rows were checked when they were opened
        every = (problem for name in tables for problem in _table_problems(self.files(name), name))
        return list(islice(every, most))

    def check(self, names: Iterable[str]) -> None:
        """Raise InputError when a named table is missing or holds rows that cannot be used."""
        names = list(names)
        self.require(names)
        names = list(dict.fromkeys(table for name in names for table in (self.sources(name) or [name])))
        known = {name: self._known(name) for name in names}
        unknown = {name: kept for name, kept in known.items() if not (kept and kept.facts().get("sound"))}
        problems = self.problems(unknown)
        if problems:
            raise InputError(problems)
        for kept in filter(None, unknown.values()):
            kept.add(sound=True)


def _as_text_together(tables: Sequence[pa.Table]) -> list[pa.Table]:
    """Shards of a table; classes and ids that are text in one of them are text in all."""
    texts = {field.name for table in tables for field in table.schema if field.type == pa.string()}
    return [
        table.cast(
            pa.schema([field.with_type(pa.string()) if field.name in texts else field for field in table.schema])
        )
        for table in tables
    ]


def _write_streamed(own: OwnTable, path: Path) -> None:
    """A Parquet file of row groups of ``READ_ROWS``; memory is that of one. Batches but the last are full."""
    assert READ_ROWS % BATCH_ROWS == 0
    batches = own.batches()
    first = next(batches)
    with pq.ParquetWriter(path, first.schema) as writer:
        left = chain([first], batches)
        while group := list(islice(left, READ_ROWS // BATCH_ROWS)):
            writer.write_table(pa.Table.from_batches(group), row_group_size=READ_ROWS)


def _table_problems(files: Sequence[Path], name: str) -> Iterator[str]:
    rows = 0
    for path in files:
        rows += yield from _file_problems(path, name)
    if files and not rows:
        problem = "the table has no rows; a table that is there must hold data"
        yield str(unreadable(files[0], problem, remedy(name)))


def _file_problems(path: Path, name: str) -> Generator[str, None, int]:
    """What is wrong with a file; returns the number of its rows, 1 where nobody knows."""
    try:
        file = open_shard(path, remedy(name))
        if wrong := footer_problem(name, file):
            yield str(unreadable(path, wrong, remedy(name)))
            return 1
        columns = [column for column in table_columns(name) if column.name in file.schema_arrow.names]
        first = 0
        for batch in pages(path, file, [column.name for column in columns], remedy(name)):
            for column in columns:
                for row, message in _column_problems(batch.column(column.name), column):
                    yield f"{path}: row {first + row}, column '{column.name}': {message}"
            first += batch.num_rows
        return first
    except ShardError as error:
        yield str(error)
        return 1


def _column_problems(values: pa.Array, column: Column, most: int = 5) -> Iterator[tuple[int, str]]:
    """(row, message) for the first bad values of a column of a right type."""
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    for row in () if column.nulls else np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False))[:most]:
        yield int(row), "null; every row needs a value, remove the row or fill it in"
    if column.kind == "text":
        empty = pc.equal(pc.utf8_length(pc.utf8_trim_whitespace(values.cast(pa.string()))), 0)
        for row in np.flatnonzero(pc.fill_null(empty, False).to_numpy(zero_copy_only=False))[:most]:
            yield int(row), "empty sentence; every text needs at least one character, remove the row"
    elif column.kind == "number":
        numbers = values.cast(pa.float64()).to_numpy(zero_copy_only=False)
        known = values.is_valid().to_numpy(zero_copy_only=False)
        bad = known & ~np.isfinite(numbers)
        if column.low is not None and column.high is not None:
            bad |= known & ((numbers < column.low) | (numbers > column.high))
        if column.whole:
            bad |= known & (numbers != np.trunc(numbers))
        for row in np.flatnonzero(bad)[:most]:
            yield int(row), f"score {numbers[row]:g} must be {column.rule}; correct or remove the row"
    elif column.labels:
        codes = label_codes(values, column.labels)
        bad = (codes < 0) & values.is_valid().to_numpy(zero_copy_only=False)
        for row in np.flatnonzero(bad)[:most]:
            choices = f"{', '.join(column.labels)} or its index 0 to {len(column.labels) - 1}"
            yield (
                int(row),
                f"unknown label {values[int(row)].as_py()!r}; must be one of {choices}; remove unlabelled rows",
            )
