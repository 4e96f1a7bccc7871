"""Transfer: what frozen embeddings are worth as features of other tasks (SentEval; SED, Table 7).

Logistic regression on the vectors of sentences (accuracy; 10-fold cross-validation where a set has no split of its own)
and softmax regression on pairs to predict their relatedness (Pearson, Spearman), which is trained and so not the cosine
of the same sets' STS rows. SentEval's own probes are there too (:mod:`raysts.evaluation.senteval`): another optimiser, and
another grid of penalties, for features that are not standardised.

Shapes: N rows, D dimensions.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import ClassVar

import numpy as np
import pyarrow as pa

from raysts.data.corpora import Corpus
from raysts.data.derive import label_codes
from raysts.evaluation import probes, senteval
from raysts.evaluation.results import ResultRow
from raysts.evaluation.statistics import (
    UndefinedCorrelationError,
    sampled_correlations,
    share_right,
    value_columns,
    whole_and_resampled,
)
from raysts.evaluation.tasks import Represent, Similarities, Task
from raysts.schema import TABLES, TEST_TABLES

PROBES = {"logistic": probes, "senteval": senteval}
"""What is fitted on the vectors; rows of another one than the first say so in the column ``similarity``."""
PROBE = "logistic"

_MOST_ROWS = 5  # that a message names


@dataclass(frozen=True, slots=True)
class Part:
    """The rows of one table: one text a row, or two, and the labels (as strings) or scores [N]."""

    table: str
    texts: tuple[list[str], ...]
    gold: np.ndarray

    def features(self, embed: Callable[[Sequence[str]], np.ndarray]) -> np.ndarray:
        """What a probe reads: u, or |u - v| beside u * v for the vectors u, v of a pair -> [N, D] or [N, 2 D]."""
        vectors = [embed(texts) for texts in self.texts]
        if len(vectors) == 1:
            return vectors[0]
        first_ND, second_ND = vectors
        return np.concatenate([np.abs(first_ND - second_ND), first_ND * second_ND], axis=1)


@dataclass(frozen=True, slots=True)
class TransferSet:
    """One set. Without ``train`` all of ``test`` is cross-validated; without ``dev`` folds of ``train`` choose.

    ``scores``: what is predicted is the score of a pair, not its label.
    """

    name: str
    test: str
    train: str | None = None
    dev: str | None = None
    scores: bool = False

    @property
    def split(self) -> str:
        return "test" if self.train else "cv"

    @property
    def tables(self) -> tuple[str, ...]:
        return tuple(table for table in (self.train, self.dev, self.test) if table)

    def missing(self, corpus: Corpus) -> list[str]:
        """The tables that the corpus lacks, or whose labels (which the layout lets SICK leave out)."""
        there = corpus.files if self.scores else corpus.has_labels
        return [table for table in self.tables if not there(table) or table in corpus.own]

    def load(self, corpus: Corpus, table: str) -> Part:
        texts = [column.name for column in TABLES[table] if column.kind == "text"]
        found = corpus.read(table, [*texts, "score" if self.scores else "label"])
        return Part(table, tuple(found.column(name).to_pylist() for name in texts), _gold(found, table))

    def sha256(self, corpus: Corpus) -> str:
        """Of the table, or of the fingerprints of all tables: what is trained on counts as much as what is asked."""
        prints = [corpus.fingerprint(table) for table in self.tables]
        return prints[0] if len(prints) == 1 else hashlib.sha256("".join(prints).encode()).hexdigest()


def _gold(found: pa.Table, table: str) -> np.ndarray:
    if "score" in found.column_names:
        return np.asarray(found.column("score").cast(pa.float64()).to_numpy())
    known = next(column.labels for column in TABLES[table] if column.name == "label")
    if known:  # given as names or as their codes
        return np.array(known)[label_codes(found.column("label"), known)]
    return np.asarray(found.column("label").cast(pa.string()).to_numpy(zero_copy_only=False), dtype=str)


def label_problems(train: Part, asked: Sequence[Part], fewest: int) -> list[str]:
    """What keeps labels from being learnt: one class alone, classes with fewer rows than folds, labels never seen."""
    classes, counts = np.unique(train.gold, return_counts=True)
    if len(classes) < 2:
        return [
            f"{train.table}: every row has label '{classes[0]}'; classification needs two classes, or remove the table"
        ]
    problems = [
        f"{train.table}: label '{name}' has {count} row(s) ({_rows(train.gold == name)}); cross-validation needs at "
        f"least {fewest} of every class: add some, or remove or merge the class"
        for name, count in zip(classes, counts, strict=True)
        if count < fewest
    ]
    for part in asked:
        unseen = ~np.isin(part.gold, classes)
        problems += [
            f"{part.table}: label '{name}' ({_rows(part.gold == name)}) does not occur in {train.table} "
            f"({', '.join(classes[:10])}): correct or remove the rows"
            for name in np.unique(part.gold[unseen])
        ]
    return problems


def score_problems(parts: Sequence[Part]) -> list[str]:
    """Tables whose scores are all equal: they have no correlation with anything."""
    return [
        f"{part.table}: all {len(part.gold)} scores are {part.gold[0]:g}; a correlation needs scores that differ"
        for part in parts
        if part.gold.min() == part.gold.max()
    ]


def _rows(which: np.ndarray) -> str:
    found = np.flatnonzero(which)
    more = f" and {len(found) - _MOST_ROWS} more" if len(found) > _MOST_ROWS else ""
    return f"row {', '.join(map(str, found[:_MOST_ROWS]))}{more}"


def _sick(name: str, scores: bool) -> TransferSet:
    return TransferSet(name, "sick/sick_test", "sick/sick_train", "sick/sick_trial", scores)


TRANSFER_SETS: tuple[TransferSet, ...] = (
    *(TransferSet(name, f"senteval/{name}") for name in ("mr", "cr", "mpqa", "subj")),
    *(
        TransferSet(name, f"senteval/{name}_test", f"senteval/{name}_train", f"senteval/{name}_dev")
        for name in ("sst2", "sst5")
    ),
    *(TransferSet(name, f"senteval/{name}_test", f"senteval/{name}_train") for name in ("trec", "mrpc")),
    _sick("sick-e", scores=False),
    _sick("sickr-relatedness", scores=True),
    TransferSet("stsb-relatedness", "sts/stsb_test", "sts/stsb_train", "sts/stsb_dev", scores=True),
)
"""Every set, by what the results table calls it."""


@dataclass(frozen=True, slots=True)
class TransferTask(Task):
    """All sets that are there. The similarities of a model play no part."""

    heavy: ClassVar[bool] = True
    sets: tuple[TransferSet, ...] = TRANSFER_SETS
    probe: str = PROBE

    def expected(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(table for probe_set in self.sets for table in probe_set.tables))

    def present(self, corpus: Corpus) -> list[TransferSet]:
        return [probe_set for probe_set in self.sets if not probe_set.missing(corpus)]

    def left_out(self, corpus: Corpus) -> dict[str, list[str]]:
        return {probe_set.name: missing for probe_set in self.sets if (missing := probe_set.missing(corpus))}

    def tables(self, corpus: Corpus) -> tuple[str, ...]:
        return tuple(dict.fromkeys(table for probe_set in self.present(corpus) for table in probe_set.tables))

    def tested(self, corpus: Corpus) -> tuple[str, ...]:
        return tuple(table for table in self.tables(corpus) if table in TEST_TABLES)

    def problems(self, corpus: Corpus) -> list[str]:
        found: list[str] = []
        for probe_set in self.present(corpus):
            parts = [probe_set.load(corpus, table) for table in probe_set.tables]
            if probe_set.scores:
                found += score_problems(parts)
            else:
                fewest = 3 if probe_set.train is None else 2 if probe_set.dev is None else 1
                found += label_problems(parts[0], parts[1:], fewest)
        return found

    def sentences(self, corpus: Corpus) -> list[str]:
        parts = (probe_set.load(corpus, table) for probe_set in self.present(corpus) for table in probe_set.tables)
        return list(dict.fromkeys(text for part in parts for texts in part.texts for text in texts))

    def score(
        self, corpus: Corpus, represent: Represent, similarities: Similarities, resamples: int
    ) -> list[ResultRow]:
        rows: list[ResultRow] = []
        for probe_set in self.present(corpus):
            parts = [probe_set.load(corpus, table) for table in probe_set.tables]
            features = [_finite(probe_set, part.features(lambda texts: represent(texts)["vectors"])) for part in parts]
            known = {
                "dataset": probe_set.name, "split": probe_set.split, "rows": "all", "dataset_sha256": probe_set.sha256(corpus),
                "aggregation": None, "subset": None, "similarity": None if self.probe == PROBE else self.probe,
            }  # fmt: skip
            label = f"{probe_set.name}/{probe_set.split}"
            measured = _related if probe_set.scores else _classified
            predicted_N, gold_N = measured(PROBES[self.probe], probe_set, parts, features)
            if probe_set.scores:
                values = sampled_correlations(probe_set.name, predicted_N, gold_N, label, resamples)
            else:
                counts_NR = whole_and_resampled(label, len(gold_N), resamples)
                values = {"accuracy": share_right(predicted_N == gold_N, counts_NR)}
            rows += [known | value_columns(metric, values_R, len(gold_N)) for metric, values_R in values.items()]
        return rows


def _finite(probe_set: TransferSet, features_ND: np.ndarray) -> np.ndarray:
    bad = len(features_ND) - int(np.isfinite(features_ND).all(axis=1).sum())
    if bad:
        raise UndefinedCorrelationError(
            f"{probe_set.name}: the vectors of {bad} of {len(features_ND)} rows are not finite: the model gives NaN or "
            f"infinite values (training diverged?); use an earlier checkpoint or a lower learning rate"
        )
    return features_ND


def _classified(
    by: ModuleType, probe_set: TransferSet, parts: Sequence[Part], features: Sequence[np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """The predicted and the true codes of the classes of the measured rows."""
    classes = np.unique(parts[0].gold)
    codes = [np.searchsorted(classes, part.gold) for part in parts]
    if probe_set.train is None:
        splits = by.folds(codes[0], probes.fold_count(probes.FOLDS, codes[0]))
        predicted_N = np.empty_like(codes[0])
        for (_, held_out), probe in zip(splits, by.classify(features[0], codes[0], splits), strict=True):
            predicted_N[held_out] = probe.predicted
    elif probe_set.dev is None:
        rows = np.split(np.arange(sum(map(len, codes))), [len(codes[0])])
        (probe,) = by.classify(np.concatenate(features), np.concatenate(codes), [(rows[0], rows[1])])
        predicted_N = probe.predicted
    else:
        train, dev, _ = zip(features, codes, strict=True)
        predicted_N = by.classify_by_dev(train, dev, features[-1]).predicted
    return predicted_N, codes[-1]


def _related(
    by: ModuleType, probe_set: TransferSet, parts: Sequence[Part], features: Sequence[np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """The predicted and the true scores of the measured rows."""
    train, dev, test = zip(features, (part.gold for part in parts), strict=True)
    try:
        return by.regress_by_dev(train, dev, test[0]).predicted, test[1]
    except UndefinedCorrelationError as error:
        raise UndefinedCorrelationError(f"{probe_set.name}, development rows: {error}") from error
