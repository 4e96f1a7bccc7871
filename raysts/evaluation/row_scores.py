"""What models say of the rows of a set, kept beside the results, so that any two of a run compare on the same rows.

``row_scores/<id>.parquet`` holds of a model, per choice of pooling and layers, the similarity of every pair of every
set (by the model's own similarity), and the model's score on the development set where that was asked for.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from raysts.data.corpora import Corpus
from raysts.evaluation import harness
from raysts.evaluation.dev import Dev
from raysts.evaluation.tasks import ComparableTask, Representation, RowScores, Similarities, lookup
from raysts.models.layers import Layers
from raysts.storage.store import Store

ModelScores = Mapping[str, RowScores]
"""Those of one model by set (``RowScores.key``)."""

Choice = tuple[str, str]
"""Pooling and layers, as a results row names them."""

_TABLE = pa.schema(
    [
        *((name, pa.string()) for name in ("pooling", "layers", "dataset", "split", "sha256", "similarity", "metric")),
        *((name, pa.list_(pa.float64())) for name in ("values", "gold")),
        ("dev", pa.float64()),
    ]
)


def row_scores(
    corpus: Corpus, tasks: Sequence[str], texts: Sequence[str], representation: Representation, by: Similarities
) -> ModelScores:
    """The scores of each set that can be compared, by the model's own similarity, else (direction) by variance."""
    represent, known = lookup(texts, representation), harness.tasks_of(corpus)
    first: dict[str, RowScores] = {}
    for task in (known[name] for name in tasks):
        if isinstance(task, ComparableTask):
            for scores in task.row_scores(corpus, represent, by):
                first.setdefault(scores.key, scores)
    return first


@dataclass(frozen=True, slots=True)
class _Represented:
    """Representations of ``texts`` as a development set sees a model."""

    texts: Sequence[str]
    representation: Representation
    similarities: Similarities
    pooling: str
    layers: Layers

    def represent(self, texts: list[str]) -> Representation:
        return lookup(self.texts, self.representation)(texts)


def dev_score(
    dev: Dev, texts: Sequence[str], representation: Representation, by: Similarities, choice: Choice
) -> float:
    """The score on ``dev``, whose sentences are among ``texts``, by which checkpoints are selected."""
    return dev.scores(_Represented(texts, representation, by, *choice))[dev.metrics[0]]


def write(path: Path, scores: Mapping[Choice, ModelScores], dev: Mapping[Choice, float]) -> None:
    """Keep the scores of one model; complete or absent."""
    rows: list[dict[str, Any]] = []
    for (pooling, layers), sets in scores.items():
        own = {"pooling": pooling, "layers": layers}
        rows += [
            own | {name: getattr(found, name) for name in _TABLE.names if hasattr(found, name)}
            for found in sets.values()
        ]
        rows.append(own | {"dev": dev.get((pooling, layers))})
    with Store.of(path).put(path) as draft:
        pq.write_table(pa.Table.from_pylist(rows, schema=_TABLE), draft, compression="zstd")


def read(path: Path) -> tuple[dict[Choice, dict[str, RowScores]], dict[Choice, float]]:
    """The scores of one model by choice and set, and its scores on the development set; empty where nothing is kept."""
    found = Store.of(path).get(path)
    scores: dict[Choice, dict[str, RowScores]] = {}
    dev: dict[Choice, float] = {}
    for row in pq.ParquetFile(found).read().to_pylist() if found else ():
        choice = row["pooling"], row["layers"]
        if row["dataset"] is None:
            dev |= {choice: row["dev"]} if row["dev"] is not None else {}
            continue
        values, gold = (None if row[key] is None else np.array(row[key]) for key in ("values", "gold"))
        assert values is not None
        known = RowScores(row["dataset"], row["split"], row["sha256"], row["similarity"], values, gold, row["metric"])
        scores.setdefault(choice, {})[known.key] = known
    return scores, dev
