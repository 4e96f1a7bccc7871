"""Semantic textual similarity: the correlation of a model's own similarity with gold scores.

Aggregations over the subsets of a set, as the literature names them: ``all`` concatenates the subsets and takes one
correlation (SBERT, SimCSE, MTEB), ``mean`` averages the subsets' correlations (SentEval), ``wmean`` weights that
average by the number of pairs (BERT-flow).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raysts.data.corpora import Corpus
from raysts.errors import InputError
from raysts.evaluation.scores import RowScores
from raysts.evaluation.statistics import METRICS, require_finite
from raysts.evaluation.tasks import (
    LabelledSet,
    Represent,
    Representation,
    Similarities,
    Source,
    Task,
    join_fingerprints,
    take,
)
from raysts.ops.similarity import Similarity

EQUAL = "has pairs of equal texts alone, which are all as similar to any model; sentence1 and sentence2 must be different columns"


@dataclass(frozen=True, kw_only=True, eq=False)
class Pairs(LabelledSet):
    """Scored sentence pairs.

    Attributes:
        left, right: [N] places in ``texts``.
        gold: [N] float64 scores.
        subsets: in order of first appearance; empty of a set without subsets.
        aggregations: those of the results.
    """

    left: np.ndarray
    right: np.ndarray
    gold: np.ndarray
    aggregations: tuple[str, ...] = ("all", "mean", "wmean")
    compared: bool = True

    def take(self, rows: np.ndarray) -> Pairs:
        """Return some of the pairs, without subsets."""
        left, right, gold = (column[rows] for column in (self.left, self.right, self.gold))
        return replace(self, left=left, right=right, gold=gold, size=len(gold), subsets={})

    def row_scores(self, represent: Represent, similarities: Similarities) -> list[RowScores]:
        representation, subsets = represent(self.texts), self.subsets if len(self.subsets) > 1 else {}
        shared: dict[str, Any] = {"gold": self.gold, "subsets": subsets, "aggregations": self.aggregations}
        shared |= {"draw": f"{self.name}/{self.split}/all", "compared": self.compared}
        scores = []
        for name, similarity in similarities.items():
            values_N = pair_similarities(self, representation, make_symmetric(similarity))
            scores.append(self.make_scores(values_N, *METRICS, similarity=name, **shared))
        return scores

    def problems(self) -> list[str]:
        problems = []
        parts = {f"{self.name}: subset '{subset}'": rows for subset, rows in self.subsets.items()}
        for place, rows in (parts or {f"{self.name}:": np.arange(self.size)}).items():
            distinct = len(np.unique(self.gold[rows]))
            if distinct < 2:
                problems.append(
                    f"{place} has {len(rows)} row(s) and {distinct} distinct score(s); a correlation needs at least two "
                    f"different scores: add rows, merge the subset into another, or remove it"
                )
            elif (self.left[rows] == self.right[rows]).all():
                problems.append(f"{place} {EQUAL}")
        return problems


def pairs_from_table(table: pa.Table, name: str, sha256: str, split: str = "test") -> Pairs:
    """Return the pairs of a checked table with sentence1, sentence2, score and perhaps subset.

    A development set (``split`` ``dev``) has no subsets.
    """
    columns = [table.column(column).cast(pa.string()) for column in ("sentence1", "sentence2")]
    texts = pa.concat_arrays([chunk for column in columns for chunk in column.chunks]).dictionary_encode()
    codes = texts.indices.to_numpy().astype(np.int64)
    subsets = {} if split == "dev" else _subsets(table, name)
    return Pairs(
        name=name, sha256=sha256, texts=texts.dictionary.to_pylist(), size=len(table), split=split, subsets=subsets,
        left=codes[: len(table)], right=codes[len(table) :], gold=table.column("score").cast(pa.float64()).to_numpy(),
    )  # fmt: skip


def _subsets(table: pa.Table, name: str) -> dict[str, np.ndarray]:
    if "subset" not in table.column_names:
        return {}
    try:
        named = table.column("subset").cast(pa.string())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InputError(f"{name}: column 'subset' holds no names ({error}); write it as text, or remove it") from None
    encoded = pc.fill_null(named, "unnamed").combine_chunks().dictionary_encode()
    codes = encoded.indices.to_numpy()
    return {subset: np.flatnonzero(codes == code) for code, subset in enumerate(encoded.dictionary.to_pylist())}


def load_pairs(corpus: Corpus, *tables: str, name: str | None = None, split: str = "test") -> Pairs:
    """Read the pairs of one canonical table, or of several one after the other."""
    parts = [corpus.read(table, ["sentence1", "sentence2", "score", "subset"]) for table in tables]
    table = pa.concat_tables(parts, promote_options="permissive")
    rows = {name: np.ones(len(part), bool) for name, part in zip(tables, parts, strict=True)}
    return replace(pairs_from_table(table, name or tables[0], join_fingerprints(corpus, tables), split), rows=rows)


def pair_similarities(pairs: Pairs, representation: Representation, similarity: Similarity) -> np.ndarray:
    """Return the similarity of every pair [N] float64, and refuse a representation that is not finite."""
    for name, values in representation.items():
        require_finite(values, f"{pairs.name}: '{name}' of ", "sentences is")
    left, right = take(representation, pairs.left), take(representation, pairs.right)
    similarities = np.asarray(similarity(left, right), dtype=np.float64)
    assert similarities.shape == pairs.gold.shape, f"{similarities.shape} similarities of {len(pairs.gold)} pairs"
    return similarities


def make_symmetric(similarity: Similarity) -> Similarity:
    """Return the mean over both orders: a scored pair has none, and some similarities do (GaussCSE's)."""
    return lambda a, b: (similarity(a, b) + similarity(b, a)) / 2


def sts_task(name: str, *tables: str) -> Task:
    """Return the task of a test set of one table, or of several in order."""
    return Task(name, (Source(name, tables, _read),))


def _read(corpus: Corpus, source: Source) -> Pairs:
    return load_pairs(corpus, *source.tables, name=source.name)


STS_TASKS: dict[str, Task] = {
    **{name: sts_task(name, f"sts/{name}") for name in ("sts12", "sts13", "sts14", "sts15", "sts16")},
    "stsb": sts_task("stsb", "sts/stsb_test"),
    "sickr": sts_task("sickr", "sick/sick_test"),
    # MTEB's SICK-R: the whole corpus as one test set of 9,927 pairs.
    "sickr-all": sts_task("sickr-all", "sick/sick_trial", "sick/sick_train", "sick/sick_test"),
}
"""The STS sets by task name."""
