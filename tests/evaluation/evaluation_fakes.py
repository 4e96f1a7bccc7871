import zlib
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from raysts.data.corpora import Corpus
from raysts.evaluation import harness
from raysts.evaluation.scores import RowScores, result_rows
from raysts.evaluation.tasks import Represent, Task
from raysts.ops.similarity import cosine
from raysts.schema import RESULTS


class HashedWords:
    """Mean of a random vector per word: a plain encoder that needs no weights and counts what it is asked for."""

    pooling = "mean"
    layers = 1
    depth = 2

    def __init__(self) -> None:
        self.calls: list[list[str]] = []

    def represent(self, texts: list[str]) -> dict[str, np.ndarray]:
        return self.represent_layers(texts, (self.layers,))[self.layers]

    def represent_layers(self, texts: list[str], layers: tuple[int, ...], progress: Any = None) -> dict[int, Any]:
        self.calls.append(list(texts))
        for size in (1, len(texts) - 1) if progress else ():
            progress(size)
        return {k: {"vectors": np.stack([_vector(str(text), k) for text in texts])} for k in layers}

    @property
    def similarities(self) -> dict[str, Any]:
        return {"cosine": lambda a, b: cosine(a["vectors"], b["vectors"])}


def _vector(text: str, k: int) -> np.ndarray:
    return np.mean([_word_vector(word, k) for word in text.lower().split()], axis=0).astype(np.float32)


@cache
def _word_vector(word: str, k: int) -> np.ndarray:
    return np.random.default_rng([k, zlib.crc32(word.encode())]).normal(size=16)


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
        shared, first = int(rng.integers(0, 4)), list(rng.choice(words, size=3))
        rows["sentence1"].append(" ".join(first))
        rows["sentence2"].append(" ".join(first[:shared] + list(rng.choice(words, size=3 - shared))))
        rows["score"].append(shared * 5 / 3)
    return rows


def measured(task: Task, corpus: Corpus, represent: Represent, similarities: Any = None, resamples: int = 0) -> Any:
    """The results rows of a task."""
    by = HashedWords().similarities if similarities is None else similarities
    found = harness.row_scores(task.sets(corpus), represent, by)
    return [row for scores in found for row in result_rows(scores, resamples)]


def correlated(name: str, values: np.ndarray, gold: np.ndarray, sha256: str = "s") -> RowScores:
    """Row scores of a set of scored pairs."""
    known: dict[str, Any] = {"metrics": ("pearson", "spearman"), "aggregations": ("all",), "draw": f"{name}/test/all"}
    return RowScores(dataset=name, split="test", sha256=sha256, similarity="cosine", values=values, gold=gold, **known)


def accurate(name: str, right: np.ndarray, sha256: str = "s") -> RowScores:
    """Row scores of an accuracy."""
    known: dict[str, Any] = {"metrics": ("accuracy",), "draw": f"{name}/test", "similarity": "gauss"}
    return RowScores(dataset=name, split="test", sha256=sha256, values=right.astype(float), **known)


def row(system: str, role: str, dataset: str, value: float, **columns: Any) -> dict[str, Any]:
    """Return a row of the results table."""
    given = {
        "schema_version": 1, "system": system, "role": role, "dataset": dataset, "value": value, "metric": "spearman",
        "aggregation": "all", "split": "test", "rows": "all", "pooling": "mean", "layers": "2", "similarity": "cosine",
        "created_at": "2026-01-01T00:00:00+00:00", "run_id": system + role,
    }  # fmt: skip
    return dict.fromkeys(RESULTS.names) | given | columns
