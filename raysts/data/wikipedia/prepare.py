"""Sentences of Wikipedia articles: cleaned, split, distinct, sampled, in more text than memory holds.

Every sentence has a 128-bit hash of (seed, what makes it the same sentence). The first bits of the hash name its partition.

1. Workers (of Ray Data, or this process) stream pieces of the files, and write each block of text as one *run*: an Arrow file
   with one record batch for every partition, on the disk of the output folder.
2. A worker memory-maps the runs, joins the batches of one partition, sorts them and keeps one row per hash.
3. The partitions in order are a random permutation of the corpus; its first n rows are the sample.

Memory is one block or one partition per worker; the runs need about as much disk as the text. (A Ray Data groupby would send the
whole corpus through the object store instead, and order it by layout.)
"""

import hashlib
import json
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from raysts.data import manifest
from raysts.data.checks import SkippedFile, open_file, readable_files, remedy, skipped_line
from raysts.data.facts import Facts
from raysts.data.wikipedia.wikipedia import clean, dedup_key, split_sentences
from raysts.errors import InputError, Problems, RunFailed
from raysts.ids import content_id
from raysts.log import say
from raysts.schema import table_columns
from raysts.storage.atomic import atomic_write, no_empty_folders, remove_drafts, writable
from raysts.storage.checksums import checksum, read_record, write_record
from raysts.storage.parquet import ParquetError, open_parquet, pages

TABLE = "wikipedia/sentences"
ARTICLES = "wikipedia/articles"
COLUMNS = ("article_id", "text")
LAYOUT = tuple(column for column in table_columns(ARTICLES) if column.name in COLUMNS)
BLOCK_BYTES = 64 << 20
ROW_GROUP_ROWS = 65_536
ARTICLES_AT_ONCE = 500
"""Articles that are Python objects at the same time."""
ORDER = [(name, "ascending") for name in ("high", "low", "sentence", "article_id")]

MARKER = "partitioned.json"
"""File of the work that lists the runs; with it all of them are complete."""

RULES = 2
"""Version of the rules of ``raysts.data.wikipedia.wikipedia``; raise it when they change, so that old work is not reused."""

Row = dict[str, Any]
Spread = Callable[[Callable[..., pa.Table], Sequence[Row], dict[str, Any], int], Iterable[Row]]
"""(function of a table of one unit, units, its other arguments, bytes of a block) -> the rows that it makes of all units."""


def run_locally(
    function: Callable[..., pa.Table], units: Sequence[Row], arguments: dict[str, Any], block_bytes: int
) -> Iterator[Row]:
    """Yield the rows of one unit after the other."""
    for unit in units:
        yield from function(pa.Table.from_pylist([unit]), **arguments).to_pylist()


def prepare_wikipedia(
    input: Path,
    output_root: Path,
    sample: int | None = None,
    seed: int = 0,
    block_bytes: int = BLOCK_BYTES,
    skip_bad: bool = False,
    spread: Spread = run_locally,
) -> dict[str, Any]:
    """Write ``wikipedia/sentences`` (sentence, article_id) below ``output_root``.

    Each sentence occurs once (:func:`dedup_key`; of several spellings the first in code point order stays, with its smallest
    article id). The order of rows is random, a function of seed and content alone.

    Args:
        input: a Parquet file or a folder of shards with the columns article_id and text.
        output_root: the data folder, which every node must see under this path.
        sample: number of sentences to draw; None for all.
        seed: seed of the order, and so of the draw.
        block_bytes: about the bytes of text that one worker holds at a time.
        skip_bad: leave out files of a folder of shards that cannot be read; ``skipped`` lists them.
        spread: runs the units, in this process or on a cluster.

    Returns:
        The table's entry in ``manifest.json``: rows, files, ``articles``, ``found`` (well-formed sentences), ``distinct``,
        ``skipped`` (table, file, rows, reason) and ``arguments``; with ``status`` ``done``, or ``present`` when the same was made
        before.

    Raises:
        InputError: no usable input; an output that was made otherwise; fewer than ``sample`` sentences.
        RunFailed: pages of a file cannot be read, or the input was changed meanwhile.
    """
    if sample is not None and sample < 1:
        raise InputError(f"sample {sample} must be at least 1")
    files, bad = _input_files(input, skip_bad)
    skipped = [shard.plain(ARTICLES, input) for shard in bad]
    for shard in skipped:
        say(skipped_line(shard))
    arguments = {"input": _fingerprint(files), "sample": sample, "seed": seed, "rules": RULES}
    # The sample is drawn last, so that another size reuses the work.
    name = hashlib.sha256(json.dumps({**arguments, "sample": None}).encode()).hexdigest()[:16]
    work = output_root / "wikipedia" / f".prepare-{name}"
    with no_empty_folders(work), manifest.writing(writable(output_root, "--data"), "raysts data prepare"):
        remove_drafts(output_root)
        entry = manifest.read(output_root).get(TABLE, {})
        if manifest.table_files(output_root, TABLE):
            if entry.get("arguments") != arguments or not manifest.is_intact(output_root, TABLE, entry):
                raise InputError(
                    f"{output_root / TABLE} exists and was not made from this input with these arguments: nothing is "
                    f"overwritten; remove it or choose another data folder"
                )
            say(f"{TABLE}: present ({entry['rows']:,} rows)")
            return {"status": "present", **entry}
        runs = _make_runs(files, work, seed, block_bytes, spread)
        if _fingerprint(files) != arguments["input"]:
            shutil.rmtree(work)
            raise RunFailed(
                f"input '{input}' was changed while it was read; leave it as it is, and run the same command again"
            )
        partitions = _merge_runs(runs, work, block_bytes, spread)
        distinct = sum(part["rows"] for part in partitions)
        say(f"duplicates: {distinct:,} distinct sentences")
        if distinct < (sample or 1):
            raise InputError(
                f"sample {sample or 1:,}: '{input}' gives only {distinct:,} distinct sentences ({runs['found']:,} "
                f"well-formed ones in {runs['articles']:,} articles); ask for at most that many or give more articles "
                f"(what was found is kept in {work} and used again)"
            )
        _publish(output_root, [Path(part["path"]) for part in partitions if part["rows"]], sample)
        facts = {"articles": runs["articles"], "found": runs["found"], "distinct": distinct}
        entry = manifest.record(output_root, TABLE, {**facts, "skipped": skipped, "arguments": arguments})
        shutil.rmtree(work, ignore_errors=True)
        say(f"{TABLE}: {entry['rows']:,} of {distinct:,} distinct sentences written to {output_root / TABLE}")
    return {"status": "done", **entry}


def _input_files(path: Path, skip_bad: bool) -> tuple[list[Path], list[SkippedFile]]:
    """Return the files of the input, and the unreadable files that are left out."""
    files = [path] if path.is_file() else sorted(path.glob("*.parquet"))
    if not files:
        raise InputError(f"input '{path}' holds no articles: give a Parquet file, or a folder of Parquet shards")
    files, skipped = readable_files(files, LAYOUT) if skip_bad else (files, [])
    problems = Problems()
    for file in files:
        with problems.collect():
            open_file(file, LAYOUT, remedy(ARTICLES))
    problems.raise_any()
    return files, skipped


def _fingerprint(files: list[Path]) -> str:
    return str(Facts("articles", files=files).get("sha256", lambda: content_id([checksum(path) for path in files])))


def _make_runs(files: list[Path], work: Path, seed: int, block_bytes: int, spread: Spread) -> dict[str, Any]:
    marker, folder = work / MARKER, work / "runs"
    runs: dict[str, Any] | None = read_record(marker)
    if runs is not None:
        say(f"sentences: going on with {runs['found']:,} found before")
        return runs
    shutil.rmtree(folder, ignore_errors=True)  # of an attempt that was killed
    folder.mkdir(parents=True)
    units = pieces(files, block_bytes)
    # So many partitions that one is about a block: hashes are uniform, so are the sizes.
    bits = min(12, max(0, len(units) - 1).bit_length())
    arguments = {"folder": str(folder), "seed": seed, "block_bytes": block_bytes, "bits": bits}
    written: list[Row] = []
    for row in spread(make_runs, units, arguments, block_bytes):
        if row["error"]:
            raise RunFailed(f"{TABLE}: {row['error']}")
        written.append(row)
    articles, sentences = (sum(run[name] for run in written) for name in ("articles", "rows"))
    paths = sorted(run["path"] for run in written if run["rows"])
    runs = {"articles": articles, "found": sentences, "bits": bits, "runs": paths}
    write_record(marker, runs)
    say(f"sentences: {sentences:,} well-formed ones in {articles:,} articles")
    return runs


def _merge_runs(runs: dict[str, Any], work: Path, block_bytes: int, spread: Spread) -> list[Row]:
    """Return the de-duplicated partitions in order: index, path, rows."""
    if not runs["runs"]:
        return []
    folder = work / "partitions"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    units = [{"id": index} for index in range(1 << runs["bits"])]
    # The marker has the names of the runs: as an argument, all would be sent with every partition.
    parts = spread(merge_partition, units, {"marker": str(work / MARKER), "folder": str(folder)}, block_bytes)
    return sorted(parts, key=lambda part: part["index"])


def _publish(root: Path, partitions: list[Path], sample: int | None) -> None:
    """Move all partitions to the table as shards, or write their first ``sample`` rows as one file."""
    if sample is None:
        with atomic_write(root / TABLE) as draft:
            draft.mkdir()
            for number, path in enumerate(partitions):
                shutil.move(path, draft / f"part-{number:05d}.parquet")
        return
    schema = pq.read_schema(partitions[0])
    with (
        atomic_write(root / f"{TABLE}.parquet") as draft,
        pq.ParquetWriter(draft, schema, compression="zstd", write_page_checksum=True) as writer,
    ):
        for path in partitions:
            for batch in pq.ParquetFile(path).iter_batches(batch_size=ROW_GROUP_ROWS):
                writer.write_batch(batch.slice(0, sample))
                sample -= min(sample, batch.num_rows)
                if sample == 0:
                    return


# -- the work of a unit: rows of a file to runs, the batches of a partition to distinct rows ---------------------------


def pieces(files: Sequence[Path], block_bytes: int) -> list[Row]:
    """Return units of about ``block_bytes`` of text: rows ``first`` to ``last`` of the file ``path``."""
    units: list[Row] = []
    for path in files:
        metadata = open_parquet(path, remedy(ARTICLES)).metadata
        # Of a nested column every leaf counts.
        text = [metadata.schema.column(leaf).path for leaf in range(metadata.num_columns)].index("text")
        groups = map(metadata.row_group, range(metadata.num_row_groups))
        size = sum(group.column(text).total_uncompressed_size for group in groups)
        count = max(1, min(metadata.num_rows, round(size / block_bytes)))
        cuts = np.linspace(0, metadata.num_rows, count + 1).astype(int).tolist()
        units += [{"path": str(path), "first": first, "last": last} for first, last in pairwise(cuts) if last > first]
    return units


def make_runs(batch: pa.Table, folder: str, seed: int, block_bytes: int, bits: int) -> pa.Table:
    """Write the runs of one piece and return path, articles and rows of each, or one row with ``error``.

    An error is data: an exception would be retried, and logged with a traceback by everything that it passes.
    """
    (piece,) = batch.to_pylist()
    schema = pa.schema([("path", pa.string()), ("articles", pa.int64()), ("rows", pa.int64()), ("error", pa.string())])
    try:
        runs = [make_run(block, folder, seed, bits) for block in _blocks(piece, block_bytes)]
    except ParquetError as error:
        runs = [{"error": str(error)}]
    return pa.Table.from_pylist(runs, schema)


def _blocks(piece: Row, block_bytes: int) -> Iterator[pa.Table]:
    file, first, last = open_parquet(piece["path"], remedy(ARTICLES)), piece["first"], piece["last"]
    ends = np.cumsum([file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)])
    groups = list(range(int(np.searchsorted(ends, first, "right")), int(np.searchsorted(ends, last)) + 1))
    row = int(ends[groups[0] - 1]) if groups[0] else 0
    pending: list[pa.RecordBatch] = []
    size = 0
    for articles in pages(piece["path"], file, COLUMNS, remedy(ARTICLES), groups, ARTICLES_AT_ONCE):
        part = articles.slice(max(0, first - row), max(0, min(last, row + len(articles)) - max(first, row)))
        row += len(articles)
        if part.num_rows:
            pending.append(part)
            size += part.nbytes
        if pending and (size >= block_bytes or row >= last):
            yield pa.Table.from_batches(pending)
            pending, size = [], 0
        if row >= last:
            return


def make_run(articles: pa.Table, folder: str, seed: int, bits: int) -> Row:
    """Write the sentences of a block as an Arrow file with a batch for each partition.

    Returns path, articles and rows. The name is fresh at every attempt: only the runs that are returned count, a task that is
    retried does no harm.
    """
    key = seed.to_bytes(16, "big", signed=True)
    hashes = bytearray()
    parts = []
    for part in articles.to_batches(max_chunksize=ARTICLES_AT_ONCE):  # few articles are Python objects at a time
        split = [split_sentences(clean(article or "")) for article in part.column("text").to_pylist()]
        sentences = [sentence for of_article in split for sentence in of_article]
        hashes += b"".join(hashlib.blake2b(dedup_key(s), digest_size=16, key=key).digest() for s in sentences)
        owners = part.column("article_id").take(pa.array(np.repeat(np.arange(len(split)), [*map(len, split)])))
        parts.append(pa.table({"sentence": pa.array(sentences, pa.string()), "article_id": owners}))
    path, rows = str(Path(folder) / f"{uuid.uuid4().hex}.arrow"), len(hashes) // 16
    if rows:
        halves = np.frombuffer(bytes(hashes), dtype=">u8").reshape(-1, 2).astype(np.uint64)
        partition = (halves[:, 0] >> np.uint64(32) >> np.uint64(32 - bits)).astype(np.int64)
        order = np.argsort(partition, kind="stable")
        table = pa.concat_tables(parts)
        table = table.append_column("high", pa.array(halves[:, 0])).append_column("low", pa.array(halves[:, 1]))
        (batch,) = table.combine_chunks().to_batches()
        ends = np.searchsorted(partition[order], np.arange(1 << bits), "right")
        with pa.OSFile(path, "wb") as file, pa.ipc.new_file(file, batch.schema) as writer:
            for first, last in pairwise([0, *ends]):
                writer.write_batch(batch.take(pa.array(order[first:last])))
    return {"path": path, "articles": articles.num_rows, "rows": rows}


def merge_partition(batch: pa.Table, marker: str, folder: str) -> pa.Table:
    """Write one partition sorted and without duplicates, and return its index, path and rows."""
    (index,) = batch.column("id").to_pylist()
    batches = []
    for run in json.loads(Path(marker).read_bytes())["runs"]:
        with pa.memory_map(run) as file:
            batches.append(pa.ipc.open_file(file).get_batch(index))
    table = pa.Table.from_batches(batches).sort_by(ORDER)
    high, low = table.column("high").to_numpy(), table.column("low").to_numpy()
    distinct = np.append(True, (high[1:] != high[:-1]) | (low[1:] != low[:-1]))[: len(high)]
    rows = table.filter(pa.array(distinct)).select(["sentence", "article_id"])
    path = Path(folder) / f"{index:05d}.parquet"
    draft = path.with_name(f"{path.name}.{uuid.uuid4().hex}")
    pq.write_table(rows, draft, row_group_size=ROW_GROUP_ROWS, compression="zstd", write_page_checksum=True)
    draft.rename(path)
    return pa.table({"index": [index], "path": [str(path)], "rows": [rows.num_rows]})
