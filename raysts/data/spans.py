"""Spans: contiguous pieces of texts, which stand for short texts such as queries."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from itertools import islice
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa

from raysts.data.checks import BATCH_ROWS
from raysts.data.user import QUERY
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

    Queries have no spans. Every window of the table holds all kinds, in one proportion, so each part of an epoch does.
    """

    def __init__(self, texts: Any, data: Data) -> None:
        self.texts, self.count = texts, data.spans
        self.drawn_by = (data.spans, data.sample_seed, *data.span_tokens)

    @property
    def fingerprint(self) -> str:
        return content_id([VERSION, self.texts.fingerprint, *self.drawn_by])

    @property
    def rows(self) -> int:
        return self.texts.rows + (self.texts.rows - self.query_rows) * self.count

    @property
    def query_rows(self) -> int:
        return int(self.texts.query_rows)

    def batches(self) -> Iterator[pa.RecordBatch]:
        rows = self._rows()
        while part := [*islice(rows, BATCH_ROWS)]:
            columns = [pa.array(column) for column in zip(*part, strict=True)]
            yield pa.RecordBatch.from_arrays(columns, names=["sentence", QUERY][: len(columns)])

    def _rows(self) -> Iterator[tuple[Any, ...]]:
        for batch in self.texts.batches(["sentence", QUERY]):
            for text, *side in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                yield text, *side
                for span in [] if any(side) else spans_of(text, *self.drawn_by):
                    yield span, *side


def rows_of_documents(numbers: np.ndarray, documents: int, queries: int, spans: int) -> np.ndarray:
    """Return the rows of some documents of a table, with their spans.

    Queries stand evenly between the documents.
    """
    first = numbers * (1 + spans) + numbers * queries // documents
    return (first[:, None] + np.arange(1 + spans)).ravel()
