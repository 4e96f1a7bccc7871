"""Training text in evaluation sets, and the check of a data folder (``raysts data check``).

Two sentences are the same when they are equal after normalisation: Unicode NFKC, case folded, runs of punctuation and
white space collapsed to one blank. Pairs are the same in either order. Memory is that of the evaluation sets: training
tables are streamed.
"""

import hashlib
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from raysts.data.corpora import Corpus
from raysts.data.derive import DERIVED
from raysts.data.importing import unused
from raysts.data.windows import select, selected_rows
from raysts.errors import InputError
from raysts.recipes.recipe import Data
from raysts.schema import TABLES, table_columns

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
    """Return a text whose runs of punctuation and white space are one blank.

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
        evaluation set), ``pair_rows`` (whose two sentences are a training pair, in either order; None where one side
        has no pairs), ``both_rows`` (whose sentences both occur, anywhere), ``sentence_rows`` (at least one occurs) and
        ``examples`` (``row`` and ``text`` of a few, shared pairs first).
    """
    sides = [_EvalSide(corpus, name) for name in eval_tables]
    entries = []
    for train in train_tables:
        corpus.require([train])
        hits = _hits_in(_texts(corpus, train), sides)
        for side in sides:
            pair, both, either = side.masks(hits)
            if not either.any():
                continue
            paired = side.is_pair and len(text_columns(train)) == 2
            most_telling_first = np.argsort(3 - 1 * pair - 1 * both - 1 * either, kind="stable")[: int(either.sum())]
            entries.append(
                {
                    "train": train,
                    "eval": side.name,
                    "rows": len(either),
                    "pair_rows": int(pair.sum()) if paired else None,
                    "both_rows": int(both.sum()) if side.is_pair else None,
                    "sentence_rows": int(either.sum()),
                    "examples": _examples(corpus, side.name, most_telling_first[:examples]),
                }
            )
    return entries


def occurrences(
    corpus: Corpus, table: str, data: Data, eval_tables: Sequence[str]
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return the rows of evaluation sets that selected rows of a training table contain.

    A derived table that the corpus does not hold is looked for in what it is made of, all rows of the chosen sources, and of
    text of the user's own all rows are: a draw from it may have fewer. A derived table of single sentences contains no pair.

    Returns:
        per evaluation set two bool arrays over its rows: the row itself (its pair, in either order; for a table of single
        sentences, its sentence), and at least one of its sentences.
    """
    sides, data = [_EvalSide(corpus, name) for name in eval_tables], data.updated(spans=0)
    sources = corpus.sources(table)
    masks = {side.name: (np.zeros(side.rows, bool), np.zeros(side.rows, bool)) for side in sides}
    for source in sources or [table]:
        columns = text_columns(source)
        rows = corpus.batches(source, columns)
        if source not in corpus.own:
            groups = select(corpus, source, data.updated(sample=None) if sources else data)
            rows = (batch for group in groups for batch in selected_rows(group, source, columns))
        hits = _hits_in(rows, sides)
        if len(text_columns(table)) == 1:
            hits.pairs.clear()
        for side in sides:
            in_pair, _, in_either = side.masks(hits)
            row, sentence = masks[side.name]
            row |= in_pair if side.is_pair else in_either
            sentence |= in_either
    return masks


def text_columns(table: str) -> list[str]:
    """Return the sentence columns of a canonical table: two for pairs, one otherwise."""
    return [column.name for column in table_columns(table) if column.kind == "text"]


def check_folder(corpus: Corpus) -> dict[str, Any]:
    """Return the report of ``raysts data check`` on a data folder.

    Returns:
        ``root``; ``tables`` (rows and files of those present); ``missing`` (names); ``problems`` (unusable files and
        rows, with file, row and column); ``unused`` (see
        :func:`raysts.data.importing.unused`); ``overlaps`` (see ``overlap``; tables with problems are left out).
    """
    tables: dict[str, Any] = {}
    problems: list[str] = []
    sound: set[str] = set()
    for name in corpus.tables():
        try:
            bad = corpus.problems([name])
            tables[name] = {"rows": corpus.rows(name), "files": len(corpus.files(name))}
        except InputError as error:
            bad = error.problems
            tables[name] = {"rows": None, "files": len(corpus.files(name))}
        problems += bad
        if not bad:
            sound.add(name)
    return {
        "root": corpus.where,
        "tables": tables,
        "missing": [name for name in TABLES if name not in tables and name not in DERIVED],
        "problems": problems,
        "unused": _unused(corpus),
        "overlaps": overlap(
            corpus,
            [name for name in TRAIN_TABLES if name in sound],
            [name for name in (*EVAL_TABLES, *corpus.tests()) if name in sound],
        ),
    }


def _unused(corpus: Corpus) -> list[dict[str, str]]:
    if corpus.empty or corpus.store.remote:
        return []
    read = {path for name in corpus.tables() for path in corpus.files(name)}
    return unused(corpus.root, lambda path: path in read or path.name == "manifest.json" or "words" in path.parts)


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
        lines += ["", "read by nothing"]
        lines += [
            f"  {entry['file']}: {entry['why']}" + (f"; {entry['command']}" if entry["command"] else "")
            for entry in report["unused"]
        ]
    lines += ["", "training text in evaluation sets (rows whose pair / both sentences / any sentence occurs)"]
    for entry in report["overlaps"]:
        numbers = (entry[key] for key in ("pair_rows", "both_rows", "sentence_rows"))
        counts = " / ".join("-" if number is None else f"{number:,}" for number in numbers)
        lines.append(f"  {entry['train']} in {entry['eval']}: {counts} of {entry['rows']:,}")
        lines += [f"    row {example['row']}: {' | '.join(example['text'])}" for example in entry["examples"]]
    if not report["overlaps"]:
        lines.append("  none")
    return "\n".join(lines)


@dataclass
class _Hits:
    """Hashes of evaluation sets that a training table contains."""

    sentences: set[bytes] = field(default_factory=set)
    pairs: set[bytes] = field(default_factory=set)


class _EvalSide:
    """Hashes of one evaluation set by row."""

    def __init__(self, corpus: Corpus, name: str) -> None:
        self.name = name
        corpus.require([name])
        self.is_pair = len(text_columns(name)) == 2
        self.keys = [keys for batch in _texts(corpus, name) for keys in _keys(batch)]
        self.rows = len(self.keys)

    def masks(self, hits: _Hits) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return by row whether its pair, both its sentences, or any of its sentences occur."""
        occurs = [[key in hits.sentences for key in keys] for keys in self.keys]
        pair = [self.is_pair and _pair_key(keys) in hits.pairs for keys in self.keys]
        return (
            np.array(pair, bool),
            np.array([all(row) for row in occurs], bool),
            np.array([any(row) for row in occurs], bool),
        )


def _hits_in(batches: Iterable[pa.RecordBatch], sides: Sequence[_EvalSide]) -> _Hits:
    sentences = {key for side in sides for keys in side.keys for key in keys}
    pairs = {_pair_key(keys) for side in sides if side.is_pair for keys in side.keys}
    hits = _Hits()
    for batch in batches:
        for keys in _keys(batch):
            shared = [key for key in keys if key in sentences]
            hits.sentences.update(shared)
            if len(shared) > 1:  # of a triplet its anchor makes a pair with each of the others
                hits.pairs.update(key for other in keys[1:] if (key := _pair_key((keys[0], other))) in pairs)
    return hits


def _pair_key(keys: Sequence[bytes]) -> bytes:
    return b"".join(sorted(keys))


def _keys(batch: pa.RecordBatch) -> Iterator[tuple[bytes, ...]]:
    columns = [
        [
            hashlib.blake2b(normalise(text or "").encode("utf-8", "surrogatepass"), digest_size=16).digest()
            for text in texts
        ]
        for texts in (column.to_pylist() for column in batch.columns)
    ]
    yield from zip(*columns, strict=True)


def _texts(corpus: Corpus, name: str) -> Iterator[pa.RecordBatch]:
    yield from corpus.batches(name, text_columns(name))


def _examples(corpus: Corpus, name: str, rows: np.ndarray) -> list[dict[str, Any]]:
    texts = corpus.read(name, text_columns(name)).take(pa.array(rows, pa.int64())).to_pylist()
    return [{"row": int(row), "text": list(text.values())} for row, text in zip(rows, texts, strict=True)]
