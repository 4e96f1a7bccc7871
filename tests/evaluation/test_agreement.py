from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.stats
from evaluation_fakes import HashedWords

from raysts.data.user import open_text
from raysts.errors import InputError
from raysts.evaluation.agreement import agreement_sets, judge, pairs_of
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
    dev, test, again = (pairs_of(texts, cosines, part) for part in ("dev", "test", "test"))
    assert test.equals(again)

    pq.write_table(pa.concat_tables([dev, test]), tmp_path / "a.parquet")
    noisy = (vectors + 0.3 * random.normal(size=vectors.shape)).astype(np.float32)
    (half,) = judge(tmp_path / "a.parquet", "id", "test").sets
    (scores,) = half.row_scores(lookup(texts, {"vectors": noisy}), {"cosine": cosine_of_vectors})
    found = result_rows(scores, 0)
    expected = scipy.stats.spearmanr([*pairs.values()], [(unit(noisy)[i] @ unit(noisy)[j]) for i, j in pairs])
    (spearman,) = (row for row in found if row["metric"] == "spearman")
    assert np.isclose(spearman["value"], expected.statistic, atol=1e-6) and spearman["n"] == len(pairs)
    assert (spearman["dataset"], spearman["split"], spearman["dataset_sha256"]) == ("agreement", "test", "id")


def test_the_share_of_nearest_texts(tmp_path: Path) -> None:
    """By all cosines, the text itself aside; the teacher keeps all of its own, another model some."""
    path = tmp_path / "texts.txt"
    words = np.random.default_rng(0).integers(0, 40, (400, 6))
    path.write_text("".join(" ".join(f"word{w}" for w in row) + "\n" for row in words))
    text, teacher = open_text(path, None).holding_out(), HashedWords()
    pairs, nearest = agreement_sets(teacher, "t", text)
    assert nearest.size == len(text.held_out) == 40 and len(nearest.texts) == len(set(nearest.texts)) == 400
    assert set(pairs.texts) <= set(text.held_out)

    def shares(layers: int) -> np.ndarray:
        vectors = teacher.represent_layers(nearest.texts, (layers,))[layers]
        (scores,) = nearest.row_scores(lookup(nearest.texts, vectors), teacher.similarities)
        assert scores.metrics == ("overlap@10",)
        return scores.values

    assert (shares(1) == 1).all()
    cosines = [v @ v.T for k in (1, 2) for v in [unit(teacher.represent_layers(nearest.texts, (k,))[k]["vectors"])]]
    for of_layer in cosines:
        np.fill_diagonal(of_layer, -np.inf)
    first, second = ([set(np.argsort(-row)[:10]) for row in of_layer[:40]] for of_layer in cosines)
    expected = [len(a & b) / 10 for a, b in zip(first, second, strict=True)]
    assert shares(2) == pytest.approx(expected) and 0 < np.mean(expected) < 0.9
    again = agreement_sets(HashedWords(), "t", text)[1]
    assert again.texts == nearest.texts and (again.nearest == nearest.nearest).all()
    path.write_text("a text\nanother\na text\n")
    with pytest.raises(InputError, match="has 2 different texts; agreement needs at least 200"):
        agreement_sets(teacher, "t", open_text(path, None).holding_out())
