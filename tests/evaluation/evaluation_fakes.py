"""Real, small models and corpora for the tests of evaluation."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from raysts.ops.similarity import cosine


class HashedWords:
    """Mean of a random vector per word: a plain encoder that needs no weights and counts what it is asked for."""

    pooling = "mean"
    layers = 1
    depth = 2

    def __init__(self) -> None:
        self.calls: list[list[str]] = []

    def represent(self, texts: list[str]) -> dict[str, np.ndarray]:
        return self.represent_layers(texts, (self.layers,))[self.layers]

    def represent_layers(self, texts: list[str], layers: tuple[int, ...]) -> dict[int, dict[str, np.ndarray]]:
        self.calls.append(list(texts))
        return {k: {"vectors": np.stack([_vector(text, k) for text in texts])} for k in layers}

    @property
    def similarities(self) -> dict[str, Any]:
        return {"cosine": lambda a, b: cosine(a["vectors"], b["vectors"])}


def _vector(text: str, k: int) -> np.ndarray:
    words = [np.random.default_rng([k, zlib.crc32(word.encode())]).normal(size=16) for word in text.lower().split()]
    return np.mean(words, axis=0).astype(np.float32)


def write_table(root: Path, name: str, columns: dict[str, Any]) -> Path:
    path = root / f"{name}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path)
    return path


def scored_pairs(n: int, seed: int = 0) -> dict[str, list[Any]]:
    """Sentence pairs that share more words the higher their score; sentences recur."""
    rng = np.random.default_rng(seed)
    words = [f"word{i}" for i in range(12)]
    rows: dict[str, list[Any]] = {"sentence1": [], "sentence2": [], "score": []}
    for _ in range(n):
        shared = int(rng.integers(0, 4))
        first = list(rng.choice(words, size=3))
        rows["sentence1"].append(" ".join(first))
        rows["sentence2"].append(" ".join(first[:shared] + list(rng.choice(words, size=3 - shared))))
        rows["score"].append(shared * 5 / 3)
    return rows
