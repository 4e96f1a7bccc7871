"""Scores of a vocabulary on the benchmarks of words (WEB: Jastrzebski et al. 2017).

Shapes: N rows, V words, R of a block, H dimensions, Q questions of a block.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from raysts.evaluation.statistics import spearman
from raysts.evaluation.words.vectors import UNKNOWN, Words

_QUESTIONS = 1024

RelationWords = tuple[Sequence[str], ...]
"""Words of a relation: left and right of its examples, left and right of its pairs."""


def similarities(words: Words, left: Sequence[str], right: Sequence[str]) -> np.ndarray:
    """Return the cosine of each pair [N] float64. See :meth:`Words.vectors` for words without a vector."""
    a_NH, b_NH = (words.vectors(words.rows(side)).astype(np.float64) for side in (left, right))
    return np.einsum("nh,nh->n", a_NH, b_NH)


def analogies(words: Words, questions: Mapping[str, Sequence[str]]) -> np.ndarray:
    """Return True for each ``d`` that is the word most similar to b - a + c (3CosAdd) -> bool [N].

    The words of the question are no answers; every other word of the vocabulary is. An answer without a vector is never
    found. Of equal words the first counts.
    """
    rows = {name: words.rows(questions[name]) for name in "abcd"}
    right_N = np.zeros(len(rows["d"]), dtype=bool)
    asked = np.flatnonzero(rows["d"] != UNKNOWN)
    if not len(asked):
        return right_N
    a_NH, b_NH, c_NH = (words.vectors(rows[name][asked]) for name in "abc")
    wanted_NH = b_NH - a_NH + c_NH
    excluded_N3 = np.stack([rows[name][asked] for name in "abc"], axis=1)
    best_N = np.full(len(asked), -np.inf, np.float32)
    answer_N = np.full(len(asked), UNKNOWN)
    for start, block_RH in words.blocks():
        null_R = ~block_RH.any(axis=1)  # padding, and words whose vector is zeros
        for first in range(0, len(asked), _QUESTIONS):
            part = slice(first, first + _QUESTIONS)
            scores_QR = wanted_NH[part] @ block_RH.T
            scores_QR[:, null_R] = -np.inf
            for excluded_Q in excluded_N3[part].T:
                here = np.flatnonzero((excluded_Q >= start) & (excluded_Q < start + len(block_RH)))
                scores_QR[here, excluded_Q[here] - start] = -np.inf
            place_Q = scores_QR.argmax(axis=1)
            score_Q = scores_QR[np.arange(len(place_Q)), place_Q]
            better_Q = score_Q > best_N[part]
            best_N[part][better_Q] = score_Q[better_Q]
            answer_N[part][better_Q] = start + place_Q[better_Q]
    right_N[asked] = answer_N == rows["d"][asked]
    return right_N


def degrees(words: Words, relations: Sequence[tuple[RelationWords, np.ndarray]]) -> np.ndarray:
    """Return Spearman by relation [N] of the likeness to its examples with people's degrees.

    A pair's number is the product of its difference with the mean difference of the examples. 0 if it is the same for all
    pairs, as without a known word.
    """
    correlations = []
    for (*examples, left, right), gold_N in relations:
        means = [words.vectors(words.rows(side)).mean(axis=0, dtype=np.float64) for side in examples]
        sides = [words.vectors(words.rows(side)).astype(np.float64) for side in (left, right)]
        predicted_N = (sides[0] - sides[1]) @ (means[0] - means[1])
        constant = predicted_N.min() == predicted_N.max()
        correlations.append(0.0 if constant else spearman(predicted_N, gold_N))
    return np.array(correlations)


def best_clusters(words: Words, members: Sequence[str], classes: np.ndarray, seed: int) -> np.ndarray:
    """Return the words in the largest class of their cluster [N] bool, of the purest clustering.

    There are as many clusters as classes. WEB's six clusterings are agglomerative with Ward's linkage, with average and
    with complete linkage, by cosine and by Euclidean distance, and the best of ten runs of k-means.
    """
    from sklearn.cluster import AgglomerativeClustering, KMeans

    vectors_NH = words.vectors(words.rows(members))
    count = len(np.unique(classes))
    kinds = [
        AgglomerativeClustering(count, metric="euclidean", linkage="ward"),
        *(
            AgglomerativeClustering(count, metric=metric, linkage=linkage)
            for metric in ("cosine", "euclidean")
            for linkage in ("average", "complete")
        ),
        KMeans(count, n_init=10, random_state=seed),
    ]
    return max((in_largest(kind.fit_predict(vectors_NH), classes) for kind in kinds), key=lambda right_N: right_N.sum())


def in_largest(clusters: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """Return the rows in the largest class of their cluster [N] bool. Their share is the purity."""
    from sklearn.metrics.cluster import contingency_matrix

    largest = contingency_matrix(classes, clusters).argmax(axis=0)
    return largest[np.unique(clusters, return_inverse=True)[1]] == np.unique(classes, return_inverse=True)[1]
