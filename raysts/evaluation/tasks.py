"""Interfaces of evaluation: model, labelled set and task."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

import numpy as np

from raysts.data.corpora import Corpus
from raysts.evaluation.scores import RowScores
from raysts.models.layers import Layers
from raysts.models.prompts import Text
from raysts.ops.similarity import Similarity

if TYPE_CHECKING:
    from raysts.models.sentence_model import SentenceModel

Representation = Mapping[str, np.ndarray]
"""Arrays with one row per text: ``vectors`` [N, D] of a plain encoder, ``mu`` and ``log_var`` of a Gaussian."""

Represent = Callable[[Sequence[Text]], Representation]
"""Texts -> their representation, one row per text."""

Similarities = Mapping[str, Similarity]
"""Similarities by their names in the results table; a model's own first."""


class Model(Protocol):
    """Model that can be evaluated."""

    @property
    def similarities(self) -> Similarities:
        """The similarities that it is measured by."""

    @property
    def pooling(self) -> str: ...

    @property
    def layers(self) -> Layers:
        """The layers that the model pools."""

    def represent(self, texts: list[Text]) -> Representation:
        """Return the representation of the texts, one row per text."""


@runtime_checkable
class LayeredModel(Model, Protocol):
    """A model that gives several choices of pooled layers in one pass."""

    @property
    def depth(self) -> int: ...

    def represent_layers(
        self, texts: list[Text], layers: tuple[Layers, ...], **options: Any
    ) -> Mapping[Layers, Representation]:
        """Return the representation of the texts for each choice of layers.

        ``options``: perhaps ``progress``, a function that takes the number of texts of each batch.
        """


class LabelledSet(ABC):
    """Labelled rows in memory: a set that a task measures, or that selects.

    Attributes:
        rows: by test table the rows that the values are of, [rows of the table] bool; searched for training text.
        gold: labels of these rows, if a value needs two that differ.
        subsets: rows of each subset by name, if a value needs differing labels in each of them.
    """

    __slots__ = ()
    if TYPE_CHECKING:  # at run time a data class would take a property for the default of its field

        @property
        def name(self) -> str: ...

        @property
        def rows(self) -> Mapping[str, np.ndarray]: ...

        @property
        def gold(self) -> np.ndarray | None: ...

        @property
        def subsets(self) -> Mapping[str, np.ndarray]: ...

    @property
    @abstractmethod
    def texts(self) -> Sequence[Text]:
        """The distinct texts, in order of first appearance."""

    @property
    @abstractmethod
    def size(self) -> int:
        """Number of pairs, queries or other rows."""

    @property
    def remarks(self) -> tuple[str, ...]:
        """Sentences on rows of the files that are left out."""
        return ()

    @property
    def datasets(self) -> tuple[str, ...]:
        """The names that the set has in results."""
        return (self.name,)

    def problems(self) -> list[str]:
        """Return why rows that are each valid cannot be used together, or an empty list."""
        return []

    @abstractmethod
    def row_scores(self, represent: Represent, similarities: Similarities) -> list[RowScores]:
        """Return the scores of the rows by each similarity, and those of baselines.

        Raises:
            UndefinedCorrelationError: a representation or a similarity is not finite.
        """

    def baseline_scores(self) -> list[RowScores]:
        """Return the scores of what needs no model, beside the models of a table."""
        return []


MOST_LOADED = 16
_loaded: dict[Any, list[Any]] = {}
"""The sets that were loaded last: every model that is measured asks for them."""


class Task(ABC):
    """Measurement with a name: the tables that it reads, and their labelled sets."""

    heavy: ClassVar[bool] = False
    """It takes minutes a model: pipelines, which evaluate many, measure it only if it is named."""

    @abstractmethod
    def expected(self) -> tuple[str, ...]:
        """Return every table that the task can read, for the message about missing ones."""

    @abstractmethod
    def tables(self, corpus: Corpus) -> tuple[str, ...]:
        """Return the tables to read from this corpus, none if one that the task needs is missing."""

    @abstractmethod
    def load(self, corpus: Corpus) -> Sequence[LabelledSet]:
        """Read the sets of a corpus that has the tables."""

    def problems(self, corpus: Corpus) -> list[str]:
        """Return why the sets cannot be measured, or an empty list."""
        return [problem for labelled in self.sets(corpus) for problem in labelled.problems()]

    def sets(self, corpus: Corpus) -> list[LabelledSet]:
        """Return the sets of a corpus, none if it lacks tables. The last ones are cached."""
        tables = self.tables(corpus)
        if not tables:
            return []
        key = self, tuple((table, corpus.fingerprint(table)) for table in tables)
        if key not in _loaded:
            if len(_loaded) >= MOST_LOADED:
                _loaded.clear()
            _loaded[key] = list(self.load(corpus))
        return _loaded[key]

    def is_default(self, corpus: Corpus) -> bool:
        """Return True if the task runs unasked on a corpus that has its tables."""
        return True

    def left_out(self, corpus: Corpus) -> dict[str, list[str]]:
        """Return the sets of the task that the corpus lacks, with the tables that each needs."""
        return {}


class ModelSets(Protocol):
    """Sets of a task that asks for more of a model than representations of texts."""

    @property
    def size(self) -> int:
        """Number of sentences that a model reads, or 0."""

    def row_scores(self, model: SentenceModel, layers: Sequence[Layers] | None) -> dict[Layers, list[RowScores]]:
        """Return the row scores by choice of layers, by default those that suit the task."""


class ModelTask(Task):
    """A task that asks for more of a model than representations of texts."""

    def load(self, corpus: Corpus) -> Sequence[LabelledSet]:
        return ()

    @abstractmethod
    def read(self, corpus: Corpus, contextual: bool) -> ModelSets:
        """Read what a model is measured on: a ``contextual`` one, or word vectors.

        Raises:
            InputError: a model cannot be measured on this data.
        """


def join_fingerprints(fingerprints: Sequence[str]) -> str:
    """Return the fingerprint of several tables together, or that of the only one."""
    return fingerprints[0] if len(fingerprints) == 1 else hashlib.sha256("".join(fingerprints).encode()).hexdigest()


def take(representation: Representation, rows: np.ndarray) -> dict[str, np.ndarray]:
    """Return rows of every array of a representation."""
    return {name: values[rows] for name, values in representation.items()}


def lookup(texts: Sequence[Text], representation: Representation) -> Represent:
    """Return a function that looks some of ``texts`` up in a representation with one row for each of them."""
    position = {text: index for index, text in enumerate(texts)}
    assert all(len(values) == len(texts) for values in representation.values())
    return lambda wanted: take(representation, np.fromiter((position[text] for text in wanted), np.int64, len(wanted)))
