"""Agreement with an ensemble: a judge without labels, from pairs of texts on which nothing was trained.

A pair's score is the mean of the cosines that the ensemble's members give it; a model's agreement is the rank correlation of
its own similarities with these scores. It says how much of the ensemble a model keeps, and never that it is better than the
ensemble, or than what it started from.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from raysts.evaluation.dev import StsDev
from raysts.evaluation.results import ResultRow
from raysts.evaluation.sts import Pairs, pairs_from_table, rows_of
from raysts.evaluation.tasks import Model, Represent, Similarities
from raysts.ids import derive_seed
from raysts.storage.store import Store

AGREEMENT = "agreement"
"""What results call it: the name of the set, and of what selects."""

SPLITS = ("dev", "test")
"""Half of the held-out texts selects, the other half reports."""


def pairs_of(texts: Sequence[str], cosines_NN: np.ndarray, split: str) -> pa.Table:
    """Each text with the one nearest to it and with one drawn at random, every pair once, with their cosines.

    Neighbours alone would leave out what a model must keep apart, random pairs what it must tell from each other.
    """
    count = len(texts)
    among_NN = cosines_NN.copy()
    np.fill_diagonal(among_NN, -np.inf)
    draw = np.random.default_rng(derive_seed(0, AGREEMENT, split))
    others = (np.arange(count) + draw.integers(1, count, count)) % count
    both = {(min(i, int(j)), max(i, int(j))) for to in (among_NN.argmax(1), others) for i, j in enumerate(to)}
    first, second = (np.array(side) for side in zip(*sorted(both), strict=True))
    return pa.table(
        {
            "split": [split] * len(first),
            "sentence1": [texts[i] for i in first],
            "sentence2": [texts[j] for j in second],
            "score": cosines_NN[first, second].astype(np.float64),
        }
    )


@dataclass(frozen=True)
class AgreementPairs:
    """The pairs of one half in the file at ``path``, once they are there.

    Attributes:
        path: of the file; columns split, sentence1, sentence2, score.
        sha256: names its content, which is known before it is there.
        split: one of ``SPLITS``.
    """

    metrics: ClassVar[tuple[str, ...]] = StsDev.metrics
    name: ClassVar[str] = AGREEMENT
    path: Path
    sha256: str
    split: str

    @cached_property
    def pairs(self) -> Pairs:
        path = Store.of(self.path).get(self.path)
        assert path is not None, f"{self.path} is not there yet"
        table = pq.read_table(path, filters=[("split", "=", self.split)])
        return pairs_from_table(table.drop_columns("split"), AGREEMENT, self.sha256)

    @property
    def sentences(self) -> list[str]:
        return self.pairs.sentences

    @property
    def size(self) -> int:
        return len(self.pairs.gold)

    def scores(self, model: Model) -> dict[str, float]:
        return StsDev(self.pairs, AGREEMENT).scores(model)

    def rows(self, represent: Represent, similarities: Similarities, resamples: int) -> list[ResultRow]:
        rows = rows_of(self.pairs, self.split, represent(self.sentences), similarities, resamples)
        return [row for row in rows if row["aggregation"] == "all"]
