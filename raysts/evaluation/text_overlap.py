"""Training text in evaluation sets. Training tables are streamed."""

import hashlib
import re
import unicodedata
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from raysts.data.corpora import Corpus
from raysts.data.windows import select, selected_rows
from raysts.recipes.recipe import Data
from raysts.schema import table_columns

Masks = dict[str, tuple[np.ndarray, np.ndarray]]
"""By table the rows that were trained on, and those with a sentence that was: bool, one for each row."""

_NO_WORD = re.compile(r"[\W_]+")
_VARIATIONS = frozenset(map(chr, range(0xFE00, 0xFE10)))  # how an emoji is drawn


def normalise(sentence: str) -> str:
    """Return the compared form: NFKC, case folded, runs of punctuation and white space as one blank.

    A sentence of punctuation alone stays as it is. Letters keep their marks, the vowels of many scripts (Devanagari, Thai).
    """
    text = unicodedata.normalize("NFKC", sentence).casefold()
    words = _NO_WORD.sub(" " if text.isascii() else _marks, text)
    return " ".join(words.split()) or sentence.strip()


def _marks(run: re.Match[str]) -> str:
    return "".join(
        mark if unicodedata.category(mark) in ("Mn", "Mc") and mark not in _VARIATIONS else " " for mark in run[0]
    )


def occurrences(corpus: Corpus, table: str, data: Data, eval_tables: Sequence[str]) -> Masks:
    """Return the rows of evaluation sets that selected rows of a training table contain.

    A derived table that the corpus does not hold is looked for in all rows of its sources, and user text in all its rows. A
    table of single sentences contains no pair.

    Returns:
        per evaluation set two bool arrays over its rows: the row itself (its pair, in either order; for a table of single
        sentences, its sentence), and at least one of its sentences.
    """
    sets = {
        name: [keys for batch in corpus.batches(name, text_columns(name)) for keys in _keys(batch)]
        for name in eval_tables
    }
    searched = {key for rows in sets.values() for keys in rows for key in keys}
    wanted_pairs = {frozenset(keys) for rows in sets.values() for keys in rows if len(keys) == 2}
    sentences, pairs = set[bytes](), set[frozenset[bytes]]()
    for batch in _trained_rows(corpus, table, data):
        for keys in _keys(batch):
            shared = [key for key in keys if key in searched]
            sentences.update(shared)
            if len(shared) > 1:  # of a triplet its anchor makes a pair with each of the others
                pairs.update(wanted_pairs.intersection(frozenset((keys[0], other)) for other in keys[1:]))
    masks, has_pairs = {}, len(text_columns(table)) > 1
    for name, rows in sets.items():
        sentence = np.array([any(key in sentences for key in keys) for keys in rows], bool)
        pair = np.array([has_pairs and frozenset(keys) in pairs for keys in rows], bool)
        masks[name] = pair if len(text_columns(name)) == 2 else sentence, sentence
    return masks


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


def _keys(batch: pa.RecordBatch) -> Iterator[tuple[bytes, ...]]:
    """Yield the hashes of the sentences of each row."""
    for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
        texts = (normalise(text or "").encode("utf-8", "surrogatepass") for text in row)
        yield tuple(hashlib.blake2b(text, digest_size=16).digest() for text in texts)
