"""Transfer: frozen embeddings as features of other tasks (SentEval, and SED, Table 7).

Logistic regression on the vectors of sentences (accuracy; 10-fold cross-validation of a set without a split)
and softmax regression on pairs to predict their relatedness (Pearson, Spearman), which is trained and so not the cosine
of the same sets' STS rows. SentEval's own probes are the alternative (:mod:`raysts.evaluation.senteval`): another optimiser, and
another grid of penalties, for features that are not standardised.

Shapes: N rows, D dimensions.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType

import numpy as np
import pyarrow as pa

from raysts.data.corpora import Corpus
from raysts.data.derive import label_codes
from raysts.evaluation import probes, senteval
from raysts.evaluation.scores import RowScores
from raysts.evaluation.statistics import METRICS, UndefinedCorrelationError, require_finite
from raysts.evaluation.tasks import LabelledSet, Represent, Similarities, Source, Task, join_fingerprints
from raysts.schema import TABLES, TEST_TABLES

PROBES = {"standard": probes, "senteval": senteval}
"""Probes that are fitted on the vectors. Another than the first stands in the column ``similarity``."""
PROBE = "standard"

_MOST_ROWS = 5  # that a message names


@dataclass(frozen=True, slots=True)
class Split:
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


@dataclass(frozen=True, kw_only=True, eq=False)
class TransferSet(LabelledSet):
    """Rows of one set.

    Attributes:
        parts: train, dev and test. Without train all of test is cross-validated, without dev folds of train choose.
        probe: a key of ``PROBES``.
    """

    parts: tuple[Split, ...]
    probe: str = PROBE

    def problems(self) -> list[str]:
        if self.gold is not None:
            return [
                f"{part.table}: all {len(part.gold)} scores are {part.gold[0]:g}; a correlation needs scores that differ"
                for part in self.parts
                if part.gold.min() == part.gold.max()
            ]
        return label_problems(self.parts[0], self.parts[1:], fewest=4 - len(self.parts))

    def row_scores(self, represent: Represent, similarities: Similarities) -> list[RowScores]:
        features = [part.features(lambda texts: represent(texts)["vectors"]) for part in self.parts]
        for features_ND in features:
            require_finite(features_ND, f"{self.name}: the vectors of ", "rows are")
        called = None if self.probe == PROBE else self.probe
        if self.gold is not None:
            predicted_N = _predict_scores(PROBES[self.probe], self, features)
            return [self.make_scores(predicted_N, *METRICS, gold=self.gold, similarity=called)]
        return [self.make_scores(_predict_right(PROBES[self.probe], self, features), "accuracy", similarity=called)]


def _read(corpus: Corpus, source: Source) -> TransferSet:
    """Read a set: its labels, or else scores."""
    parts = []
    for table in source.tables:
        texts = [column.name for column in TABLES[table] if column.kind == "text"]
        columns = corpus.read(table, [*texts, "label" if source.labels else "score"])
        parts.append(Split(table, tuple(columns.column(name).to_pylist() for name in texts), _gold(columns, table)))
    test = parts[-1]
    sha256 = join_fingerprints(corpus, source.tables)  # training rows decide a score as much as the test's
    distinct = list(dict.fromkeys(text for part in parts for texts in part.texts for text in texts))
    return TransferSet(
        name=source.name, sha256=sha256, texts=distinct, size=len(test.gold), split="test" if len(parts) > 1 else "cv",
        rows={test.table: np.ones(len(test.gold), bool)} if test.table in TEST_TABLES else {},
        gold=None if source.labels else test.gold, parts=tuple(parts),
    )  # fmt: skip


def _gold(columns: pa.Table, table: str) -> np.ndarray:
    if "score" in columns.column_names:
        return np.asarray(columns.column("score").cast(pa.float64()).to_numpy())
    labels = next(column.labels for column in TABLES[table] if column.name == "label")
    if labels:  # given as names or as their codes
        return np.array(labels)[label_codes(columns.column("label"), labels)]
    return np.asarray(columns.column("label").cast(pa.string()).to_numpy(zero_copy_only=False), dtype=str)


def label_problems(train: Split, measured: Sequence[Split], fewest: int) -> list[str]:
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
    for part in measured:
        unseen = ~np.isin(part.gold, classes)
        problems += [
            f"{part.table}: label '{name}' ({_rows(part.gold == name)}) does not occur in {train.table} "
            f"({', '.join(classes[:10])}): correct or remove the rows"
            for name in np.unique(part.gold[unseen])
        ]
    return problems


def _rows(mask_N: np.ndarray) -> str:
    numbers = np.flatnonzero(mask_N)
    rest = f" and {len(numbers) - _MOST_ROWS} more" if len(numbers) > _MOST_ROWS else ""
    return f"row {', '.join(map(str, numbers[:_MOST_ROWS]))}{rest}"


def _source(name: str, table: str, *splits: str, labels: bool = True) -> Source:
    return Source(name, tuple(f"{table}{split}" for split in splits), _read, labels=labels)


TRANSFER_SETS: tuple[Source, ...] = (
    *(_source(name, f"senteval/{name}", "") for name in ("mr", "cr", "mpqa", "subj")),
    *(_source(name, f"senteval/{name}", "_train", "_dev", "_test") for name in ("sst2", "sst5")),
    *(_source(name, f"senteval/{name}", "_train", "_test") for name in ("trec", "mrpc")),
    _source("sick-e", "sick/sick", "_train", "_trial", "_test"),
    _source("sickr-relatedness", "sick/sick", "_train", "_trial", "_test", labels=False),
    _source("stsb-relatedness", "sts/stsb", "_train", "_dev", "_test", labels=False),
)
"""Every set, by its name in the results table: train, dev and test, as far as they exist."""

TRANSFER = Task("transfer", TRANSFER_SETS, heavy=True)


def _predict_right(probe: ModuleType, labelled: TransferSet, features: Sequence[np.ndarray]) -> np.ndarray:
    """Return the measured rows with the right predicted class [N] bool."""
    classes = np.unique(labelled.parts[0].gold)
    codes = [np.searchsorted(classes, part.gold) for part in labelled.parts]
    if len(labelled.parts) == 1:
        splits = probe.folds(codes[0], probes.fold_count(probes.FOLDS, codes[0]))
        predicted_N = np.empty_like(codes[0])
        for (_, held_out), fitted in zip(splits, probe.classify(features[0], codes[0], splits), strict=True):
            predicted_N[held_out] = fitted.predicted
    elif len(labelled.parts) == 2:
        rows = np.split(np.arange(sum(map(len, codes))), [len(codes[0])])
        (fitted,) = probe.classify(np.concatenate(features), np.concatenate(codes), [(rows[0], rows[1])])
        predicted_N = fitted.predicted
    else:
        train, dev, _ = zip(features, codes, strict=True)
        predicted_N = probe.classify_by_dev(train, dev, features[-1]).predicted
    return np.asarray(predicted_N == codes[-1])


def _predict_scores(probe: ModuleType, labelled: TransferSet, features: Sequence[np.ndarray]) -> np.ndarray:
    train, dev, test = zip(features, (part.gold for part in labelled.parts), strict=True)
    try:
        return np.asarray(probe.regress_by_dev(train, dev, test[0]).predicted)
    except UndefinedCorrelationError as error:
        raise UndefinedCorrelationError(f"{labelled.name}, development rows: {error}") from error
