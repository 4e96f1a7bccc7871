"""The sentence corpus from Wikipedia articles: clean, split, de-duplicate, sample; larger than memory.

Every sentence has a 128-bit hash of (seed, what makes it the same sentence). The first bits of the hash name its partition.

1. Workers (of Ray Data, or this process) stream pieces of the files, and write each block of text as one *run*: an Arrow file
   with one record batch for every partition, on the disk of the output folder.
2. A worker memory-maps the runs, joins the batches of one partition, sorts them and keeps one row per hash.
3. The partitions in order are a random permutation of the corpus that depends on nothing but seed and content; its first n
   rows, those with the n smallest hashes, are the sample.

Memory is one block or one partition per worker; the runs need about as much disk as the text. (A Ray Data groupby would send the
whole corpus through the object store instead, and order it by layout.)
"""

import hashlib
import json
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from raysts.data import manifest
from raysts.data.checks import type_rule
from raysts.data.facts import Facts
from raysts.data.parquet import Skipped, remedy, skipped_line, sound_files
from raysts.data.wikipedia.wikipedia import clean, dedup_key, split_sentences
from raysts.errors import InputError, RunFailed
from raysts.ids import content_id
from raysts.schema import Column
from raysts.storage.atomic import atomic_write, no_empty_folders, remove_drafts, writable
from raysts.storage.checksums import checksum, read_record, write_record
from raysts.storage.parquet import ParquetError, open_parquet, pages, unreadable

TABLE = "wikipedia/sentences"
ARTICLES = "wikipedia/articles"
COLUMNS = ("article_id", "text")
"""Columns of articles."""
BLOCK_BYTES = 64 << 20
ROW_GROUP_ROWS = 65_536
ARTICLES_AT_ONCE = 500
"""Articles that are Python objects at the same time."""
ORDER = [(name, "ascending") for name in ("high", "low", "sentence", "article_id")]

RULES = 2
"""Version of the rules of ``raysts.data.wikipedia.wikipedia``; raise it when they change, so that finished work is not reused."""

Row = dict[str, Any]
Spread = Callable[[Callable[..., pa.Table], Sequence[Row], dict[str, Any], int], Iterable[Row]]
"""(function of a table of one unit, units, its other arguments, bytes of a block) -> the rows that it makes of all units."""


def in_this_process(
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
    say: Callable[[str], None] = lambda line: None,
    block_bytes: int = BLOCK_BYTES,
    skip_bad: bool = False,
    spread: Spread = in_this_process,
) -> dict[str, Any]:
    """Write ``wikipedia/sentences`` (sentence, article_id) below ``output_root``.

    Each sentence occurs once (``raysts.data.wikipedia.wikipedia.dedup_key``; of several spellings the first in code point order
    stays, with its smallest article id). The order of rows is random, a function of seed and content alone.

    Args:
        input: a Parquet file or a folder of shards with the columns article_id and text.
        output_root: the data folder, which every node must see under this path; made if need be.
        sample: how many sentences to draw; None for all.
        block_bytes: about the bytes of text that one worker holds at a time.
        skip_bad: leave out files of a folder of shards that cannot be read; ``skipped`` lists them.

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
        entry = manifest.read(output_root).get(TABLE)
        if manifest.table_files(output_root, TABLE):
            if (
                entry is None
                or entry.get("arguments") != arguments
                or not manifest.is_intact(output_root, TABLE, entry)
            ):
                raise InputError(
                    f"{output_root / TABLE} exists and was not made from this input with these arguments: nothing is "
                    f"overwritten; remove it or choose another data folder"
                )
            say(f"{TABLE}: present ({entry['rows']:,} rows)")
            return {"status": "present", **entry}
        runs = _make_runs(files, work, seed, block_bytes, say, spread)
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


def _input_files(path: Path, skip_bad: bool) -> tuple[list[Path], list[Skipped]]:
    """Return the files of the input, and the unreadable files that are left out."""
    files = [path] if path.is_file() else sorted(path.glob("*.parquet"))
    if not files:
        raise InputError(f"input '{path}' holds no articles: give a Parquet file, or a folder of Parquet shards")
    sound, bad = sound_files(files, articles_problem, lambda file: list(COLUMNS)) if skip_bad else (files, [])
    if bad:
        return sound, bad
    problems = []
    for file in files:
        try:
            if problem := articles_problem(open_parquet(file, remedy(ARTICLES))):
                problems.append(str(unreadable(file, problem, remedy(ARTICLES))))
        except ParquetError as error:
            problems.append(str(error))
    if problems:
        raise InputError(problems)
    return files, []


def articles_problem(file: pq.ParquetFile) -> str | None:
    """Return why a file holds no articles, as far as its footer tells."""
    schema = file.schema_arrow
    if set(COLUMNS) - set(schema.names):
        return f"articles need columns article_id and text; columns found: {', '.join(schema.names)}"
    kind = schema.field("text").type
    rule = type_rule(kind, Column("text", "text"))
    return f"column 'text' has type {kind}; {rule}" if rule and file.metadata.num_rows else None


def _fingerprint(files: list[Path]) -> str:
    """Return the id of the content; unchanged files are read once."""
    facts = Facts("articles", files=files)
    sha256: str | None = facts.read().get("sha256")
    if sha256 is None:
        sha256 = content_id([checksum(path) for path in files])
        facts.add(sha256=sha256)
    return sha256


def _make_runs(
    files: list[Path], work: Path, seed: int, block_bytes: int, say: Callable[[str], None], spread: Spread
) -> dict[str, Any]:
    marker = work / "partitioned.json"
    runs: dict[str, Any] | None = read_record(marker)
    if runs is not None:
        say(f"sentences: going on with {runs['found']:,} found before")
        return runs
    shutil.rmtree(work / "runs", ignore_errors=True)  # of an attempt that was killed
    (work / "runs").mkdir(parents=True)
    units = pieces(files, block_bytes)
    # So many partitions that one is about a block: hashes are uniform, so are the sizes.
    bits = min(12, max(0, len(units) - 1).bit_length())
    arguments = {"folder": str(work / "runs"), "seed": seed, "block_bytes": block_bytes, "bits": bits}
    written: list[Row] = []
    for row in spread(make_runs, units, arguments, block_bytes):
        if row["error"]:
            raise RunFailed(f"{TABLE}: {row['error']}")
        written.append(row)
    runs = {
        "articles": sum(run["articles"] for run in written),
        "found": sum(run["rows"] for run in written),
        "bits": bits,
        "runs": sorted(run["path"] for run in written if run["rows"]),
    }
    write_record(marker, runs)
    say(f"sentences: {runs['found']:,} well-formed ones in {runs['articles']:,} articles")
    return runs


def _merge_runs(runs: dict[str, Any], work: Path, block_bytes: int, spread: Spread) -> list[Row]:
    """Return the de-duplicated partitions in order: index, path, rows."""
    if not runs["runs"]:
        return []
    folder = work / "partitions"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    listing = work / "runs.txt"  # a file: as an argument, the names of all runs would be sent with every partition
    listing.write_text("\n".join(runs["runs"]))
    units = [{"id": index} for index in range(1 << runs["bits"])]
    done = spread(merge_partition, units, {"listing": str(listing), "folder": str(folder)}, block_bytes)
    return sorted(done, key=lambda part: part["index"])


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


# -- what the workers do: a piece of a file to runs, the batches of a partition to rows ---------------------------------------


def pieces(files: Sequence[Path], block_bytes: int) -> list[dict[str, Any]]:
    """Cut files into units of work of about ``block_bytes`` of text: row groups together, or a part of a large one.

    Returns:
        per piece ``path``, ``groups`` (row groups), and the rows ``first`` to ``last`` of these.
    """
    units: list[dict[str, Any]] = []
    for path in files:
        metadata = open_parquet(path, remedy(ARTICLES)).metadata
        # Of a nested column every leaf counts.
        leaves = [metadata.schema.column(leaf).path for leaf in range(metadata.num_columns)]
        text = leaves.index("text")
        together: list[int] = []
        rows = size = 0
        for group in range(metadata.num_row_groups):
            part = metadata.row_group(group)
            together.append(group)
            rows, size = rows + part.num_rows, size + part.column(text).total_uncompressed_size
            if size < block_bytes and group + 1 < metadata.num_row_groups:
                continue
            cuts = np.linspace(0, rows, max(1, min(rows, round(size / block_bytes))) + 1).astype(int).tolist()
            units += [
                {"path": str(path), "groups": together, "first": first, "last": last}
                for first, last in zip(cuts, cuts[1:], strict=False)
                if last > first
            ]
            together, rows, size = [], 0, 0
    return units


def make_runs(batch: pa.Table, folder: str, seed: int, block_bytes: int, bits: int) -> pa.Table:
    """Write the runs of one piece; return a row for each (path, articles, rows), or one with ``error``.

    An error is data: an exception would be retried, and logged with a traceback by everything that it passes.
    """
    (piece,) = batch.to_pylist()
    try:
        runs = [make_run(block, folder, seed, bits) for block in _blocks(piece, block_bytes)]
    except ParquetError as error:
        return pa.table({"path": [""], "articles": [0], "rows": [0], "error": [str(error)]})
    columns = zip(*runs, strict=True) if runs else ([], [], [])
    names = ("path", "articles", "rows")
    return pa.table(dict(zip(names, map(list, columns), strict=True)) | {"error": pa.nulls(len(runs), pa.string())})


def _blocks(piece: dict[str, Any], block_bytes: int) -> Iterator[pa.Table]:
    file, first, last = open_parquet(piece["path"], remedy(ARTICLES)), piece["first"], piece["last"]
    held: list[pa.RecordBatch] = []
    size = row = 0
    for articles in pages(piece["path"], file, COLUMNS, remedy(ARTICLES), piece["groups"], ARTICLES_AT_ONCE):
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


def make_run(articles: pa.Table, folder: str, seed: int, bits: int) -> tuple[str, int, int]:
    """Write the sentences of a block as an Arrow file with a batch for each partition; return path, articles, sentences.

    The name is fresh at every attempt: only the runs that are returned count, a task that is retried does no harm.
    """
    key = seed.to_bytes(16, "big", signed=True)
    hashes = bytearray()
    parts = []
    for ids, texts in zip(*(articles.column(name).chunks for name in COLUMNS), strict=True):
        # Python objects for a few articles at a time, Arrow for the block.
        for first in range(0, len(ids), ARTICLES_AT_ONCE):
            sentences: list[str] = []
            owners: list[int] = []
            for row, article in enumerate(texts.slice(first, ARTICLES_AT_ONCE).to_pylist()):
                of_article = split_sentences(clean(article or ""))
                sentences += of_article
                owners += [row] * len(of_article)
            for sentence in sentences:
                hashes += hashlib.blake2b(dedup_key(sentence), digest_size=16, key=key).digest()
            owner_ids = ids.slice(first, ARTICLES_AT_ONCE).take(pa.array(owners, pa.int64()))
            parts.append(pa.table({"sentence": pa.array(sentences, pa.string()), "article_id": owner_ids}))
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
            for first, last in zip([0, *ends[:-1]], ends, strict=True):
                writer.write_batch(batch.take(pa.array(order[first:last])))
    return path, articles.num_rows, rows


def merge_partition(batch: pa.Table, listing: str, folder: str) -> pa.Table:
    """Write one partition sorted and without duplicates; return one row: index, path, rows."""
    (index,) = batch.column("id").to_pylist()
    batches = []
    for run in Path(listing).read_text().split("\n"):
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
