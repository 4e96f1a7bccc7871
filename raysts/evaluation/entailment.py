"""Textual entailment by similarity alone, as GaussCSE measures it (section 3.1), and the score that selects it.

Two-way inference calls a pair entailment when sim(hypothesis || premise) reaches a threshold. The direction of a pair
that is entailment is right when sim(hypothesis || premise) > sim(premise || hypothesis), or when the premise has the
larger variance. Shapes: N pairs, R resamples.
"""

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raysts.data.corpora import Corpus
from raysts.data.derive import label_codes
from raysts.errors import InputError
from raysts.evaluation.results import ResultRow
from raysts.evaluation.statistics import (
    UndefinedCorrelationError,
    best_threshold,
    precision_recall_areas,
    share_right,
    value_columns,
    whole_and_resampled,
)
from raysts.evaluation.sts import Pairs, pair_similarities, pairs_from_table, read_once
from raysts.evaluation.tasks import ComparableTask, Model, Represent, Representation, RowScores, Similarities
from raysts.ops.similarity import Similarity
from raysts.schema import NLI_LABELS

DEV = "nli/snli_dev"
"""Where thresholds come from, and what selects GaussCSE."""

GRID = np.arange(1001) / 1000
"""Thresholds that are tried."""

ON_THE_GRID = ("gauss", "cosine")
"""Similarities whose threshold is searched on the grid. For the others every observed value is tried: ``gauss-paper`` of
768 dimensions stays below 0.01, negated distances below 0."""

RATIOS = np.arange(-1.75, 2.0, 0.5)
"""Inner edges of the classes of ln(words of the premise / words of the hypothesis) (GaussCSE, figure 3)."""

ONE_WAY = "one-way"
"""Subset of the pairs that are entailment in one direction only."""


def load_entailment(corpus: Corpus, table: str, entailed: bool = False) -> Pairs:
    """The pairs of an NLI or SICK table (sentence A of SICK is the premise), or with ``entailed`` those of entailment.

    ``left`` is the hypothesis, ``right`` the premise, ``gold`` 1 for entailment and else 0; ``subset`` is ``one-way``
    where the table says that the hypothesis does not entail the premise in turn.
    """
    found = corpus.read(table)
    premise, hypothesis = ("sentence1", "sentence2") if "sentence1" in found.column_names else ("premise", "hypothesis")
    gold = label_codes(found.column("label"), NLI_LABELS) == NLI_LABELS.index("entailment")
    columns = {"sentence1": found.column(hypothesis), "sentence2": found.column(premise), "score": pa.array(gold * 1.0)}
    if "entailment_ba" in found.column_names:
        back = found.column("entailment_ba")  # "B_entails_A" in the original release; or a class, by name or code
        named = pc.match_substring(back.cast(pa.string()), "entail", ignore_case=True)
        coded = pa.array(label_codes(back, NLI_LABELS) == NLI_LABELS.index("entailment"))
        columns["subset"] = pc.if_else(pc.or_(pc.fill_null(named, False), coded), "two-way", ONE_WAY)
    rows = np.flatnonzero(gold) if entailed else np.arange(len(gold))
    return pairs_from_table(pa.table(columns).take(rows), table, corpus.fingerprint(table))


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
            f"{pairs.name}: similarities of hypothesis and premise: {what}: the model has collapsed or diverged; "
            f"train it again with a lower learning rate, or use an earlier checkpoint"
        )
    return scores_N


@dataclass(frozen=True, slots=True)
class EntailmentDev:
    """What selects GaussCSE: AUC of two-way inference by the model's own similarity (GaussCSE, appendix A)."""

    metrics: ClassVar[tuple[str, ...]] = ("auc_pr", "average_precision")
    pairs: Pairs
    name: str = "snli-dev"

    @property
    def sentences(self) -> list[str]:
        return self.pairs.sentences

    @property
    def size(self) -> int:
        return len(self.pairs.gold)

    @classmethod
    def load(cls, corpus: Corpus, table: str) -> Self:
        """Pairs and whether they are entailment.

        Raises:
            InputError: all are, or none is.
        """
        found = cls(load_entailment(corpus, table))
        if len(set(found.pairs.gold.tolist())) < 2:
            raise InputError(
                f"development set {found.name}: needs rows that are entailment and rows that are not; add some"
            )
        return found

    def scores(self, model: Model) -> dict[str, float]:
        """The area, trapezoidal, and average precision; raises as :func:`two_way_scores`."""
        own = next(iter(model.similarities.values()))
        scores_N = two_way_scores(self.pairs, model.represent(self.pairs.sentences), own)
        areas = precision_recall_areas(scores_N, self.pairs.gold == 1, np.ones((len(scores_N), 1)))
        return {metric: float(area[0]) for metric, area in zip(self.metrics, areas, strict=True)}


@dataclass(frozen=True, slots=True)
class InferenceTask(ComparableTask):
    """What both tasks of inference share: the pairs of a labelled table."""

    entailed: ClassVar[bool] = False
    """Whether the pairs of entailment alone are used."""
    name: str
    table: str
    unasked: bool = True

    def by_default(self, corpus: Corpus) -> bool:
        return self.unasked

    def needs(self, corpus: Corpus) -> tuple[str, ...]:
        """The tables that it reads, if they are there: its own first."""
        return (self.table,)

    def load(self, corpus: Corpus, table: str) -> Pairs:
        key = "entailed" if self.entailed else "inference", *corpus.contents([table])
        return read_once(key, lambda: load_entailment(corpus, table, self.entailed))

    @abstractmethod
    def problems_of(self, pairs: Pairs) -> list[str]:
        """What the pairs of one table lack."""

    def expected(self) -> tuple[str, ...]:
        return (self.table,)

    def tables(self, corpus: Corpus) -> tuple[str, ...]:
        needed = self.needs(corpus)
        return needed if all(map(corpus.has_labels, needed)) else ()

    def tested(self, corpus: Corpus) -> tuple[str, ...]:
        """The table whose rows are scored, without those that thresholds come from."""
        return self.tables(corpus)[:1]

    def problems(self, corpus: Corpus) -> list[str]:
        return [problem for table in self.tables(corpus) for problem in self.problems_of(self.load(corpus, table))]

    def sentences(self, corpus: Corpus) -> list[str]:
        return list(dict.fromkeys(s for table in self.tables(corpus) for s in self.load(corpus, table).sentences))


def known_columns(name: str, pairs: Pairs, similarity: str) -> ResultRow:
    """What the rows of one similarity have in common."""
    return {
        "dataset": name, "split": "test", "rows": "all", "dataset_sha256": pairs.sha256, "similarity": similarity,
        "subset": None, "aggregation": None,
    }  # fmt: skip


@dataclass(frozen=True, slots=True)
class TwoWayTask(InferenceTask):
    """Entailment against the rest: accuracy at a threshold from SNLI dev, AUC and average precision.

    ``own`` is a table whose threshold is measured beside that of SNLI dev, as set ``<name>-own``.
    """

    own: str | None = None

    def thresholds(self, corpus: Corpus) -> dict[str, str]:
        """Sets, and the table that each has its threshold from."""
        own = {f"{self.name}-own": self.own} if self.own is not None and corpus.has_labels(self.own) else {}
        return {self.name: DEV, **own}

    def needs(self, corpus: Corpus) -> tuple[str, ...]:
        return (self.table, *self.thresholds(corpus).values())

    def expected(self) -> tuple[str, ...]:
        return self.table, DEV

    def problems_of(self, pairs: Pairs) -> list[str]:
        entailed, size = int(pairs.gold.sum()), len(pairs.gold)
        if 0 < entailed < size:
            return []
        return [f"{pairs.name}: {entailed} of {size} pairs are entailment; '{self.name}' needs such and others"]

    def score(
        self, corpus: Corpus, represent: Represent, similarities: Similarities, resamples: int
    ) -> list[ResultRow]:
        rows: list[ResultRow] = []
        pairs = {needed: self.load(corpus, needed) for needed in self.needs(corpus)}
        found = {needed: represent(its.sentences) for needed, its in pairs.items()}
        positive_N = pairs[self.table].gold == 1
        counts_NR = whole_and_resampled(f"{self.name}/test", len(positive_N), resamples)
        for called, similarity in similarities.items():
            scores = {needed: two_way_scores(its, found[needed], similarity) for needed, its in pairs.items()}
            known = known_columns(self.name, pairs[self.table], called)
            areas = precision_recall_areas(scores[self.table], positive_N, counts_NR)
            rows += [
                known | value_columns(metric, values_R, len(positive_N))
                for metric, values_R in zip(("auc_pr", "average_precision"), areas, strict=True)
            ]
            for dataset, source in self.thresholds(corpus).items():
                right_N = (scores[self.table] >= _threshold(called, scores[source], pairs[source])) == positive_N
                known |= {"dataset": dataset}
                rows.append(known | value_columns("accuracy", share_right(right_N, counts_NR), len(positive_N)))
        return rows

    def row_scores(self, corpus: Corpus, represent: Represent, similarities: Similarities) -> list[RowScores]:
        """Which pairs are called rightly at the threshold of SNLI dev."""
        found: list[RowScores] = []
        pairs, dev = self.load(corpus, self.table), self.load(corpus, DEV)
        for called, similarity in similarities.items():
            threshold = _threshold(called, two_way_scores(dev, represent(dev.sentences), similarity), dev)
            scores_N = two_way_scores(pairs, represent(pairs.sentences), similarity)
            right_N = (scores_N >= threshold) == (pairs.gold == 1)
            found.append(RowScores(self.name, "test", pairs.sha256, called, right_N.astype(np.float64)))
        return found


def _threshold(called: str, scores_N: np.ndarray, pairs: Pairs) -> float:
    """The threshold of the similarity ``called`` that is best on ``pairs``."""
    tried = GRID if called in ON_THE_GRID else np.append(np.unique(scores_N), np.inf)
    return best_threshold(scores_N, pairs.gold == 1, tried)


@dataclass(frozen=True, slots=True)
class DirectionTask(InferenceTask):
    """Which of two sentences entails the other, on pairs of entailment: accuracy by similarity and by variance.

    Beside it the accuracy of calling the longer sentence (in words) the premise, role ``baseline``. Ties are wrong.
    """

    entailed: ClassVar[bool] = True

    def measured(self, corpus: Corpus, table: str) -> np.ndarray:
        """Those of entailment."""
        return label_codes(corpus.read(table, ["label"]).column(0), NLI_LABELS) == NLI_LABELS.index("entailment")

    def problems_of(self, pairs: Pairs) -> list[str]:
        return [] if len(pairs.gold) else [f"{pairs.name}: no pair is entailment; '{self.name}' needs some"]

    def score(
        self, corpus: Corpus, represent: Represent, similarities: Similarities, resamples: int
    ) -> list[ResultRow]:
        """Accuracy of all pairs, of those that are one-way, and by the ratio of lengths, whose ``n`` are its histogram.

        A similarity that does not depend on the order says nothing about the direction and has no row.
        """
        rows: list[ResultRow] = []
        pairs = self.load(corpus, self.table)
        words = np.array([len(sentence.split()) for sentence in pairs.sentences])
        found = right_by_model(pairs, represent(pairs.sentences), similarities)
        found["length"] = words[pairs.right] > words[pairs.left]
        groups = _groups(pairs, words)
        counts_NR = whole_and_resampled(f"{self.name}/test", len(pairs.gold), resamples)
        for called, right_N in found.items():
            known = known_columns(self.name, pairs, called)
            known |= {"role": "baseline"} if called == "length" else {}
            rows += [
                known
                | {"subset": subset}
                | value_columns("accuracy", share_right(right_N[group], counts_NR[group]), len(group))
                for subset, group in groups.items()
            ]
        return rows

    def row_scores(self, corpus: Corpus, represent: Represent, similarities: Similarities) -> list[RowScores]:
        """Which pairs are right, by similarities that depend on the order and by variance."""
        pairs = self.load(corpus, self.table)
        return [
            RowScores(self.name, "test", pairs.sha256, called, right_N.astype(np.float64))
            for called, right_N in right_by_model(pairs, represent(pairs.sentences), similarities).items()
        ]


def right_by_model(pairs: Pairs, representation: Representation, similarities: Similarities) -> dict[str, np.ndarray]:
    """Per similarity that depends on the order, and for ``variance`` where there is ``log_var``: bool [N], who is right."""
    found: dict[str, np.ndarray] = {}
    back = replace(pairs, left=pairs.right, right=pairs.left)
    for called, similarity in similarities.items():
        forward_N, backward_N = (pair_similarities(p, representation, similarity) for p in (pairs, back))
        if not np.allclose(forward_N, backward_N, rtol=1e-9, atol=1e-12):
            found[called] = forward_N > backward_N
    if "log_var" in representation:
        # sum of log sigma; half of log_var, which changes no comparison
        spread = representation["log_var"].astype(np.float64).sum(axis=1)
        found["variance"] = spread[pairs.right] > spread[pairs.left]
    return found


def _groups(pairs: Pairs, words: np.ndarray) -> dict[str | None, np.ndarray]:
    """All rows, the one-way rows, and the rows of each class of length ratios that has any."""
    groups: dict[str | None, np.ndarray] = {None: np.arange(len(pairs.gold))}
    if ONE_WAY in pairs.subsets:
        groups[ONE_WAY] = np.flatnonzero(pairs.subset == pairs.subsets.index(ONE_WAY))
    classes = np.digitize(np.log(words[pairs.right] / words[pairs.left]), RATIOS)
    edges = [-np.inf, *RATIOS, np.inf]
    for number in np.unique(classes):
        name = f"log length ratio [{edges[number]:.2f}, {edges[number + 1]:.2f})"
        groups[name] = np.flatnonzero(classes == number)
    return groups


ENTAILMENT_TASKS: dict[str, InferenceTask] = {
    task.name: task
    for task in (
        TwoWayTask("snli-2way", "nli/snli_test"),
        TwoWayTask("sick-2way", "sick/sick_test", own="sick/sick_trial"),
        DirectionTask("snli-direction", "nli/snli_test"),
        DirectionTask("sick-direction", "sick/sick_test"),
        TwoWayTask("xnli-2way", "nli/xnli_en_test", unasked=False),
        DirectionTask("xnli-direction", "nli/xnli_en_test", unasked=False),
    )
}
"""The tasks of GaussCSE by name, and the same on XNLI, of which the paper has nothing."""
