"""Transfer: what frozen embeddings are worth as features of other tasks (SentEval; SED, Table 7).

Logistic regression on the vectors of sentences (accuracy; 10-fold cross-validation where a set has no split of its own)
and softmax regression on pairs to predict their relatedness (Pearson, Spearman), which is trained and so not the cosine
of the same sets' STS rows. SentEval's own settings differ in the optimiser (its probes are trained by Adam) and in the
grid of penalties, which it has for features that are not standardised.

Shapes: N rows.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from raysts.data.corpora import Corpus
from raysts.evaluation import probes
from raysts.evaluation.inference import share_right, value_columns
from raysts.evaluation.statistics import (
    CORRELATIONS,
    METRICS,
    UndefinedCorrelationError,
    bootstrap_interval,
    resample_counts,
)
from raysts.evaluation.sts import BOOTSTRAP_SEED, RESAMPLES
from raysts.evaluation.tasks import Representation, Row
from raysts.evaluation.transfer_sets import TRANSFER_SETS, Part, TransferSet, label_problems, score_problems
from raysts.models.head import Similarity


@dataclass(frozen=True, slots=True)
class TransferTask:
    """All sets that are there. The similarities of a model play no part."""

    sets: tuple[TransferSet, ...] = TRANSFER_SETS
    heavy: bool = True

    def expected(self) -> tuple[str, ...]:
        """Every table of every set."""
        return tuple(dict.fromkeys(table for each in self.sets for table in each.tables))

    def present(self, corpus: Corpus, splits: Sequence[str]) -> list[TransferSet]:
        """The sets whose tables are all there; none where the test rows are not wanted."""
        return [each for each in self.sets if "test" in splits and not each.missing(corpus)]

    def left_out(self, corpus: Corpus) -> dict[str, list[str]]:
        """The sets that are not there, and what each lacks."""
        return {each.name: missing for each in self.sets if (missing := each.missing(corpus))}

    def tables(self, corpus: Corpus, splits: Sequence[str]) -> tuple[str, ...]:
        """The tables of the sets that are there."""
        return tuple(dict.fromkeys(table for each in self.present(corpus, splits) for table in each.tables))

    def problems(self, corpus: Corpus, splits: Sequence[str]) -> list[str]:
        """Labels that cannot be learnt, scores without a correlation."""
        found: list[str] = []
        for each in self.present(corpus, splits):
            parts = [each.load(corpus, table) for table in each.tables]
            if each.scores:
                found += score_problems(parts)
            else:
                fewest = 3 if each.train is None else 2 if each.dev is None else 1
                found += label_problems(parts[0], parts[1:], fewest)
        return found

    def sentences(self, corpus: Corpus, splits: Sequence[str]) -> list[str]:
        """The distinct texts of the sets that are there."""
        parts = (each.load(corpus, table) for each in self.present(corpus, splits) for table in each.tables)
        return list(dict.fromkeys(text for part in parts for texts in part.texts for text in texts))

    def score(
        self,
        corpus: Corpus,
        splits: Sequence[str],
        represent: Callable[[Sequence[str]], Representation],
        similarities: Mapping[str, Similarity],
        resamples: int = RESAMPLES,
    ) -> list[Row]:
        """accuracy, or pearson and spearman, of every set that is there.

        Raises:
            UndefinedCorrelationError: vectors that are not finite, or the same for every pair.
        """
        rows: list[Row] = []
        for each in self.present(corpus, splits):
            parts = [each.load(corpus, table) for table in each.tables]
            features = [_finite(each, part.features(lambda texts: represent(texts)["vectors"])) for part in parts]
            known = {
                "dataset": each.name, "split": each.split, "rows": "all", "dataset_sha256": each.sha256(corpus),
                "aggregation": None, "subset": None, "similarity": None,
            }  # fmt: skip
            seed = (BOOTSTRAP_SEED, zlib.crc32(f"{each.name}/{each.split}".encode()))
            predicted_N, gold_N = (_related if each.scores else _classified)(each, parts, features)
            if each.scores:
                found = _correlations(each, predicted_N, gold_N, seed, resamples)
            else:
                found = [_accuracy(predicted_N == gold_N, seed, resamples)]
            rows += [known | row for row in found]
        return rows


def _finite(each: TransferSet, features_ND: np.ndarray) -> np.ndarray:
    bad = len(features_ND) - int(np.isfinite(features_ND).all(axis=1).sum())
    if bad:
        raise UndefinedCorrelationError(
            f"{each.name}: the vectors of {bad} of {len(features_ND)} rows are not finite: the model gives NaN or "
            f"infinite values (training diverged?); use an earlier checkpoint or a lower learning rate"
        )
    return features_ND


def _classified(
    each: TransferSet, parts: Sequence[Part], features: Sequence[np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """The predicted and the true codes of the classes of the measured rows."""
    classes = np.unique(parts[0].gold)
    codes = [np.searchsorted(classes, part.gold) for part in parts]
    if each.train is None:
        splits = probes.folds(codes[0], probes.fold_count(probes.FOLDS, codes[0]))
        predicted_N = np.empty_like(codes[0])
        for (_, held_out), probe in zip(splits, probes.classify(features[0], codes[0], splits), strict=True):
            predicted_N[held_out] = probe.predicted
    elif each.dev is None:
        rows = np.split(np.arange(sum(map(len, codes))), [len(codes[0])])
        (probe,) = probes.classify(np.concatenate(features), np.concatenate(codes), [(rows[0], rows[1])])
        predicted_N = probe.predicted
    else:
        train, dev, _ = zip(features, codes, strict=True)
        predicted_N = probes.classify_by_dev(train, dev, features[-1]).predicted
    return predicted_N, codes[-1]


def _related(each: TransferSet, parts: Sequence[Part], features: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """The predicted and the true scores of the measured rows."""
    train, dev, test = zip(features, (part.gold for part in parts), strict=True)
    try:
        return probes.regress_by_dev(train, dev, test[0]).predicted, test[1]
    except UndefinedCorrelationError as error:
        raise UndefinedCorrelationError(f"{each.name}, development rows: {error}") from error


def _accuracy(right_N: np.ndarray, seed: tuple[int, ...], resamples: int) -> Row:
    drawn = share_right(right_N, resample_counts(len(right_N), seed, resamples))
    return value_columns("accuracy", np.append(right_N.mean(), drawn), len(right_N))


def _correlations(
    each: TransferSet, predicted_N: np.ndarray, gold_N: np.ndarray, seed: tuple[int, ...], resamples: int
) -> list[Row]:
    rows: list[Row] = []
    for metric in METRICS:
        try:
            value = CORRELATIONS[metric](predicted_N, gold_N)
        except UndefinedCorrelationError as error:
            raise UndefinedCorrelationError(f"{each.name}: {error}") from error
        low, high = bootstrap_interval(predicted_N, gold_N, metric, seed, resamples) or (None, None)
        rows.append({"metric": metric, "value": value, "ci_low": low, "ci_high": high, "n": len(gold_N)})
    return rows
