"""Transfer: frozen embeddings as features of other tasks (SentEval, and SED, Table 7).

Logistic regression on the vectors of sentences (accuracy; 10-fold cross-validation where a set has no split of its own)
and softmax regression on pairs to predict their relatedness (Pearson, Spearman), which is trained and so not the cosine
of the same sets' STS rows. SentEval's own probes are there too (:mod:`raysts.evaluation.senteval`): another optimiser, and
another grid of penalties, for features that are not standardised.

Shapes: N rows, D dimensions.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from raysts.data.corpora import Corpus
from raysts.data.derive import label_codes
from raysts.evaluation import probes, senteval
from raysts.evaluation.scores import RowScores
from raysts.evaluation.statistics import METRICS, UndefinedCorrelationError
from raysts.evaluation.tasks import LabelledSet, Represent, Similarities, Task, join_fingerprints
from raysts.schema import TABLES, TEST_TABLES

PROBES = {"standard": probes, "senteval": senteval}
"""Probes that are fitted on the vectors. Another than the first stands in the column ``similarity``."""
PROBE = "standard"

_MOST_ROWS = 5  # that a message names


@dataclass(frozen=True, slots=True)
class Part:
    """The rows of one table: one text a row, or two, and the labels (as strings) or scores [N]."""

    table: str
    texts: tuple[list[str], ...]
    gold: np.ndarray

    def features(self, embed: Callable[[Sequence[str]], np.ndarray]) -> np.ndarray:
        """Return the features u, or (|u - v|, u * v) of a pair of vectors -> [N, D] or [N, 2 D]."""
        vectors = [embed(texts) for texts in self.texts]
        if len(vectors) == 1:
            return vectors[0]
        first_ND, second_ND = vectors
        return np.concatenate([np.abs(first_ND - second_ND), first_ND * second_ND], axis=1)


@dataclass(frozen=True, slots=True)
class TransferSource:
    """Tables of one set.

    Without ``train`` all of ``test`` is cross-validated. Without ``dev`` folds of ``train`` choose.

    Attributes:
        scores: a pair's score is predicted, not its label.
    """

    name: str
    test: str
    train: str | None = None
    dev: str | None = None
    scores: bool = False

    @property
    def tables(self) -> tuple[str, ...]:
        return tuple(table for table in (self.train, self.dev, self.test) if table)

    def missing(self, corpus: Corpus) -> list[str]:
        """Return the tables that are missing, or lack the labels (which are optional in SICK)."""
        there = corpus.files if self.scores else corpus.has_labels
        return [table for table in self.tables if not there(table) or table in corpus.own]

    def load(self, corpus: Corpus, probe: str) -> "TransferSet":
        # The training rows decide a score as much as the asked ones.
        sha256 = join_fingerprints([corpus.fingerprint(table) for table in self.tables])
        return TransferSet(self.name, self, sha256, tuple(self._part(corpus, table) for table in self.tables), probe)

    def _part(self, corpus: Corpus, table: str) -> Part:
        texts = [column.name for column in TABLES[table] if column.kind == "text"]
        columns = corpus.read(table, [*texts, "score" if self.scores else "label"])
        return Part(table, tuple(columns.column(name).to_pylist() for name in texts), _gold(columns, table))


@dataclass(frozen=True, slots=True)
class TransferSet(LabelledSet):
    """Rows of one set. ``parts``: train, dev and test, as far as they exist."""

    name: str
    source: TransferSource
    sha256: str
    parts: tuple[Part, ...]
    probe: str

    @property
    def rows(self) -> Mapping[str, np.ndarray]:
        return {self.source.test: np.ones(self.size, bool)} if self.source.test in TEST_TABLES else {}

    @property
    def gold(self) -> np.ndarray | None:
        return self.parts[-1].gold if self.source.scores else None

    @property
    def subsets(self) -> Mapping[str, np.ndarray]:
        return {}

    @property
    def texts(self) -> list[str]:
        return list(dict.fromkeys(text for part in self.parts for texts in part.texts for text in texts))

    @property
    def size(self) -> int:
        return len(self.parts[-1].gold)

    def problems(self) -> list[str]:
        if self.source.scores:
            return score_problems(self.parts)
        fewest = 1 if self.source.dev else 2
        return label_problems(self.parts[0], self.parts[1:], fewest if self.source.train else 3)

    def row_scores(self, represent: Represent, similarities: Similarities) -> list[RowScores]:
        features = [self._finite(part.features(lambda texts: represent(texts)["vectors"])) for part in self.parts]
        split = "test" if self.source.train else "cv"
        known: dict[str, Any] = {
            "dataset": self.name, "split": split, "sha256": self.sha256, "draw": f"{self.name}/{split}",
            "similarity": None if self.probe == PROBE else self.probe,
        }  # fmt: skip
        if self.source.scores:
            predicted_N, gold_N = _related(PROBES[self.probe], self, features)
            return [RowScores(metrics=METRICS, values=predicted_N, gold=gold_N, **known)]
        predicted_N, gold_N = _classified(PROBES[self.probe], self, features)
        return [RowScores(metrics=("accuracy",), values=(predicted_N == gold_N) * 1.0, **known)]

    def _finite(self, features_ND: np.ndarray) -> np.ndarray:
        bad = len(features_ND) - int(np.isfinite(features_ND).all(axis=1).sum())
        if bad:
            raise UndefinedCorrelationError(
                f"{self.name}: the vectors of {bad} of {len(features_ND)} rows are not finite: the model gives NaN or "
                f"infinite values (training diverged?); use an earlier checkpoint or a lower learning rate"
            )
        return features_ND


def _gold(found: pa.Table, table: str) -> np.ndarray:
    if "score" in found.column_names:
        return np.asarray(found.column("score").cast(pa.float64()).to_numpy())
    known = next(column.labels for column in TABLES[table] if column.name == "label")
    if known:  # given as names or as their codes
        return np.array(known)[label_codes(found.column("label"), known)]
    return np.asarray(found.column("label").cast(pa.string()).to_numpy(zero_copy_only=False), dtype=str)


def label_problems(train: Part, asked: Sequence[Part], fewest: int) -> list[str]:
    """Return the reasons why labels cannot be learnt: a single class, too few rows, unseen labels."""
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
    """Return the tables with equal scores alone: they have no correlation with anything."""
    return [
        f"{part.table}: all {len(part.gold)} scores are {part.gold[0]:g}; a correlation needs scores that differ"
        for part in parts
        if part.gold.min() == part.gold.max()
    ]


def _rows(which: np.ndarray) -> str:
    found = np.flatnonzero(which)
    more = f" and {len(found) - _MOST_ROWS} more" if len(found) > _MOST_ROWS else ""
    return f"row {', '.join(map(str, found[:_MOST_ROWS]))}{more}"


def _sick(name: str, scores: bool) -> TransferSource:
    return TransferSource(name, "sick/sick_test", "sick/sick_train", "sick/sick_trial", scores)


TRANSFER_SETS: tuple[TransferSource, ...] = (
    *(TransferSource(name, f"senteval/{name}") for name in ("mr", "cr", "mpqa", "subj")),
    *(
        TransferSource(name, f"senteval/{name}_test", f"senteval/{name}_train", f"senteval/{name}_dev")
        for name in ("sst2", "sst5")
    ),
    *(TransferSource(name, f"senteval/{name}_test", f"senteval/{name}_train") for name in ("trec", "mrpc")),
    _sick("sick-e", scores=False),
    _sick("sickr-relatedness", scores=True),
    TransferSource("stsb-relatedness", "sts/stsb_test", "sts/stsb_train", "sts/stsb_dev", scores=True),
)
"""Every set, by its name in the results table."""


@dataclass(frozen=True, slots=True)
class TransferTask(Task):
    """All sets that exist."""

    heavy: ClassVar[bool] = True
    sources: tuple[TransferSource, ...] = TRANSFER_SETS
    probe: str = PROBE

    def expected(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(table for source in self.sources for table in source.tables))

    def present(self, corpus: Corpus) -> list[TransferSource]:
        return [source for source in self.sources if not source.missing(corpus)]

    def left_out(self, corpus: Corpus) -> dict[str, list[str]]:
        return {source.name: missing for source in self.sources if (missing := source.missing(corpus))}

    def tables(self, corpus: Corpus) -> tuple[str, ...]:
        return tuple(dict.fromkeys(table for source in self.present(corpus) for table in source.tables))

    def load(self, corpus: Corpus) -> Sequence[TransferSet]:
        return [source.load(corpus, self.probe) for source in self.present(corpus)]


def _classified(by: ModuleType, of: TransferSet, features: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return the predicted and the true codes of the classes of the measured rows."""
    classes = np.unique(of.parts[0].gold)
    codes = [np.searchsorted(classes, part.gold) for part in of.parts]
    if of.source.train is None:
        splits = by.folds(codes[0], probes.fold_count(probes.FOLDS, codes[0]))
        predicted_N = np.empty_like(codes[0])
        for (_, held_out), probe in zip(splits, by.classify(features[0], codes[0], splits), strict=True):
            predicted_N[held_out] = probe.predicted
    elif of.source.dev is None:
        rows = np.split(np.arange(sum(map(len, codes))), [len(codes[0])])
        (probe,) = by.classify(np.concatenate(features), np.concatenate(codes), [(rows[0], rows[1])])
        predicted_N = probe.predicted
    else:
        train, dev, _ = zip(features, codes, strict=True)
        predicted_N = by.classify_by_dev(train, dev, features[-1]).predicted
    return predicted_N, codes[-1]


def _related(by: ModuleType, of: TransferSet, features: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return the predicted and the true scores of the measured rows."""
    train, dev, test = zip(features, (part.gold for part in of.parts), strict=True)
    try:
        return by.regress_by_dev(train, dev, test[0]).predicted, test[1]
    except UndefinedCorrelationError as error:
        raise UndefinedCorrelationError(f"{of.name}, development rows: {error}") from error
