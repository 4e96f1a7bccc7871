"""Retrieval: the documents of a set, ranked for each of its queries and held against judgements.

The metrics are those of ``trec_eval`` on runs of the first ``DEPTH`` documents: scores are float32, of equal ones the larger
id stands first, the gain of a document is its positive judgement, and a judged query without a relevant document
counts 0. MRR@10 is its ``recip_rank`` on runs of ten documents.

Legend: Q queries, N documents, B of them at once, K results of a query, D dimensions, J judgements, R resamples.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raysts.data.corpora import Corpus
from raysts.errors import InputError
from raysts.evaluation.scores import RowScores
from raysts.evaluation.statistics import UndefinedCorrelationError
from raysts.evaluation.sts import make_symmetric
from raysts.evaluation.tasks import (
    MOST_LOADED,
    LabelledSet,
    Represent,
    Representation,
    Similarities,
    Source,
    Task,
    join_fingerprints,
    take,
)
from raysts.models.prompts import SideText, Text
from raysts.ops.similarity import SIMILARITIES, Similarity, cosine_of_vectors, dot_of_vectors
from raysts.schema import DEVS, RETRIEVAL

if TYPE_CHECKING:
    from raysts.models.sentence_model import SentenceModel

NAME = "retrieval"
"""The task of every set; that of one is ``retrieval:NAME``."""

METRICS = ("ndcg@10", "mrr@10", "recall@100", "map")
INDEX = "cosine, documents by the teacher"
"""The similarity of a student's queries and its teacher's documents, as results name it."""

DEPTH = 1_000
"""Documents of a query that are scored, as in the runs of TREC."""

BM25 = "BM25"
"""The role in results of the search by words alone."""
K1, B = 0.9, 0.4
"""Parameters of BM25: Anserini's, with Lucene's inverse document frequency."""
STOP_WORDS = [
    "a", "an", "and", "are", "as", "at", "be", "but", "by", "for", "if", "in", "into", "is", "it", "no", "not", "of",
    "on", "or", "such", "that", "the", "their", "then", "there", "these", "they", "this", "to", "was", "will", "with",
]  # fmt: skip
"""Lucene's."""

_DOCUMENTS = 8_192  # compared at once with _QUERIES: 8 MB of similarities
_QUERIES = 128


def search(queries: Representation, documents: Representation, similarity: Similarity, most: int = DEPTH) -> np.ndarray:
    """Return the rows of the documents most similar to each query, best first -> int64 [Q, min(most, N)].

    Exact. Similarities are rounded to float32, of equal ones the earlier row comes first. Beside the two representations memory
    holds the results and the similarities of some queries and documents.

    Raises:
        UndefinedCorrelationError: a similarity is not finite.
    """
    total, size = (len(next(iter(side.values()))) for side in (queries, documents))
    compare = _BY_PRODUCT.get(similarity, _one_by_one(similarity))
    best_QK = np.empty((total, 0), np.uint64)
    for first in range(0, size, _DOCUMENTS):
        rows_B = np.arange(first, min(first + _DOCUMENTS, size))
        block = take(documents, rows_B)
        merged = []
        for start in range(0, total, _QUERIES):
            rows_Q = np.arange(start, min(start + _QUERIES, total))
            keys = _keys(compare(take(queries, rows_Q), block), rows_B)
            keys = np.concatenate([best_QK[rows_Q], keys], axis=1)
            merged.append(_smallest(keys, most))
        best_QK = np.concatenate(merged)
    return _rows(best_QK)


def _smallest(keys_QB: np.ndarray, most: int) -> np.ndarray:
    return np.partition(keys_QB, most - 1, axis=1)[:, :most] if keys_QB.shape[1] > most else keys_QB


def _rows(keys_QK: np.ndarray) -> np.ndarray:
    """Return the rows in the order of their keys, which hold them in the lower half."""
    return (np.sort(keys_QK, axis=1) & np.uint64(0xFFFFFFFF)).astype(np.int64)


@lru_cache(maxsize=MOST_LOADED)
def search_words(judged: RetrievalSet, most: int = DEPTH) -> np.ndarray:
    """Return the documents of each query by BM25, best first, -1 after the last with a common word.

    A word is a run of letters and digits in lower case, none of the English stop words, cut by Snowball's English stemmer.
    """
    # bm25s runs JAX, where that is installed, and JAX takes three quarters of a GPU at its first use unless told not to.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    import bm25s
    import Stemmer

    options = {"token_pattern": r"(?u)\b\w+\b", "stopwords": STOP_WORDS, "stemmer": Stemmer.Stemmer("english")}
    documents, queries = (
        bm25s.tokenize([*map(str, texts)], return_ids=False, show_progress=False, **options)
        for texts in (judged.documents, judged.queries)
    )
    index, rows_N, ranked = bm25s.BM25(k1=K1, b=B, method="lucene", backend="numpy"), np.arange(len(documents)), []
    if any(documents):
        index.index(documents, show_progress=False)
    size = max(1, _QUERIES * _DOCUMENTS // len(rows_N))
    for start in range(0, len(queries), size):
        part = queries[start : start + size]
        scores_QN = np.zeros((len(part), len(rows_N)), np.float32)
        for scores_N, words in zip(scores_QN, part, strict=True):
            if words and any(documents):
                scores_N[:] = index.get_scores(words)
        best = _rows(_smallest(_keys(scores_QN, rows_N), most))
        ranked.append(np.where(np.take_along_axis(scores_QN, best, axis=1) > 0, best, -1))
    return np.concatenate(ranked)


def _keys(similarities_QB: np.ndarray, rows_B: np.ndarray) -> np.ndarray:
    """Return similarity and row as one number, smaller for an earlier place -> uint64 [Q, B]."""
    if not np.isfinite(similarities_QB).all():
        raise UndefinedCorrelationError(
            "the model gives NaN or infinite similarities of queries and documents (training diverged?); use an earlier "
            "checkpoint or a lower learning rate"
        )
    bits = (similarities_QB.astype(np.float32) + np.float32(0)).view(np.uint32)  # -0 is 0
    descending = np.where(bits >> 31, bits, ~bits & np.uint32(0x7FFFFFFF))  # IEEE numbers sort as integers do
    return descending.astype(np.uint64) << np.uint64(32) | rows_B.astype(np.uint64)


def _one_by_one(similarity: Similarity) -> Callable[[Representation, Representation], np.ndarray]:
    """Return a similarity of corresponding rows for all queries and documents, the mean over both orders."""
    symmetric = make_symmetric(similarity)

    def compare(queries: Representation, documents: Representation) -> np.ndarray:
        size, total = (len(next(iter(side.values()))) for side in (documents, queries))
        return np.stack([symmetric(take(queries, np.full(size, query)), documents) for query in range(total)])

    return compare


def _products(queries: Representation, documents: Representation) -> np.ndarray:
    # In double precision equal vectors have equal products as float32, wherever in the block they stand.
    return queries["vectors"].astype(np.float64) @ documents["vectors"].astype(np.float64).T


def _cosines(queries: Representation, documents: Representation) -> np.ndarray:
    lengths = [np.linalg.norm(side["vectors"].astype(np.float64), axis=1) for side in (queries, documents)]
    lengths_Q, lengths_B = (np.where(length == 0, 1, length) for length in lengths)
    return _products(queries, documents) / lengths_Q[:, None] / lengths_B


_BY_PRODUCT: dict[Similarity, Similarity] = {cosine_of_vectors: _cosines, dot_of_vectors: _products}
"""Similarities that one product of matrices gives."""


@dataclass(frozen=True, kw_only=True, eq=False)
class RetrievalSet(LabelledSet):
    """A retrieval set: documents in descending order of their ids, and the queries that have judgements.

    Attributes:
        judgements: of each query the rows of judged documents, ascending, and their scores, both int64 [J].
        rows: the queries of the table that have judgements.
    """

    documents: list[SideText]
    queries: list[SideText]
    judgements: list[tuple[np.ndarray, np.ndarray]]

    def row_scores(self, represent: Represent, similarities: Similarities) -> list[RowScores]:
        queries, documents = represent(self.queries), represent(self.documents)
        scores = []
        try:
            for called, similarity in similarities.items():
                scores += self._scores(search(queries, documents, similarity), similarity=called)
        except UndefinedCorrelationError as error:
            raise UndefinedCorrelationError(f"{self.name}: {error}") from error
        return scores

    def baseline_scores(self) -> list[RowScores]:
        return self._scores(search_words(self), similarity="bm25", role=BM25, compared=False)

    def _scores(self, ranked_QK: np.ndarray, **columns: Any) -> list[RowScores]:
        return [self.make_scores(values_Q, metric, **columns) for metric, values_Q in self.measure(ranked_QK).items()]

    def measure(self, ranked_QK: np.ndarray) -> dict[str, np.ndarray]:
        """Return every metric of every query [Q], from the documents ranked for it."""
        values_QM = []
        for ranked_K, (rows_J, scores_J) in zip(ranked_QK, self.judgements, strict=True):
            places = np.minimum(np.searchsorted(rows_J, ranked_K), len(rows_J) - 1)
            gains_K = np.where(rows_J[places] == ranked_K, np.maximum(scores_J[places], 0), 0)
            values_QM.append(_metrics(gains_K, scores_J[scores_J > 0]))
        return dict(zip(METRICS, np.array(values_QM).T, strict=True))


def _metrics(gains_K: np.ndarray, relevant_J: np.ndarray) -> tuple[float, float, float, float]:
    """Return ``METRICS`` of one query from the gains of its ranked documents, and of all relevant ones."""
    if not len(relevant_J):
        return 0.0, 0.0, 0.0, 0.0
    hits = np.flatnonzero(gains_K)
    discounts = 1 / np.log2(np.arange(2, 12))
    ideal = np.sort(relevant_J)[::-1][:10]
    ndcg = gains_K[:10] @ discounts[: len(gains_K[:10])] / (ideal @ discounts[: len(ideal)])
    reciprocal = 1 / (1 + hits[0]) if len(hits) and hits[0] < 10 else 0.0
    precision = (np.arange(1, len(hits) + 1) / (1 + hits)).sum() / len(relevant_J)
    return float(ndcg), reciprocal, float((hits < 100).sum() / len(relevant_J)), precision


def _read(corpus: Corpus, source: Source) -> RetrievalSet:
    named = zip(RETRIEVAL.items(), source.tables, strict=True)
    tables = {part: corpus.read(table, [column.name for column in columns]) for (part, columns), table in named}
    return _retrieval_set(source.name, tables, join_fingerprints(corpus, source.tables), source.name.replace(":", "/"))


def retrieval_task(name: str) -> Task:
    """Return the task of one set."""
    tables = tuple(f"{NAME}/{name}/{part}" for part in RETRIEVAL)
    return Task(f"{NAME}:{name}", (Source(f"{NAME}:{name}", tables, _read),), unasked=False)


class RetrievalTask(Task):
    """Retrieval in every set of the corpus."""

    def sources(self, corpus: Corpus) -> tuple[Source, ...]:
        return tuple(source for name in corpus.retrieval_sets() for source in retrieval_task(name).listed)


ALL_SETS = RetrievalTask(NAME, retrieval_task("NAME").listed)


def documents_of(sets: Sequence[LabelledSet]) -> list[Text]:
    """Return the distinct documents of the retrieval sets."""
    searched = [labelled for labelled in sets if isinstance(labelled, RetrievalSet)]
    return list(dict.fromkeys(text for labelled in searched for text in labelled.documents))


def index_problems(queries: SentenceModel, documents: SentenceModel) -> list[str]:
    """Return the reasons why a model's queries cannot search another's documents, or an empty list."""
    called, possible, problems = next(iter(queries.similarities)), [name for name, _ in SIMILARITIES.values()], []
    if queries.dim != documents.dim:
        problems.append(
            f"--documents-by: it gives vectors of {documents.dim} dimensions and the model of {queries.dim}; they "
            f"must be as many, for queries are compared with documents"
        )
    if called not in possible:
        problems.append(
            f"--documents-by: the model compares texts by '{called}', which asks both sides for more than a vector; it must "
            f"be one of {', '.join(possible)}"
        )
    return problems


def search_index(represent: Represent, index: Mapping[Text, np.ndarray]) -> Represent:
    """Return a function with vectors of documents from an ``index``, and of other texts from a model."""

    def represent_sides(texts: Sequence[Text]) -> Representation:
        if texts[0] in index:
            return {"vectors": np.stack([index[text] for text in texts])}
        return represent(texts)

    return represent_sides


def index_scores(
    sets: Sequence[LabelledSet], represent: Represent, index: Mapping[Text, np.ndarray]
) -> list[RowScores]:
    """Return the row scores of a model's queries among documents that another model embedded (``index``)."""
    represent, by_cosine = search_index(represent, index), {INDEX: cosine_of_vectors}
    searched = [labelled for labelled in sets if isinstance(labelled, RetrievalSet)]
    scores = (of_set for labelled in searched for of_set in labelled.row_scores(represent, by_cosine))
    return [replace(of_set, compared=False) for of_set in scores]


def user_set(corpus: Corpus, name: str) -> RetrievalSet:
    """Return the user's development set ``name``, or raise InputError if its tables do not fit together."""
    names = [f"{DEVS}{name}/{part}" for part in RETRIEVAL]
    tables = {part: corpus[table].read() for part, table in zip(RETRIEVAL, names, strict=True)}
    return replace(_retrieval_set(name, tables, join_fingerprints(corpus, names), f"--dev {name}"), split="dev")


def _retrieval_set(name: str, tables: Mapping[str, pa.Table], sha256: str, place: str) -> RetrievalSet:
    """Return a set from its tables, or raise InputError if they do not fit together. ``place`` names them."""
    kinds = {"query_id": pa.string(), "doc_id": pa.string()}
    tables = {
        part: table.cast(pa.schema([column.with_type(kinds.get(column.name, column.type)) for column in table.schema]))
        for part, table in tables.items()
    }
    if problems := _problems(tables, place):
        raise InputError(problems)
    documents = tables["corpus"].sort_by([("doc_id", "descending")])
    texts = _document_texts(documents)
    ids = documents.column("doc_id").to_pylist()
    filled = [doc_id for doc_id, text in zip(ids, texts, strict=True) if text]
    # Those without text come after all others: no search reaches them.
    row_of = {doc_id: row for row, doc_id in enumerate(dict.fromkeys([*filled, *ids]))}
    judged: dict[str, dict[int, int]] = {}
    qrels = (tables["qrels"].column(column.name).to_pylist() for column in RETRIEVAL["qrels"])
    for query_id, doc_id, score in zip(*qrels, strict=True):
        judged.setdefault(query_id, {})[row_of[doc_id]] = int(score)
    rows = pc.is_in(tables["queries"].column("query_id"), pa.array(judged, pa.string()))
    queries = tables["queries"].filter(rows)
    queries_read = [SideText(text, "query") for text in queries.column("text").to_pylist()]
    searched = [SideText(text, "document") for text in texts if text]
    scores = [sorted(judged[query_id].items()) for query_id in queries.column("query_id").to_pylist()]
    remark = f"{name}: {len(texts) - len(filled):,} documents without title and text left out"
    return RetrievalSet(
        name=name, sha256=sha256, texts=list(dict.fromkeys([*queries_read, *searched])), size=len(queries),
        rows={f"{name.replace(':', '/')}/queries": np.asarray(rows.to_numpy())},
        remarks=(remark,) if len(filled) < len(texts) else (), queries=queries_read, documents=searched,
        judgements=[tuple(np.array(of_query, np.int64).T) for of_query in scores],
    )  # fmt: skip


def _document_texts(documents: pa.Table) -> list[str]:
    """Return title and text of each document, empty without both."""
    texts = [text if text and text.strip() else "" for text in documents.column("text").to_pylist()]
    if "title" not in documents.column_names:
        return texts
    titles = documents.column("title").cast(pa.string()).to_pylist()
    return [f"{title} {text}".strip() if title else text for title, text in zip(titles, texts, strict=True)]


def _problems(tables: Mapping[str, pa.Table], place: str) -> list[str]:
    """Return why the tables of a set cannot be used together, or an empty list."""
    problems = []
    ids = {part: tables[part].column(c).to_pylist() for part, c in (("corpus", "doc_id"), ("queries", "query_id"))}
    qrels = tables["qrels"]
    ids["qrels"] = list(zip(*(qrels.column(column).to_pylist() for column in ("query_id", "doc_id")), strict=True))
    for part, values in ids.items():
        if twice := [value for value, count in Counter(values).items() if count > 1]:
            key = "pair of query_id and doc_id" if part == "qrels" else "id"
            problems.append(
                f"{place}/{part}: {len(twice):,} {key}s are there several times (the first: {_quote(twice[0])}); every "
                f"{key} may be there once, remove the others"
            )
    for column, part in (("query_id", "queries"), ("doc_id", "corpus")):
        existing = set(ids[part])
        if unknown := [value for value in dict.fromkeys(qrels.column(column).to_pylist()) if value not in existing]:
            problems.append(
                f"{place}/qrels: {len(unknown):,} values of '{column}' are not in {place}/{part} (the first: "
                f"{_quote(unknown[0])}); judgements must be of what is there, remove them or complete the table"
            )
    if not any(_document_texts(tables["corpus"])):
        problems.append(f"{place}/corpus: no document has a title or a text; a search needs at least one")
    judged = set(qrels.column("query_id").to_pylist()).intersection(ids["queries"])
    if not judged:
        problems.append(f"{place}/qrels: no query has a judgement; a score needs at least one")
    elif pc.max(qrels.column("score").cast(pa.float64())).as_py() <= 0:
        problems.append(f"{place}/qrels: no score is above 0, so nothing is relevant; the set measures nothing")
    return problems


def _quote(value: object) -> str:
    return " and ".join(map(repr, value)) if isinstance(value, tuple) else repr(value)
