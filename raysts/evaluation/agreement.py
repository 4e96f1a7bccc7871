"""Agreement with an ensemble on held-out text, a measure without labels.

A pair's score is the mean of the cosines that the ensemble's members give it; a model's agreement is the rank correlation of
its own similarities with these scores. The second measure is the share of a teacher's ten nearest texts that a model keeps:
most random pairs are far apart for any model.

Legend: P texts of a pool, Q of them queries, K nearest texts.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from raysts.data.user import UserText
from raysts.errors import InputError
from raysts.evaluation.dev import CORRELATION, Dev
from raysts.evaluation.retrieval import search
from raysts.evaluation.scores import RowScores
from raysts.evaluation.standings import AGREEMENT
from raysts.evaluation.sts import Pairs, pairs_from_table
from raysts.evaluation.tasks import LabelledSet, Model, Represent, Representation, Similarities, take
from raysts.ids import derive_seed
from raysts.ops.ensemble import unit
from raysts.ops.similarity import Similarity
from raysts.storage.store import Store

NEAREST = 10
"""Texts that a search shows."""

POOL = 20_000
"""Most training texts among which the nearest are looked for."""

SPLITS = ("dev", "test")
"""Half of the held-out texts selects, the other half reports."""


def pairs_of(texts: Sequence[str], cosines_NN: np.ndarray, split: str) -> pa.Table:
    """Return each text with its nearest and with a random one, every pair once, with cosines.

    Neighbours alone would leave out what a model must keep apart, random pairs what it must tell from each other.
    """
    count = len(texts)
    among_NN = cosines_NN.copy()
    np.fill_diagonal(among_NN, -np.inf)
    draw = np.random.default_rng(derive_seed(0, AGREEMENT, split))
    random_N = (np.arange(count) + draw.integers(1, count, count)) % count
    places = {(min(i, int(j)), max(i, int(j))) for to in (among_NN.argmax(1), random_N) for i, j in enumerate(to)}
    first, second = (np.array(side) for side in zip(*sorted(places), strict=True))
    sides = {"sentence1": [texts[i] for i in first], "sentence2": [texts[j] for j in second]}
    return pa.table({"split": [split] * len(first), **sides, "score": cosines_NN[first, second].astype(np.float64)})


def judge(path: Path, sha256: str, split: str) -> Dev:
    """Return the pairs of one of ``SPLITS`` in a table of :func:`pairs_of`, which may be written later."""
    return Dev(AGREEMENT, CORRELATION, partial(_read_pairs, path, sha256, split))


def _read_pairs(path: Path, sha256: str, split: str) -> tuple[Pairs]:
    file = Store.of(path).get(path)
    assert file is not None, f"{path} is not there yet"
    table = pq.read_table(file, filters=[("split", "=", split)]).drop_columns("split")
    return (replace(pairs_from_table(table, AGREEMENT, sha256, split), aggregations=("all",), compared=False),)


@dataclass(frozen=True, kw_only=True, eq=False)
class NearestTexts(LabelledSet):
    """Held-out texts, and the texts of a pool that are nearest to each by a teacher.

    Attributes:
        texts: P different texts, first the Q held-out ones.
        nearest: [Q, K] places in the pool.
    """

    nearest: np.ndarray

    def row_scores(self, represent: Represent, similarities: Similarities) -> list[RowScores]:
        pool, scores = represent(self.texts), []
        for name, similarity in similarities.items():
            nearest_QK = nearest_texts(pool, similarity, self.size)
            share_Q = (nearest_QK[:, :, None] == self.nearest[:, None, :]).any(axis=2).mean(axis=1)
            columns = {"similarity": name, "draw": f"{self.name}/nearest"}
            scores.append(self.make_scores(share_Q, f"overlap@{NEAREST}", **columns))
        return scores


def nearest_texts(pool: Representation, similarity: Similarity, queries: int) -> np.ndarray:
    """Return the places [Q, K] of the texts nearest to the first ``queries`` of a pool.

    A text is not among its own nearest.
    """
    ranked_QK = search(take(pool, np.arange(queries)), pool, similarity, NEAREST + 1)
    return np.stack([row[row != query][:NEAREST] for query, row in enumerate(ranked_QK)])


def agreement_sets(teacher: Model, content: str, text: UserText) -> list[LabelledSet]:
    """Return both measures of agreement with a teacher on held-out texts.

    The texts that a distillation of the same text holds out are the queries. The pool is these, and up to ``POOL`` training
    texts, which the teacher embeds, and each model that is measured.

    Args:
        teacher: by its first similarity.
        content: content id of the teacher.
        text: with held-out texts.

    Raises:
        InputError: the text is too small to hold any out.
    """
    held_out = text.held_out
    if not held_out:
        raise InputError(
            f"--text '{text.path}': has {text.scan.rows - text.scan.repeated:,} different texts; agreement needs at least 200, "
            f"a tenth of them held out"
        )
    training = np.array(list(dict.fromkeys(t for batch in text.batches() for t in batch.column(0).to_pylist())), object)
    drawn = np.random.default_rng(derive_seed(0, AGREEMENT, "pool")).permutation(len(training))[:POOL]
    pool = [*held_out, *training[np.sort(drawn)]]
    vectors = teacher.represent(pool)
    (similarity, *_) = teacher.similarities.values()
    sha256 = f"{text.fingerprint}-{content}"
    unit_QD = unit(vectors["vectors"][: len(held_out)])
    table = pairs_of(held_out, unit_QD @ unit_QD.T, SPLITS[1]).drop_columns("split")
    pairs = replace(pairs_from_table(table, AGREEMENT, sha256), aggregations=("all",))
    nearest = nearest_texts(vectors, similarity, len(held_out))
    return [pairs, NearestTexts(name=AGREEMENT, sha256=sha256, texts=pool, size=len(held_out), nearest=nearest)]
