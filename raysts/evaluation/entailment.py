"""Textual entailment by similarity alone, as GaussCSE measures it (section 3.1).

Two-way inference calls a pair entailment when sim(hypothesis || premise) reaches a threshold. The direction of a pair
that is entailment is right when sim(hypothesis || premise) > sim(premise || hypothesis), or when the premise has the
larger variance. Shapes: N pairs.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raysts.data.corpora import Corpus
from raysts.data.derive import label_codes
from raysts.evaluation.scores import AREAS, RowScores
from raysts.evaluation.statistics import UndefinedCorrelationError, best_threshold
from raysts.evaluation.sts import Pairs, pair_similarities, pairs_from_table
from raysts.evaluation.tasks import LabelledSet, Represent, Representation, Similarities, Source, Task
from raysts.ops.similarity import Similarity
from raysts.schema import NLI_LABELS

DEV = "nli/snli_dev"
"""The table that gives thresholds, and selects GaussCSE."""

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
    """Read the pairs of an NLI or SICK table (premise: sentence A), or only those of entailment.

    ``left`` is the hypothesis, ``right`` the premise, ``gold`` 1 for entailment and else 0; the subset is ``one-way``
    where the table says that the hypothesis does not entail the premise in turn.
    """
    labelled = corpus.read(table)
    sides = ("sentence1", "sentence2") if "sentence1" in labelled.column_names else ("premise", "hypothesis")
    is_entailed = label_codes(labelled.column("label"), NLI_LABELS) == NLI_LABELS.index("entailment")
    columns = {"sentence1": labelled.column(sides[1]), "sentence2": labelled.column(sides[0])}
    columns["score"] = pa.array(is_entailed.astype(np.float64))
    if "entailment_ba" in labelled.column_names:
        back = labelled.column("entailment_ba")  # "B_entails_A" in the original release; or a class, by name or code
        named = pc.match_substring(back.cast(pa.string()), "entail", ignore_case=True)
        coded = pa.array(label_codes(back, NLI_LABELS) == NLI_LABELS.index("entailment"))
        columns["subset"] = pc.if_else(pc.or_(pc.fill_null(named, False), coded), "two-way", ONE_WAY)
    rows = is_entailed if entailed else np.ones(len(labelled), bool)
    pairs = pairs_from_table(pa.table(columns).take(np.flatnonzero(rows)), table, corpus.fingerprint(table))
    return replace(pairs, rows={table: rows})


def two_way_scores(pairs: Pairs, representation: Representation, similarity: Similarity) -> np.ndarray:
    """Return sim(hypothesis || premise) of every pair [N], and refuse a constant."""
    scores_N = pair_similarities(pairs, representation, similarity)
    bad = len(scores_N) - int(np.isfinite(scores_N).sum())
    if bad or scores_N.min() == scores_N.max():
        fault = f"{bad} of {len(scores_N)} are not finite" if bad else f"all {len(scores_N)} are {scores_N[0]:g}"
        raise UndefinedCorrelationError(
            f"{pairs.name}: similarities of hypothesis and premise: {fault}: the model has collapsed or diverged; "
            f"train it again with a lower learning rate, or use an earlier checkpoint"
        )
    return scores_N


@dataclass(frozen=True, kw_only=True, eq=False)
class TwoWay(LabelledSet):
    """Entailment against the rest: areas under the curve, and accuracy at the thresholds of other pairs.

    Attributes:
        pairs: hypotheses and premises.
        thresholds: by name in results the pairs that give the threshold of an accuracy; the first is compared.
    """

    pairs: Pairs
    thresholds: Mapping[str, Pairs]

    @property
    def datasets(self) -> tuple[str, ...]:
        return (self.name, *self.thresholds)

    def problems(self) -> list[str]:
        labels = {pairs.name: pairs.gold for pairs in (self.pairs, *self.thresholds.values())}
        return [
            f"{table}: {int(gold.sum())} of {len(gold)} pairs are entailment; '{self.name}' needs such and others"
            for table, gold in labels.items()
            if not 0 < gold.sum() < len(gold)
        ]

    def row_scores(self, represent: Represent, similarities: Similarities) -> list[RowScores]:
        scores: list[RowScores] = []
        representations = {p.name: represent(p.texts) for p in (self.pairs, *self.thresholds.values())}
        for called, similarity in similarities.items():
            scores_N = two_way_scores(self.pairs, representations[self.pairs.name], similarity)
            scores.append(self.make_scores(scores_N, *AREAS, similarity=called, gold=self.gold, compared=False))
            for dataset, pairs in self.thresholds.items():
                on_others = two_way_scores(pairs, representations[pairs.name], similarity)
                candidates = GRID if called in ON_THE_GRID else np.append(np.unique(on_others), np.inf)
                right_N = (scores_N >= best_threshold(on_others, pairs.gold == 1, candidates)) == (self.gold == 1)
                columns = {"similarity": called, "dataset": dataset, "compared": dataset == self.name}
                scores.append(self.make_scores(right_N, "accuracy", **columns))
        return scores


def two_way(name: str, pairs: Pairs, thresholds: Mapping[str, Pairs] | None = None, split: str = "test") -> TwoWay:
    """Return labelled pairs as a set of two-way inference."""
    chosen = thresholds or {}
    texts = list(dict.fromkeys(text for part in (pairs, *chosen.values()) for text in part.texts))
    return TwoWay(
        name=name, split=split, texts=texts, pairs=pairs, thresholds=chosen, sha256=pairs.sha256, size=pairs.size,
        rows=pairs.rows, gold=pairs.gold,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True, eq=False)
class Direction(LabelledSet):
    """Pairs of entailment: which of the two sentences entails the other, by similarity and by variance.

    Beside it the accuracy of calling the longer sentence (in words) the premise, role ``baseline``. Ties are wrong. Results
    are of all pairs, of those that are one-way, and by the ratio of lengths (their ``n`` are its histogram).
    """

    pairs: Pairs

    def problems(self) -> list[str]:
        return [] if self.size else [f"{self.pairs.name}: no pair is entailment; '{self.name}' needs some"]

    def row_scores(self, represent: Represent, similarities: Similarities) -> list[RowScores]:
        words = np.array([len(str(sentence).split()) for sentence in self.texts])
        groups = _groups(self.pairs, words)
        by_model = right_by_model(self.pairs, represent(self.texts), similarities)
        longer_N = words[self.pairs.right] > words[self.pairs.left]
        scores = [self.make_scores(r_N, "accuracy", similarity=name, subsets=groups) for name, r_N in by_model.items()]
        columns = {"similarity": "length", "role": "baseline", "compared": False, "subsets": groups}
        return [*scores, self.make_scores(longer_N, "accuracy", **columns)]


def right_by_model(pairs: Pairs, representation: Representation, similarities: Similarities) -> dict[str, np.ndarray]:
    """Return the right pairs [N] bool, by each similarity that has an order, and by ``variance``."""
    right: dict[str, np.ndarray] = {}
    back = replace(pairs, left=pairs.right, right=pairs.left)
    for called, similarity in similarities.items():
        forward_N, backward_N = (pair_similarities(p, representation, similarity) for p in (pairs, back))
        if not np.allclose(forward_N, backward_N, rtol=1e-9, atol=1e-12):
            right[called] = forward_N > backward_N
    if "log_var" in representation and representation["log_var"].dtype != object:  # not those of a text's tokens
        # sum of log sigma; half of log_var, which changes no comparison
        spread = representation["log_var"].astype(np.float64).sum(axis=1)
        right["variance"] = spread[pairs.right] > spread[pairs.left]
    return right


def _groups(pairs: Pairs, words: np.ndarray) -> dict[str, np.ndarray]:
    """Return the one-way rows, and the rows of each class of length ratios that has any."""
    groups = {ONE_WAY: pairs.subsets[ONE_WAY]} if ONE_WAY in pairs.subsets else {}
    classes = np.digitize(np.log(words[pairs.right] / words[pairs.left]), RATIOS)
    edges = [-np.inf, *RATIOS, np.inf]
    for number in np.unique(classes):
        name = f"log length ratio [{edges[number]:.2f}, {edges[number + 1]:.2f})"
        groups[name] = np.flatnonzero(classes == number)
    return groups


def _read_two_way(corpus: Corpus, source: Source) -> TwoWay:
    table, *tables = source.present(corpus)  # then SNLI dev, which gives thresholds, and perhaps a table of the set
    names = (source.name, f"{source.name}-own")
    thresholds = {name: load_entailment(corpus, key) for name, key in zip(names, tables, strict=False)}
    return two_way(source.name, load_entailment(corpus, table), thresholds)


def _read_direction(corpus: Corpus, source: Source) -> Direction:
    pairs = load_entailment(corpus, source.tables[0], entailed=True)
    return Direction(
        name=source.name, pairs=pairs, sha256=pairs.sha256, size=pairs.size, rows=pairs.rows, texts=pairs.texts
    )


_SOURCES = (
    Source("snli-2way", ("nli/snli_test", DEV), _read_two_way, labels=True),
    Source("sick-2way", ("sick/sick_test", DEV), _read_two_way, ("sick/sick_trial",), labels=True),
    Source("snli-direction", ("nli/snli_test",), _read_direction, labels=True),
    Source("sick-direction", ("sick/sick_test",), _read_direction, labels=True),
    Source("xnli-2way", ("nli/xnli_en_test", DEV), _read_two_way, labels=True),
    Source("xnli-direction", ("nli/xnli_en_test",), _read_direction, labels=True),
)
ENTAILMENT_TASKS: dict[str, Task] = {
    source.name: Task(source.name, (source,), unasked=not source.name.startswith("xnli")) for source in _SOURCES
}
"""The tasks of GaussCSE, and the same on XNLI, of which the paper has nothing."""
