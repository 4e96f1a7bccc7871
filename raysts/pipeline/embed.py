"""Bulk embedding: Parquet in, Parquet out, one shard per row group, each complete or absent."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from raysts.data.shards import ShardError, open_shard, pages
from raysts.errors import InputError, RunFailed, nearest
from raysts.models.layers import Layers
from raysts.models.pretrained import load
from raysts.models.sentence_model import SentenceModel
from raysts.storage.atomic import atomic_write, read_json, remove_drafts, write_json

ROWS = 8_192
"""Rows in memory at once."""

ADDED = "embedding"
"""Name of the column that is added."""


@dataclass(frozen=True, slots=True)
class Unit:
    """One row group of one input file, which becomes one output shard."""

    source: str
    row_group: int
    rows: int
    target: str


def units(source: Path, column: str, output: Path) -> list[Unit]:
    """The shards of a job, after checking that it can be done.

    Raises:
        InputError: no Parquet there, the column is missing or no text, or would be overwritten.
    """
    if output.is_relative_to(source):
        raise InputError(
            f"--output '{output}' lies in --input '{source}', which would then hold its own shards; move it out"
        )
    if output.exists() and not output.is_dir():
        raise InputError(f"--output '{output}' is a file; it must be a folder, which is made when it is not there")
    files = sorted(source.glob("**/*.parquet")) if source.is_dir() else [source]
    if not files or not files[0].exists():
        raise InputError(f"--input '{source}': no Parquet file there; give a .parquet file or a folder that holds some")
    found, problems = [], []
    for number, path in enumerate(files):
        try:
            file = open_shard(path, "write it again, or take it out of --input")
        except ShardError as error:
            problems.append(str(error))
            continue
        names = file.schema_arrow.names
        if column not in names:
            problems.append(
                f"--column '{column}' is not in {path} (columns: {', '.join(names)}){nearest(column, names)}"
            )
        elif not _is_text(file.schema_arrow.field(column).type):
            problems.append(
                f"--column '{column}' in {path} has type {file.schema_arrow.field(column).type}; it must be text"
            )
        if ADDED in names:
            problems.append(f"{path} has a column '{ADDED}' already, which is the name of the column to add; rename it")
        for group in range(file.num_row_groups):
            rows = file.metadata.row_group(group).num_rows
            if rows:
                found.append(Unit(str(path), group, rows, str(output / f"part-{number:05d}-{group:05d}.parquet")))
    if problems:
        raise InputError(problems)
    return found


def open_output(output: Path, spec: dict[str, Any]) -> None:
    """Take ``output`` for the job ``spec``; a folder that holds another job's shards is refused.

    Raises:
        InputError: it does.
    """
    known = read_json(output / "job.json")
    if known is None:
        if output.exists() and any(output.iterdir()):
            raise InputError(f"--output '{output}' is not empty and holds no embedding job; choose an empty folder")
        write_json(output / "job.json", spec)
    elif known != spec:
        changed = [key for key in spec if known.get(key) != spec[key]]
        raise InputError(
            f"--output '{output}' holds the shards of another job (it differs in {', '.join(changed)}: "
            f"{', '.join(repr(known.get(key)) for key in changed)}); choose another folder or remove it"
        )
    remove_drafts(output)


class EmbedFile:
    """Writes a shard: a row group with its embeddings. Memory holds ``ROWS`` rows at a time."""

    def __init__(self, device: str | None, model: Path, layers: Layers | None, column: str, prompt: str) -> None:
        self.model, self.column = load(model, layers=layers, prompt=prompt, device=device), column

    def __call__(self, unit: Unit) -> None:
        target = Path(unit.target)
        if target.exists():
            return
        with atomic_write(target) as draft:
            writer = None
            for batch in _read(unit):
                column = batch.column(batch.schema.get_field_index(self.column))
                vectors = self.model.encode(pc.fill_null(column.cast(pa.string()), "").to_pylist())
                lists = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), vectors.shape[1])
                table = pa.Table.from_batches([batch]).append_column(ADDED, lists)
                writer = writer or pq.ParquetWriter(draft, table.schema, compression="zstd")
                writer.write_table(table)
            assert writer is not None
            writer.close()


def _read(unit: Unit) -> Iterator[pa.RecordBatch]:
    do = "write the file again and run the same command: finished shards are kept"
    try:
        file = open_shard(unit.source, do)
        yield from pages(unit.source, file, file.schema_arrow.names, do, [unit.row_group], ROWS)
    except ShardError as error:
        raise RunFailed(str(error)) from None


def close_output(output: Path, done: list[Unit], model: SentenceModel) -> dict[str, Any]:
    """Write the manifest that says the job is complete."""
    manifest = {
        "rows": int(np.sum([unit.rows for unit in done])),
        "dim": model.dim,
        "pooling": model.pooling,
        "layers": model.layers,
        "shards": [{"file": Path(unit.target).name, "rows": unit.rows} for unit in done],
    }
    remove_drafts(output)  # of workers that were killed on the way
    write_json(output / "manifest.json", manifest)
    return manifest


def _is_text(kind: pa.DataType) -> bool:
    value = kind.value_type if pa.types.is_dictionary(kind) else kind
    return pa.types.is_string(value) or pa.types.is_large_string(value) or pa.types.is_string_view(value)
