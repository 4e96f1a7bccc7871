"""What every task must do, on the embedded world; a new one is tested unasked."""

import functools
import zlib
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from evaluation_fakes import HashedWords
from scipy import stats

from raysts.data.corpora import Corpus
from raysts.evaluation import harness, scores
from raysts.evaluation.dev import DEVS, load_dev
from raysts.evaluation.scores import RowScores, result_rows
from raysts.evaluation.tasks import LabelledSet
from raysts.schema import TEST_TABLES

NAMES = [name for name, task in harness.TASKS.items() if not task.asks_model and not task.heavy]


def represent(texts: Sequence[str]) -> dict[str, np.ndarray]:
    """A vector of the words of each text; as models have it, it depends on the text alone."""
    distinct = [zlib.crc32(text.encode()) for text in texts]
    spread = np.array([[len(text.split()) + number % 7 / 10] for text, number in zip(texts, distinct, strict=True)])
    return {"vectors": HashedWords().represent(list(texts))["vectors"], "log_var": spread.astype(np.float32)}


@functools.cache
def measured(name: str, world: Path) -> list[tuple[LabelledSet, list[RowScores]]]:
    sets = harness.TASKS[name].sets(Corpus(world))
    if not sets:
        pytest.skip(f"the embedded world has no {name}")
    return [(labelled, labelled.row_scores(represent, HashedWords().similarities)) for labelled in sets]


@pytest.mark.parametrize("name", NAMES)
def test_row_scores_are_of_the_rows_of_the_tables(name: str, few_world: Path) -> None:
    corpus = Corpus(few_world)
    assert harness.TASKS[name].problems(corpus) == []
    for labelled, found in measured(name, few_world):
        assert len(set(labelled.texts)) == len(labelled.texts)
        searched_for_training_text = TEST_TABLES | {"sick/sick_train", "sick/sick_trial"}
        assert {*labelled.rows} <= searched_for_training_text
        assert {table: len(rows) for table, rows in labelled.rows.items()} == {t: corpus.rows(t) for t in labelled.rows}
        assert sum(int(rows.sum()) for rows in labelled.rows.values()) == labelled.size
        assert found and {of.dataset for of in found} <= {*labelled.datasets}
        for of in found:
            assert of.values.shape == (labelled.size,) and of.values.dtype == np.float64
            assert np.isfinite(of.values).all() and all(0 < len(rows) <= labelled.size for rows in of.subsets.values())


@pytest.mark.parametrize("name", NAMES)
def test_values_are_arithmetic_on_row_scores(name: str, few_world: Path) -> None:
    """Against scipy and scikit-learn, on all rows and on the clean ones; intervals hold the values of most resamples."""
    from sklearn import metrics

    by_hand = {
        "pearson": lambda values, gold: stats.pearsonr(values, gold).statistic,
        "spearman": lambda values, gold: stats.spearmanr(values, gold).statistic,
        "average_precision": lambda values, gold: metrics.average_precision_score(gold, values),
        "auc_pr": lambda values, gold: metrics.auc(*metrics.precision_recall_curve(gold, values)[1::-1]),
    }
    for labelled, found in measured(name, few_world):
        clean = np.arange(labelled.size) % 5 != 0
        for of in found:
            for mask, kept in ((None, np.ones_like(clean)), (clean, clean)):
                rows = result_rows(of, 50, mask)
                whole = [row for row in rows if row["subset"] is None and row["aggregation"] in (None, "all")]
                assert [row["metric"] for row in whole] == list(of.metrics)
                for row in whole:
                    values = of.values[kept]
                    expected = values.mean() if of.gold is None else by_hand[row["metric"]](values, of.gold[kept])
                    assert row["value"] == pytest.approx(expected, abs=1e-9) and row["n"] == kept.sum()
                    assert row["ci_low"] <= row["ci_high"] and row["rows"] == ("all" if mask is None else "clean")


@pytest.mark.parametrize("name", NAMES)
def test_row_scores_are_kept_to_the_last_bit(name: str, few_world: Path, tmp_path: Path) -> None:
    found = [of for _, of_set in measured(name, few_world) for of in of_set]
    scores.write(tmp_path / "kept.parquet", {("mean", "1"): found, ("cls", "2"): found[:1]})
    kept = scores.read(tmp_path / "kept.parquet")
    assert kept is not None
    assert {choice: len(of) for choice, of in kept.items()} == {("mean", "1"): len(found), ("cls", "2"): 1}
    np.testing.assert_equal([asdict(of) for of in kept["mean", "1"]], [asdict(of) for of in found])
    assert scores.read(tmp_path / "absent.parquet") is None


@pytest.mark.parametrize("table", DEVS)
def test_a_development_set_is_a_set_and_its_metric(table: str, few_world: Path) -> None:
    dev = load_dev(Corpus(few_world), table)
    (labelled,) = dev.sets
    found = labelled.row_scores(represent, HashedWords().similarities)
    scored = dev.scores(HashedWords())
    assert [*scored] == [*DEVS[table]], "the first one selects"
    assert scored == {metric: pytest.approx(found[0].value(metric)) for metric in DEVS[table]}
    assert scores.scores_by_set(found) == {}, "it selects, and nothing is reported on it"
