"""What selects: the scores of a model on a development set."""

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Protocol, Self

from raysts.data.corpora import Corpus
from raysts.data.user import DEV as STS_DEV
from raysts.errors import InputError
from raysts.evaluation.entailment import DEV, EntailmentDev
from raysts.evaluation.retrieval import RetrievalDev
from raysts.evaluation.sts import EQUAL, Pairs, correlations_of, load_pairs
from raysts.evaluation.tasks import Model
from raysts.schema import DEVS as USER_DEVS


class Dev(Protocol):
    """A development set, loaded once and scored often. ``name`` is what results call it."""

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the scores."""

    @property
    def name(self) -> str:
        """``stsb-dev``, ``snli-dev``."""

    @property
    def sentences(self) -> list[str]:
        """The distinct texts that it wants represented."""

    @property
    def size(self) -> int:
        """Pairs, or queries, that a score is made of."""

    def scores(self, model: Model) -> dict[str, float]:
        """The model's scores by its own similarity, larger is better; the first one selects checkpoints.

        Raises:
            UndefinedCorrelationError: it gives the same or no finite similarity for every pair.
        """


@dataclass(frozen=True, slots=True)
class StsDev:
    """Correlation with the scores of pairs; with ``each`` the mean over subsets, whose scores need not be of one scale."""

    metrics: ClassVar[tuple[str, ...]] = ("spearman", "pearson")
    pairs: Pairs
    name: str = "stsb-dev"
    each: bool = False

    @property
    def sentences(self) -> list[str]:
        return self.pairs.sentences

    @property
    def size(self) -> int:
        return len(self.pairs.gold)

    @classmethod
    def load(cls, corpus: Corpus, table: str) -> Self:
        if table not in corpus.own:
            return cls(load_pairs(corpus, table)).checked()
        return cls(load_pairs(corpus, table), corpus.title(table), each=True).checked()

    @property
    def parts(self) -> list[Pairs]:
        return self.pairs.parts() if self.each else [self.pairs]

    def checked(self) -> Self:
        """This set, if a model can have a score on it.

        Raises:
            InputError: it has no correlation whatever a model says.
        """
        for part in self.parts:
            where = f", subset '{part.subsets[part.subset[0]]}'" if self.each and len(part.subsets) > 1 else ""
            if len(set(part.gold.tolist())) < 2:
                raise InputError(
                    f"development set {self.name}{where}: has {len(part.gold):,} row(s) of one score, and a correlation needs "
                    f"two at least; add rows, or select by another set"
                )
            if part.equal:
                raise InputError(f"development set {self.name}{where}: {EQUAL}")
        return self

    def scores(self, model: Model) -> dict[str, float]:
        own = next(iter(model.similarities.values()))
        representation = model.represent(self.pairs.sentences)
        found = [correlations_of(part, representation, own) for part in self.parts]
        return {metric: sum(one[metric] for one in found) / len(found) for metric in self.metrics}


@dataclass(frozen=True)
class SeveralDevs:
    """Development sets of which some are of retrieval: the mean of their first scores, each set as much as the others."""

    parts: tuple[Dev, ...]
    name: str

    @property
    def metrics(self) -> tuple[str, ...]:
        """Those of the sets where they are alike, else ``mean``."""
        of_parts = {part.metrics for part in self.parts}
        return of_parts.pop() if len(of_parts) == 1 else ("mean",)

    @cached_property
    def sentences(self) -> list[str]:
        return list(dict.fromkeys(text for part in self.parts for text in part.sentences))

    @property
    def size(self) -> int:
        return sum(part.size for part in self.parts)

    def scores(self, model: Model) -> dict[str, float]:
        found = [part.scores(model) for part in self.parts]
        if self.metrics == ("mean",):
            found = [{"mean": next(iter(of_part.values()))} for of_part in found]
        return {metric: sum(of_part[metric] for of_part in found) / len(found) for metric in self.metrics}


def load_dev(corpus: Corpus, table: str) -> Dev:
    """The development set that a table, or data of the user's own in its place, holds.

    Raises:
        InputError: no model can have a score on it.
    """
    own = [name.removeprefix(USER_DEVS) for name in corpus if name.startswith(USER_DEVS)]
    searched = dict.fromkeys(name.split("/")[0] for name in own if "/" in name)
    if table != STS_DEV or not searched:
        return DEVS[table].load(corpus, table)
    pairs = [StsDev(load_pairs(corpus, f"{USER_DEVS}{name}"), name).checked() for name in own if "/" not in name]
    return SeveralDevs((*pairs, *(RetrievalDev.of(corpus, name) for name in searched)), corpus[table].title)


DEVS: dict[str, type[StsDev] | type[EntailmentDev]] = {STS_DEV: StsDev, DEV: EntailmentDev}
"""The tables that select (``ObjectiveSpec.dev`` names one)."""
