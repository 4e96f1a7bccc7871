"""The sets of SentEval whose probes are trained on frozen embeddings: their tables, texts and labels.

Shapes: N rows, D dimensions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from raysts.data.corpora import Corpus
from raysts.data.derived import label_codes
from raysts.schema import TABLES

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
        """What the results table calls the rows that are measured."""
        return "test" if self.train else "cv"

    @property
    def tables(self) -> tuple[str, ...]:
        """Every table of the set, that of training first."""
        return tuple(table for table in (self.train, self.dev, self.test) if table)

    def missing(self, corpus: Corpus) -> list[str]:
        """The tables that the corpus lacks, or whose labels (which the layout lets SICK leave out)."""
        there = corpus.files if self.scores else corpus.has_labels
        return [table for table in self.tables if not there(table)]

    def load(self, corpus: Corpus, table: str) -> Part:
        """The rows of one of its tables, checked before."""
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
