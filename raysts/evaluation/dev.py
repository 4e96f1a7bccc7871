"""A development set: labelled sets, and the metric of them that selects checkpoints and models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from raysts.data.corpora import Corpus
from raysts.data.user import DEV as STS_DEV
from raysts.errors import InputError
from raysts.evaluation import retrieval
from raysts.evaluation.entailment import DEV, load_entailment, two_way
from raysts.evaluation.scores import AREAS, RowScores
from raysts.evaluation.sts import Pairs, load_pairs
from raysts.evaluation.tasks import LabelledSet, Model, Represent, Similarities, lookup
from raysts.models.prompts import Text
from raysts.schema import DEVS as USER_DEVS

CORRELATION = ("spearman", "pearson")

DEVS: dict[str, tuple[str, ...]] = {STS_DEV: CORRELATION, DEV: AREAS}
"""The tables that select (``ObjectiveSpec.dev`` names one), and their metrics: the first one selects."""


@dataclass(frozen=True)
class Dev:
    """A development set, loaded once and scored often.

    Attributes:
        name: in results: ``stsb-dev``, ``snli-dev``.
        metrics: larger is better; the first one selects.
        parts: the sets, which count the same; a function reads a file that is written later.
    """

    name: str
    metrics: tuple[str, ...]
    parts: Sequence[LabelledSet] | Callable[[], Sequence[LabelledSet]]

    @cached_property
    def sets(self) -> Sequence[LabelledSet]:
        return self.parts() if callable(self.parts) else self.parts

    @cached_property
    def texts(self) -> list[Text]:
        """The distinct texts that it wants represented."""
        return list(dict.fromkeys(text for part in self.sets for text in part.texts))

    @property
    def size(self) -> int:
        """Pairs, or queries, that a score is made of."""
        return sum(part.size for part in self.sets)

    def row_scores(self, represent: Represent, similarities: Similarities) -> list[RowScores]:
        """Return the scores of the rows of all sets by the first similarity."""
        first = dict([next(iter(similarities.items()))])
        return [scores for part in self.sets for scores in part.row_scores(represent, first)]

    def values(self, scores: Sequence[RowScores]) -> dict[str, float]:
        """Return the value of each metric: the mean over sets.

        Raises:
            UndefinedCorrelationError: the similarities of a set are all equal, or some are not finite.
        """
        by_dataset: dict[str, dict[str, float]] = {}
        for of_set in scores:
            values = by_dataset.setdefault(of_set.dataset, {})
            values |= {metric: float(sampled[0]) for metric, sampled in of_set.sample().items()}
        parts = list(by_dataset.values())
        if self.metrics == MEAN:
            firsts = [next(part[metric] for metric in (*CORRELATION, *part) if metric in part) for part in parts]
            return {"mean": sum(firsts) / len(firsts)}
        return {metric: sum(part[metric] for part in parts) / len(parts) for metric in self.metrics}

    def scores(self, model: Model) -> dict[str, float]:
        """Return the values of a model by its default similarity. Raises as :meth:`values`."""
        represent = lookup(self.texts, model.represent(self.texts))
        return self.values(self.row_scores(represent, model.similarities))


MEAN = ("mean",)
"""The metric of sets with different metrics: the mean of the first one of each."""


def load_dev(corpus: Corpus, table: str) -> Dev:
    """Read the development set in a table, or the user's own in its place.

    Raises:
        InputError: no model can have a score on it.
    """
    name, metrics = dev_name(table), DEVS[table]
    user = [key.removeprefix(USER_DEVS) for key in corpus if key.startswith(USER_DEVS)] if table == STS_DEV else []
    searched = dict.fromkeys(key.split("/")[0] for key in user if "/" in key)
    sets: list[LabelledSet] = []
    if searched:
        pairs = [key for key in user if "/" not in key]
        name, metrics = corpus[table].title, MEAN if pairs else retrieval.METRICS
        sets += [load_pairs(corpus, f"{USER_DEVS}{key}", name=key, split="dev") for key in pairs]
        sets += [retrieval.user_set(corpus, key) for key in searched]
    elif table in corpus.own:
        name = corpus.title(table)
        sets += split_pairs(load_pairs(corpus, table, name=name))
    elif table == DEV:
        sets += [two_way(name, load_entailment(corpus, table), split="dev")]
    else:
        sets += [load_pairs(corpus, table, name=name, split="dev")]
    problems = [f"development set {problem}" for part in sets for problem in part.problems()]
    if problems:
        raise InputError(problems)
    return Dev(name, metrics, tuple(sets))


def split_pairs(pairs: Pairs) -> list[Pairs]:
    """Return each subset of pairs as a development set."""
    parts = pairs.subsets or {pairs.name: np.arange(pairs.size)}
    return [replace(pairs.take(rows), name=name, split="dev") for name, rows in parts.items()]


def dev_name(table: str) -> str:
    """Return the name in results of the development set in a table."""
    return table.rpartition("/")[2].replace("_", "-")
