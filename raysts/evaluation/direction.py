"""Which of two sentences entails the other (GaussCSE, section 3.1). Shapes: N pairs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from raysts.data.corpora import Corpus
from raysts.evaluation.inference import (
    ONE_WAY,
    InferenceTask,
    draws,
    known_columns,
    load_entailment,
    share_right,
    value_columns,
)
from raysts.evaluation.outcomes import Outcome
from raysts.evaluation.sts import RESAMPLES, Pairs, pair_similarities
from raysts.evaluation.tasks import Representation, Row
from raysts.models.head import Similarity

RATIOS = np.arange(-1.75, 2.0, 0.5)
"""Inner edges of the classes of ln(words of the premise / words of the hypothesis) (GaussCSE, figure 3)."""


@dataclass(frozen=True, slots=True)
class DirectionTask(InferenceTask):
    """Which of two sentences entails the other, on pairs of entailment: accuracy by similarity and by variance.

    Beside it the accuracy of calling the longer sentence (in words) the premise, role ``baseline``. Ties are wrong.
    """

    def needs(self, corpus: Corpus, table: str) -> tuple[str, ...]:
        """The table."""
        return (table,)

    def load(self, corpus: Corpus, table: str) -> Pairs:
        """The pairs of entailment."""
        return load_entailment(corpus, table, entailed=True)

    def problems_of(self, pairs: Pairs) -> list[str]:
        """There must be pairs."""
        return [] if len(pairs.gold) else [f"{pairs.name}: no pair is entailment; '{self.name}' needs some"]

    def score(
        self,
        corpus: Corpus,
        splits: Sequence[str],
        represent: Callable[[Sequence[str]], Representation],
        similarities: Mapping[str, Similarity],
        resamples: int = RESAMPLES,
    ) -> list[Row]:
        """Accuracy of all pairs, of those that are one-way, and by the ratio of lengths, whose ``n`` are its histogram.

        A similarity that does not depend on the order says nothing about the direction and has no row.
        """
        rows: list[Row] = []
        for split, table in self.present(corpus, splits).items():
            pairs = self.load(corpus, table)
            words = np.array([len(sentence.split()) for sentence in pairs.sentences])
            found = right_by_model(pairs, represent(pairs.sentences), similarities)
            found["length"] = words[pairs.right] > words[pairs.left]
            groups = _groups(pairs, words)
            counts_NR = draws(f"{self.name}/{split}", pairs, resamples)
            for called, right_N in found.items():
                known = known_columns(self.name, split, pairs, called)
                known |= {"role": "baseline"} if called == "length" else {}
                rows += [
                    known
                    | {"subset": subset}
                    | value_columns("accuracy", share_right(right_N[group], counts_NR[group]), len(group))
                    for subset, group in groups.items()
                ]
        return rows

    def outcomes(
        self,
        corpus: Corpus,
        splits: Sequence[str],
        represent: Callable[[Sequence[str]], Representation],
        similarities: Mapping[str, Similarity],
    ) -> list[Outcome]:
        """Which pairs are right, by similarities that depend on the order and by variance."""
        return [
            Outcome(self.name, split, pairs.sha256, called, right_N.astype(np.float64))
            for split, table in self.present(corpus, splits).items()
            for pairs in [self.load(corpus, table)]
            for called, right_N in right_by_model(pairs, represent(pairs.sentences), similarities).items()
        ]


def right_by_model(
    pairs: Pairs, representation: Representation, similarities: Mapping[str, Similarity]
) -> dict[str, np.ndarray]:
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
