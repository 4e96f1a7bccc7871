"""The benchmarks of words (WEB; Latte-Mix, section 4.3, A.7), by the vectors that a model has for words."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from raysts.data.corpora import Corpus
from raysts.errors import InputError
from raysts.evaluation.results import ResultRow
from raysts.evaluation.statistics import (
    RESAMPLES,
    sampled_correlations,
    share_right,
    value_columns,
    whole_and_resampled,
)
from raysts.evaluation.tasks import ModelTask
from raysts.evaluation.words import scores
from raysts.evaluation.words.sets import ANALOGY, CATEGORIZATION, DEGREES, SETS, WordSet, absent, load_sets, problems_of
from raysts.evaluation.words.sets import relations as relations_of
from raysts.evaluation.words.vectors import UNKNOWN, Words, is_static, static_words
from raysts.ids import derive_seed
from raysts.models.layers import Layers, single_layers
from raysts.schema import TABLES, TEST_TABLES

if TYPE_CHECKING:
    from raysts.models.sentence_model import SentenceModel

SENTENCES = tuple(table for table in TABLES if table.startswith("sts/"))
"""Tables whose sentences show a contextual model the words: all of STS, every split; no score is read."""


@dataclass(frozen=True, slots=True)
class WordsTask(ModelTask):
    """Every set of words that is there, for each single layer of a contextual model, or for word vectors themselves."""

    heavy: ClassVar[bool] = True
    name: str = "words"

    def expected(self) -> tuple[str, ...]:
        return tuple(SETS)

    def tables(self, corpus: Corpus) -> tuple[str, ...]:
        tables = tuple(table for table in SETS if corpus.files(table))
        return (*tables, *(table for table in SENTENCES if corpus.files(table))) if tables else ()

    def tested(self, corpus: Corpus) -> tuple[str, ...]:
        """The test sets among those whose sentences show a contextual model the words."""
        return tuple(table for table in self.tables(corpus) if table in TEST_TABLES and table in SENTENCES)

    def problems(self, corpus: Corpus) -> list[str]:
        sets = load_sets(corpus)
        if not sets:
            return [f"task '{self.name}': the tables of words hold no set; missing: {'; '.join(absent(corpus, sets))}"]
        return [problem for word_set in sets for problem in problems_of(word_set)]

    def by_default(self, corpus: Corpus) -> bool:
        """Whether to run unasked: not without sentences that show a contextual model the words."""
        return any(corpus.files(table) for table in SENTENCES)

    def score_model(
        self, model: SentenceModel, corpus: Corpus, layers: Sequence[Layers] | None = None, resamples: int = RESAMPLES
    ) -> list[ResultRow]:
        """Per set and choice of layers its value, and the share of its distinct words that have a vector (``coverage``).

        Correlations and accuracies have bootstrap intervals (of ``semeval2012_2`` over its relations), purities none.
        ``layers``: choices of layers; default: each layer alone, of word vectors the model's own.

        Raises:
            InputError: there are no sentences that show a contextual model the words.
        """
        sets = load_sets(corpus)
        if is_static(model):
            choices = tuple(layers or (model.layers,))
            tables = [static_words(model)] * len(choices)
        else:
            from raysts.evaluation.words.components import contextual_words

            choices = tuple(layers or single_layers(model.depth))
            tables = contextual_words(model, _sentences(corpus), choices)
        _say_what_is_missing(corpus, sets, tables[0])
        rows: list[ResultRow] = []
        for choice, words in zip(choices, tables, strict=True):
            for word_set in sets:
                known = {
                    "dataset": word_set.name, "split": "test", "rows": "all", "layers": str(choice), "pooling": None,
                    "dataset_sha256": corpus.fingerprint(word_set.table), "similarity": None, "subset": None,
                    "aggregation": None,
                }  # fmt: skip
                size, unknown = len(word_set.words), _unknown(words, word_set)
                if unknown < size:
                    rows.append(known | _value(words, word_set, resamples))
                rows.append(known | {"metric": "coverage", "value": 1 - unknown / size, "n": size})
        return rows


def _sentences(corpus: Corpus) -> list[str]:
    tables = [table for table in SENTENCES if corpus.files(table)]
    if not tables:
        raise InputError(
            f"task 'words': a contextual model has vectors of words in sentences, and {corpus.where} holds none of "
            f"{', '.join(f'{table}.parquet' for table in SENTENCES)}; 'raysts data fetch' makes them, or name other --tasks"
        )
    columns = [corpus.read(table, ["sentence1", "sentence2"]) for table in tables]
    return list(dict.fromkeys(text for table in columns for column in table.columns for text in column.to_pylist()))


def _value(words: Words, word_set: WordSet, resamples: int) -> ResultRow:
    """similarity, aggregation, metric, value, ci_low, ci_high, n of a set."""
    if word_set.table == CATEGORIZATION:
        classes = np.unique([str(name) for name in word_set.columns["category"]], return_inverse=True)[1]
        seed = derive_seed(0, "words", word_set.name) % 2**32
        value = scores.best_purity(words, word_set.columns["word"], classes, seed)
        return {"metric": "purity", "value": value, "n": len(word_set)}
    by_cosine, label = {"similarity": "cosine"}, f"{word_set.name}/test"
    if word_set.name == DEGREES:
        relations = relations_of(word_set)
        gold = [relation.gold for relation in relations]
        degrees_N = scores.degrees(words, [relation.words for relation in relations], gold)
        samples_R = degrees_N @ whole_and_resampled(label, len(degrees_N), resamples) / len(degrees_N)
        pairs = sum(len(relation.gold) for relation in relations)
        return by_cosine | {"aggregation": "all"} | value_columns("spearman", samples_R, pairs)
    if word_set.table == ANALOGY:
        counts_NR = whole_and_resampled(label, len(word_set), resamples)
        right_N = scores.analogies(words, {name: word_set.columns[name] for name in "abcd"})
        return by_cosine | value_columns("accuracy", share_right(right_N, counts_NR), len(word_set))
    gold_N = word_set.array("score")
    predicted_N = scores.similarities(words, word_set.columns["word1"], word_set.columns["word2"])
    values_R = sampled_correlations(word_set.name, predicted_N, gold_N, label, resamples)["spearman"]
    return by_cosine | {"aggregation": "all"} | value_columns("spearman", values_R, len(word_set))


def _unknown(words: Words, word_set: WordSet) -> int:
    return int((words.rows(word_set.words) == UNKNOWN).sum())


def _say_what_is_missing(corpus: Corpus, sets: Sequence[WordSet], words: Words) -> None:
    lines = [f"not measured: {line}" for line in absent(corpus, sets)]
    strange = [word_set.name for word_set in sets if _unknown(words, word_set) == len(word_set.words)]
    if strange:
        lines.append(f"not measured: {', '.join(strange)} (none of its words has a vector)")
    every = list(dict.fromkeys(word for word_set in sets for word in word_set.words))
    unknown = int((words.rows(every) == UNKNOWN).sum())
    if unknown:
        parts = [f"{word_set.name} {_unknown(words, word_set):,}/{len(word_set.words):,}" for word_set in sets]
        lines.append(
            f"{unknown:,} of {len(every):,} words have no vector, and the mean vector stands for them: {', '.join(parts)}"
        )
    for line in lines:
        print(f"words: {line}", file=sys.stderr, flush=True)  # noqa: T201
