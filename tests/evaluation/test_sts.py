from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from evaluation_fakes import HashedWords, correlated, measured, scored_pairs, write_table
from scipy import stats

from raysts.data.corpora import Corpus
from raysts.evaluation.scores import result_rows
from raysts.evaluation.statistics import UndefinedCorrelationError
from raysts.evaluation.sts import STS_TASKS, Pairs, load_pairs


@pytest.fixture
def small(tmp_path: Path) -> Corpus:
    """Two subsets, interleaved; 'one' is ranked perfectly by the predictions of the test, 'two' is not."""
    pairs = {"sentence1": [*"abcabde"], "sentence2": [*"bcabeac"], "score": [1.0, 5.0, 2.0, 3.0, 4.0, 1.0, 1.0]}
    write_table(tmp_path, "sts/sts12", pairs | {"subset": ["one", "two", "one", "two", "one", "two", "two"]})
    return Corpus(tmp_path)


PREDICTED = np.array([0.1, 0.9, 0.2, 0.3, 0.7, 0.4, 0.1])


def correlation_rows(pairs: Pairs, predicted: np.ndarray, resamples: int = 1000) -> list[dict]:
    """Results rows of given similarities of the pairs."""

    def represent(texts: Sequence[str]) -> dict[str, np.ndarray]:
        return {"vectors": np.zeros((len(texts), 1))}

    (scores,) = pairs.row_scores(represent, {"given": lambda *_: predicted})
    np.testing.assert_array_equal(scores.values, predicted, "the mean over both orders")
    return result_rows(scores, resamples)


def values(rows: list[dict]) -> dict[tuple[str, str], dict]:
    return {(row["metric"], row["aggregation"] or row["subset"]): row for row in rows}


def test_aggregations_by_hand(small: Corpus) -> None:
    pairs = load_pairs(small, "sts/sts12")
    found = values(correlation_rows(pairs, PREDICTED, resamples=200))
    one = stats.spearmanr([0.1, 0.2, 0.7], [1, 2, 4]).statistic
    # Ranks of 'two': 4, 2, 3, 1 against 4, 3, 1.5, 1.5.
    two = stats.pearsonr([4, 2, 3, 1], [4, 3, 1.5, 1.5]).statistic
    assert one == pytest.approx(1.0)
    whole = stats.spearmanr(PREDICTED, pairs.gold).statistic
    expected = {"all": whole, "mean": (one + two) / 2, "wmean": (3 * one + 4 * two) / 7, "one": one, "two": two}
    assert {name: found["spearman", name]["value"] for name in expected} == pytest.approx(expected, abs=1e-12)
    first = stats.pearsonr([0.1, 0.2, 0.7], [1, 2, 4]).statistic
    second = stats.pearsonr(PREDICTED[[1, 3, 5, 6]], [5, 3, 1, 1]).statistic
    assert found["pearson", "wmean"]["value"] == pytest.approx((3 * first + 4 * second) / 7, abs=1e-12)
    assert [found["spearman", name]["n"] for name in expected] == [7, 7, 7, 3, 4] and len(found) == 10
    alone = replace(correlated("sts12", PREDICTED, pairs.gold), subsets={"one": np.arange(7)})
    assert {row["subset"] for row in result_rows(alone, 0)} == {None}, "a single subset is the set"
    for (_, name), row in found.items():
        assert row["subset"] == (name if name in {"one", "two"} else None) and row["ci_low"] <= row["ci_high"]


def test_intervals_of_aggregates_resample_within_subsets(tmp_path: Path) -> None:
    # Each subset is close to perfectly ranked but their levels differ, so 'all' is poor; intervals follow their value.
    rng = np.random.default_rng(0)
    gold = rng.uniform(0, 5, 300)
    columns = scored_pairs(300) | {"score": gold, "subset": ["x"] * 100 + ["y"] * 200}
    write_table(tmp_path, "sts/sts13", columns)
    predicted = gold + rng.normal(size=300) * 0.5 + np.repeat([0.0, 20.0], [100, 200])
    found = values(correlation_rows(load_pairs(Corpus(tmp_path), "sts/sts13"), predicted))
    for metric in ("pearson", "spearman"):
        rows = {name: found[metric, name] for name in ("all", "mean", "wmean", "x", "y")}
        assert all(row["ci_low"] < row["value"] < row["ci_high"] for row in rows.values())
        width = {name: row["ci_high"] - row["ci_low"] for name, row in rows.items()}
        assert rows["mean"]["ci_low"] > 0.9 > rows["all"]["ci_high"]
        # Independent subsets: the variances of their correlations add up.
        assert width["mean"] == pytest.approx((width["x"] ** 2 + width["y"] ** 2) ** 0.5 / 2, rel=0.15)
        assert width["wmean"] == pytest.approx(((width["x"] / 3) ** 2 + (width["y"] * 2 / 3) ** 2) ** 0.5, rel=0.15)


def test_integer_scores_null_subsets_and_shards_are_read(tmp_path: Path) -> None:
    base = scored_pairs(6)
    write_table(tmp_path, "sts/sts16/part-0", base | {"score": [0, 1, 2, 3, 4, 5], "subset": ["x", None] * 3})
    write_table(tmp_path, "sts/sts16/part-1", base | {"score": [0.5] * 6})
    pairs = load_pairs(Corpus(tmp_path), "sts/sts16")
    assert pairs.gold.tolist() == [0, 1, 2, 3, 4, 5, *[0.5] * 6]
    assert list(pairs.subsets) == ["x", "unnamed"] and set(range(6, 12)) <= set(pairs.subsets["unnamed"])


def test_a_collapsed_model_is_named_with_set_and_subset(small: Corpus) -> None:
    pairs, flat = load_pairs(small, "sts/sts12", name="sts12"), PREDICTED.copy()
    flat[pairs.subsets["one"]] = 0.0
    cases = ((np.zeros(7), ": all 7"), (flat, ", subset 'one': all 3"), (np.full(7, np.inf), ": 7 of 7"))
    for predicted, said in cases:
        with pytest.raises(UndefinedCorrelationError, match=f"^sts12{said}"):
            correlation_rows(pairs, predicted)
    vectors = np.diag([1.0, 1.0, 1.0, 1.0, np.nan])[:, 3:]
    with pytest.raises(UndefinedCorrelationError, match="^sts12: 'vectors' of 1 of 5 sentences"):
        pairs.row_scores(lambda _: {"vectors": vectors}, HashedWords().similarities)


def test_sick_sets(tmp_path: Path) -> None:
    for split, n in (("train", 20), ("trial", 9), ("test", 30)):
        table = scored_pairs(n, seed=n)
        write_table(tmp_path, f"sick/sick_{split}", table | {"score": [1 + score * 0.8 for score in table["score"]]})
    corpus = Corpus(tmp_path)
    assert STS_TASKS["sickr"].tables(corpus) == ("sick/sick_test",)
    whole = STS_TASKS["sickr-all"]
    assert set(whole.tables(corpus)) == {"sick/sick_train", "sick/sick_trial", "sick/sick_test"}
    model = HashedWords()
    rows = measured(whole, corpus, model.represent, model.similarities, 20)
    assert {row["n"] for row in rows} == {59} and len({row["dataset_sha256"] for row in rows}) == 1
    assert rows[0]["dataset_sha256"] not in {corpus.fingerprint(table) for table in corpus.tables()}
    (tmp_path / "sick/sick_trial.parquet").unlink()
    assert whole.tables(Corpus(tmp_path)) == ()
