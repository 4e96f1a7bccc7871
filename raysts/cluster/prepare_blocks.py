"""What the workers of ``raysts.cluster.prepare`` do: a piece of a file to sorted runs, runs to a range of rows."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from raysts.data.shards import ShardError, open_shard, pages, remedy, type_rule
from raysts.data.wikipedia.wikipedia import clean, dedup_key, split_sentences
from raysts.schema import Column

ARTICLES = "wikipedia/articles"
ARTICLES_AT_ONCE = 500
"""Articles that are Python objects at the same time."""

ROW_GROUP_ROWS = 65_536


def article_columns(file: pq.ParquetFile) -> list[str]:
    """The columns of articles that matter: article_id, and text or markup."""
    return ["article_id", "text" if "text" in file.schema_arrow.names else "markup"]


def articles_problem(file: pq.ParquetFile) -> str | None:
    """Why a file holds no articles, as far as its footer tells."""
    schema, columns = file.schema_arrow, article_columns(file)
    if set(columns) - set(schema.names):
        found = ", ".join(schema.names)
        return f"articles need columns article_id and text (or markup); columns found: {found}"
    kind = schema.field(columns[1]).type
    rule = type_rule(kind, Column(columns[1], "text"))
    return f"column '{columns[1]}' has type {kind}; {rule}" if rule else None


def pieces(files: Sequence[Path], block_bytes: int) -> list[dict[str, Any]]:
    """The files cut into units of work of about ``block_bytes`` of text: row groups together, or a part of a large one.

    Returns:
        per piece ``path``, ``groups`` (row groups), and the rows ``first`` to ``last`` of these.

    Raises:
        ShardError: a file cannot be read.
    """
    found: list[dict[str, Any]] = []
    for path in files:
        metadata = (file := open_shard(path, remedy(ARTICLES))).metadata
        # Of a nested column every leaf counts.
        leaves = [metadata.schema.column(leaf).path for leaf in range(metadata.num_columns)]
        text = leaves.index(article_columns(file)[1])
        together: list[int] = []
        rows = size = 0
        for group in range(metadata.num_row_groups):
            part = metadata.row_group(group)
            together.append(group)
            rows, size = rows + part.num_rows, size + part.column(text).total_uncompressed_size
            if size < block_bytes and group + 1 < metadata.num_row_groups:
                continue
            cuts = np.linspace(0, rows, max(1, min(rows, round(size / block_bytes))) + 1).astype(int).tolist()
            found += [
                {"path": str(path), "groups": together, "first": first, "last": last}
                for first, last in zip(cuts, cuts[1:], strict=False)
                if last > first
            ]
            together, rows, size = [], 0, 0
    return found


def make_runs(batch: pa.Table, folder: str, seed: int, block_bytes: int) -> pa.Table:
    """Write the runs of one piece; returns a row for each (path, articles, rows), or one with ``error``.

    An error is data: an exception would be retried, and logged with a traceback by everything that it passes.
    """
    (piece,) = batch.to_pylist()
    made = []
    try:
        for block in _blocks(piece, block_bytes):
            made.append(make_run(block, folder, seed).append_column("error", pa.nulls(1, pa.string())))
    except ShardError as error:
        made = [pa.table({"path": [""], "articles": [0], "rows": [0], "error": [str(error)]})]
    return pa.concat_tables(made)


def _blocks(piece: dict[str, Any], block_bytes: int) -> Iterator[pa.Table]:
    """The articles of a piece, in tables of about ``block_bytes``."""
    file, first, last = open_shard(piece["path"], remedy(ARTICLES)), piece["first"], piece["last"]
    held: list[pa.RecordBatch] = []
    size = row = 0
    for articles in pages(
        piece["path"], file, article_columns(file), remedy(ARTICLES), piece["groups"], ARTICLES_AT_ONCE
    ):
        part = articles.slice(max(0, first - row), max(0, min(last, row + len(articles)) - max(first, row)))
        row += len(articles)
        if part.num_rows:
            held.append(part)
            size += part.nbytes
        if held and (size >= block_bytes or row >= last):
            yield pa.Table.from_batches(held)
            held, size = [], 0
        if row >= last:
            return


def make_run(articles: pa.Table, folder: str, seed: int) -> pa.Table:
    """Write the sentences of a block, sorted by hash, as an Arrow file; returns one row: path, articles, rows.

    The name is fresh at every attempt: only the runs that are returned count, a task that is retried does no harm.
    """
    key = seed.to_bytes(16, "big", signed=True)
    text = articles.column("text" if "text" in articles.column_names else "markup")
    hashes = bytearray()
    parts = []
    for ids, texts in zip(articles.column("article_id").chunks, text.chunks, strict=True):
        # Python objects for a few articles at a time, Arrow for the block.
        for first in range(0, len(ids), ARTICLES_AT_ONCE):
            sentences: list[str] = []
            owners: list[int] = []
            for row, article in enumerate(texts.slice(first, ARTICLES_AT_ONCE).to_pylist()):
                found = split_sentences(clean(article or ""))
                sentences += found
                owners += [row] * len(found)
            for sentence in sentences:
                hashes += hashlib.blake2b(dedup_key(sentence), digest_size=16, key=key).digest()
            owner_ids = ids.slice(first, ARTICLES_AT_ONCE).take(pa.array(owners, pa.int64()))
            parts.append(pa.table({"sentence": pa.array(sentences, pa.string()), "article_id": owner_ids}))
    path = str(Path(folder) / f"{uuid.uuid4().hex}.arrow")
    rows = len(hashes) // 16
    if rows:
        halves = np.frombuffer(bytes(hashes), dtype=">u8").reshape(-1, 2).astype(np.uint64)
        table = pa.concat_tables(parts).combine_chunks()  # taking rows from many chunks would join them every time
        table = table.append_column("high", pa.array(halves[:, 0])).append_column("low", pa.array(halves[:, 1]))
        del parts, hashes
        _write_run(table, np.lexsort((halves[:, 1], halves[:, 0])), path)
    return pa.table({"path": [path], "articles": [articles.num_rows], "rows": [rows]})


def _write_run(table: pa.Table, order: np.ndarray, path: str) -> None:
    with pa.OSFile(path, "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        for first in range(0, len(order), ROW_GROUP_ROWS):
            writer.write_table(table.take(order[first : first + ROW_GROUP_ROWS]), max_chunksize=ROW_GROUP_ROWS)


def run_slice(path: str, low: int, high: int) -> pa.Table:
    """Rows of a run whose hash (its first 64 bits) is in [low, high); only these are copied into memory."""
    with pa.memory_map(path) as file:
        reader = pa.ipc.open_file(file)
        found = []
        for index in range(reader.num_record_batches):
            batch = reader.get_batch(index)
            hashes = batch.column("high").to_numpy()
            if int(hashes[-1]) < low or int(hashes[0]) >= high:
                continue
            first = int(np.searchsorted(hashes, np.uint64(low)))
            last = len(hashes) if high > int(hashes[-1]) else int(np.searchsorted(hashes, np.uint64(high)))
            found.append(batch.slice(first, last - first).take(pa.array(np.arange(last - first))))
        return pa.Table.from_batches(found, reader.schema)


def merge_range(batch: pa.Table, listing: str, bits: int, folder: str) -> pa.Table:
    """Write one of the 2**bits ranges of hashes, sorted, without duplicates; returns one row: index, path, rows."""
    (index,) = batch.column("id").to_pylist()
    width = 1 << (64 - bits)
    runs = Path(listing).read_text().split("\n")
    table = pa.concat_tables([run_slice(run, index * width, (index + 1) * width) for run in runs])
    order = pc.sort_indices(
        table, [("high", "ascending"), ("low", "ascending"), ("sentence", "ascending"), ("article_id", "ascending")]
    )
    table = table.take(order)
    if table.num_rows:
        high, low = table.column("high").to_numpy(), table.column("low").to_numpy()
        first = np.append(True, (high[1:] != high[:-1]) | (low[1:] != low[:-1]))
        table = table.filter(pa.array(first))
    path = Path(folder) / f"{index:05d}.parquet"
    draft = path.with_name(f"{path.name}.{uuid.uuid4().hex}")
    found = table.select(["sentence", "article_id"])
    pq.write_table(found, draft, row_group_size=ROW_GROUP_ROWS, compression="zstd", write_page_checksum=True)
    draft.rename(path)
    return pa.table({"index": [index], "path": [str(path)], "rows": [table.num_rows]})
