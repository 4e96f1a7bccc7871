"""What selects: the scores of a model on a development set."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol, Self

from raysts.data.corpora import Corpus
from raysts.evaluation import entailment
from raysts.evaluation.sts import Pairs, correlations_of, load_pairs
from raysts.evaluation.tasks import Model


class Dev(Protocol):
    """A development set, loaded once and scored often. ``name`` is what results call it."""

    metrics: ClassVar[tuple[str, ...]]
    """Names of the scores."""

    @property
    def name(self) -> str:
        """``stsb-dev``, ``snli-dev``."""
        ...

    @property
    def pairs(self) -> Pairs:
        """Its pairs of sentences."""
        ...

    def scores(self, model: Model) -> dict[str, float]:
        """The model's scores by its own similarity, larger is better; the first one selects checkpoints.

        Raises:
            UndefinedCorrelationError: it gives the same or no finite similarity for every pair.
        """
        ...


class TableDev(Dev, Protocol):
    """A development set that a table holds."""

    @classmethod
    def load(cls, corpus: Corpus, table: str) -> Self:
        """Read the table."""
        ...


@dataclass(frozen=True, slots=True)
class StsDev:
    """Correlation with the scores of pairs; with ``each`` the mean over subsets, whose scores need not be of one scale."""

    metrics: ClassVar[tuple[str, ...]] = ("spearman", "pearson")
    pairs: Pairs
    name: str = "stsb-dev"
    each: bool = False

    @classmethod
    def load(cls, corpus: Corpus, table: str) -> Self:
        """Pairs and their scores."""
        if table not in corpus.own:
            return cls(load_pairs(corpus, table))
        return cls(load_pairs(corpus, table), corpus.title(table), each=True)

    def scores(self, model: Model) -> dict[str, float]:
        """Spearman and Pearson over all pairs, or their means over the subsets."""
        own = next(iter(model.similarities.values()))
        representation = model.represent(self.pairs.sentences)
        parts = self.pairs.parts() if self.each else [self.pairs]
        found = [correlations_of(part, representation, own) for part in parts]
        return {metric: sum(one[metric] for one in found) / len(found) for metric in self.metrics}


DEVS: dict[str, type[TableDev]] = {"sts/stsb_dev": StsDev, entailment.DEV: entailment.EntailmentDev}
"""The tables that select (``Objective.dev`` names one)."""
