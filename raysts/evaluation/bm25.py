"""BM25: a search by words alone, beside the models of every retrieval set.

The parameters are Anserini's (k1 .9, b .4) with Lucene's inverse document frequency. A word is a run of letters and digits in
lower case, none of Lucene's 33 English stop words, cut by Snowball's English stemmer. On texts of other languages the stemmer
does little, so that a better analyser would find more there.

Legend: Q queries, N documents, K results of a query.
"""

from importlib.util import find_spec

import numpy as np

ROLE = "BM25"
"""The role in results."""

K1, B = 0.9, 0.4

STOP_WORDS = [
    "a", "an", "and", "are", "as", "at", "be", "but", "by", "for", "if", "in", "into", "is", "it", "no", "not", "of",
    "on", "or", "such", "that", "the", "their", "then", "there", "these", "they", "this", "to", "was", "will", "with",
]  # fmt: skip


PACKAGES = ("bm25s", "PyStemmer")


def is_installed() -> bool:
    """Return True if the packages of an older installation of raysts suffice."""
    return all(map(find_spec, ("bm25s", "Stemmer")))


class Bm25:
    """Index of the words of documents."""

    def __init__(self, documents: list[str]) -> None:
        import bm25s
        import Stemmer

        self._stemmer, self._size = Stemmer.Stemmer("english"), len(documents)
        words = self._words(documents)
        self._index = bm25s.BM25(k1=K1, b=B, method="lucene", backend="numpy") if any(words) else None
        if self._index is not None:
            self._index.index(words, show_progress=False)

    def scores(self, queries: list[str]) -> np.ndarray:
        """Return the score of every document -> float32 [Q, N], 0 without a common word."""
        scores_QN = np.zeros((len(queries), self._size), np.float32)
        for scores_N, words in zip(scores_QN, self._words(queries), strict=True):
            if words and self._index is not None:
                scores_N[:] = self._index.get_scores(words)
        return scores_QN

    def _words(self, texts: list[str]) -> list[list[str]]:
        import bm25s

        options = {"token_pattern": r"(?u)\b\w+\b", "stopwords": STOP_WORDS, "stemmer": self._stemmer}
        words: list[list[str]] = bm25s.tokenize(texts, return_ids=False, show_progress=False, **options)
        return words
