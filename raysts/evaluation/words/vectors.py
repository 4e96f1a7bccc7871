"""Vocabulary with one vector per word, for the benchmarks of words.

Shapes: V words, N looked up, R of a block, H dimensions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from raysts.models.static import BLOCK, MODEL_TYPE, vocabulary

if TYPE_CHECKING:
    from raysts.models.sentence_model import SentenceModel

UNKNOWN = -1
"""Row of a word that has no vector."""


@dataclass(frozen=True)
class Words:
    """Vocabulary and its vectors. ``raw_VH``: vectors of any length, perhaps on disk."""

    index: Mapping[str, int]
    raw_VH: np.ndarray

    def rows(self, words: Sequence[str]) -> np.ndarray:
        """Return the row of each word [N], or ``UNKNOWN`` if its vector is missing or zero."""
        spelt = (self.index.get(word, self.index.get(word.lower(), UNKNOWN)) for word in words)
        rows = np.fromiter(spelt, np.int64, len(words))
        known = np.flatnonzero(rows != UNKNOWN)
        rows[known[~self.raw_VH[rows[known]].any(axis=1)]] = UNKNOWN
        return rows

    def vectors(self, rows: np.ndarray) -> np.ndarray:
        """Return vectors of unit length [N, H] float32, for an unknown word the shorter mean vector.

        The product of two is then their cosine, and that with an unknown word about the mean cosine, which says nothing.
        """
        found_NH = unit(self.raw_VH[np.maximum(rows, 0)])
        found_NH[rows == UNKNOWN] = self.mean_H
        return found_NH

    def blocks(self) -> Iterator[tuple[int, np.ndarray]]:
        """Yield (first row, vectors of unit length) of the whole vocabulary in blocks."""
        for first in range(0, len(self.raw_VH), BLOCK):
            yield first, unit(self.raw_VH[first : first + BLOCK])

    @cached_property
    def mean_H(self) -> np.ndarray:
        total_H = np.zeros(self.raw_VH.shape[1])
        words = 0
        for _, block_RH in self.blocks():
            total_H += block_RH.sum(axis=0, dtype=np.float64)
            words += int(block_RH.any(axis=1).sum())
        return (total_H / max(1, words)).astype(np.float32)


def unit(vectors_NH: np.ndarray) -> np.ndarray:
    """Return a copy with rows of unit length. Zeros stay."""
    lengths_N = np.linalg.norm(vectors_NH, axis=1, keepdims=True)
    return vectors_NH / np.where(lengths_N > 0, lengths_N, 1)


def static_words(model: SentenceModel) -> Words:
    """Return the vocabulary of word vectors, which are not copied."""
    return Words(vocabulary(model.tokenizer), model.encoder.backbone.weight.detach().cpu().numpy())


def is_static(model: SentenceModel) -> bool:
    """Return True if a word has one vector in any context."""
    return bool(model.encoder.config.model_type == MODEL_TYPE)
