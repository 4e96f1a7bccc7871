"""Interfaces of evaluation: model, labelled set and task."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import numpy as np

from raysts.data.corpora import Corpus
from raysts.errors import InputError
from raysts.evaluation.scores import RowScores
from raysts.models.layers import Layers
from raysts.models.prompts import Text
from raysts.ops.similarity import Similarity
from raysts.schema import TABLES

Representation = Mapping[str, np.ndarray]
"""Arrays with one row per text: ``vectors`` [N, D] of a plain encoder, ``mu`` and ``log_var`` of a Gaussian."""

Represent = Callable[[Sequence[Text]], Representation]
"""Texts -> their representation, one row per text."""

Similarities = Mapping[str, Similarity]
"""Similarities by their names in the results table; a model's own first."""


class Model(Protocol):
    """Model that can be evaluated. An option ``progress`` takes the number of texts of each batch."""

    @property
    def similarities(self) -> Similarities: ...

    @property
    def pooling(self) -> str: ...

    @property
    def layers(self) -> Layers: ...

    def represent(self, texts: list[Text]) -> Representation: ...

    def represent_layers(
        self, texts: list[Text], layers: Sequence[Layers], **options: Any
    ) -> Mapping[Layers, Representation]: ...


@dataclass(frozen=True, kw_only=True, eq=False)
class LabelledSet(ABC):
    """Labelled rows in memory: a set that a task measures, or that selects.

    Attributes:
        sha256: fingerprint of its tables.
        texts: the distinct texts, in order of first appearance.
        size: number of pairs, queries or other rows.
        rows: by test table the rows that the values are of, [rows of the table] bool; searched for training text.
        gold: labels of these rows, if a value needs two that differ.
        subsets: rows of each subset by name, if a value needs differing labels in each of them.
        remarks: sentences on rows of the files that are left out.
    """

    name: str
    sha256: str
    texts: Sequence[Text]
    size: int
    split: str = "test"
    rows: Mapping[str, np.ndarray] = field(default_factory=dict)
    gold: np.ndarray | None = None
    subsets: Mapping[str, np.ndarray] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()

    @property
    def datasets(self) -> tuple[str, ...]:
        return (self.name,)

    def problems(self) -> list[str]:
        """Return why rows that are each valid cannot be used together, or an empty list."""
        return []

    @abstractmethod
    def row_scores(self, represent: Represent, similarities: Similarities) -> list[RowScores]:
        """Return the scores of the rows by each similarity, and refuse one that is not finite."""

    def baseline_scores(self) -> list[RowScores]:
        """Return the scores of what needs no model, beside the models of a table."""
        return []

    def make_scores(self, values_N: np.ndarray, *metrics: str, **columns: Any) -> RowScores:
        """Return row scores of the set. ``columns``: other fields than the set determines."""
        shared = {"dataset": self.name, "split": self.split, "sha256": self.sha256, "draw": f"{self.name}/{self.split}"}
        return RowScores(metrics=metrics, values=values_N.astype(np.float64), **{**shared, **columns})


@dataclass(frozen=True)
class Source:
    """The tables of one set, and the function that reads them.

    Attributes:
        tables: none of them may be missing.
        optional: tables that are read too, if they exist.
        labels: every table needs its labels, which are optional in SICK.
    """

    name: str
    tables: tuple[str, ...]
    read: Callable[[Corpus, Source], LabelledSet]
    optional: tuple[str, ...] = ()
    labels: bool = False

    def find_missing(self, corpus: Corpus) -> list[str]:
        """Return the tables that are missing, lack labels, or have the user's data in their place."""
        return [table for table in self.tables if not self._has(corpus, table)]

    def present(self, corpus: Corpus) -> tuple[str, ...]:
        """Return the tables to read, none if one is missing."""
        if self.find_missing(corpus):
            return ()
        return (*self.tables, *(table for table in self.optional if self._has(corpus, table)))

    def _has(self, corpus: Corpus, table: str) -> bool:
        present = corpus.has_labels(table) if self.labels else bool(corpus.files(table))
        return present and not (table in TABLES and table in corpus.own)


MOST_LOADED = 64
_loaded: dict[Any, LabelledSet] = {}
"""The sets that were loaded last: every model that is measured asks for them."""


@dataclass(frozen=True)
class Task:
    """Measurement with a name: its sets, and the tables that they read.

    Attributes:
        heavy: it takes minutes a model: pipelines, which evaluate many, measure it only if it is named.
        unasked: it runs if no task is named.
    """

    name: str
    listed: tuple[Source, ...]
    heavy: bool = False
    unasked: bool = True

    asks_model: ClassVar[bool] = False
    """It asks for more of a model than representations of texts: it has no labelled sets."""

    def sources(self, corpus: Corpus) -> tuple[Source, ...]:
        return self.listed

    def expected_tables(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(table for source in self.listed for table in source.tables))

    def tables(self, corpus: Corpus) -> tuple[str, ...]:
        return tuple(dict.fromkeys(table for source in self.sources(corpus) for table in source.present(corpus)))

    def problems(self, corpus: Corpus) -> list[str]:
        """Return why the sets cannot be measured, or an empty list."""
        problems = []
        for source in self.sources(corpus):
            try:
                problems += [problem for labelled in _load(corpus, source) for problem in labelled.problems()]
            except InputError as error:
                problems += error.problems
        return problems

    def sets(self, corpus: Corpus) -> list[LabelledSet]:
        """Return the sets of a corpus, without those that lack tables. The last ones are cached."""
        return [labelled for source in self.sources(corpus) for labelled in _load(corpus, source)]

    def is_default(self, corpus: Corpus) -> bool:
        """Return True if the task runs unasked on a corpus that has its tables."""
        return self.unasked

    def left_out(self, corpus: Corpus) -> dict[str, list[str]]:
        """Return the sets of the task that the corpus lacks, with the tables that each needs."""
        return {source.name: tables for source in self.sources(corpus) if (tables := source.find_missing(corpus))}


def _load(corpus: Corpus, source: Source) -> list[LabelledSet]:
    """Return the set of a source in a list, which is empty if a table is missing."""
    if not (tables := source.present(corpus)):
        return []
    key = source, tuple((table, corpus.fingerprint(table)) for table in tables)
    if key not in _loaded:
        if len(_loaded) >= MOST_LOADED:
            _loaded.clear()
        _loaded[key] = source.read(corpus, source)
    return [_loaded[key]]


def join_fingerprints(corpus: Corpus, tables: Sequence[str]) -> str:
    """Return the fingerprint of several tables together, or that of the only one."""
    prints = [corpus.fingerprint(table) for table in tables]
    return prints[0] if len(prints) == 1 else hashlib.sha256("".join(prints).encode()).hexdigest()


def take(representation: Representation, rows: np.ndarray) -> dict[str, np.ndarray]:
    """Return rows of every array of a representation."""
    return {name: values[rows] for name, values in representation.items()}


def lookup(texts: Sequence[Text], representation: Representation) -> Represent:
    """Return a function that looks some of ``texts`` up in a representation with one row for each of them."""
    position = {text: index for index, text in enumerate(texts)}
    assert all(len(values) == len(texts) for values in representation.values())
    return lambda part: take(representation, np.fromiter((position[text] for text in part), np.int64, len(part)))
