"""What an evaluation asks of a model and of a task."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol, runtime_checkable

import numpy as np

from raysts.data.corpora import Corpus
from raysts.evaluation.results import ResultRow
from raysts.models.layers import Layers
from raysts.ops.similarity import Similarity

if TYPE_CHECKING:
    from raysts.models.sentence_model import SentenceModel

Representation = Mapping[str, np.ndarray]
"""Arrays whose first axis is the text: ``vectors`` [N, D] of a plain encoder, ``mu`` and ``log_var`` of a Gaussian."""

Represent = Callable[[Sequence[str]], Representation]
"""Texts -> their representation, one row per text."""

Similarities = Mapping[str, Similarity]
"""By what the results table calls them; a model's own first."""


class Model(Protocol):
    """What evaluation asks of a model."""

    @property
    def similarities(self) -> Similarities:
        """The similarities that it is measured by."""

    @property
    def pooling(self) -> str: ...

    @property
    def layers(self) -> Layers:
        """Which layers the model pools by itself."""

    def represent(self, texts: list[str]) -> Representation:
        """Texts -> their representation, one row per text."""


@runtime_checkable
class LayeredModel(Model, Protocol):
    """A model of which several choices of pooled layers can be had from one pass; another is evaluated as it is."""

    @property
    def depth(self) -> int: ...

    def represent_layers(self, texts: list[str], layers: tuple[Layers, ...]) -> Mapping[Layers, Representation]:
        """Per choice of layers the representation of the texts."""


class Task(ABC):
    """One task: the tables it reads, the texts it wants represented, the rows it makes of them."""

    heavy: ClassVar[bool] = False
    """Whether it takes minutes a model: pipelines, which evaluate many, then leave it out unless it is named."""

    @abstractmethod
    def tables(self, corpus: Corpus) -> tuple[str, ...]:
        """The tables this task will read from this corpus; empty when the corpus lacks what the task needs."""

    @abstractmethod
    def tested(self, corpus: Corpus) -> tuple[str, ...]:
        """Those of its tables that are searched for training text: not those that it takes thresholds from or trains on."""

    @abstractmethod
    def expected(self) -> tuple[str, ...]:
        """Every table the task can read, for the message when none is there."""

    @abstractmethod
    def problems(self, corpus: Corpus) -> list[str]:
        """What makes rows that are each valid unusable together (a subset whose scores are all equal)."""

    @abstractmethod
    def sentences(self, corpus: Corpus) -> list[str]:
        """The distinct texts of the task in order of first appearance."""

    @abstractmethod
    def score(
        self, corpus: Corpus, represent: Represent, similarities: Similarities, resamples: int
    ) -> list[ResultRow]:
        """Rows with the columns from dataset to dataset_sha256, aggregation, similarity, metric, value, ci_low, ci_high, n.

        A row that says more (a role) overrides what the caller says of all rows.
        """

    def measured(self, corpus: Corpus, table: str) -> np.ndarray | bool:
        """Which rows of a tested table are: bool, one for each, or all alike."""
        return True

    def by_default(self, corpus: Corpus) -> bool:
        """Whether to run unasked on a corpus that has its tables."""
        return True

    def left_out(self, corpus: Corpus) -> dict[str, list[str]]:
        """The sets of the task that the corpus lacks, and which tables each needs."""
        return {}


@dataclass(frozen=True, slots=True)
class RowScores:
    """One similarity of one model on the N rows of one set: what two models are compared by, row for row.

    Attributes:
        sha256: of the set's files; scores can be compared where it is the same.
        values: [N] float64, the similarity of each pair; without ``gold`` what ``metric`` is the mean of.
        gold: [N] float64 scores that the similarities are correlated with; None for a set that is measured otherwise.
        metric: where there is no gold; of an accuracy the values are 1 where the model is right and else 0.
    """

    dataset: str
    split: str
    sha256: str
    similarity: str
    values: np.ndarray
    gold: np.ndarray | None = None
    metric: str = "accuracy"

    @property
    def key(self) -> str:
        """Names the set, and of one with several metrics the metric."""
        return self.dataset if self.gold is not None or self.metric == "accuracy" else f"{self.dataset} {self.metric}"

    @property
    def label(self) -> str:
        """Names the random numbers of its resamples: those of the interval that an evaluation gives."""
        return f"{self.dataset}/{self.split}" + ("" if self.gold is None else "/all")


class ComparableTask(Task):
    """A task on which two models can be compared row for row."""

    @abstractmethod
    def row_scores(self, corpus: Corpus, represent: Represent, similarities: Similarities) -> list[RowScores]:
        """One per set that is there, and similarity (those that say something of the set)."""


class ModelTask(Task):
    """A task that asks for more of a model than representations of texts.

    Where there are representations alone, as in a pipeline, it cannot be run.
    """

    def sentences(self, corpus: Corpus) -> list[str]:
        return []

    def score(
        self, corpus: Corpus, represent: Represent, similarities: Similarities, resamples: int
    ) -> list[ResultRow]:
        return []

    @abstractmethod
    def score_model(
        self, model: SentenceModel, corpus: Corpus, layers: Sequence[Layers] | None, resamples: int
    ) -> list[ResultRow]:
        """As ``score``, with the columns ``layers`` and ``pooling``; without ``layers`` for those that suit the task.

        Raises:
            InputError: what only the model shows: it cannot be measured on this data.
        """


def take(representation: Representation, rows: np.ndarray) -> dict[str, np.ndarray]:
    """The given rows of every array of a representation."""
    return {name: values[rows] for name, values in representation.items()}


def lookup(texts: Sequence[str], representation: Representation) -> Represent:
    """A function that finds the representations of some of ``texts`` in one that has a row for each."""
    position = {text: index for index, text in enumerate(texts)}
    assert all(len(values) == len(texts) for values in representation.values())
    return lambda wanted: take(representation, np.fromiter((position[text] for text in wanted), np.int64, len(wanted)))
