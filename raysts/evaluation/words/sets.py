"""Benchmarks of words in the canonical tables by set, and their problems."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raysts.data.corpora import Corpus
from raysts.errors import InputError

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

_MOST = 5


@dataclass(frozen=True, slots=True)
class WordSet:
    """The rows of one set: ``columns`` by name, ``row`` [N] their numbers in the table."""

    name: str
    table: str
    columns: dict[str, list[Any]]
    row: np.ndarray

    def __len__(self) -> int:
        return len(self.row)

    @property
    def words(self) -> list[str]:
        named = ("word", "word1", "word2", *"abcd")
        return list(dict.fromkeys(word for name in named for word in self.columns.get(name, ())))

    def array(self, name: str) -> np.ndarray:
        """Return a column of numbers [N] float64, NaN for a missing one."""
        return np.array([np.nan if value is None else value for value in self.columns[name]], dtype=np.float64)


@dataclass(frozen=True, slots=True)
class Relation:
    """Relation of ``DEGREES``: words of its examples and pairs, left and right, and degrees [N]."""

    name: str
    words: tuple[list[str], list[str], list[str], list[str]]
    gold: np.ndarray


def load_sets(corpus: Corpus) -> list[WordSet]:
    """Return every set of the corpus that can be measured, by its name in lower case."""
    return [word_set for table in SETS if corpus.files(table) for word_set in _sets(corpus, table)]


def _sets(corpus: Corpus, table: str) -> Iterator[WordSet]:
    read = corpus.read(table)
    names = pc.utf8_lower(read.column("dataset").cast(pa.string()))
    for name in names.unique().to_pylist():
        rows = np.flatnonzero(pc.equal(names, name).to_numpy())
        columns = {column: read.column(column).take(pa.array(rows)).to_pylist() for column in read.column_names}
        word_set = WordSet(name, table, columns, rows)
        scored = any(score is not None for score in columns.get("score", ()))
        if table != ANALOGY or (name not in _CHOICES and (name != DEGREES or scored)):
            yield word_set


def absent(corpus: Corpus, sets: Iterable[WordSet]) -> list[str]:
    """Return the missing sets of ``SETS``, each with the table that it belongs in."""
    present = {word_set.name for word_set in sets}
    lines = []
    for table, names in SETS.items():
        if missing := [name for name in names if name not in present]:
            where = f"belong in {corpus.where}/{table}.parquet"
            if corpus.files(table) and missing == [DEGREES]:
                where = f"needs the column 'score' in {corpus.where}/{table}.parquet"
            lines.append(f"{', '.join(missing)} ({where})")
    return lines


def relations(word_set: WordSet) -> list[Relation]:
    """Return the relations of ``DEGREES``, each example and each pair once.

    Raises:
        InputError: a row without a score, or a pair with two scores in a relation.
    """
    by_name: dict[str, list[int]] = {}
    for index, category in enumerate(word_set.columns["category"]):
        by_name.setdefault(str(category), []).append(index)
    scores, all_relations, problems = word_set.array("score"), [], []
    a, b, c, d = (word_set.columns[name] for name in "abcd")
    for name, rows in by_name.items():
        examples = dict.fromkeys((a[i], b[i]) for i in rows)
        pairs: dict[tuple[str, str], int] = {}
        for i in rows:
            first = pairs.setdefault((c[i], d[i]), i)
            where = f"{word_set.table}: row {word_set.row[i]}, column 'score'"
            if np.isnan(scores[i]):
                problems.append(
                    f"{where}: null, and other rows of {word_set.name} have one; every row needs a degree, or none"
                )
            elif not np.isnan(scores[first]) and scores[first] != scores[i]:
                problems.append(
                    f"{where}: {scores[i]:g} for '{c[i]}', '{d[i]}' in relation '{name}', which row {word_set.row[first]} "
                    f"gives {scores[first]:g}; a pair has one degree in a relation"
                )
        gold = scores[list(pairs.values())]
        if len(np.unique(gold)) < 2:
            problems.append(_too_few(word_set, f"relation '{name}' has", len(gold), len(np.unique(gold)), "score"))
        words = tuple([pair[side] for pair in group] for group in (examples, pairs) for side in (0, 1))
        all_relations.append(Relation(name, words, gold))  # type: ignore[arg-type]
    if problems:
        raise InputError(problems[:_MOST])
    return all_relations


def problems_of(word_set: WordSet) -> list[str]:
    """Return the reasons why a set with valid rows cannot be scored, or an empty list."""
    if word_set.table == SIMILARITY:
        distinct = len(np.unique(word_set.array("score")))
        return [] if distinct > 1 else [_too_few(word_set, "has", len(word_set), distinct, "score")]
    if word_set.table == CATEGORIZATION:
        distinct = len(set(word_set.columns["category"]))
        if 1 < distinct < len(word_set):
            return []
        return [_too_few(word_set, "has", len(word_set), distinct, "category", "categories, fewer than words")]
    if word_set.name == DEGREES:
        try:
            relations(word_set)
        except InputError as error:
            return error.problems
    return []


def _too_few(word_set: WordSet, what: str, rows: int, distinct: int, column: str, rule: str = "scores") -> str:
    numbers = f"rows {word_set.row[0]} to {word_set.row[-1]}" if len(word_set) > 1 else f"row {word_set.row[0]}"
    return (
        f"{word_set.table}: data set '{word_set.name}' ({numbers}) {what} {rows} row(s) and {distinct} distinct "
        f"value(s) of '{column}'; it needs at least two different {rule}: complete or remove it"
    )
