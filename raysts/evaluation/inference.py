"""What the tasks of textual inference share: labelled pairs, tables per split, rows of results.

Shapes: N pairs, R resamples.
"""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raysts.data.corpora import Corpus
from raysts.data.derived import label_codes
from raysts.data.shards import ShardError, open_shard, remedy
from raysts.evaluation.statistics import percentile_interval, resample_counts
from raysts.evaluation.sts import BOOTSTRAP_SEED, RESAMPLES, Pairs, pairs_from_table
from raysts.evaluation.tasks import Representation, Row
from raysts.models.head import Similarity
from raysts.schema import NLI_LABELS, TABLES

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
        # "B_entails_A" in the original release
        back = pc.match_substring(found.column("entailment_ba").cast(pa.string()), "entail", ignore_case=True)
        columns["subset"] = pc.if_else(pc.fill_null(back, False), "two-way", ONE_WAY)
    rows = np.flatnonzero(gold) if entailed else np.arange(len(gold))
    return pairs_from_table(pa.table(columns).take(rows), table, corpus.fingerprint(table))


def labelled(corpus: Corpus, table: str) -> bool:
    """Whether the table is there, and has labels where the layout lets them be left out (SICK)."""
    files = corpus.files(table)
    if all(column.required for column in TABLES[table] if column.name == "label"):
        return bool(files)
    try:
        return bool(files) and all("label" in open_shard(path, remedy(table)).schema_arrow.names for path in files)
    except ShardError:
        return True  # whoever checks its rows says what is wrong with the file


@dataclass(frozen=True, slots=True)
class InferenceTask(ABC):
    """A labelled table per split. What both tasks of inference share."""

    name: str
    splits: dict[str, str]
    heavy: bool = False

    @abstractmethod
    def needs(self, corpus: Corpus, table: str) -> tuple[str, ...]:
        """The tables that the rows of ``table`` are made of."""

    @abstractmethod
    def load(self, corpus: Corpus, table: str) -> Pairs:
        """The pairs of a table that the task uses."""

    @abstractmethod
    def problems_of(self, pairs: Pairs) -> list[str]:
        """What the pairs of one table lack."""

    @abstractmethod
    def score(
        self,
        corpus: Corpus,
        splits: Sequence[str],
        represent: Callable[[Sequence[str]], Representation],
        similarities: Mapping[str, Similarity],
        resamples: int = RESAMPLES,
    ) -> list[Row]:
        """The rows of every wanted split that is there."""

    def expected(self) -> tuple[str, ...]:
        """Every table of every split."""
        return tuple(self.splits.values())

    def present(self, corpus: Corpus, splits: Sequence[str]) -> dict[str, str]:
        """The wanted splits whose tables are all there."""
        return {
            split: table
            for split, table in self.splits.items()
            if split in splits and all(labelled(corpus, needed) for needed in self.needs(corpus, table))
        }

    def tables(self, corpus: Corpus, splits: Sequence[str]) -> tuple[str, ...]:
        """All tables that the wanted splits which are there need."""
        present = self.present(corpus, splits).values()
        return tuple(dict.fromkeys(needed for table in present for needed in self.needs(corpus, table)))

    def tested(self, corpus: Corpus, splits: Sequence[str]) -> tuple[str, ...]:
        """The tables whose rows are scored, without those that thresholds come from."""
        return tuple(self.present(corpus, splits).values())

    def problems(self, corpus: Corpus, splits: Sequence[str]) -> list[str]:
        """Tables without a pair of a class that the task needs."""
        return [p for table in self.tables(corpus, splits) for p in self.problems_of(self.load(corpus, table))]

    def sentences(self, corpus: Corpus, splits: Sequence[str]) -> list[str]:
        """The distinct sentences of those tables."""
        tables = self.tables(corpus, splits)
        return list(dict.fromkeys(s for table in tables for s in self.load(corpus, table).sentences))


def known_columns(name: str, split: str, pairs: Pairs, similarity: str) -> Row:
    """What the rows of one similarity on one split have in common."""
    return {
        "dataset": name, "split": split, "rows": "all", "dataset_sha256": pairs.sha256, "similarity": similarity,
        "subset": None, "aggregation": None,
    }  # fmt: skip


def value_columns(metric: str, values_R: np.ndarray, n: int) -> Row:
    """A value followed by its bootstrap samples -> metric, value, ci_low, ci_high, n."""
    low, high = percentile_interval(values_R[1:]) or (None, None)
    return {"metric": metric, "value": float(values_R[0]), "ci_low": low, "ci_high": high, "n": n}


def draws(label: str, pairs: Pairs, resamples: int) -> np.ndarray:
    """How often each pair counts [N, 1 + R]: once, then as it is drawn in each resample, the same for every system."""
    drawn_NR = resample_counts(len(pairs.gold), (BOOTSTRAP_SEED, zlib.crc32(label.encode())), resamples)
    return np.concatenate([np.ones_like(drawn_NR, shape=(len(pairs.gold), 1)), drawn_NR], axis=1)


def share_right(right_N: np.ndarray, counts_NR: np.ndarray) -> np.ndarray:
    """Share of the rows that are right, per column of counts [R]; NaN where none counts."""
    with np.errstate(invalid="ignore"):
        return counts_NR[right_N].sum(axis=0, dtype=np.int64) / counts_NR.sum(axis=0, dtype=np.int64)
