"""Training text in evaluation sets, and the check of a data folder (``raysts data check``).

Two sentences are the same when they are equal after normalisation: Unicode NFKC, case folded, runs of punctuation and
white space collapsed to one blank. Pairs are the same in either order. Memory is that of the evaluation sets: training
tables are streamed.
"""

import hashlib
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from raysts.data.corpora import Corpus
from raysts.data.derive import DERIVED
from raysts.data.importing import find_unused
from raysts.data.windows import select, selected_rows
from raysts.errors import InputError
from raysts.recipes.recipe import Data
from raysts.schema import TABLES, table_columns

Masks = dict[str, tuple[np.ndarray, np.ndarray]]
"""By table the rows that were trained on, and those with a sentence that was: bool, one for each row."""

TRAIN_TABLES = ("nli/train", "sts/stsb_train", "sick/sick_train", "wikipedia/sentences")
"""Tables that sentence models are trained on."""

_NO_WORD = re.compile(r"[\W_]+")
_VARIATIONS = frozenset(map(chr, range(0xFE00, 0xFE10)))  # how an emoji is drawn

EVAL_TABLES = tuple(
    name
    for name, columns in TABLES.items()
    if name.startswith(("sts/", "sick/", "nli/", "senteval/"))
    and name not in TRAIN_TABLES
    and name not in DERIVED
    and not name.endswith("_train")
    and any(column.kind == "text" for column in columns)
)
"""Development and test sets of sentences and pairs (the training parts of SentEval only ever train a classifier)."""


def normalise(sentence: str) -> str:
    """Return the compared form: NFKC, case folded, runs of punctuation and white space as one blank.

    A sentence of punctuation alone stays as it is.
    """
    return _words(unicodedata.normalize("NFKC", sentence).casefold()) or sentence.strip()


def _words(text: str) -> str:
    """Return a text with one blank for each run of punctuation and white space.

    Letters keep their marks, which are the vowels of many scripts (Devanagari, Thai, ...).
    """
    if text.isascii():
        return _NO_WORD.sub(" ", text).strip()
    return " ".join(_NO_WORD.sub(_marks, text).split())


def _marks(run: re.Match[str]) -> str:
    return "".join(
        mark if unicodedata.category(mark) in ("Mn", "Mc") and mark not in _VARIATIONS else " " for mark in run[0]
    )


def overlap(
    corpus: Corpus, train_tables: Sequence[str], eval_tables: Sequence[str], examples: int = 3
) -> list[dict[str, Any]]:
    """Return how much of each evaluation set occurs in each training table.

    Returns:
        One dict per (training table, evaluation set) that share anything: ``train``, ``eval``, ``rows`` (of the
        evaluation set), ``pair_rows`` (the two sentences are a training pair, in either order; None where one side
        has no pairs), ``both_rows`` (both sentences occur, anywhere), ``sentence_rows`` (at least one occurs) and
        ``examples`` (``row`` and ``text`` of a few, shared pairs first).
    """
    keys = {name: _read_keys(corpus, name) for name in eval_tables}
    entries: list[dict[str, Any]] = []
    for train in train_tables:
        corpus.require([train])
        paired = len(text_columns(train)) == 2
        for name, (pair, both_rows, either) in _search(corpus.batches(train, text_columns(train)), keys).items():
            if not either.any():
                continue
            is_pair, shared = len(text_columns(name)) == 2, int(either.sum())
            first = np.argsort(3 - 1 * pair - 1 * both_rows - 1 * either, kind="stable")[: min(shared, examples)]
            texts = corpus.read(name, text_columns(name)).take(pa.array(first, pa.int64())).to_pylist()
            entries.append(
                {
                    "train": train, "eval": name, "rows": len(either), "sentence_rows": shared,
                    "pair_rows": int(pair.sum()) if is_pair and paired else None,
                    "both_rows": int(both_rows.sum()) if is_pair else None,
                    "examples": [{"row": int(r), "text": list(t.values())} for r, t in zip(first, texts, strict=True)],
                }
            )  # fmt: skip
    return entries


def occurrences(corpus: Corpus, table: str, data: Data, eval_tables: Sequence[str]) -> Masks:
    """Return the rows of evaluation sets that selected rows of a training table contain.

    A derived table that the corpus does not hold is looked for in its sources, in all rows of the chosen ones, and user text
    in all its rows: a draw from it may have fewer. A derived table of single sentences contains no pair.

    Returns:
        per evaluation set two bool arrays over its rows: the row itself (its pair, in either order; for a table of single
        sentences, its sentence), and at least one of its sentences.
    """
    masks = _search(_trained_rows(corpus, table, data), {name: _read_keys(corpus, name) for name in eval_tables})
    paired = len(text_columns(table)) > 1
    rows = {}
    for name, (pair, _, either) in masks.items():
        row = pair if len(text_columns(name)) == 2 else either
        rows[name] = row & (paired or row is either), either
    return rows


def _trained_rows(corpus: Corpus, table: str, data: Data) -> Iterator[pa.RecordBatch]:
    """Yield the text columns of what is trained on, or of what it is drawn from."""
    sources, data = corpus.sources(table), data.replace(spans=0)
    for source in sources or [table]:
        columns = text_columns(source)
        if source in corpus.own:
            yield from corpus.batches(source, columns)
            continue
        for group in select(corpus, source, data.replace(sample=None) if sources else data):
            yield from selected_rows(group, source, columns)


def text_columns(table: str) -> list[str]:
    """Return the sentence columns of a canonical table: two for pairs, one otherwise."""
    return [column.name for column in table_columns(table) if column.kind == "text"]


def check_folder(corpus: Corpus) -> dict[str, Any]:
    """Return the report of ``raysts data check`` on a data folder.

    Returns:
        ``root``; ``tables`` (rows and files of those present); ``missing`` (names); ``problems`` (unusable files and
        rows, with file, row and column); ``unused`` (see
        :func:`raysts.data.importing.find_unused`); ``overlaps`` (see ``overlap``; tables with problems are left out).
    """
    tables: dict[str, Any] = {}
    problems: list[str] = []
    usable: list[str] = []
    for name in corpus.tables():
        rows, bad = None, []
        try:
            bad = corpus.problems([name])
            rows = corpus.rows(name)
        except InputError as error:
            bad = error.problems
        tables[name] = {"rows": rows, "files": len(corpus.files(name))}
        problems += bad
        usable += [] if bad else [name]
    files = {path for name in tables for path in corpus.files(name)}
    unused = []
    if not (corpus.empty or corpus.store.remote):
        unused = find_unused(corpus.root, lambda p: p in files or p.name == "manifest.json" or "words" in p.parts)
    train, tested = (filter(usable.__contains__, names) for names in (TRAIN_TABLES, (*EVAL_TABLES, *corpus.tests())))
    missing = [name for name in TABLES if name not in tables and name not in DERIVED]
    overlaps = overlap(corpus, [*train], [*tested])
    shared = {"problems": problems, "unused": unused, "overlaps": overlaps}
    return {"root": corpus.where, "tables": tables, "missing": missing, **shared}


def format_check(report: dict[str, Any]) -> str:
    """Return the result of ``check_folder`` as plain text."""
    lines = [f"data folder {report['root']}", "", "tables"]
    width = max((len(name) for name in report["tables"]), default=0)
    for name, facts in report["tables"].items():
        rows = "unreadable" if facts["rows"] is None else f"{facts['rows']:,}"
        lines.append(f"  {name:<{width}}  {rows:>12}" + (f"  ({facts['files']} files)" if facts["files"] > 1 else ""))
    if not report["tables"]:
        lines.append("  none")
    if report["missing"]:
        lines += ["", "not there", "  " + ", ".join(report["missing"])]
    lines += ["", "problems"] + [f"  {problem}" for problem in report["problems"] or ["none"]]
    if report["unused"]:
        lines += ["", "files that raysts does not use"]
        lines += [
            f"  {entry['file']}: {entry['why']}" + (f"; {entry['command']}" if entry["command"] else "")
            for entry in report["unused"]
        ]
    lines += ["", "training text in evaluation sets (rows whose pair / both_rows sentences / any sentence occurs)"]
    for entry in report["overlaps"]:
        numbers = (entry[key] for key in ("pair_rows", "both_rows", "sentence_rows"))
        counts = " / ".join("-" if number is None else f"{number:,}" for number in numbers)
        lines.append(f"  {entry['train']} in {entry['eval']}: {counts} of {entry['rows']:,}")
        lines += [f"    row {example['row']}: {' | '.join(example['text'])}" for example in entry["examples"]]
    if not report["overlaps"]:
        lines.append("  none")
    return "\n".join(lines)


Keys = list[tuple[bytes, ...]]
"""Hashes of the sentences of each row."""


def _read_keys(corpus: Corpus, name: str) -> Keys:
    corpus.require([name])
    return [keys for batch in corpus.batches(name, text_columns(name)) for keys in _keys(batch)]


def _search(
    batches: Iterable[pa.RecordBatch], sets: Mapping[str, Keys]
) -> dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Return by set and row if its pair, both its sentences, or any of them occur in training text."""
    searched = {key for rows in sets.values() for keys in rows for key in keys}
    wanted_pairs = {frozenset(keys) for rows in sets.values() for keys in rows if len(keys) == 2}
    sentences, pairs = set[bytes](), set[frozenset[bytes]]()
    for batch in batches:
        for keys in _keys(batch):
            shared = [key for key in keys if key in searched]
            sentences.update(shared)
            if len(shared) > 1:  # of a triplet its anchor makes a pair with each of the others
                pairs.update(wanted_pairs.intersection(frozenset((keys[0], other)) for other in keys[1:]))
    masks = {}
    for name, rows in sets.items():
        occurs = [[key in sentences for key in keys] for keys in rows]
        pair = [len(keys) == 2 and frozenset(keys) in pairs for keys in rows]
        both_rows, either = ([test(row) for row in occurs] for test in (all, any))
        masks[name] = np.array(pair, bool), np.array(both_rows, bool), np.array(either, bool)
    return masks


def _keys(batch: pa.RecordBatch) -> Iterator[tuple[bytes, ...]]:
    for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
        texts = (normalise(text or "").encode("utf-8", "surrogatepass") for text in row)
        yield tuple(hashlib.blake2b(text, digest_size=16).digest() for text in texts)
