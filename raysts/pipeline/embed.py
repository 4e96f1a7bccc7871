"""Bulk embedding of text files into Parquet, one shard per row group, or per ``READ_ROWS`` rows.

A shard is complete or absent. ``_job.json`` holds the id of every input file's content: only changed files are embedded
again. ``_manifest.json``, written last, lists the shards with their rows and checksums.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from raysts.data.checks import type_rule
from raysts.data.readers import Row, content_of, files_of, format_of, is_saved, require_columns, rows_of
from raysts.errors import InputError, Problems, RunFailed, nearest
from raysts.evaluation.compression import MOST_CALIBRATION, Dtype, ranges_of
from raysts.models.precision import check_finite
from raysts.models.pretrained import load
from raysts.models.sentence_model import SentenceModel, quantize
from raysts.schema import Column
from raysts.storage.atomic import remove_drafts
from raysts.storage.checksums import checksum
from raysts.storage.parquet import READ_ROWS, open_parquet, pages
from raysts.storage.store import Store

JSON: dict[str, Any] = {"ensure_ascii": False, "default": str}
ROWS = 8_192
"""Rows in memory at once."""

ADDED = "embedding"
"""Name of the column that is added."""

EXISTS = f"{{}} has a column '{ADDED}' already, which is the name of the column to add; rename it"

KINDS = {
    **{frozenset(types): pa.int64() for types in ({int}, {np.int64}, {int, np.int64})},
    frozenset({float}): pa.float64(), frozenset({int, float}): pa.float64(), frozenset({bool}): pa.bool_(),
}  # fmt: skip
"""Columns of what is no Parquet by what their values are; the others are text, with JSON for what is none. ``np.int64``: whole
numbers that not all doubles hold."""


@dataclass(frozen=True, slots=True)
class Unit:
    """Row group of an input file, one shard's input. Files other than Parquet have a ``schema``."""

    source: str
    row_group: int
    rows: int
    schema: pa.Schema | None = None


def units(source: Path, column: str, output: Path) -> list[Unit]:
    """Return the units of a job in input order, or raise one InputError for all files."""
    if output.is_relative_to(source):
        raise InputError(
            f"--output '{output}' lies in --input '{source}', which would then hold its own shards; move it out"
        )
    if output.exists() and not output.is_dir():
        raise InputError(f"--output '{output}' is a file; it must be a folder, which is made when it is not there")
    row_groups: list[Unit] = []
    counts: dict[Path, int] = {}  # rows of what is no Parquet, which never stands beside it
    types: dict[str, set[type]] = {}
    problems = Problems()
    parquet = [path for path in Store(source).list(recursive=True) if path.suffix.lower() == ".parquet"]
    for path in parquet or files_of(source, "--input"):
        with problems.collect():
            if is_saved(path) or format_of(path) != ".parquet":
                counts[path] = _count(path, column, types)
                continue
            file = open_parquet(path, "write it again, or take it out of --input")
            names = file.schema_arrow.names
            if column not in names:
                columns = f"(columns: {', '.join(names)}){nearest(column, names)}"
                problems.append(f"--column '{column}' is not in {path} {columns}")
            elif type_rule(kind := file.schema_arrow.field(column).type, Column(column, "text")):
                problems.append(f"--column '{column}' in {path} has type {kind}; it must be text")
            problems += [EXISTS.format(path)] if ADDED in names else []
            sizes = enumerate(file.metadata.row_group(group).num_rows for group in range(file.num_row_groups))
            row_groups += [Unit(str(path), group, rows) for group, rows in sizes if rows]
    problems.raise_any()
    # One schema for all, so that the shards are one table.
    schema = pa.schema(
        [(name, KINDS.get(frozenset(kinds - {type(None)}), pa.string())) for name, kinds in types.items()]
    )
    return row_groups + [
        Unit(str(path), first // READ_ROWS, min(READ_ROWS, count - first), schema)
        for path, count in counts.items()
        for first in range(0, count, READ_ROWS)
    ]


def _count(path: Path, column: str, types: dict[str, set[type]]) -> int:
    """Return the row count of a file other than Parquet, and add the types of its columns to ``types``."""

    def choose(path: Path, present: Sequence[str]) -> Sequence[str]:
        require_columns(path, [column], present, "--column must name the one that holds the text")
        if ADDED in present:
            raise InputError(EXISTS.format(path))
        return present

    count = 0
    for place, row in rows_of(path, choose):
        count += 1
        if not isinstance(row[column], str | None):
            raise InputError(f"{path}{place}: column '{column}' holds {row[column]!r:.40}; it must be text")
        for name, value in row.items():
            bits = value.bit_length() if isinstance(value, int) else 0
            kind = np.int64 if bits > 53 else type(value)
            types.setdefault(name, set()).add(object if bits > 63 else kind)
    return count


def open_output(output: Path, spec: dict[str, Any], units: Sequence[Unit]) -> dict[Unit, Path]:
    """Prepare ``output`` for the job ``spec`` and return the shard of every unit.

    Removes the shards of changed or deleted input. An input file keeps its number, so its shards keep their names.

    Raises:
        InputError: the folder holds another job's shards.
    """
    store = Store(output)
    job = store.read_json("_job.json")
    if job is None and output.exists() and any(output.iterdir()):
        raise InputError(f"--output '{output}' is not empty and holds no embedding job; choose an empty folder")
    stored = {key: value for key, value in (job or spec).items() if key != "files"}
    changed = [key for key in {**spec, **stored} if stored.get(key) != spec.get(key)]
    if changed:
        raise InputError(
            f"--output '{output}' holds the shards of another job (it differs in {', '.join(changed)}: "
            f"{', '.join(repr(stored.get(key)) for key in changed)}); choose another folder or remove it"
        )
    remove_drafts(output)
    before: dict[str, dict[str, Any]] = (job or {}).get("files", {})
    free = itertools.count(1 + max((entry["number"] for entry in before.values()), default=-1))
    files: dict[str, dict[str, Any]] = {}
    for name in dict.fromkeys(unit.source for unit in units):
        number = before[name]["number"] if name in before else next(free)
        files[name] = {"number": number, "sha256": content_of(Path(name))}
    shards = {unit: output / f"part-{files[unit.source]['number']:05d}-{unit.row_group:05d}.parquet" for unit in units}
    if job is None or files != before:
        store.delete("_manifest.json")
        same = {entry["number"] for name, entry in files.items() if before.get(name) == entry}
        for shard in output.glob("part-*.parquet"):
            if shard not in shards.values() or int(shard.name.split("-")[1]) not in same:
                store.delete(shard)
        store.write_json("_job.json", {**spec, "files": files})
    return shards


def is_done(unit: Unit, shard: Path) -> bool:
    """Return True if a unit's shard has all its rows, of the types that columns have now."""
    try:
        if Store.of(shard).get(shard) is None or pq.read_metadata(shard).num_rows != unit.rows:
            return False
        schema = pq.read_schema(shard)
        return unit.schema is None or schema.remove(schema.get_field_index(ADDED)).equals(unit.schema)
    except (pa.ArrowException, OSError):
        return False


def calibrate(output: Path, model: SentenceModel, units: Sequence[Unit], column: str) -> np.ndarray:
    """Return the ``int8`` ranges, float32 [2, D], of at most ``MOST_CALIBRATION`` sampled rows.

    The seeded sample is from 64 of the units. ``_calibration.json`` keeps the ranges, so that all shards share one
    scale, also those of a file that changes later.
    """
    store = Store(output)
    calibration = store.read_json("_calibration.json")
    if calibration is None:
        rng, read = np.random.default_rng(0), Reader()
        chosen = [units[i] for i in sorted(rng.permutation(len(units))[:64])]
        share = MOST_CALIBRATION / sum(unit.rows for unit in chosen)
        texts = [
            text
            for unit in chosen
            for batch in read(unit)
            for text, draw in zip(_texts(batch, column), rng.random(batch.num_rows), strict=True)
            if draw < share
        ]
        calibration = {"rows": len(texts), "ranges": ranges_of(check_finite(model.encode(texts), "the model")).tolist()}
        store.write_json("_calibration.json", calibration)
    return np.array(calibration["ranges"], np.float32)


class EmbedFile:
    """Worker that writes a shard: a row group with its embeddings. Memory holds ``ROWS`` rows at a time.

    Args:
        options: of :func:`raysts.models.pretrained.load`.
        dims: number of leading dimensions to keep; None: the model's own.
        ranges: of ``int8`` (:func:`calibrate`).
    """

    def __init__(
        self, device: str | None, model: Path, options: Mapping[str, Any], column: str, dims: int | None, dtype: Dtype,
        ranges: np.ndarray | None,
    ) -> None:  # fmt: skip
        self.path, self.model = model, load(model, device=device, **options)
        self.model.truncate_dim = dims or self.model.truncate_dim
        self.column, self.dtype, self.ranges, self.read = column, dtype, ranges, Reader()

    def __call__(self, work: tuple[Unit, Path]) -> None:
        unit, shard = work
        if is_done(unit, shard):
            return
        with Store.of(shard).put(shard) as draft:
            writer = None
            for batch in self.read(unit):
                embeddings = check_finite(self.model.encode(_texts(batch, self.column)), f"'{self.path}'")
                vectors = quantize(embeddings, self.dtype, self.ranges)
                lists = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), vectors.shape[1])
                table = pa.Table.from_batches([batch]).append_column(ADDED, lists)
                writer = writer or pq.ParquetWriter(draft, table.schema, compression="zstd")
                writer.write_table(table)
            assert writer is not None
            writer.close()


def _texts(batch: pa.RecordBatch, column: str) -> list[str]:
    values = batch.column(batch.schema.get_field_index(column))
    return pc.fill_null(values.cast(pa.string()), "").to_pylist()  # type: ignore[no-any-return]


class Reader:
    """Reader of units. A file other than Parquet is read on where the previous unit of a worker ended."""

    def __init__(self) -> None:
        self._left: tuple[str, int, Iterator[Row]] | None = None
        """A file that is open, and the number of its next row."""

    def __call__(self, unit: Unit) -> Iterator[pa.RecordBatch]:
        do = "write the file again and run the same command: finished shards are kept"
        try:
            if unit.schema is not None:
                yield from self._rows(unit, unit.schema)
                return
            file = open_parquet(unit.source, do)
            yield from pages(unit.source, file, file.schema_arrow.names, do, [unit.row_group], ROWS)
        except InputError as error:
            raise RunFailed(str(error)) from None

    def _rows(self, unit: Unit, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        first = unit.row_group * READ_ROWS
        source, position, rows = self._left or ("", 0, iter(()))
        self._left = None  # who stops on the way leaves it nowhere
        if source != unit.source or position > first:
            position, rows = 0, rows_of(Path(unit.source), lambda _, present: present)
        of_unit = itertools.islice(rows, first - position, first - position + unit.rows)
        while chunk := [row for _, row in itertools.islice(of_unit, ROWS)]:
            columns = []
            for field in schema:
                values = [row.get(field.name) for row in chunk]
                if field.type == pa.string():  # JSON of what is no text
                    values = [v if v is None or isinstance(v, str) else json.dumps(v, **JSON) for v in values]
                columns.append(pa.array(values, field.type))
            yield pa.RecordBatch.from_arrays(columns, schema=schema)
        self._left = unit.source, first + unit.rows, rows


def close_output(
    output: Path, shards: dict[Unit, Path], model: SentenceModel, dtype: Dtype = "float32"
) -> dict[str, Any]:
    """Write the manifest that seals the job, with the ranges of ``int8``, and return it.

    Raises:
        RunFailed: the input has changed since the job began.
    """
    store = Store(output)
    files = store.read_json("_job.json")["files"]
    if changed := [name for name, entry in files.items() if content_of(Path(name)) != entry["sha256"]]:
        raise RunFailed(
            f"{changed[0]}: was changed while it was embedded; run the same command again: it is embedded as it is then"
        )
    numbers = {"dtype": dtype, **(store.read_json("_calibration.json") or {})} if dtype != "float32" else {}
    manifest = {
        "rows": int(np.sum([unit.rows for unit in shards])), "dim": model.dim, **numbers, "pooling": model.pooling,
        "layers": model.layers, "shards": [
            {"file": shard.name, "source": unit.source, "rows": unit.rows, "sha256": checksum(shard)}
            for unit, shard in shards.items()
        ],
    }  # fmt: skip
    remove_drafts(output)  # of workers that were killed on the way
    store.write_json("_manifest.json", manifest)
    return manifest
