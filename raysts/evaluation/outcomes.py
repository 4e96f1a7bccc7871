"""What a model made of every row of a set: what two models are compared by, row for row."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from raysts.data.corpora import Corpus
from raysts.evaluation.tasks import Representation
from raysts.models.head import Similarity


@dataclass(frozen=True, slots=True)
class Outcome:
    """One similarity of one model on the N rows of one set.

    Attributes:
        dataset: as in the results table.
        split: as in the results table.
        sha256: of the set's files; outcomes can be compared where it is the same.
        similarity: what the model compares texts by.
        values: [N] float64, the similarity of each pair; without ``gold`` 1 where the model is right and else 0.
        gold: [N] float64 scores; None for a set that is measured by accuracy.
    """

    dataset: str
    split: str
    sha256: str
    similarity: str
    values: np.ndarray
    gold: np.ndarray | None = None

    @property
    def label(self) -> str:
        """Names the random numbers of its resamples: those of the set's own interval."""
        return f"{self.dataset}/{self.split}"


@runtime_checkable
class Comparable(Protocol):
    """A task on which two models can be compared row for row."""

    def outcomes(
        self,
        corpus: Corpus,
        splits: Sequence[str],
        represent: Callable[[Sequence[str]], Representation],
        similarities: Mapping[str, Similarity],
    ) -> list[Outcome]:
        """One outcome per set, wanted split that is there, and similarity (those that say something of the set)."""
        ...
