"""Semantic textual similarity: the correlation of a model's own similarity with gold scores.

Aggregations over the subsets of a set, as the literature names them: ``all`` concatenates the subsets and takes one
correlation (SBERT, SimCSE, MTEB), ``mean`` averages the subsets' correlations (SentEval), ``wmean`` weights that
average by the number of pairs (BERT-flow).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raysts.data.corpora import Corpus
from raysts.data.user import open_pairs
from raysts.errors import InputError
from raysts.evaluation.results import ResultRow
from raysts.evaluation.statistics import (
    CORRELATIONS,
    METRICS,
    RESAMPLES,
    UndefinedCorrelationError,
    sampled_correlations,
    value_columns,
)
from raysts.evaluation.tasks import ComparableTask, Represent, Representation, RowScores, Similarities, take
from raysts.ops.similarity import Similarity

EQUAL = "has pairs of equal texts alone, which are all as similar to any model; sentence1 and sentence2 must be different columns"

MOST_READ = 16
_read: dict[tuple[Any, ...], Pairs] = {}
"""The pairs of the sets that were read last, by what they are: each model that is measured asks for them."""


@dataclass(frozen=True, slots=True)
class Pairs:
    """Scored sentence pairs, each distinct sentence once.

    ``left`` and ``right`` [N] point into ``sentences``; ``subset`` [N] into ``subsets``; ``gold`` [N] is float64.
    """

    name: str
    sha256: str
    sentences: list[str]
    left: np.ndarray
    right: np.ndarray
    gold: np.ndarray
    subsets: tuple[str, ...]
    subset: np.ndarray

    @property
    def equal(self) -> bool:
        """Whether both sentences of every pair are the same."""
        return bool((self.left == self.right).all())

    def members(self) -> list[np.ndarray]:
        return [np.flatnonzero(self.subset == index) for index in range(len(self.subsets))]

    def parts(self) -> list[Pairs]:
        return [
            replace(self, left=self.left[rows], right=self.right[rows], gold=self.gold[rows], subset=self.subset[rows])
            for rows in self.members()
        ]


def pairs_from_table(table: pa.Table, name: str, sha256: str) -> Pairs:
    """A table with sentence1, sentence2, score and perhaps subset, checked before -> :class:`Pairs`."""
    columns = [table.column(column).cast(pa.string()) for column in ("sentence1", "sentence2")]
    texts = pa.concat_arrays([chunk for column in columns for chunk in column.chunks]).dictionary_encode()
    codes = texts.indices.to_numpy().astype(np.int64)
    if "subset" in table.column_names:
        try:
            named = table.column("subset").cast(pa.string())
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise InputError(
                f"{name}: column 'subset' holds no names ({error}); write it as text, or leave it out"
            ) from None
        subsets = pc.fill_null(named, "unnamed").combine_chunks().dictionary_encode()
        names, subset = tuple(subsets.dictionary.to_pylist()), subsets.indices.to_numpy().astype(np.int64)
    else:
        names, subset = (name,), np.zeros(table.num_rows, dtype=np.int64)
    return Pairs(
        name=name,
        sha256=sha256,
        sentences=texts.dictionary.to_pylist(),
        left=codes[: table.num_rows],
        right=codes[table.num_rows :],
        gold=table.column("score").cast(pa.float64()).to_numpy(),
        subsets=names,
        subset=subset,
    )


def load_pairs(corpus: Corpus, *tables: str, name: str | None = None) -> Pairs:
    """The pairs of one canonical table, or of several one after the other."""
    wanted = ["sentence1", "sentence2", "score", "subset"]
    parts = [corpus.read(table, wanted) for table in tables]
    prints = [corpus.fingerprint(table) for table in tables]
    sha256 = prints[0] if len(prints) == 1 else hashlib.sha256("".join(prints).encode()).hexdigest()
    return pairs_from_table(pa.concat_tables(parts, promote_options="permissive"), name or tables[0], sha256)


def read_once(key: tuple[Any, ...], read: Callable[[], Pairs]) -> Pairs:
    """The pairs that ``key`` names, read unless they were lately."""
    if key not in _read:
        if len(_read) >= MOST_READ:
            _read.clear()
        _read[key] = read()
    return _read[key]


def load_pairs_file(path: str | Path) -> Pairs:
    """The user's own scored pairs; scores may lie in any finite range, a column ``subset`` is used where there is one.

    Raises:
        InputError: as :func:`raysts.data.user.open_pairs`, or a subset whose scores are all equal.
    """
    own = open_pairs(path, "--pairs")
    pairs = pairs_from_table(own.table, own.title.lower(), own.fingerprint)
    if problems := problems_of(pairs):
        raise InputError([f"{path}: {problem}" for problem in problems])
    return pairs


def pair_similarities(pairs: Pairs, representation: Representation, similarity: Similarity) -> np.ndarray:
    """The similarity of every pair [N] float64; the representation has one row for each of ``pairs.sentences``.

    Raises:
        UndefinedCorrelationError: a representation that is not finite, whatever the similarity would make of it.
    """
    for name, values in representation.items():
        bad = len(values) - int(np.sum([np.isfinite(row).all() for row in values]))
        if bad:
            raise UndefinedCorrelationError(
                f"{pairs.name}: '{name}' of {bad} of {len(values)} sentences is not finite: the model gives NaN or "
                f"infinite values (training diverged?); use an earlier checkpoint or a lower learning rate"
            )
    left, right = take(representation, pairs.left), take(representation, pairs.right)
    similarities = np.asarray(similarity(left, right), dtype=np.float64)
    assert similarities.shape == pairs.gold.shape, f"{similarities.shape} similarities of {len(pairs.gold)} pairs"
    return similarities


def unordered(similarity: Similarity) -> Similarity:
    """The mean over both orders: a scored pair has none, and some similarities do (GaussCSE's)."""
    return lambda a, b: (similarity(a, b) + similarity(b, a)) / 2


def correlations_of(pairs: Pairs, representation: Representation, similarity: Similarity) -> dict[str, float]:
    """Correlations over all pairs by metric, without intervals."""
    predicted = pair_similarities(pairs, representation, unordered(similarity))
    try:
        return {metric: CORRELATIONS[metric](predicted, pairs.gold) for metric in METRICS}
    except UndefinedCorrelationError as error:
        raise UndefinedCorrelationError(f"{pairs.name}: {error}") from error


def problems_of(pairs: Pairs) -> list[str]:
    """Subsets whose correlation is undefined whatever the model says."""
    return [
        f"{pairs.name}: subset '{subset}' has {len(part.gold)} row(s) and {len(np.unique(part.gold))} distinct "
        f"score(s); a correlation needs at least two different scores: merge the subset into another or remove it"
        if len(np.unique(part.gold)) < 2
        else f"{pairs.name}: subset '{subset}' {EQUAL}"
        for subset, part in zip(pairs.subsets, pairs.parts(), strict=True)
        if len(np.unique(part.gold)) < 2 or part.equal
    ]


def correlation_rows(pairs: Pairs, predicted: np.ndarray, label: str, resamples: int = RESAMPLES) -> list[ResultRow]:
    """aggregation, subset, metric, value, ci_low, ci_high, n of every aggregation and, where there are several, subset.

    Intervals are percentile bootstrap intervals of pairs; those of ``mean``, ``wmean`` and of a subset resample within
    the subsets. ``label`` names the random numbers, so that systems compared on a set have the same resamples. With
    ``resamples`` 0 the intervals are null.

    Raises:
        UndefinedCorrelationError: the similarities of a subset are all equal, or some are not finite.
    """
    members = pairs.members()
    sizes = np.array([len(rows) for rows in members])
    whole = sampled_correlations(pairs.name, predicted, pairs.gold, f"{label}/all", resamples)
    # One subset is the whole set: its three aggregations are one number and have one interval.
    parts = [whole]
    if len(members) > 1:
        parts = [
            sampled_correlations(
                f"{pairs.name}, subset '{subset}'", predicted[rows], pairs.gold[rows], f"{label}/{subset}", resamples
            )
            for subset, rows in zip(pairs.subsets, members, strict=True)
        ]
    rows: list[ResultRow] = []
    for metric in METRICS:
        columns = np.stack([part[metric] for part in parts], axis=1)  # [1 + R, subsets]; row 0 is the value itself
        aggregated = {"all": whole[metric], "mean": columns.mean(axis=1), "wmean": columns @ (sizes / sizes.sum())}
        rows += [
            {"aggregation": name, "subset": None} | value_columns(metric, values_R, len(pairs.gold))
            for name, values_R in aggregated.items()
        ]
        if len(parts) > 1:
            rows += [
                {"aggregation": None, "subset": subset} | value_columns(metric, values_R, int(size))
                for subset, values_R, size in zip(pairs.subsets, columns.T, sizes, strict=True)
            ]
    return rows


def predictions(pairs: Pairs, representation: Representation, similarities: Similarities) -> dict[str, np.ndarray]:
    """By each similarity that of every pair [N], whatever its order."""
    return {
        called: pair_similarities(pairs, representation, unordered(similarity))
        for called, similarity in similarities.items()
    }


def rows_of(
    pairs: Pairs, split: str, representation: Representation, similarities: Similarities, resamples: int
) -> list[ResultRow]:
    """As :func:`correlation_rows` of every similarity, with what they are of."""
    known = {"dataset": pairs.name, "split": split, "rows": "all", "dataset_sha256": pairs.sha256}
    return [
        known | {"similarity": called} | row
        for called, predicted in predictions(pairs, representation, similarities).items()
        for row in correlation_rows(pairs, predicted, f"{pairs.name}/{split}", resamples)
    ]


@dataclass(frozen=True, slots=True)
class StsTask(ComparableTask):
    """One test set, of one table or of several one after the other."""

    name: str
    parts: tuple[str, ...]

    def expected(self) -> tuple[str, ...]:
        return self.parts

    def tables(self, corpus: Corpus) -> tuple[str, ...]:
        return self.parts if all(map(corpus.files, self.parts)) else ()

    def tested(self, corpus: Corpus) -> tuple[str, ...]:
        return self.tables(corpus)

    def problems(self, corpus: Corpus) -> list[str]:
        return problems_of(self._pairs(corpus))

    def sentences(self, corpus: Corpus) -> list[str]:
        return self._pairs(corpus).sentences

    def score(
        self, corpus: Corpus, represent: Represent, similarities: Similarities, resamples: int
    ) -> list[ResultRow]:
        pairs = self._pairs(corpus)
        return rows_of(pairs, "test", represent(pairs.sentences), similarities, resamples)

    def row_scores(self, corpus: Corpus, represent: Represent, similarities: Similarities) -> list[RowScores]:
        pairs = self._pairs(corpus)
        found = predictions(pairs, represent(pairs.sentences), similarities)
        return [RowScores(self.name, "test", pairs.sha256, called, found[called], pairs.gold) for called in found]

    def _pairs(self, corpus: Corpus) -> Pairs:
        key = self.name, *corpus.contents(self.parts)
        return read_once(key, lambda: load_pairs(corpus, *self.parts, name=self.name))


STS_TASKS: dict[str, StsTask] = {
    task.name: task
    for task in (
        *(StsTask(f"sts{year}", (f"sts/sts{year}",)) for year in range(12, 17)),
        StsTask("stsb", ("sts/stsb_test",)),
        StsTask("sickr", ("sick/sick_test",)),
        # MTEB's SICK-R: the whole corpus as one test set of 9,927 pairs.
        StsTask("sickr-all", ("sick/sick_trial", "sick/sick_train", "sick/sick_test")),
    )
}
"""The STS sets by task name."""
