"""Benchmarks of words (WEB, and Latte-Mix, section 4.3, A.7)."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from raysts.data.corpora import Corpus
from raysts.errors import InputError
from raysts.evaluation.scores import RowScores
from raysts.evaluation.tasks import ModelSets, ModelTask
from raysts.evaluation.words import scores
from raysts.evaluation.words.sets import ANALOGY, CATEGORIZATION, DEGREES, SETS, WordSet, absent, load_sets, problems_of
from raysts.evaluation.words.sets import relations as relations_of
from raysts.evaluation.words.vectors import UNKNOWN, Words, is_static, static_words
from raysts.ids import derive_seed
from raysts.models.layers import Layers, single_layers
from raysts.schema import TABLES

if TYPE_CHECKING:
    from raysts.models.sentence_model import SentenceModel

SENTENCES = tuple(table for table in TABLES if table.startswith("sts/"))
"""Tables whose sentences show a contextual model the words: all of STS, every split; no score is read."""


@dataclass(frozen=True, slots=True)
class WordsTask(ModelTask):
    """Every existing set of words, for each single layer of a contextual model, or word vectors."""

    heavy: ClassVar[bool] = True
    name: str = "words"

    def expected(self) -> tuple[str, ...]:
        return tuple(SETS)

    def tables(self, corpus: Corpus) -> tuple[str, ...]:
        tables = tuple(table for table in SETS if corpus.files(table))
        return (*tables, *(table for table in SENTENCES if corpus.files(table))) if tables else ()

    def left_out(self, corpus: Corpus) -> dict[str, list[str]]:
        return {} if self.tables(corpus) else {name: [table] for table, names in SETS.items() for name in names}

    def problems(self, corpus: Corpus) -> list[str]:
        sets = load_sets(corpus)
        if not sets:
            return [f"task '{self.name}': the tables of words hold no set; missing: {'; '.join(absent(corpus, sets))}"]
        return [problem for word_set in sets for problem in problems_of(word_set)]

    def is_default(self, corpus: Corpus) -> bool:
        """Return True if sentences show a contextual model the words."""
        return any(corpus.files(table) for table in SENTENCES)

    def read(self, corpus: Corpus, contextual: bool) -> WordSets:
        """Return the sets of words, and the sentences that show a ``contextual`` model the words."""
        sets = tuple(load_sets(corpus))
        sha256 = {word_set.table: corpus.fingerprint(word_set.table) for word_set in sets}
        sentences = tuple(_sentences(corpus)) if contextual else ()
        return WordSets(sets=sets, sha256=sha256, sentences=sentences, absent=tuple(absent(corpus, sets)))


@dataclass(frozen=True, slots=True, kw_only=True)
class WordSets(ModelSets):
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

    @property
    def size(self) -> int:
        return len(self.sentences)

    def row_scores(self, model: SentenceModel, layers: Sequence[Layers] | None = None) -> dict[Layers, list[RowScores]]:
        """Return the row scores of each set by choice of layers, and the ``coverage`` of its words.

        The default is each layer alone, of word vectors the model's own. Correlations and accuracies have bootstrap
        intervals (of ``semeval2012_2`` over its relations), purities none.
        """
        if is_static(model):
            choices = tuple(layers or (model.layers,))
            tables = [static_words(model)] * len(choices)
        else:
            from raysts.evaluation.words.components import contextual_words

            choices = tuple(layers or single_layers(model.depth))
            tables = contextual_words(model, self.sentences, choices)
        _say_what_is_missing(self, tables[0])
        scores: dict[Layers, list[RowScores]] = {choice: [] for choice in choices}
        for choice, words in zip(choices, tables, strict=True):
            for word_set in self.sets:
                known: dict[str, Any] = {
                    "dataset": word_set.name, "split": "test", "sha256": self.sha256[word_set.table], "compared": False,
                }  # fmt: skip
                covered_N = words.rows(word_set.words) != UNKNOWN
                if covered_N.any():
                    scores[choice].append(_scores(words, word_set, known))
                scores[choice].append(
                    RowScores(metrics=("coverage",), values=covered_N * 1.0, similarity=None, **known)
                )
        return scores


def _sentences(corpus: Corpus) -> list[str]:
    tables = [table for table in SENTENCES if corpus.files(table)]
    if not tables:
        raise InputError(
            f"task 'words': a contextual model has vectors of words in sentences, and {corpus.where} holds none of "
            f"{', '.join(f'{table}.parquet' for table in SENTENCES)}; 'raysts data fetch' makes them, or name other --tasks"
        )
    columns = [corpus.read(table, ["sentence1", "sentence2"]) for table in tables]
    return list(dict.fromkeys(text for table in columns for column in table.columns for text in column.to_pylist()))


def _scores(words: Words, word_set: WordSet, known: dict[str, Any]) -> RowScores:
    """Return the row scores of a vocabulary on a set (of ``DEGREES`` on its relations)."""
    if word_set.table == CATEGORIZATION:
        classes = np.unique([str(name) for name in word_set.columns["category"]], return_inverse=True)[1]
        seed = derive_seed(0, "words", word_set.name) % 2**32
        right_N = scores.best_clusters(words, word_set.columns["word"], classes, seed)
        return RowScores(metrics=("purity",), values=right_N * 1.0, similarity=None, **known)
    drawn = {**known, "similarity": "cosine", "draw": f"{word_set.name}/test"}
    if word_set.name == DEGREES:
        relations = relations_of(word_set)
        gold = [relation.gold for relation in relations]
        degrees_N = scores.degrees(words, [relation.words for relation in relations], gold)
        drawn |= {"aggregations": ("all",), "counted": sum(map(len, gold))}
        return RowScores(metrics=("spearman",), values=degrees_N, **drawn)
    if word_set.table == ANALOGY:
        right_N = scores.analogies(words, {name: word_set.columns[name] for name in "abcd"})
        return RowScores(metrics=("accuracy",), values=right_N * 1.0, **drawn)
    predicted_N = scores.similarities(words, word_set.columns["word1"], word_set.columns["word2"])
    drawn |= {"gold": word_set.array("score"), "aggregations": ("all",)}
    return RowScores(metrics=("spearman",), values=predicted_N, **drawn)


def _unknown(words: Words, word_set: WordSet) -> int:
    return int((words.rows(word_set.words) == UNKNOWN).sum())


def _say_what_is_missing(of: WordSets, words: Words) -> None:
    lines = [f"not measured: {line}" for line in of.absent]
    strange = [word_set.name for word_set in of.sets if _unknown(words, word_set) == len(word_set.words)]
    if strange:
        lines.append(f"not measured: {', '.join(strange)} (none of its words has a vector)")
    every = list(dict.fromkeys(word for word_set in of.sets for word in word_set.words))
    unknown = int((words.rows(every) == UNKNOWN).sum())
    if unknown:
        parts = [f"{word_set.name} {_unknown(words, word_set):,}/{len(word_set.words):,}" for word_set in of.sets]
        lines.append(
            f"{unknown:,} of {len(every):,} words have no vector, and the mean vector stands for them: {', '.join(parts)}"
        )
    for line in lines:
        print(f"words: {line}", file=sys.stderr, flush=True)  # noqa: T201
