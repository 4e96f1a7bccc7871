"""Small models and corpora for the tests of words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from evaluation_fakes import write_table

from raysts.data.corpora import Corpus
from raysts.data.world import world_vocabulary
from raysts.evaluation.words import WordTable

RNG = np.random.default_rng(0)
WORDS = [word for word in world_vocabulary() if word.isalpha() and word.islower()][:40]
CAT, DOG, CAR = WORDS[:3]


def words_of(names: str, width: int = 4, seed: int = 0) -> WordTable:
    """Random vectors of any length for single letters."""
    vectors = np.random.default_rng(seed).normal(size=(len(names), width)).astype(np.float32)
    return WordTable({name: row for row, name in enumerate(names)}, vectors)


def web(root: Path, **tables: list[tuple[Any, ...]]) -> Corpus:
    """A corpus of tables of words, and of sentences of the small world's words."""
    columns = {
        "word_similarity": ("dataset", "word1", "word2", "score"),
        "word_analogy": ("dataset", "category", "a", "b", "c", "d", "score"),
        "word_categorization": ("dataset", "category", "word"),
    }
    for name, rows in tables.items():
        width = max(map(len, rows))
        padded = [(*row, *[None] * (width - len(row))) for row in rows]
        values = zip(*padded, strict=True)
        write_table(root, f"web/{name}", dict(zip(columns[name][:width], map(list, values), strict=True)))
    return Corpus(root)


def sentences(n: int = 60, seed: int = 0) -> list[str]:
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, size=rng.integers(2, 9))).capitalize() + "." for _ in range(n)]
