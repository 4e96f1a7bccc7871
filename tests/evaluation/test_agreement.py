from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import scipy.stats

from raysts.evaluation.agreement import judge, pairs_of
from raysts.evaluation.scores import result_rows
from raysts.evaluation.tasks import lookup
from raysts.ops.similarity import cosine_of_vectors


def unit(vectors_ND: np.ndarray) -> np.ndarray:
    return vectors_ND / np.linalg.norm(vectors_ND, axis=1, keepdims=True)


def test_pairs_are_neighbours_and_others_once_each(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    vectors = unit(random.normal(size=(30, 4)))
    cosines, texts = vectors @ vectors.T, [f"text {i}" for i in range(30)]
    rows = pairs_of(texts, cosines, "test").to_pylist()
    pairs = {(texts.index(row["sentence1"]), texts.index(row["sentence2"])): row["score"] for row in rows}
    assert len(pairs) == len(rows) and all(i < j and np.isclose(s, cosines[i, j]) for (i, j), s in pairs.items())
    for i in range(30):
        nearest = max((j for j in range(30) if j != i), key=lambda j: cosines[i, j])
        assert (min(i, nearest), max(i, nearest)) in pairs
    assert 30 < len(pairs) <= 60
    assert pairs_of(texts, cosines, "test").equals(pairs_of(texts, cosines, "test"))

    pq.write_table(
        pa.concat_tables([pairs_of(texts, cosines, "dev"), pairs_of(texts, cosines, "test")]), tmp_path / "a.parquet"
    )
    noisy = (vectors + 0.3 * random.normal(size=vectors.shape)).astype(np.float32)
    (half,) = judge(tmp_path / "a.parquet", "id", "test").sets
    (scores,) = half.row_scores(lookup(texts, {"vectors": noisy}), {"cosine": cosine_of_vectors})
    found = result_rows(scores, 0)
    expected = scipy.stats.spearmanr([*pairs.values()], [(unit(noisy)[i] @ unit(noisy)[j]) for i, j in pairs])
    (spearman,) = (row for row in found if row["metric"] == "spearman")
    assert np.isclose(spearman["value"], expected.statistic, atol=1e-6) and spearman["n"] == len(pairs)
    assert (spearman["dataset"], spearman["split"], spearman["dataset_sha256"]) == ("agreement", "test", "id")
