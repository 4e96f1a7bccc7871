"""Benchmarks of words (WEB: Jastrzebski et al. 2017, and Latte-Mix, section 4.3, A.7).

Shapes: V words, N looked up or rows, R of a block, H dimensions, Q questions of a block.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raysts.data.corpora import Corpus
from raysts.errors import InputError
from raysts.evaluation.scores import RowScores
from raysts.evaluation.statistics import spearman
from raysts.evaluation.tasks import Task
from raysts.ids import derive_seed
from raysts.models.layers import Layers, single_layers
from raysts.models.static import BLOCK, MODEL_TYPE, vocabulary
from raysts.ops.ensemble import unit
from raysts.schema import TABLES

if TYPE_CHECKING:
    from raysts.models.sentence_model import SentenceModel

SIMILARITY, ANALOGY, CATEGORIZATION = "web/word_similarity", "web/word_analogy", "web/word_categorization"

SETS: dict[str, tuple[str, ...]] = {
    SIMILARITY: ("simlex999", "men", "ws353", "rw"),
    ANALOGY: ("google", "msr", "semeval2012_2"),
    CATEGORIZATION: ("bless", "ap"),
}
"""The sets of the papers' tables by the table that they are in. Other sets are measured too, ``_CHOICES`` left out."""

_CHOICES = ("sat",)
"""Analogies whose rows are five answers to choose from, four of them wrong: no question for 3CosAdd."""

DEGREES = "semeval2012_2"
"""Its questions are pairs ``c``, ``d`` whose degree of a relation is ``score``; ``a``, ``b`` are the relation's examples."""

SENTENCES = tuple(table for table in TABLES if table.startswith("sts/"))
"""Tables whose sentences show a contextual model the words: all of STS, every split; no score is read."""

_MOST = 5

logger = logging.getLogger("raysts")

UNKNOWN = -1
"""Row of a word that has no vector."""


@dataclass(frozen=True)
class WordTable:
    """Vocabulary and its vectors. ``raw_VH``: vectors of any length, perhaps on disk."""

    index: Mapping[str, int]
    raw_VH: np.ndarray

    def rows(self, words: Sequence[str]) -> np.ndarray:
        """Return the row of each word [N], or ``UNKNOWN`` if its vector is missing or zero."""
        rows = np.array([self.index.get(word, self.index.get(word.lower(), UNKNOWN)) for word in words], np.int64)
        spelt_N = np.flatnonzero(rows != UNKNOWN)
        rows[spelt_N[~self.raw_VH[rows[spelt_N]].any(axis=1)]] = UNKNOWN
        return rows

    def vectors(self, words: Sequence[str]) -> np.ndarray:
        """Return vectors of unit length [N, H] float32, for an unknown word the shorter mean vector.

        The product of two is then their cosine, and that with an unknown word about the mean cosine, which says nothing.
        """
        rows = self.rows(words)
        vectors_NH = unit(self.raw_VH[np.maximum(rows, 0)])
        vectors_NH[rows == UNKNOWN] = self.mean_H
        return vectors_NH

    def blocks(self) -> Iterator[tuple[int, np.ndarray]]:
        """Yield (first row, vectors of unit length) of the whole vocabulary in blocks."""
        for first in range(0, len(self.raw_VH), BLOCK):
            yield first, unit(self.raw_VH[first : first + BLOCK])

    @cached_property
    def mean_H(self) -> np.ndarray:
        total_H = np.zeros(self.raw_VH.shape[1])
        words = 0
        for _, block_RH in self.blocks():
            total_H += block_RH.sum(axis=0, dtype=np.float64)
            words += int(block_RH.any(axis=1).sum())
        return (total_H / max(1, words)).astype(np.float32)


def static_words(model: SentenceModel) -> WordTable:
    """Return the vocabulary of word vectors, which are not copied."""
    return WordTable(vocabulary(model.tokenizer), model.encoder.backbone.weight.detach().cpu().numpy())


def is_static(model: SentenceModel) -> bool:
    """Return True if a word has one vector in any context."""
    return bool(model.encoder.config.model_type == MODEL_TYPE)


@dataclass(frozen=True, slots=True)
class WordSet:
    """The rows of one set: ``columns`` by name, ``row`` [N] their numbers in the table."""

    name: str
    table: str
    columns: dict[str, list[Any]]
    row: np.ndarray

    @property
    def words(self) -> list[str]:
        named = ("word", "word1", "word2", *"abcd")
        return list(dict.fromkeys(word for name in named for word in self.columns.get(name, ())))

    @property
    def scores(self) -> np.ndarray:
        """The column ``score`` [N] float64, NaN for a missing one."""
        return np.array([np.nan if value is None else value for value in self.columns["score"]], dtype=np.float64)

    def problems(self) -> list[str]:
        """Return the reasons why valid rows cannot be scored, or an empty list."""
        if self.name == DEGREES:
            return read_relations(self)[1]
        if self.table == CATEGORIZATION:
            distinct = len(set(self.columns["category"]))
            if 1 < distinct < len(self.row):
                return []
            return [self.too_few("has", len(self.row), distinct, "category", "categories, fewer than words")]
        distinct = len(np.unique(self.scores)) if self.table == SIMILARITY else 2
        return [] if distinct > 1 else [self.too_few("has", len(self.row), distinct, "score")]

    def too_few(self, verb: str, rows: int, distinct: int, column: str, rule: str = "scores") -> str:
        """Return the problem of a set or relation with too few distinct values."""
        numbers = f"rows {self.row[0]} to {self.row[-1]}" if len(self.row) > 1 else f"row {self.row[0]}"
        return (
            f"{self.table}: data set '{self.name}' ({numbers}) {verb} {rows} row(s) and {distinct} distinct "
            f"value(s) of '{column}'; it needs at least two different {rule}: complete or remove it"
        )


def read_sets(corpus: Corpus) -> list[WordSet]:
    """Return every set of the corpus that can be measured, by its name in lower case."""
    sets = []
    for table in filter(corpus.files, SETS):
        rows = corpus.read(table)
        names = pc.utf8_lower(rows.column("dataset").cast(pa.string()))
        for name in names.unique().to_pylist():
            numbers = np.flatnonzero(pc.equal(names, name).to_numpy())
            word_set = WordSet(name, table, rows.take(pa.array(numbers)).to_pydict(), numbers)
            scored = any(score is not None for score in word_set.columns.get("score", ()))
            if table != ANALOGY or (name not in _CHOICES and (name != DEGREES or scored)):
                sets.append(word_set)
    return sets


def find_absent(corpus: Corpus, sets: Iterable[WordSet]) -> list[str]:
    """Return the missing sets of ``SETS``, each with the table that it belongs in."""
    present, lines = {word_set.name for word_set in sets}, []
    for table, names in SETS.items():
        if missing := [name for name in names if name not in present]:
            hint = f"belong in {corpus.where}/{table}.parquet"
            if corpus.files(table) and missing == [DEGREES]:
                hint = f"needs the column 'score' in {corpus.where}/{table}.parquet"
            lines.append(f"{', '.join(missing)} ({hint})")
    return lines


@dataclass(frozen=True, slots=True)
class Relation:
    """Pairs of words that are examples of a relation, and other pairs with the degree of each."""

    examples: dict[tuple[str, str], None] = field(default_factory=dict)
    degrees: dict[tuple[str, str], float] = field(default_factory=dict)


def read_relations(word_set: WordSet) -> tuple[list[Relation], list[str]]:
    """Return the relations of ``DEGREES``, and the problems of its rows.

    Each example and each pair counts once. A row needs a score, and a pair has one in a relation.
    """
    relations: dict[str, Relation] = {}
    first_rows: dict[tuple[str, str, str], int] = {}
    problems = []
    columns = [word_set.columns[name] for name in ("category", *"abcd")]
    for category, a, b, c, d, degree, row in zip(*columns, word_set.scores, word_set.row, strict=True):
        relation = relations.setdefault(str(category), Relation())
        relation.examples[a, b] = None
        first_row = first_rows.setdefault((str(category), c, d), row)
        first = relation.degrees.setdefault((c, d), float(degree))
        place = f"{word_set.table}: row {row}, column 'score'"
        if np.isnan(degree):
            problems.append(
                f"{place}: null, and other rows of {word_set.name} have one; every row needs a degree, or none"
            )
        elif not np.isnan(first) and first != degree:
            problems.append(
                f"{place}: {degree:g} for '{c}', '{d}' in relation '{category}', which row {first_row} gives {first:g}; "
                f"a pair has one degree in a relation"
            )
    for name, relation in relations.items():
        if (distinct := len(np.unique([*relation.degrees.values()]))) < 2:
            problems.append(word_set.too_few(f"relation '{name}' has", len(relation.degrees), distinct, "score"))
    return [*relations.values()], problems[:_MOST]


_QUESTIONS = 1024


def analogies(words: WordTable, questions: Mapping[str, Sequence[str]]) -> np.ndarray:
    """Return True for each ``d`` that is the word most similar to b - a + c (3CosAdd) -> bool [N].

    The question's words do not count as answers; every other word of the vocabulary is. An answer without a vector is never
    found. Of equal words the first counts.
    """
    a_NH, b_NH, c_NH = (words.vectors(questions[name]) for name in "abc")
    wanted_NH = b_NH - a_NH + c_NH
    excluded_N3 = np.stack([words.rows(questions[name]) for name in "abc"], axis=1)
    right_N = words.rows(questions["d"])
    best_N, answer_N = np.full(len(right_N), -np.inf, np.float32), np.full(len(right_N), UNKNOWN)
    for start, block_RH in words.blocks():
        null_R = ~block_RH.any(axis=1)  # padding, and words whose vector is zeros
        for first in range(0, len(right_N), _QUESTIONS):
            part = slice(first, first + _QUESTIONS)
            scores_QR = wanted_NH[part] @ block_RH.T
            scores_QR[:, null_R] = -np.inf
            for excluded_Q in excluded_N3[part].T:
                rows_Q = np.flatnonzero((excluded_Q >= start) & (excluded_Q < start + len(block_RH)))
                scores_QR[rows_Q, excluded_Q[rows_Q] - start] = -np.inf
            place_Q = scores_QR.argmax(axis=1)
            score_Q = scores_QR[np.arange(len(place_Q)), place_Q]
            better_Q = score_Q > best_N[part]
            best_N[part][better_Q] = score_Q[better_Q]
            answer_N[part][better_Q] = start + place_Q[better_Q]
    return (answer_N == right_N) & (right_N != UNKNOWN)


def degrees_of(words: WordTable, relations: Sequence[Relation]) -> np.ndarray:
    """Return Spearman by relation [N] of the likeness to its examples with people's degrees.

    A pair's number is the product of its difference with the mean difference of the examples. 0 if it is the same for all
    pairs, as without a known word.
    """
    correlations = []
    for relation in relations:
        examples_NH, pairs_NH = (
            np.subtract(*(words.vectors(side).astype(np.float64) for side in zip(*pairs, strict=True)))
            for pairs in (relation.examples, relation.degrees)
        )
        predicted_N = pairs_NH @ examples_NH.mean(axis=0)
        constant = predicted_N.min() == predicted_N.max()
        correlations.append(0.0 if constant else spearman(predicted_N, np.array([*relation.degrees.values()])))
    return np.array(correlations)


def best_clusters(words: WordTable, members: Sequence[str], classes: np.ndarray, seed: int) -> np.ndarray:
    """Return the words in the largest class of their cluster [N] bool, of the purest clustering.

    There are as many clusters as classes. WEB's six clusterings are agglomerative with Ward's linkage, with average and
    with complete linkage, by cosine and by Euclidean distance, and the best of ten runs of k-means.
    """
    from sklearn.cluster import AgglomerativeClustering, KMeans

    vectors_NH, count = words.vectors(members), len(np.unique(classes))
    linked = [("euclidean", "ward"), *itertools.product(("cosine", "euclidean"), ("average", "complete"))]
    kinds = [AgglomerativeClustering(count, metric=metric, linkage=linkage) for metric, linkage in linked]
    kinds.append(KMeans(count, n_init=10, random_state=seed))
    return max((select_largest(kind.fit_predict(vectors_NH), classes) for kind in kinds), key=np.sum)


def select_largest(clusters: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """Return the rows in the largest class of their cluster [N] bool. Their share is the purity."""
    from sklearn.metrics.cluster import contingency_matrix

    largest = contingency_matrix(classes, clusters).argmax(axis=0)
    return largest[np.unique(clusters, return_inverse=True)[1]] == np.unique(classes, return_inverse=True)[1]


@dataclass(frozen=True)
class WordsTask(Task):
    """Every existing set of words, for each single layer of a contextual model, or word vectors."""

    asks_model: ClassVar[bool] = True

    def expected_tables(self) -> tuple[str, ...]:
        return tuple(SETS)

    def tables(self, corpus: Corpus) -> tuple[str, ...]:
        tables = tuple(filter(corpus.files, SETS))
        return (*tables, *filter(corpus.files, SENTENCES)) if tables else ()

    def left_out(self, corpus: Corpus) -> dict[str, list[str]]:
        return {} if self.tables(corpus) else {name: [table] for table, names in SETS.items() for name in names}

    def problems(self, corpus: Corpus) -> list[str]:
        if sets := read_sets(corpus):
            return [problem for word_set in sets for problem in word_set.problems()]
        missing = "; ".join(find_absent(corpus, sets))
        return [f"task '{self.name}': the tables of words hold no set; missing: {missing}"]

    def is_default(self, corpus: Corpus) -> bool:
        return any(map(corpus.files, SENTENCES))  # which show a contextual model the words

    def read(self, corpus: Corpus, contextual: bool) -> WordSets:
        """Read the sets of words, and the sentences that show a ``contextual`` model the words.

        Raises:
            InputError: the corpus has no such sentences.
        """
        tables = [*filter(corpus.files, SENTENCES)]
        if contextual and not tables:
            raise InputError(
                f"task 'words': a contextual model has vectors of words in sentences, and {corpus.where} holds none of "
                f"{', '.join(f'{table}.parquet' for table in SENTENCES)}; 'raysts data fetch' makes them, or name other --tasks"
            )
        columns = [corpus.read(table, ["sentence1", "sentence2"]) for table in tables] if contextual else []
        texts = (text for table in columns for column in table.columns for text in column.to_pylist())
        sets = tuple(read_sets(corpus))
        sha256 = {word_set.table: corpus.fingerprint(word_set.table) for word_set in sets}
        return WordSets(sets, sha256, tuple(dict.fromkeys(texts)), tuple(find_absent(corpus, sets)))


WORDS = WordsTask("words", (), heavy=True)


@dataclass(frozen=True, slots=True)
class WordSets:
    """Sets of words.

    Attributes:
        sha256: fingerprint of each table.
        sentences: those that show a contextual model the words.
        absent: the sets that the data lack, as text.
    """

    sets: tuple[WordSet, ...]
    sha256: Mapping[str, str]
    sentences: tuple[str, ...]
    absent: tuple[str, ...]

    def row_scores(self, model: SentenceModel, layers: Sequence[Layers] | None = None) -> dict[Layers, list[RowScores]]:
        """Return the row scores of each set by choice of layers, and the ``coverage`` of its words.

        The default is each layer alone, of word vectors the model's own. Correlations and accuracies have bootstrap
        intervals (of ``semeval2012_2`` over its relations), purities none.
        """
        if is_static(model):
            choices = tuple(layers or (model.layers,))
            tables = [static_words(model)] * len(choices)
        else:
            from raysts.evaluation.word_components import contextual_words

            choices = tuple(layers or single_layers(model.depth))
            index, components_LVH = contextual_words(model, self.sentences, choices)
            tables = [WordTable(index, components_VH) for components_VH in components_LVH]
        self._warn(tables[0])
        return {
            choice: [scores for word_set in self.sets for scores in self._set_scores(words, word_set)]
            for choice, words in zip(choices, tables, strict=True)
        }

    def _set_scores(self, words: WordTable, word_set: WordSet) -> Iterator[RowScores]:
        """Yield the scores of a set with known words, and the coverage of any."""
        shared: dict[str, Any] = {"dataset": word_set.name, "split": "test", "compared": False}
        shared["sha256"] = self.sha256[word_set.table]
        covered_N = words.rows(word_set.words) != UNKNOWN
        if covered_N.any():
            yield RowScores(**shared, **_scores(words, word_set))
        yield RowScores(metrics=("coverage",), values=covered_N.astype(np.float64), similarity=None, **shared)

    def _warn(self, words: WordTable) -> None:
        """Log the sets that are missing, and the words without a vector."""
        unknown = {s.name: (int((words.rows(s.words) == UNKNOWN).sum()), len(s.words)) for s in self.sets}
        for line in self.absent:
            logger.warning("words: not measured: %s", line)
        if strange := [name for name, (count, size) in unknown.items() if count == size]:
            logger.warning("words: not measured: %s (none of its words has a vector)", ", ".join(strange))
        all_words = list(dict.fromkeys(word for word_set in self.sets for word in word_set.words))
        if total := int((words.rows(all_words) == UNKNOWN).sum()):
            parts = ", ".join(f"{name} {count:,}/{size:,}" for name, (count, size) in unknown.items())
            stands = f"words have no vector, and the mean vector stands for them: {parts}"
            logger.warning("words: %s of %s %s", f"{total:,}", f"{len(all_words):,}", stands)


def _scores(words: WordTable, word_set: WordSet) -> dict[str, Any]:
    """Return the fields of a vocabulary's row scores on a set (of ``DEGREES`` on its relations)."""
    columns, drawn = word_set.columns, {"similarity": "cosine", "draw": f"{word_set.name}/test"}
    if word_set.table == CATEGORIZATION:
        classes = np.unique([str(name) for name in columns["category"]], return_inverse=True)[1]
        seed = derive_seed(0, "words", word_set.name) % 2**32
        right_N = best_clusters(words, columns["word"], classes, seed)
        return {"metrics": ("purity",), "values": right_N.astype(np.float64), "similarity": None}
    if word_set.table == ANALOGY and word_set.name != DEGREES:
        right_N = analogies(words, {name: columns[name] for name in "abcd"})
        return {"metrics": ("accuracy",), "values": right_N.astype(np.float64), **drawn}
    fields: dict[str, Any] = {"metrics": ("spearman",), "aggregations": ("all",), **drawn}
    if word_set.name == DEGREES:
        relations, _ = read_relations(word_set)
        fields["counted"] = sum(len(relation.degrees) for relation in relations)
        return {"values": degrees_of(words, relations), **fields}
    a_NH, b_NH = (words.vectors(columns[side]).astype(np.float64) for side in ("word1", "word2"))
    return {"values": np.einsum("nh,nh->n", a_NH, b_NH), "gold": word_set.scores, **fields}
