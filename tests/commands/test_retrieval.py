"""Retrieval sets in ``run``, ``compare`` and ``evaluate``."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from run_commands import TINY, overrides, raysts, result
from small_runs import write_backbone

from raysts.evaluation.retrieval import METRICS


@pytest.fixture(scope="module")
def data(small_world: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A set whose queries are sentences of the world, and whose documents are the sentences that they were scored with."""
    folder = tmp_path_factory.mktemp("retrieval") / "data"
    shutil.copytree(small_world, folder)
    pairs = pq.read_table(folder / "sts" / "stsb_test.parquet").slice(0, 40)
    ids = [f"d{i}" for i in range(len(pairs))]
    tables = {
        "corpus": {"doc_id": ids, "text": pairs.column("sentence2")},
        "queries": {"query_id": ids, "text": pairs.column("sentence1")},
        "qrels": {"query_id": ids, "doc_id": ids, "score": np.rint(pairs.column("score").to_numpy()).astype(np.int64)},
    }
    (folder / "retrieval" / "partners").mkdir(parents=True)
    for name, columns in tables.items():
        pq.write_table(pa.table(columns), folder / "retrieval" / "partners" / f"{name}.parquet")
    return folder


def test_in_a_pipeline_and_between_two_of_its_models(data: Path, tmp_path: Path) -> None:
    where = ["--data", data, "--storage", tmp_path / "storage"]
    short = overrides(
        TINY, {"train.max_steps": 2, "evaluation.tasks": "[stsb,retrieval:partners]", "evaluation.resamples": 20}
    )
    found = result("run", "ct-ensemble", "--name", "x", *where, *short, "--address", "none")
    for role in ("backbone", "member", "ensemble"):
        rows = [row for row in found["results"] if row["role"] == role and row["dataset"] == "retrieval:partners"]
        assert {row["metric"] for row in rows} == set(METRICS), role
        for row in rows:
            assert 0 < row["value"] <= 1 and row["ci_low"] <= row["value"] <= row["ci_high"] and row["split"] == "test"
    compared = result("compare", "x:ensemble", "x:members", *where, "--tasks", "retrieval", "--resamples", 20)
    rows = {(row["dataset"], row["metric"]): row for row in compared["comparison"]}
    assert rows["retrieval:partners", "map"]["b_models"] == 2
    ensemble = next(
        row
        for row in found["results"]
        if (row["role"], row["dataset"], row["metric"], row["layers"]) == ("ensemble", "retrieval:partners", "map", "1")
    )
    assert rows["retrieval:partners", "map"]["a"] == pytest.approx(ensemble["value"], abs=1e-6)


def test_queries_by_one_model_and_documents_by_another(data: Path, tmp_path: Path) -> None:
    student, teacher, wide = (write_backbone(tmp_path / name, "bert", seed=i) for i, name in enumerate("abc"))
    options = ["--data", data, "--storage", tmp_path / "storage", "--resamples", 0, "--layers", 1]
    alone, asked, same = (
        {row["metric"]: row["value"] for row in result("evaluate", student, *options, *more)["results"]}
        for more in (["--tasks", "retrieval"], ["--documents-by", teacher], ["--documents-by", student])
    )
    assert alone == same and alone["map"] > 0.2
    assert asked["map"] < alone["map"], "two random encoders have no space in common"
    refused = raysts("evaluate", student, *options, "--documents-by", teacher, "--tasks", "stsb,retrieval")
    assert refused.code == 2 and "stsb has no documents" in refused.err
    raysts("export", wide, "--to", tmp_path / "narrow", "--storage", tmp_path / "storage")
    settings = tmp_path / "narrow" / "config_sentence_transformers.json"
    settings.write_text(settings.read_text().replace("{", '{"truncate_dim": 8, ', 1))
    refused = raysts("evaluate", student, *options, "--documents-by", tmp_path / "narrow")
    assert refused.code == 2 and "vectors of 8 dimensions and the model of 32" in refused.err
