"""Agreement with an ensemble on held-out text, a measure without labels.

A pair's score is the mean of the cosines that the ensemble's members give it; a model's agreement is the rank correlation of
its own similarities with these scores. It says how much of the ensemble a model keeps, and never that it is better than the
ensemble, or than what it started from.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from raysts.evaluation.dev import CORRELATION, Dev
from raysts.evaluation.standings import AGREEMENT
from raysts.evaluation.sts import Pairs, pairs_from_table
from raysts.ids import derive_seed
from raysts.storage.store import Store

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
    others = (np.arange(count) + draw.integers(1, count, count)) % count
    both = {(min(i, int(j)), max(i, int(j))) for to in (among_NN.argmax(1), others) for i, j in enumerate(to)}
    first, second = (np.array(side) for side in zip(*sorted(both), strict=True))
    return pa.table(
        {
            "split": [split] * len(first),
            "sentence1": [texts[i] for i in first],
            "sentence2": [texts[j] for j in second],
            "score": cosines_NN[first, second].astype(np.float64),
        }
    )


def judge(path: Path, sha256: str, split: str) -> Dev:
    """Return the pairs of one half in the file at ``path``, which may be written later.

    Args:
        path: columns split, sentence1, sentence2, score.
        sha256: names the content of the file.
        split: one of ``SPLITS``.
    """
    return Dev(AGREEMENT, CORRELATION, partial(read_pairs, path, sha256, split))


def read_pairs(path: Path, sha256: str, split: str) -> tuple[Pairs]:
    """Read the pairs of one half. Arguments as of :func:`judge`."""
    file = Store.of(path).get(path)
    assert file is not None, f"{path} is not there yet"
    table = pq.read_table(file, filters=[("split", "=", split)]).drop_columns("split")
    return (replace(pairs_from_table(table, AGREEMENT, sha256, split), aggregations=("all",), compared=False),)
