"""Tables: rows with canonical columns, in Parquet files, in a user's files, or derived."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from raysts.data import checks
from raysts.data.checks import BATCH_ROWS, SkippedFile, narrow, remedy
from raysts.data.derive import DERIVED
from raysts.data.derive import VERSION as DERIVED_VERSION
from raysts.data.facts import Facts
from raysts.errors import RunFailed
from raysts.ids import content_id, file_digest
from raysts.schema import table_columns
from raysts.storage.parquet import READ_ROWS, ParquetError, open_parquet, pages, unreadable
from raysts.storage.store import Store


class Content(Protocol):
    """Rows without Parquet files: of a user's file, or derived from other tables."""

    @property
    def fingerprint(self) -> str: ...

    @property
    def rows(self) -> int: ...

    def batches(self) -> Iterator[pa.RecordBatch]: ...


class RowGroup(NamedTuple):
    """Row group of a table: the unit of reading."""

    path: Path
    number: int
    rows: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Table:
    """Rows with canonical columns. Its fingerprint is that of its files' bytes, or of its ``content``."""

    name: str
    title: str
    """Name for people."""
    paths: tuple[Path, ...] = ()
    """Its files, in order."""
    content: Content | None = None
    """Rows that :meth:`write` makes a Parquet file of; None: ``paths`` are Parquet files."""
    folder: Path | None = None
    """Folder that :meth:`write` writes to."""
    skip_bad: bool = False
    """Leave out the files that cannot be read, if there are others."""
    local: bool = True
    """Its files are on this machine, so that facts about them can be kept."""

    @cached_property
    def _readable(self) -> tuple[list[Path], list[SkippedFile]]:
        if self.content or not self.skip_bad:
            return [*self.paths], []
        return checks.readable_files(self.paths, table_columns(self.name))

    @property
    def files(self) -> list[Path]:
        """Its files in order, without those that it leaves out."""
        return self._readable[0]

    @property
    def skipped_files(self) -> list[SkippedFile]:
        """The files that it leaves out."""
        return self._readable[1]

    @property
    def facts(self) -> Facts:
        """Facts about the files, none if these may change unseen, or damage must be searched for."""
        return Facts(checks.VERSION, self.name, files=self.files, stable=self.local and not self.skip_bad)

    @cached_property
    def fingerprint(self) -> str:
        """The sha256 of the content: the same rows under another path are the same data."""
        return self.content.fingerprint if self.content else self._hash_files()

    def _hash_files(self) -> str:
        def compute() -> str:
            digest = hashlib.sha256()
            for path in self.files:
                Store.of(path).bring(path)
                try:
                    digest.update(file_digest(path))
                except OSError as error:
                    raise unreadable(path, f"cannot be read ({error.strerror})", remedy(self.name)) from None
            return digest.hexdigest()

        return str(self.facts.get("sha256", compute))

    def check_unchanged(self, place: str) -> None:
        """Check that the files agree with the fingerprint. (A user's text checks itself when it is read.)"""
        try:
            changed = self.content is None and self.fingerprint != self._hash_files()
        except ParquetError:  # a file has gone
            changed = True
        if changed:
            raise RunFailed(
                f"table '{self.name}' of {place} was changed while it was read; leave it as it is, and run the same command "
                f"again: what is made of the new one has other ids"
            )

    @property
    def rows(self) -> int:
        return self.content.rows if self.content else sum(group.rows for group in self.row_groups())

    @property
    def query_rows(self) -> int:
        """The number of its rows that are texts of the query side."""
        return getattr(self.content, "query_rows", 0)

    def batches(self, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the rows with the existing ``columns`` (default: canonical, subset, source)."""
        names = columns or [*(column.name for column in table_columns(self.name)), "subset", "source"]
        if self.content:
            for batch in self.content.batches():
                yield batch.select([name for name in names if name in batch.schema.names])
            return
        for path in self.files:
            file = open_parquet(path, remedy(self.name))
            present = file.schema_arrow.names
            if problem := checks.missing_columns(table_columns(self.name), present):
                raise unreadable(path, problem, remedy(self.name))
            chosen = [name for name in names if name in present]
            for batch in pages(path, file, chosen, remedy(self.name)):
                yield pa.RecordBatch.from_arrays([narrow(column) for column in batch.columns], names=chosen)

    def read(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Return the whole table. Labels and ids that are text in one file are text in all."""
        parts = [pa.Table.from_batches([batch]) for batch in self.batches(columns)]
        texts = {field.name for part in parts for field in part.schema if field.type == pa.string()}
        schemas = ([f.with_type(pa.string()) if f.name in texts else f for f in part.schema] for part in parts)
        parts = [part.cast(pa.schema(schema)) for part, schema in zip(parts, schemas, strict=True)]
        return pa.concat_tables(parts, promote_options="permissive")

    def has_column(self, file: Path, column: str) -> bool:
        """Return True if one of its files has a column. Of a user's file only canonical columns count."""
        return not self.content and column in open_parquet(file, remedy(self.name)).schema_arrow.names

    def head(self, column: str, rows: int) -> list[str]:
        """Return the first values of a column, at most those of its first batch."""
        values: list[str] = next(self.batches([column])).column(0).slice(0, rows).to_pylist()
        return values

    @property
    def path(self) -> Path:
        """The file that :meth:`write` makes."""
        assert self.folder is not None, "no folder to write tables to"
        return self.folder / f"{self.name.replace('/', '-')}-{self.fingerprint}.parquet"

    def row_groups(self) -> Iterator[RowGroup]:
        """Yield the row groups in order, before :meth:`write` too."""
        if self.content:
            for number, first in enumerate(range(0, self.rows, READ_ROWS)):
                yield RowGroup(self.path, number, min(READ_ROWS, self.rows - first))
            return
        for path in self.files:
            metadata = open_parquet(path, remedy(self.name)).metadata
            for number in range(metadata.num_row_groups):
                yield RowGroup(path, number, metadata.row_group(number).num_rows)

    def write(self) -> None:
        """Write its content as a Parquet file with row groups of ``READ_ROWS``, unless the file exists.

        Memory is that of a row group.
        """
        if self.content is None or Store.of(self.path).get(self.path, fresh=True):  # another machine may have made it
            return
        with Store.of(self.path).put(self.path) as draft:
            batches = self.content.batches()  # of BATCH_ROWS rows, but for the last
            first = next(batches)
            batches = chain([first], batches)
            with pq.ParquetWriter(draft, first.schema, compression="zstd") as writer:
                while group := list(islice(batches, READ_ROWS // BATCH_ROWS)):
                    writer.write_table(pa.Table.from_batches(group), row_group_size=READ_ROWS)

    def problems(self) -> Iterator[str]:
        """Yield the problems of its rows. (A user's file was checked when it was opened.)"""
        return checks.table_problems(self.files, self.name) if self.content is None else iter(())


class Derivation:
    """Rows that are made of other tables, when they are needed."""

    def __init__(self, name: str, sources: Sequence[Table]):
        self.name, self.sources = name, sources

    @property
    def fingerprint(self) -> str:
        return content_id([self.name, DERIVED_VERSION, [table.fingerprint for table in self.sources]])

    @property
    def rows(self) -> int:
        return int(Facts("rows", self.name, self.fingerprint).get("rows", lambda: self._table.num_rows))

    def batches(self) -> Iterator[pa.RecordBatch]:
        batches = self._table.combine_chunks().to_batches(max_chunksize=BATCH_ROWS)
        yield from batches or [pa.RecordBatch.from_pylist([], self._table.schema)]

    @cached_property
    def _table(self) -> pa.Table:
        return DERIVED[self.name].make({table.name: table.read() for table in self.sources})
