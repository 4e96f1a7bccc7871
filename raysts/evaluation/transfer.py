"""Transfer: what frozen embeddings are worth as features of other tasks (SentEval; SED, Table 7).

Logistic regression on the vectors of sentences (accuracy; 10-fold cross-validation where a set has no split of its own)
and softmax regression on pairs to predict their relatedness (Pearson, Spearman), which is trained and so not the cosine
of the same sets' STS rows. SentEval's own settings differ in the optimiser (its probes are trained by Adam) and in the
grid of penalties, which it has for features that are not standardised.

Shapes: N rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from raysts.data.corpora import Corpus
from raysts.evaluation import probes
from raysts.evaluation.results import ResultRow
from raysts.evaluation.statistics import (
    UndefinedCorrelationError,
    sampled_correlations,
    share_right,
    value_columns,
    whole_and_resampled,
)
from raysts.evaluation.tasks import Represent, Similarities, Task
from raysts.evaluation.transfer_sets import TRANSFER_SETS, Part, TransferSet, label_problems, score_problems
from raysts.schema import TEST_TABLES


@dataclass(frozen=True, slots=True)
class TransferTask(Task):
    """All sets that are there. The similarities of a model play no part."""

    heavy: ClassVar[bool] = True
    sets: tuple[TransferSet, ...] = TRANSFER_SETS

    def expected(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(table for one in self.sets for table in one.tables))

    def present(self, corpus: Corpus, splits: Sequence[str]) -> list[TransferSet]:
        """The sets whose tables are all there; none where the test rows are not wanted."""
        return [one for one in self.sets if "test" in splits and not one.missing(corpus)]

    def left_out(self, corpus: Corpus) -> dict[str, list[str]]:
        return {one.name: missing for one in self.sets if (missing := one.missing(corpus))}

    def tables(self, corpus: Corpus, splits: Sequence[str]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(table for one in self.present(corpus, splits) for table in one.tables))

    def tested(self, corpus: Corpus, splits: Sequence[str]) -> tuple[str, ...]:
        return tuple(table for table in self.tables(corpus, splits) if table in TEST_TABLES)

    def problems(self, corpus: Corpus, splits: Sequence[str]) -> list[str]:
        """Labels that cannot be learnt, scores without a correlation."""
        found: list[str] = []
        for one in self.present(corpus, splits):
            parts = [one.load(corpus, table) for table in one.tables]
            if one.scores:
                found += score_problems(parts)
            else:
                fewest = 3 if one.train is None else 2 if one.dev is None else 1
                found += label_problems(parts[0], parts[1:], fewest)
        return found

    def sentences(self, corpus: Corpus, splits: Sequence[str]) -> list[str]:
        parts = (one.load(corpus, table) for one in self.present(corpus, splits) for table in one.tables)
        return list(dict.fromkeys(text for part in parts for texts in part.texts for text in texts))

    def score(
        self, corpus: Corpus, splits: Sequence[str], represent: Represent, similarities: Similarities, resamples: int
    ) -> list[ResultRow]:
        """accuracy, or pearson and spearman, of every set that is there.

        Raises:
            UndefinedCorrelationError: vectors that are not finite, or the same for every pair.
        """
        rows: list[ResultRow] = []
        for one in self.present(corpus, splits):
            parts = [one.load(corpus, table) for table in one.tables]
            features = [_finite(one, part.features(lambda texts: represent(texts)["vectors"])) for part in parts]
            known = {
                "dataset": one.name, "split": one.split, "rows": "all", "dataset_sha256": one.sha256(corpus),
                "aggregation": None, "subset": None, "similarity": None,
            }  # fmt: skip
            label = f"{one.name}/{one.split}"
            predicted_N, gold_N = (_related if one.scores else _classified)(one, parts, features)
            if one.scores:
                values = sampled_correlations(one.name, predicted_N, gold_N, label, resamples)
            else:
                counts_NR = whole_and_resampled(label, len(gold_N), resamples)
                values = {"accuracy": share_right(predicted_N == gold_N, counts_NR)}
            rows += [known | value_columns(metric, values_R, len(gold_N)) for metric, values_R in values.items()]
        return rows


def _finite(one: TransferSet, features_ND: np.ndarray) -> np.ndarray:
    bad = len(features_ND) - int(np.isfinite(features_ND).all(axis=1).sum())
    if bad:
        raise UndefinedCorrelationError(
            f"{one.name}: the vectors of {bad} of {len(features_ND)} rows are not finite: the model gives NaN or "
            f"infinite values (training diverged?); use an earlier checkpoint or a lower learning rate"
        )
    return features_ND


def _classified(
    one: TransferSet, parts: Sequence[Part], features: Sequence[np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """The predicted and the true codes of the classes of the measured rows."""
    classes = np.unique(parts[0].gold)
    codes = [np.searchsorted(classes, part.gold) for part in parts]
    if one.train is None:
        splits = probes.folds(codes[0], probes.fold_count(probes.FOLDS, codes[0]))
        predicted_N = np.empty_like(codes[0])
        for (_, held_out), probe in zip(splits, probes.classify(features[0], codes[0], splits), strict=True):
            predicted_N[held_out] = probe.predicted
    elif one.dev is None:
        rows = np.split(np.arange(sum(map(len, codes))), [len(codes[0])])
        (probe,) = probes.classify(np.concatenate(features), np.concatenate(codes), [(rows[0], rows[1])])
        predicted_N = probe.predicted
    else:
        train, dev, _ = zip(features, codes, strict=True)
        predicted_N = probes.classify_by_dev(train, dev, features[-1]).predicted
    return predicted_N, codes[-1]


def _related(one: TransferSet, parts: Sequence[Part], features: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """The predicted and the true scores of the measured rows."""
    train, dev, test = zip(features, (part.gold for part in parts), strict=True)
    try:
        return probes.regress_by_dev(train, dev, test[0]).predicted, test[1]
    except UndefinedCorrelationError as error:
        raise UndefinedCorrelationError(f"{one.name}, development rows: {error}") from error
