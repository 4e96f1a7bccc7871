"""Tokenised training rows in windows of up to 8,192, the unit of reading, of order and of targets.

A token store is a folder of Arrow IPC files, one record batch a window, and a manifest written last: columns ``row`` (int64,
position among the selected rows), a list of int32 token ids per text column, and the objective's other columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.ipc
import pyarrow.parquet as pq

from raysts.data.checks import remedy
from raysts.data.corpora import Corpus
from raysts.data.derive import label_codes
from raysts.data.spans import rows_of_documents
from raysts.data.tables import Table
from raysts.data.user import QUERY
from raysts.errors import InputError, RunFailed
from raysts.ids import content_id
from raysts.models.tokens import Tokens, tokenize_counted
from raysts.schema import NLI_LABELS
from raysts.storage.bucket import check_inside
from raysts.storage.parquet import ParquetError, open_parquet, pages
from raysts.storage.store import Store

if TYPE_CHECKING:
    from raysts.recipes.recipe import Data

WINDOW = 8_192
STORE_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSpec:
    """Everything that the content of a token store depends on, and nothing else."""

    table: str
    fingerprint: str
    texts: tuple[str, ...]
    values: tuple[str, ...]
    """Other columns to keep (``label``, ``score``)."""
    tokenizer: str
    """Content id of the tokenizer's files."""
    max_length: int
    data: Data
    prompt: str = ""
    query_prompt: str | None = None
    """Before queries, or before every other span where the table has none. None: all texts are read alike."""

    @property
    def id(self) -> str:
        data, rows = self.data, (self.table, self.fingerprint, self.texts, self.values)
        content: list[Any] = [STORE_VERSION, *rows, self.tokenizer, self.max_length, list(data.sources)]
        content += [data.sample, data.sample_seed if data.sample else None]
        content += [["spans", data.spans, data.sample_seed, *data.span_tokens]] if data.spans else []
        content += [["queries", self.query_prompt]] if self.query_prompt is not None else []
        return content_id([*content, self.prompt] if self.prompt else content)


class GroupPart(NamedTuple):
    """Parquet row group and its selected rows: a unit of tokenising, a file of the store."""

    path: str
    row_group: int
    rows: np.ndarray | None
    """Selected rows within the group, ascending; None: all."""
    first: int
    """Position of the group's first selected row among all selected rows."""
    size: int


def select(corpus: Corpus, table: str, data: Data) -> list[GroupPart]:
    """Return the selected rows of a table by row group. A draw depends on its size and seed alone.

    A draw is one of texts, and each text has its spans behind it. All queries are selected.

    Raises:
        InputError: no row has one of the sources.
    """
    source = corpus.table_with_spans(table, data)
    groups, stride, queries = list(source.row_groups()), 1 + data.spans, source.query_rows
    ends = np.cumsum([group.rows for group in groups])
    total = (int(ends[-1]) - queries) // stride if groups else 0
    chosen: np.ndarray | None = None  # positions in the table; None: all
    none = f"no rows can be made of {', '.join(corpus.sources(table))}; choose another data folder"
    if data.sources:
        chosen = np.flatnonzero(_match_sources(corpus[table], data.sources))
        total = len(chosen)
        none = f"no row has a source in {list(data.sources)}; data.sources must name some that exist"
    if total == 0:
        raise InputError(f"{table}: {none}")
    if data.sample is not None:
        draw = np.random.default_rng(data.sample_seed)
        drawn = np.sort(draw.choice(total, min(data.sample, total), replace=False))
        if chosen is not None:
            chosen = chosen[drawn]
        elif not queries:
            chosen = rows_of_documents(drawn, total, 0, data.spans)
        else:
            left_out = np.delete(np.arange(total), drawn)
            chosen = np.delete(np.arange(ends[-1]), rows_of_documents(left_out, total, queries, data.spans))
    selected, first = list[GroupPart](), 0
    for group, end in zip(groups, ends, strict=True):
        rows, size = None, group.rows
        if chosen is not None:
            low, high = np.searchsorted(chosen, [end - group.rows, end])
            rows, size = chosen[low:high] - (end - group.rows), int(high - low)
        if size:
            selected.append(GroupPart(str(group.path), group.number, rows, first, size))
            first += size
    return selected


def _match_sources(table: Table, sources: Sequence[str]) -> np.ndarray:
    """Return the mask of the rows of a table that come from one of the sources."""
    names, masks = pa.array(sources, pa.string()), []
    for batch in table.batches(["source"]):
        if not batch.num_columns:
            file = next(file for file in table.files if not table.has_column(file, "source"))
            raise InputError(f"{file}: data.sources={list(sources)} needs a column 'source', which is missing")
        masks.append(pc.is_in(batch.column(0).cast(pa.string()), names).to_numpy(zero_copy_only=False))
    return np.concatenate(masks) if masks else np.empty(0, bool)


def tokenize_group(group: GroupPart, spec: StoreSpec, tokenizer: Any, folder: Path, number: int) -> dict[str, Any]:
    """Write file ``number`` of the store and return its manifest entry. Memory holds a window at a time.

    Raises:
        RunFailed: the table's file cannot be read any more.
    """
    name, sizes, cut = f"part-{number:05d}.arrow", [], 0
    try:
        with Store.of(folder).put(folder / name) as draft:
            writer = None
            for first, columns in text_windows(group, spec):
                batch, cut_here = _record_batch(group.first + first, columns, spec, tokenizer)
                cut += cut_here
                writer = writer or pyarrow.ipc.new_file(str(draft), batch.schema)
                writer.write_batch(batch)
                sizes.append(batch.num_rows)
            assert writer is not None and sum(sizes) == group.size
            writer.close()
    except ParquetError as error:
        raise RunFailed(f"tokenising {spec.table}: {error}") from None
    return {"file": name, "windows": sizes, "cut": cut}


def text_windows(group: GroupPart, spec: StoreSpec) -> Iterator[tuple[int, dict[str, pa.Array]]]:
    """Yield (first, columns) of each window of the group's selected rows."""
    pending: list[pa.RecordBatch] = []
    waiting = done = 0
    sides = () if spec.query_prompt is None else (QUERY,)
    for batch in selected_rows(group, spec.table, (*spec.texts, *spec.values), sides):
        pending.append(batch)
        waiting += batch.num_rows
        while waiting >= WINDOW or (waiting and done + waiting == group.size):
            table = pa.Table.from_batches(pending)
            window = table.slice(0, WINDOW)
            yield done, {name: window.column(name).combine_chunks() for name in window.column_names}
            done += window.num_rows
            pending, waiting = table.slice(window.num_rows).to_batches(), waiting - window.num_rows


def selected_rows(
    group: GroupPart, table: str, columns: Sequence[str], optional: Sequence[str] = ()
) -> Iterator[pa.RecordBatch]:
    """Yield columns of the selected rows of a group, by batches of up to ``WINDOW`` rows of the file."""
    file, first = open_parquet(group.path, remedy(table)), 0
    columns = [*columns, *(name for name in optional if name in file.schema_arrow.names)]
    for batch in pages(group.path, file, columns, remedy(table), [group.row_group], WINDOW):
        if group.rows is not None:
            low, high = np.searchsorted(group.rows, [first, first + batch.num_rows])
            first, batch = first + batch.num_rows, batch.take(pa.array(group.rows[low:high] - first))
        yield batch


def _record_batch(
    first: int, columns: dict[str, pa.Array], spec: StoreSpec, tokenizer: Any
) -> tuple[pa.RecordBatch, int]:
    """Return a window as it is stored, and how many of its texts had more tokens than are kept."""
    size, cut, prompt = len(next(iter(columns.values()))), 0, spec.prompt
    arrays: dict[str, pa.Array] = {"row": pa.array(rows_N := np.arange(first, first + size, dtype=np.int64))}
    are_queries = rows_N % (1 + spec.data.spans) % 2 == 1  # every other span
    if QUERY in columns:
        arrays[QUERY], are_queries = columns[QUERY], columns[QUERY].to_numpy(zero_copy_only=False)
    for name in spec.texts:
        texts = columns[name].to_pylist()
        if spec.query_prompt is not None:
            prompts, prompt = [spec.prompt, spec.query_prompt], ""
            texts = [prompts[side] + text for side, text in zip(are_queries.tolist(), texts, strict=True)]
        tokens, cut_here = tokenize_counted(tokenizer, texts, spec.max_length, prompt)
        cut += cut_here
        arrays[name] = pa.ListArray.from_arrays(pa.array(tokens.offsets.astype(np.int32)), pa.array(tokens.flat))
    for name in spec.values:
        codes = label_codes(columns[name], NLI_LABELS) if name == "label" else None
        arrays[name] = pa.array(columns[name].cast(pa.float64()).to_numpy(False) if codes is None else codes)
    return pa.RecordBatch.from_pydict(arrays), cut


def finish_store(folder: Path, spec: StoreSpec, parts: list[dict[str, Any]]) -> None:
    """Write the manifest, which completes the store."""
    rows = sum(sum(part["windows"]) for part in parts)
    manifest = {"version": STORE_VERSION, "table": spec.table, "rows": rows, "parts": parts}
    Store.of(folder).write_json(folder / "manifest.json", manifest)


class Windows:
    """Windows of a finished token store, perhaps with the teacher vectors of their rows.

    Args:
        teacher: folder of the teachers' shards, one or several a window.
    """

    def __init__(self, folder: Path, teacher: Path | None = None) -> None:
        self.storage, self.folder, self.teacher = Store.of(folder), folder, teacher
        parts, shards = self._read_parts(folder), self._read_parts(teacher) if teacher else []
        if not parts:
            raise RunFailed(
                f"{folder}: the finished token store has gone; leave the storage where it is, and what models read "
                f"as it is, while they are used, and run the same command again"
            )
        self._places = [(part["file"], index) for part in parts for index in range(len(part["windows"]))]
        self.sizes = np.array([size for part in parts for size in part["windows"]], dtype=np.int64)
        self._shards: dict[int | None, list[str]] = {}
        for part in shards:
            self._shards.setdefault(part.get("window"), []).append(part["file"])

    def _read_parts(self, folder: Path) -> list[dict[str, Any]]:
        parts: list[dict[str, Any]] = (self.storage.read_json(folder / "manifest.json") or {}).get("parts", [])
        for part in parts:
            check_inside(part["file"], f"{folder}/manifest.json", folders=False)
        return parts

    def __len__(self) -> int:
        return len(self.sizes)

    @property
    def rows(self) -> int:
        return int(self.sizes.sum())

    def read(self, window: int) -> pa.Table:
        name, index = self._places[window]
        with pa.memory_map(str(self._bring(self.folder / name))) as source:
            table = pa.Table.from_batches([pyarrow.ipc.open_file(source).get_batch(index)])
        if self.teacher is not None:
            means = self._means(window)
            assert means.column("row").equals(table.column("row")), "teacher means belong to other rows"
            table = table.append_column("teacher", means.column("embedding"))
        return table

    def _means(self, window: int) -> pa.Table:
        assert self.teacher is not None, "no teachers"
        names = self._shards.get(window, [shard_name(window)])
        return pq.read_table([self._bring(self.teacher / name) for name in names])

    def _bring(self, path: Path) -> Path:
        if (file := self.storage.get(path)) is None:
            raise RunFailed(f"{path}: is not there, or was damaged; run the same command again: it is made again")
        return file

    def documents(self, spans: int) -> np.ndarray:
        """Return the rows of whole texts, without their spans and without queries."""
        first = self.read(0).schema
        if QUERY not in first.names:
            return np.arange(self.rows // (1 + spans)) * (1 + spans)
        sides = [self.read(window).column(QUERY).to_numpy() for window in range(len(self))]
        return np.flatnonzero(~np.concatenate(sides))[:: 1 + spans]

    def teacher_vectors(self, rows: np.ndarray) -> np.ndarray:
        """Return the teachers' vectors of some rows, in ascending order -> float32 [N, E]."""
        parts, first = [], 0
        for window, size in enumerate(self.sizes.tolist()):
            low, high = np.searchsorted(rows, [first, first + size])
            if high > low:
                vectors_NE = columns_of(self._means(window), (), ("embedding",))["embedding"]
                parts.append(vectors_NE[rows[low:high] - first])
            first += size
        return np.concatenate(parts)


def vectors_column(vectors_ND: np.ndarray) -> pa.FixedSizeListArray:
    """Vectors as a column of lists of float32."""
    values = pa.array(np.ascontiguousarray(vectors_ND, dtype=np.float32).reshape(-1))
    return pa.FixedSizeListArray.from_arrays(values, vectors_ND.shape[1])


def shard_name(window: int, first: int = 0) -> str:
    """Return the name of the teachers' vectors of a window from a row on. Names have the order of rows."""
    return f"shard-{window:05d}{f'_{first:05d}' if first else ''}.parquet"


def columns_of(table: pa.Table, texts: Sequence[str], values: Sequence[str]) -> dict[str, Any]:
    """Arrow columns as ``Tokens`` and arrays."""
    columns: dict[str, Any] = {}
    for name in (*texts, *values):
        chunks = table.column(name).chunks
        array = chunks[0] if len(chunks) == 1 else pa.concat_arrays(chunks)
        if name in texts:
            offsets = array.offsets.to_numpy().astype(np.int64)
            columns[name] = Tokens(array.values.to_numpy()[offsets[0] : offsets[-1]], offsets - offsets[0])
        elif pa.types.is_fixed_size_list(array.type):
            columns[name] = array.flatten().to_numpy(zero_copy_only=False).reshape(-1, array.type.list_size)
        else:
            columns[name] = array.to_numpy(zero_copy_only=False)
    return columns
