"""What selects: the score of a model on a development set."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from raysts.data.corpora import Corpus
from raysts.evaluation import entailment
from raysts.evaluation.sts import Pairs, load_pairs, spearman_of
from raysts.evaluation.tasks import Model


class Dev(Protocol):
    """A development set, loaded once and scored often. ``name`` is what results call it."""

    @property
    def name(self) -> str:
        """``stsb-dev``, ``snli-dev``."""
        ...

    def score(self, model: Model) -> float:
        """The model's score by its own similarity, larger is better.

        Raises:
            UndefinedCorrelationError: it gives the same or no finite similarity for every pair.
        """
        ...


@dataclass(frozen=True, slots=True)
class StsDev:
    """Spearman of scored pairs."""

    pairs: Pairs
    name: str = "stsb-dev"

    def score(self, model: Model) -> float:
        """Spearman over all pairs."""
        return spearman_of(self.pairs, model.represent(self.pairs.sentences), next(iter(model.similarities.values())))


LOADERS: dict[str, Callable[[Corpus], Dev]] = {
    "sts/stsb_dev": lambda corpus: StsDev(load_pairs(corpus, "sts/stsb_dev")),
    entailment.DEV: entailment.load_dev,
}
"""How a table that selects is loaded."""
