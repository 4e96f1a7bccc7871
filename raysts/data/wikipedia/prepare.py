"""The sentence corpus from Wikipedia articles: clean, split, de-duplicate, sample; larger than memory.

Every sentence has a 128-bit hash of (seed, what makes it the same sentence), and everything follows from it:

1. Workers (of Ray Data, or this process) take pieces of the files of about one block, which they stream; each turns a
   block into one *run*: an Arrow file of its sentences sorted by hash, on the disk of the output folder.
2. The space of hashes is cut into equal ranges. A worker memory-maps the runs, takes the slice of its range from each
   (binary search), and keeps one row per hash: the duplicates of the whole corpus, one range at a time.
3. The ranges in order are a random permutation of the corpus that depends on nothing but seed and content; its first n
   rows, those with the n smallest hashes, are the sample.

Memory is that of a block or of a range per worker, whatever the size of the corpus; the runs need about as much disk as
the text. (A Ray Data groupby would send the whole corpus through the object store instead, and order it by layout.)
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
import pyarrow.compute as pc
import pyarrow.parquet as pq

from raysts.data import manifest
from raysts.data.checks import type_rule
from raysts.data.facts import Facts
from raysts.data.parquet import (
    ParquetError,
    Skipped,
    open_parquet,
    pages,
    remedy,
    skipped_line,
    sound_files,
    unreadable,
)
from raysts.data.wikipedia.wikipedia import clean, dedup_key, split_sentences
from raysts.errors import InputError, RunFailed
from raysts.ids import content_id
from raysts.schema import Column
from raysts.storage.atomic import atomic_write, no_empty_folders, remove_drafts, writable
from raysts.storage.checksums import checksum, read_record, write_record

TABLE = "wikipedia/sentences"
ARTICLES = "wikipedia/articles"
COLUMNS = ("article_id", "text")
"""Of articles."""
BLOCK_BYTES = 64 << 20
ROW_GROUP_ROWS = 65_536
ARTICLES_AT_ONCE = 500
"""Articles that are Python objects at the same time."""

RULES = 2
"""Version of the rules of ``raysts.data.wikipedia.wikipedia``; raise it when they change, so that finished work is not reused."""

Row = dict[str, Any]
Spread = Callable[[Callable[..., pa.Table], Sequence[Row], dict[str, Any], int], Iterable[Row]]
"""(function of a table of one unit, units, its other arguments, bytes of a block) -> the rows that it makes of all units."""


def in_this_process(
    function: Callable[..., pa.Table], units: Sequence[Row], arguments: dict[str, Any], block_bytes: int
) -> Iterator[Row]:
    """A :data:`Spread` that does one unit after the other."""
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
        input: articles in the canonical layout: a Parquet file or a folder of shards with the columns article_id and text.
        output_root: the data folder, which every node must see under this path; made if need be.
        sample: how many sentences to draw; None for all.
        seed: of the order, and so of the sample.
        block_bytes: about the bytes of text that one worker holds at a time.
        skip_bad: go on without files of a folder of shards that cannot be read: the table is that of the others, and
            ``skipped`` lists them.

    Returns:
        The table's entry in ``manifest.json``: rows, files, ``articles``, ``found`` (well-formed sentences),
        ``distinct``, ``skipped`` (input files left out: table, file, rows, reason) and ``arguments``; with ``status``
        ``done``, or ``present`` when the same was made before.

    Raises:
        InputError: no usable input; an output that is there but was made otherwise; fewer than ``sample`` sentences.
        RunFailed: pages of a file cannot be read, or the input was changed meanwhile.
    """
    if sample is not None and sample < 1:
        raise InputError(f"sample {sample} must be at least 1")
    files, bad = _input_files(input, skip_bad)
    skipped = [shard.plain(ARTICLES, input) for shard in bad]
    for shard in skipped:
        say(skipped_line(shard))
    arguments = {"input": _fingerprint(files), "sample": sample, "seed": seed, "rules": RULES}
    work = output_root / "wikipedia" / f".prepare-{_name(arguments)}"
    with no_empty_folders(work), manifest.writing(writable(output_root, "--data"), "raysts data prepare"):
        remove_drafts(output_root)
        entry = manifest.read(output_root).get(TABLE)
        if manifest.table_files(output_root, TABLE):
            return _present(output_root, entry, arguments, say)
        runs = _make_runs(files, work, seed, block_bytes, say, spread)
        if _fingerprint(files) != arguments["input"]:
            shutil.rmtree(work)
            raise RunFailed(
                f"input '{input}' was changed while it was read; leave it as it is, and run the same command again"
            )
        ranges = _merge_runs(runs["runs"], work, block_bytes, say, spread)
        distinct = sum(part["rows"] for part in ranges)
        if distinct < (sample or 1):
            raise InputError(
                f"sample {sample or 1:,}: '{input}' gives only {distinct:,} distinct sentences ({runs['found']:,} "
                f"well-formed ones in {runs['articles']:,} articles); ask for at most that many or give more articles "
                f"(what was found is kept in {work} and used again)"
            )
        _publish(output_root, ranges, sample)
        facts = {name: runs[name] for name in ("articles", "found")}
        facts |= {"distinct": distinct, "skipped": skipped, "arguments": arguments}
        entry = manifest.record(output_root, TABLE, facts)
        shutil.rmtree(work, ignore_errors=True)
        say(f"{TABLE}: {entry['rows']:,} of {distinct:,} distinct sentences written to {output_root / TABLE}")
    return {"status": "done", **entry}


def _input_files(path: Path, skip_bad: bool) -> tuple[list[Path], list[Skipped]]:
    """Return the files of the input, and those that cannot be read and are left out."""
    files = [path] if path.is_file() else sorted(path.glob("*.parquet"))
    if not files:
        raise InputError(f"input '{path}' holds no articles: give a Parquet file, or a folder of Parquet shards")
    sound, bad = sound_files(files, articles_problem, lambda file: list(COLUMNS)) if skip_bad else (files, [])
    if bad:
        return sound, bad
    problems = []
    for file in files:
        try:
            if wrong := articles_problem(open_parquet(file, remedy(ARTICLES))):
                problems.append(str(unreadable(file, wrong, remedy(ARTICLES))))
        except ParquetError as error:
            problems.append(str(error))
    if problems:
        raise InputError(problems)
    return files, []


def _fingerprint(files: list[Path]) -> str:
    """Which input it is, by its content, which is read once as long as the files stay as they are."""
    known = Facts("articles", files=files)
    sha256: str | None = known.read().get("sha256")
    if sha256 is None:
        sha256 = content_id([checksum(path) for path in files])
        known.add(sha256=sha256)
    return sha256


def _name(arguments: dict[str, Any]) -> str:
    """Name of the work folder: the sample is drawn last, so that another size reuses the work."""
    return hashlib.sha256(json.dumps({**arguments, "sample": None}).encode()).hexdigest()[:16]


def _present(
    root: Path, entry: dict[str, Any] | None, arguments: dict[str, Any], say: Callable[[str], None]
) -> dict[str, Any]:
    if entry is not None and entry.get("arguments") == arguments and manifest.is_intact(root, TABLE, entry):
        say(f"{TABLE}: present ({entry['rows']:,} rows)")
        return {"status": "present", **entry}
    raise InputError(
        f"{root / TABLE} exists and was not made from this input with these arguments: nothing is overwritten; "
        "remove it or choose another data folder"
    )


def _make_runs(
    files: list[Path], work: Path, seed: int, block_bytes: int, say: Callable[[str], None], spread: Spread
) -> dict[str, Any]:
    marker = work / "runs.json"
    runs: dict[str, Any] | None = read_record(marker)
    if runs is not None:
        say(f"sentences: going on with {runs['found']:,} found before")
        return runs
    shutil.rmtree(work / "runs", ignore_errors=True)  # of an attempt that was killed
    (work / "runs").mkdir(parents=True)
    written: list[Row] = []
    arguments = {"folder": str(work / "runs"), "seed": seed, "block_bytes": block_bytes}
    for row in spread(make_runs, pieces(files, block_bytes), arguments, block_bytes):
        if row["error"]:
            raise RunFailed(f"{TABLE}: {row['error']}")
        written.append(row)
    runs = {
        "articles": sum(run["articles"] for run in written),
        "found": sum(run["rows"] for run in written),
        "runs": sorted(run["path"] for run in written if run["rows"]),
    }
    write_record(marker, runs)
    say(f"sentences: {runs['found']:,} well-formed ones in {runs['articles']:,} articles")
    return runs


def _merge_runs(runs: list[str], work: Path, block_bytes: int, say: Callable[[str], None], spread: Spread) -> list[Row]:
    """De-duplicated ranges in order: index, path, rows."""
    if not runs:
        return []
    size = sum(Path(run).stat().st_size for run in runs)
    # So many equal ranges that one is about a block: hashes are uniform, so are the ranges' sizes.
    bits = min(12, max(0, int(np.ceil(np.log2(max(1, size / block_bytes))))))
    folder = work / f"ranges-{bits}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    listing = work / "runs.txt"  # a file: as an argument, the names of all runs would be sent with every range
    listing.write_text("\n".join(runs))
    arguments = {"listing": str(listing), "bits": bits, "folder": str(folder)}
    units = [{"id": index} for index in range(1 << bits)]
    done = sorted(spread(merge_range, units, arguments, block_bytes), key=lambda part: part["index"])
    say(f"duplicates: {sum(part['rows'] for part in done):,} distinct sentences")
    return done


def _publish(root: Path, ranges: list[dict[str, Any]], sample: int | None) -> None:
    """All ranges as shards of the table, or the first ``sample`` rows of them as one file."""
    filled = [Path(part["path"]) for part in ranges if part["rows"]]
    if sample is None:
        with atomic_write(root / TABLE) as draft:
            draft.mkdir()
            for number, path in enumerate(filled):
                shutil.move(path, draft / f"part-{number:05d}.parquet")
        return
    with atomic_write(root / f"{TABLE}.parquet") as draft:
        rows_left = sample
        with pq.ParquetWriter(draft, pq.read_schema(filled[0]), compression="zstd", write_page_checksum=True) as writer:
            for path in filled:
                for batch in pq.ParquetFile(path).iter_batches(batch_size=ROW_GROUP_ROWS):
                    writer.write_batch(batch.slice(0, rows_left))
                    rows_left -= min(rows_left, batch.num_rows)
                    if rows_left == 0:
                        return


# -- what the workers do: a piece of a file to sorted runs, runs to a range of rows ----------------------------------------


def articles_problem(file: pq.ParquetFile) -> str | None:
    """Why a file holds no articles, as far as its footer tells."""
    schema = file.schema_arrow
    if set(COLUMNS) - set(schema.names):
        return f"articles need columns article_id and text; columns found: {', '.join(schema.names)}"
    kind = schema.field("text").type
    rule = type_rule(kind, Column("text", "text"))
    return f"column 'text' has type {kind}; {rule}" if rule and file.metadata.num_rows else None


def pieces(files: Sequence[Path], block_bytes: int) -> list[dict[str, Any]]:
    """The files cut into units of work of about ``block_bytes`` of text: row groups together, or a part of a large one.

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


def make_runs(batch: pa.Table, folder: str, seed: int, block_bytes: int) -> pa.Table:
    """Write the runs of one piece; returns a row for each (path, articles, rows), or one with ``error``.

    An error is data: an exception would be retried, and logged with a traceback by everything that it passes.
    """
    (piece,) = batch.to_pylist()
    runs = []
    try:
        for block in _blocks(piece, block_bytes):
            runs.append(make_run(block, folder, seed).append_column("error", pa.nulls(1, pa.string())))
    except ParquetError as error:
        runs = [pa.table({"path": [""], "articles": [0], "rows": [0], "error": [str(error)]})]
    return pa.concat_tables(runs)


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


def make_run(articles: pa.Table, folder: str, seed: int) -> pa.Table:
    """Write the sentences of a block, sorted by hash, as an Arrow file; returns one row: path, articles, rows.

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
        slices = []
        for index in range(reader.num_record_batches):
            batch = reader.get_batch(index)
            hashes = batch.column("high").to_numpy()
            if int(hashes[-1]) < low or int(hashes[0]) >= high:
                continue
            first = int(np.searchsorted(hashes, np.uint64(low)))
            last = len(hashes) if high > int(hashes[-1]) else int(np.searchsorted(hashes, np.uint64(high)))
            slices.append(batch.slice(first, last - first).take(pa.array(np.arange(last - first))))
        return pa.Table.from_batches(slices, reader.schema)


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
    rows = table.select(["sentence", "article_id"])
    pq.write_table(rows, draft, row_group_size=ROW_GROUP_ROWS, compression="zstd", write_page_checksum=True)
    draft.rename(path)
    return pa.table({"index": [index], "path": [str(path)], "rows": [table.num_rows]})
