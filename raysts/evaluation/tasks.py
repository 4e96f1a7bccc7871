"""What an evaluation asks of a model and of a task."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from raysts.data.corpora import Corpus
from raysts.models.head import Similarity
from raysts.models.layers import Layers
from raysts.models.sentence_model import SentenceModel

Representation = Mapping[str, np.ndarray]
"""Arrays whose first axis is the text: ``vectors`` [N, D] of a plain encoder, ``mu`` and ``log_var`` of a Gaussian."""

Row = dict[str, Any]
"""One row of the results table, or the columns of it that its maker knows."""


class Model(Protocol):
    """What evaluation asks of a model. ``represent_layers`` is used where a model has it."""

    @property
    def similarities(self) -> Mapping[str, Similarity]:
        """The similarities that it is measured by, by what the results table calls them; the model's own first."""
        ...

    @property
    def pooling(self) -> str:
        """Pooling mode over tokens."""
        ...

    @property
    def layers(self) -> Layers:
        """Which layers the model pools by itself."""
        ...

    def represent(self, texts: list[str]) -> Representation:
        """Texts -> their representation, one row per text."""
        ...


class Task(Protocol):
    """One task: the tables it reads, the texts it wants represented, the rows it makes of them."""

    @property
    def heavy(self) -> bool:
        """Whether it takes minutes a model: pipelines, which evaluate many, then leave it out unless it is named."""
        ...

    def tables(self, corpus: Corpus, splits: Sequence[str]) -> tuple[str, ...]:
        """The tables this task will read from this corpus; empty when the corpus lacks what the task needs."""
        ...

    def expected(self) -> tuple[str, ...]:
        """Every table the task can read, for the message when none is there."""
        ...

    def problems(self, corpus: Corpus, splits: Sequence[str]) -> list[str]:
        """What makes rows that are each valid unusable together (a subset whose scores are all equal)."""
        ...

    def sentences(self, corpus: Corpus, splits: Sequence[str]) -> list[str]:
        """The distinct texts of the task in order of first appearance."""
        ...

    def score(
        self,
        corpus: Corpus,
        splits: Sequence[str],
        represent: Callable[[Sequence[str]], Representation],
        similarities: Mapping[str, Similarity],
        resamples: int,
    ) -> list[Row]:
        """Rows with the columns from dataset to dataset_sha256, aggregation, similarity, metric, value, ci_low, ci_high, n.

        A row that says more (a role) overrides what the caller says of all rows.
        """
        ...


@runtime_checkable
class ModelTask(Task, Protocol):
    """A task that asks for more of a model than representations of texts: its ``sentences`` and ``score`` give nothing.

    Where there are representations alone, as in a pipeline, it cannot be run.
    """

    def score_model(
        self, model: SentenceModel, corpus: Corpus, layers: Sequence[Layers] | None, resamples: int
    ) -> list[Row]:
        """As ``score``, with the columns ``layers`` and ``pooling``; without ``layers`` for those that suit the task.

        Raises:
            InputError: what only the model shows: it cannot be measured on this data.
        """
        ...


def take(representation: Representation, rows: np.ndarray) -> dict[str, np.ndarray]:
    """The given rows of every array of a representation."""
    return {name: values[rows] for name, values in representation.items()}
