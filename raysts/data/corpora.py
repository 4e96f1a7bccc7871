"""A corpus: a folder in the canonical layout, opened, checked and fingerprinted table by table."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from raysts.errors import InputError, nearest
from raysts.schema import TABLES, Column

READ_ROWS = 65_536


class Corpus:
    """The tables below one folder.

    Raises:
        InputError: the folder is not there.
    """

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root)
        if not self.root.is_dir():
            what = "is not a folder" if self.root.exists() else "does not exist"
            raise InputError(
                f"data folder '{root}' {what}: --data must name a folder in the canonical layout "
                f"(sts/stsb_dev.parquet, nli/train.parquet, ...); make one with 'raysts data fetch --data {root}'"
            )
        self._fingerprints: dict[str, str] = {}

    def files(self, name: str) -> list[Path]:
        """The Parquet files of table ``name`` in order; empty when the corpus does not have it."""
        if name not in TABLES:
            raise InputError(f"unknown table '{name}'{nearest(name, TABLES)}")
        single, folder = self.root / f"{name}.parquet", self.root / name
        if single.is_file():
            return [single]
        return sorted(folder.glob("*.parquet")) if folder.is_dir() else []

    def tables(self) -> list[str]:
        """Names of the canonical tables that are present."""
        return [name for name in TABLES if self.files(name)]

    def require(self, names: Iterable[str]) -> None:
        """Raise one InputError that names every missing table and where it belongs."""
        missing = [name for name in names if not self.files(name)]
        if missing:
            raise InputError(
                [
                    f"table '{name}' is missing: expected {self.root / name}.parquet or Parquet shards in "
                    f"{self.root / name}/; 'raysts data fetch' makes it, 'raysts data check' lists what is there"
                    for name in missing
                ]
            )

    def rows(self, name: str) -> int:
        """Number of rows, from the Parquet footers."""
        return sum(_open(path).metadata.num_rows for path in self.files(name))

    def read(self, name: str, columns: Sequence[str] | None = None) -> pa.Table:
        """The whole table with its canonical columns (those present), strings as ``string``, labels as in the file."""
        self.require([name])
        return pa.concat_tables(
            [pa.Table.from_batches(list(_batches(path, name, columns))) for path in self.files(name)],
            promote_options="permissive",
        )

    def head(self, name: str, column: str, rows: int) -> list[str]:
        """The first texts of a column."""
        batches = _batches(self.files(name)[0], name, [column])
        return next(batches).column(0).slice(0, rows).to_pylist()

    def fingerprint(self, name: str) -> str:
        """sha256 over the bytes of the table's files in order: the same data under another path is the same data."""
        if name not in self._fingerprints:
            digest = hashlib.sha256()
            for path in self.files(name):
                with path.open("rb") as file:
                    digest.update(hashlib.file_digest(file, "sha256").digest())
            self._fingerprints[name] = digest.hexdigest()
        return self._fingerprints[name]

    def problems(self, names: Iterable[str], most: int = 20) -> list[str]:
        """What is wrong with the rows of the named tables: missing columns, null or empty text, values out of range.

        Each message names file, row (0-based within the file) and column. At most ``most`` are returned.
        """
        found: list[str] = []
        for name in names:
            for path in self.files(name):
                for problem in _file_problems(path, name):
                    found.append(problem)
                    if len(found) >= most:
                        return found
        return found

    def check(self, names: Iterable[str]) -> None:
        """Raise InputError when a named table is missing or holds rows that cannot be used."""
        names = list(names)
        self.require(names)
        problems = self.problems(names)
        if problems:
            raise InputError(problems)


def label_codes(values: pa.ChunkedArray | pa.Array, labels: Sequence[str]) -> np.ndarray:
    """Class labels given as strings or as integer codes -> int64 codes; -1 where a label is unknown."""
    if pa.types.is_dictionary(values.type):
        values = pc.cast(values, values.type.value_type)
    if pa.types.is_integer(values.type):
        values = values.cast(pa.int64())  # unsigned types have no -1
        codes = np.asarray(
            pc.fill_null(values, -1).to_numpy(zero_copy_only=False)
            if isinstance(values, pa.Array)
            else pc.fill_null(values, -1).to_numpy(),
            dtype=np.int64,
        )
        return np.where((codes >= 0) & (codes < len(labels)), codes, -1)
    index = pc.index_in(pc.utf8_lower(pc.cast(values, pa.string())), value_set=pa.array(labels))
    return np.asarray(
        pc.fill_null(index, -1).to_numpy(zero_copy_only=False)
        if isinstance(index, pa.Array)
        else pc.fill_null(index, -1).to_numpy(),
        dtype=np.int64,
    )


def _open(path: Path) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(path)
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{path}: not a readable Parquet file ({error}); write it again or remove it") from error


def _read(path: Path, file: pq.ParquetFile, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    batches = file.iter_batches(batch_size=READ_ROWS, columns=list(columns))
    while True:
        try:
            batch = next(batches, None)
        except (pa.ArrowException, OSError) as error:
            raise InputError(f"{path}: its pages cannot be read ({error}); write it again or remove it") from error
        if batch is None:
            return
        yield batch


def _batches(path: Path, name: str, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
    """Record batches of one file with the canonical columns (and ``subset``/``source`` where present)."""
    file = _open(path)
    present = file.schema_arrow.names
    wanted = [column.name for column in TABLES[name]] + ["subset", "source"] if columns is None else list(columns)
    missing = [column.name for column in TABLES[name] if column.required and column.name not in present]
    if missing:
        raise InputError(_missing_column(path, missing[0], present))
    chosen = [column for column in wanted if column in present]
    for batch in _read(path, file, chosen):
        yield pa.RecordBatch.from_arrays([_narrow(batch.column(column)) for column in chosen], names=chosen)


def _narrow(values: pa.Array) -> pa.Array:
    """One type per kind of column, so that shards written by different tools can be joined."""
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if pa.types.is_large_string(values.type) or pa.types.is_string_view(values.type):
        return values.cast(pa.string())
    return values.cast(pa.int64()) if pa.types.is_integer(values.type) else values


def _missing_column(path: Path, column: str, present: list[str]) -> str:
    return (
        f"{path}: column '{column}' is missing (columns found: {', '.join(present)}){nearest(column, present)}; "
        f"the canonical layout needs it, rename or add it"
    )


def _file_problems(path: Path, name: str) -> Iterator[str]:
    file = _open(path)
    present = file.schema_arrow.names
    absent = [column for column in TABLES[name] if column.required and column.name not in present]
    for column in absent:
        yield _missing_column(path, column.name, present)
    columns = [column for column in TABLES[name] if column.name in present]
    if file.metadata.num_rows == 0:
        yield f"{path}: the table has no rows; a table that is there must hold data"
    first = 0
    for batch in _read(path, file, [column.name for column in columns]):
        for column in columns:
            for row, message in _column_problems(batch.column(column.name), column):
                yield f"{path}: row {first + row}, column '{column.name}': {message}"
        first += batch.num_rows


def _column_problems(values: pa.Array, column: Column, most: int = 5) -> Iterator[tuple[int, str]]:
    """(row, message) for the first bad values of a column."""
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    for row in np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False))[:most]:
        yield int(row), "null; every row needs a value, remove the row or fill it in"
    if column.kind == "text":
        if not (
            pa.types.is_string(values.type)
            or pa.types.is_large_string(values.type)
            or pa.types.is_string_view(values.type)
        ):
            yield 0, f"has type {values.type}; text must be a string column"
            return
        empty = pc.equal(pc.utf8_length(pc.utf8_trim_whitespace(values.cast(pa.string()))), 0)
        for row in np.flatnonzero(pc.fill_null(empty, False).to_numpy(zero_copy_only=False))[:most]:
            yield int(row), "empty sentence; every text needs at least one character, remove the row"
    elif column.kind == "number":
        if not (
            pa.types.is_floating(values.type) or pa.types.is_integer(values.type) or pa.types.is_decimal(values.type)
        ):
            yield 0, f"has type {values.type}; scores must be numbers"
            return
        numbers = values.cast(pa.float64()).to_numpy(zero_copy_only=False)
        known = values.is_valid().to_numpy(zero_copy_only=False)
        bad = known & ~np.isfinite(numbers)
        rule = "a finite number"
        if column.low is not None and column.high is not None:
            bad |= known & ((numbers < column.low) | (numbers > column.high))
            rule = f"a number from {column.low:g} to {column.high:g}"
        for row in np.flatnonzero(bad)[:most]:
            yield int(row), f"score {numbers[row]:g} must be {rule}; correct or remove the row"
    elif pa.types.is_nested(values.type):
        yield 0, f"has type {values.type}; labels must be strings or integers"
    elif column.labels:
        codes = label_codes(values, column.labels)
        bad = (codes < 0) & values.is_valid().to_numpy(zero_copy_only=False)
        for row in np.flatnonzero(bad)[:most]:
            yield (
                int(row),
                (
                    f"unknown label {values[int(row)].as_py()!r}; must be one of {', '.join(column.labels)} "
                    f"or its index 0 to {len(column.labels) - 1}; remove unlabelled rows"
                ),
            )
