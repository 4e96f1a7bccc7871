"""What the workers of ``raysts.cluster.prepare`` do: a block of articles to a sorted run, runs to a range of rows."""

from __future__ import annotations

import hashlib
import uuid
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from raysts.data.wikipedia import clean, dedup_key, split_sentences

ROW_GROUP_ROWS = 65_536


def make_run(articles: pa.Table, folder: str, seed: int) -> pa.Table:
    """Write the sentences of a block, sorted by hash, as an Arrow file; returns one row: path, articles, rows.

    The name is fresh at every attempt: only the runs that are returned count, a task that is retried does no harm.
    """
    key = seed.to_bytes(16, "big", signed=True)
    text = articles.column("text" if "text" in articles.column_names else "markup")
    hashes = bytearray()
    parts = []
    for ids, texts in zip(articles.column("article_id").chunks, text.chunks, strict=True):
        for first in range(0, len(ids), 500):  # Python objects for a few articles at a time, Arrow for the block
            sentences: list[str] = []
            owners: list[int] = []
            for row, article in enumerate(texts.slice(first, 500).to_pylist()):
                found = split_sentences(clean(article or ""))
                sentences += found
                owners += [row] * len(found)
            for sentence in sentences:
                hashes += hashlib.blake2b(dedup_key(sentence), digest_size=16, key=key).digest()
            owner_ids = ids.slice(first, 500).take(pa.array(owners, pa.int64()))
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
    pq.write_table(table.select(["sentence", "article_id"]), draft, row_group_size=ROW_GROUP_ROWS, compression="zstd")
    draft.rename(path)
    return pa.table({"index": [index], "path": [str(path)], "rows": [table.num_rows]})
