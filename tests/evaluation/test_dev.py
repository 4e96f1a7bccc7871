import math
from pathlib import Path

import numpy as np
import pytest
from evaluation_fakes import HashedWords, scored_pairs, write_table

from raysts.data.corpora import Corpus
from raysts.data.user import UserData
from raysts.evaluation.dev import Dev, RunMetric, load_dev, rank

STSB = "sts/stsb_dev"


def dev_of(root: Path, *names: str) -> Dev:
    return load_dev(Corpus(None, user=UserData(dev={name: str(root / name) for name in names})), STSB)


def test_several_sets_select_by_the_mean_of_what_each_gives_alone(tmp_path: Path) -> None:
    """Of pairs by both correlations; with a retrieval set by the first metric of each."""
    write_table(tmp_path, "a", scored_pairs(30))
    write_table(tmp_path, "b", scored_pairs(30, 1))
    write_table(tmp_path, "docs/corpus", {"doc_id": ["d", "e", "f"], "text": ["word1 word2", "word3", "word1"]})
    write_table(tmp_path, "docs/queries", {"query_id": ["q", "r"], "text": ["word1", "word2 word4"]})
    write_table(tmp_path, "docs/qrels", {"query_id": ["q", "r"], "doc_id": ["d", "d"], "score": [1, 1]})
    a, b, docs = (dev_of(tmp_path, name).scores(HashedWords()) for name in ("a.parquet", "b.parquet", "docs"))
    both, mixed = dev_of(tmp_path, "a.parquet", "b.parquet"), dev_of(tmp_path, "a.parquet", "docs")
    assert (both.name, both.size, mixed.size) == ("a.parquet+b.parquet", 60, 30 + 2) and a["spearman"] != b["spearman"]
    means = {metric: (a[metric] + b[metric]) / 2 for metric in ("spearman", "pearson")}
    assert both.scores(HashedWords()) == pytest.approx(means)
    assert mixed.scores(HashedWords()) == {"mean": pytest.approx((a["spearman"] + docs["ndcg@10"]) / 2)}


LOSS, FIRST, SECOND = (RunMetric(name, STSB) for name in ("loss", "spearman", "pearson"))
METRICS = (LOSS, FIRST, SECOND, RunMetric("mean", STSB, selecting=True))
"""The last one selects on a set of the user that has other metrics than the table."""


def test_a_metric_is_read_where_a_run_writes_it() -> None:
    evaluation, step = {"loss": 2.0, "dev": 0.7, "dev_pearson": 0.6}, {"loss": 1.0}
    assert [metric.value_of_line(evaluation) for metric in METRICS] == [2.0, 0.7, 0.6, 0.7]
    assert [metric.value_of_line(step) for metric in METRICS] == [None] * 4, "a loss between evaluations is no point"
    record = {"dev": {"kept": 0.8, "scores": {"spearman": 0.8, "pearson": 0.5}}}
    assert [metric.value_of_run(record, [evaluation, step]) for metric in METRICS] == [1.0, 0.8, 0.5, 0.8]
    assert SECOND.value_of_run({"dev": {"kept": 0.8}}, []) is None
    assert [(metric.mode, metric.factor) for metric in METRICS] == [("min", 1), *[("max", 100)] * 3]
    words = [(metric.title, metric.text(0.12344), metric.text(None)) for metric in METRICS[:2]]
    assert words == [("Training loss", "0.1234", "-"), ("Dev spearman × 100", "12.34", "-")]
    ranks = [rank(value, mode) for value in (0.5, None) for mode in ("max", "min")]
    assert ranks == [0.5, -0.5, -math.inf, -math.inf]
    for metric, value, rows in ((LOSS, 0.5, 100), (FIRST, 0.5, 3), (FIRST, 1.0, 100), (FIRST, -1.0, 100)):
        assert metric.interval(value, rows) == (value, value), "a loss, too few rows, no room for a deviation"
    # Fisher's z of 0 is 0, and its standard error with four rows 1.
    assert FIRST.interval(0.0, 4) == pytest.approx((-np.tanh(1.96), np.tanh(1.96)))
