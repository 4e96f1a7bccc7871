"""Textual entailment by similarity alone, as GaussCSE measures it (section 3.1), and the score that selects it.

Two-way inference calls a pair entailment when sim(hypothesis || premise) reaches a threshold. The direction of a pair
that is entailment is right when sim(hypothesis || premise) > sim(premise || hypothesis), or when the premise has the
larger variance. Shapes: N pairs, R resamples.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from raysts.data.corpora import Corpus
from raysts.evaluation.direction import DirectionTask
from raysts.evaluation.inference import (
    InferenceTask,
    draws,
    known_columns,
    labelled,
    load_entailment,
    share_right,
    value_columns,
)
from raysts.evaluation.outcomes import Outcome
from raysts.evaluation.precision_recall import best_threshold, precision_recall_areas
from raysts.evaluation.statistics import UndefinedCorrelationError
from raysts.evaluation.sts import RESAMPLES, Pairs, pair_similarities
from raysts.evaluation.tasks import Model, Representation, Row
from raysts.models.head import Similarity

DEV = "nli/snli_dev"
"""Where thresholds come from, and what selects GaussCSE."""

GRID = np.arange(1001) / 1000
"""Thresholds that are tried."""

ON_THE_GRID = ("gauss", "cosine")
"""Similarities whose threshold is searched on the grid. For the others every observed value is tried: ``gauss-paper`` of
768 dimensions stays below 0.01, negated distances below 0."""


def two_way_scores(pairs: Pairs, representation: Representation, similarity: Similarity) -> np.ndarray:
    """sim(hypothesis || premise) of every pair [N] float64.

    Raises:
        UndefinedCorrelationError: not finite, or the same for every pair: the curve of a constant measures nothing.
    """
    scores_N = pair_similarities(pairs, representation, similarity)
    bad = len(scores_N) - int(np.isfinite(scores_N).sum())
    if bad or scores_N.min() == scores_N.max():
        what = f"{bad} of {len(scores_N)} are not finite" if bad else f"all {len(scores_N)} are {scores_N[0]:g}"
        raise UndefinedCorrelationError(
            f"{pairs.name}: similarities of hypothesis and premise: {what}: the model has collapsed or diverged"
        )
    return scores_N


@dataclass(frozen=True, slots=True)
class EntailmentDev:
    """What selects GaussCSE: AUC of two-way inference by the model's own similarity (GaussCSE, appendix A)."""

    metrics: ClassVar[tuple[str, ...]] = ("auc_pr", "average_precision")
    pairs: Pairs
    name: str = "snli-dev"

    @classmethod
    def load(cls, corpus: Corpus, table: str) -> Self:
        """Pairs and whether they are entailment."""
        return cls(load_entailment(corpus, table))

    def scores(self, model: Model) -> dict[str, float]:
        """The area, trapezoidal, and average precision; raises as :func:`two_way_scores`."""
        own = next(iter(model.similarities.values()))
        scores_N = two_way_scores(self.pairs, model.represent(self.pairs.sentences), own)
        areas = precision_recall_areas(scores_N, self.pairs.gold == 1, np.ones((len(scores_N), 1)))
        return {metric: float(area[0]) for metric, area in zip(self.metrics, areas, strict=True)}


@dataclass(frozen=True, slots=True)
class TwoWayTask(InferenceTask):
    """Entailment against the rest: accuracy at a threshold from SNLI dev, AUC and average precision.

    ``own`` is a table whose threshold is measured beside that of SNLI dev, as set ``<name>-own``. Where a table gives
    its own threshold (SNLI dev does) the accuracy is that of the rows that chose it.
    """

    own: str | None = None

    def thresholds(self, corpus: Corpus) -> dict[str, str]:
        """Sets, and the table that each has its threshold from."""
        own = {f"{self.name}-own": self.own} if self.own is not None and labelled(corpus, self.own) else {}
        return {self.name: DEV, **own}

    def needs(self, corpus: Corpus, table: str) -> tuple[str, ...]:
        """The table, and those that thresholds come from."""
        return tuple(dict.fromkeys((table, *self.thresholds(corpus).values())))

    def expected(self) -> tuple[str, ...]:
        """Every table of every split, and SNLI dev."""
        return tuple(dict.fromkeys((*self.splits.values(), DEV)))

    def load(self, corpus: Corpus, table: str) -> Pairs:
        """All pairs."""
        return load_entailment(corpus, table)

    def problems_of(self, pairs: Pairs) -> list[str]:
        """Both classes must be there."""
        entailed, size = int(pairs.gold.sum()), len(pairs.gold)
        if 0 < entailed < size:
            return []
        return [f"{pairs.name}: {entailed} of {size} pairs are entailment; '{self.name}' needs such and others"]

    def score(
        self,
        corpus: Corpus,
        splits: Sequence[str],
        represent: Callable[[Sequence[str]], Representation],
        similarities: Mapping[str, Similarity],
        resamples: int = RESAMPLES,
    ) -> list[Row]:
        """accuracy, auc_pr and average_precision of every similarity, of every wanted split that is there."""
        rows: list[Row] = []
        thresholds = self.thresholds(corpus)
        for split, table in self.present(corpus, splits).items():
            pairs = {needed: self.load(corpus, needed) for needed in self.needs(corpus, table)}
            found = {needed: represent(its.sentences) for needed, its in pairs.items()}
            positive_N, counts_NR = pairs[table].gold == 1, draws(f"{self.name}/{split}", pairs[table], resamples)
            for called, similarity in similarities.items():
                scores = {needed: two_way_scores(its, found[needed], similarity) for needed, its in pairs.items()}
                known = known_columns(self.name, split, pairs[table], called)
                areas = zip(
                    ("auc_pr", "average_precision"),
                    precision_recall_areas(scores[table], positive_N, counts_NR),
                    strict=True,
                )
                rows += [known | value_columns(metric, values_R, len(positive_N)) for metric, values_R in areas]
                for dataset, source in thresholds.items():
                    right_N = (scores[table] >= _threshold(called, scores[source], pairs[source])) == positive_N
                    known |= {"dataset": dataset}
                    rows.append(known | value_columns("accuracy", share_right(right_N, counts_NR), len(positive_N)))
        return rows

    def outcomes(
        self,
        corpus: Corpus,
        splits: Sequence[str],
        represent: Callable[[Sequence[str]], Representation],
        similarities: Mapping[str, Similarity],
    ) -> list[Outcome]:
        """Which pairs are called rightly at the threshold of SNLI dev."""
        found: list[Outcome] = []
        for split, table in self.present(corpus, splits).items():
            pairs, dev = self.load(corpus, table), self.load(corpus, DEV)
            for called, similarity in similarities.items():
                threshold = _threshold(called, two_way_scores(dev, represent(dev.sentences), similarity), dev)
                right_N = (two_way_scores(pairs, represent(pairs.sentences), similarity) >= threshold) == (
                    pairs.gold == 1
                )
                found.append(Outcome(self.name, split, pairs.sha256, called, right_N.astype(np.float64)))
        return found


def _threshold(called: str, scores_N: np.ndarray, pairs: Pairs) -> float:
    """The threshold of the similarity ``called`` that is best on ``pairs``."""
    tried = GRID if called in ON_THE_GRID else np.append(np.unique(scores_N), np.inf)
    return best_threshold(scores_N, pairs.gold == 1, tried)


ENTAILMENT_TASKS: dict[str, InferenceTask] = {
    task.name: task
    for task in (
        TwoWayTask("snli-2way", {"dev": DEV, "test": "nli/snli_test"}),
        TwoWayTask("sick-2way", {"dev": "sick/sick_trial", "test": "sick/sick_test"}, own="sick/sick_trial"),
        DirectionTask("snli-direction", {"dev": DEV, "test": "nli/snli_test"}),
        DirectionTask("sick-direction", {"dev": "sick/sick_trial", "test": "sick/sick_test"}),
    )
}
"""The tasks of GaussCSE by name."""
