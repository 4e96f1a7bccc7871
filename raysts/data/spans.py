"""Spans: contiguous pieces of texts, which stand for short texts such as queries."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from statistics import median
from typing import Any

import pyarrow as pa

from raysts.data.parquet import BATCH_ROWS
from raysts.ids import content_id
from raysts.recipes.recipe import Data

VERSION = 1
"""Raise it when equal texts give other spans."""

FEW_SENTENCES = 50
"""Words of a text up to which spans of it would be texts like itself."""

WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]|[^\s\u3040-\u30ff\u3400-\u9fff]+")
"""Pattern of a word: what white space separates, or one sign of Chinese or Japanese, which have no spaces."""


def spans_of(text: str, count: int, seed: int, shortest: int = 4, longest: int = 64) -> list[str]:
    """Return ``count`` spans of a text that depend on the text and the seed alone.

    They begin and end at words. Lengths, from ``shortest`` to ``longest`` words, are log-uniform, places uniform. A shorter
    text than the length is its own span.
    """
    words = [word.span() for word in WORD.finditer(text)]
    content = text.encode("utf-8", "surrogatepass")
    spans = []
    for number in range(count):
        digest = blake2b(content, digest_size=16, key=f"{seed} {number}".encode()).digest()
        of_length, of_place = (int.from_bytes(half, "big") / 2**64 for half in (digest[:8], digest[8:]))
        length = min(int(shortest * ((longest + 1) / shortest) ** of_length), len(words))
        first = int(of_place * (len(words) - length + 1))
        spans.append(text[words[first][0] : words[first + length - 1][1]])
    return spans


def are_documents(texts: Sequence[str]) -> bool:
    """Return True if most texts are longer than a few sentences."""
    return bool(texts) and median(sum(1 for _ in WORD.finditer(text)) for text in texts) > FEW_SENTENCES


class Spans:
    """The rows of a table (``raysts.data.tables``) of single texts, each followed by its spans.

    Every window of the table holds both, in one proportion, so each part of an epoch does.
    """

    def __init__(self, texts: Any, data: Data) -> None:
        self.texts, self.count = texts, data.spans
        self.drawn_by = (data.spans, data.sample_seed, *data.span_tokens)

    @property
    def sources(self) -> Sequence[Any]:
        return (self.texts,)

    @property
    def fingerprint(self) -> str:
        return content_id([VERSION, self.texts.fingerprint, *self.drawn_by])

    @property
    def rows(self) -> int:
        return self.texts.rows * (1 + self.count)

    def batches(self) -> Iterator[pa.RecordBatch]:
        pending: list[str] = []
        for batch in self.texts.batches(["sentence"]):
            for text in batch.column(0).to_pylist():
                pending += [text, *spans_of(text, *self.drawn_by)]
            while len(pending) >= BATCH_ROWS:
                yield _batch(pending[:BATCH_ROWS])
                pending = pending[BATCH_ROWS:]
        if pending:
            yield _batch(pending)


def _batch(texts: list[str]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(texts, pa.string())], names=["sentence"])
