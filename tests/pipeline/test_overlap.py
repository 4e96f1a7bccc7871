"""Training text in the test sets of a run, from its plan to its report, and what runs share of their measurements."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from run_commands import EVALUATION, TINY, overrides, raysts, result

import raysts as package
from raysts.data.corpora import Corpus

TRAINED = 30
"""Pairs of sts12 that stsb_train is made to hold."""


@pytest.fixture(scope="module")
def data(few_world: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small world, whose ``sts/stsb_train`` holds the first pairs of its ``sts12``."""
    folder = Path(shutil.copytree(few_world, tmp_path_factory.mktemp("contaminated") / "data"))
    columns = ["sentence1", "sentence2", "score"]
    corpus = Corpus(folder)
    train, test = (corpus.read(name, columns) for name in ("sts/stsb_train", "sts/sts12"))
    both = pa.concat_tables([train, test.slice(0, TRAINED)], promote_options="permissive")
    pq.write_table(both, folder / "sts/stsb_train.parquet")
    return folder


@pytest.fixture(scope="module")
def where(data: Path, tmp_path_factory: pytest.TempPathFactory) -> list[object]:
    return ["--data", data, "--storage", tmp_path_factory.mktemp("overlap") / "storage"]


ASKED = [*overrides(TINY, EVALUATION, {"sed.data.sample": 64, "train.max_steps": 1}), "--address", "none"]


@pytest.fixture(scope="module")
def found(where: list[object]) -> dict[str, Any]:
    """``sts-sed`` as it ran."""
    return result("run", "sts-sed", *where, *ASKED)


def test_strict_contamination_refuses_before_anything_starts(where: list[object]) -> None:
    outcome = raysts("run", "sts-sed", *where, *ASKED, "--strict-contamination")
    assert outcome.code == 2 and f"{TRAINED} of " in outcome.err
    assert "rows of sts12 are training rows of sts-sed (sts/stsb_train" in outcome.err
    assert not Path(str(where[3])).exists()


@pytest.mark.whole
def test_a_run_says_it_and_scores_the_clean_rows_too(found: dict[str, Any], where: list[object]) -> None:
    size = Corpus(Path(str(where[1]))).rows("sts/sts12")
    entries = {entry["task"]: entry for entry in found["contamination"]}
    entry = entries["sts12"]
    assert (entry["rows"], entry["trained_rows"]) == (size, TRAINED) and entry["sentence_rows"] >= TRAINED
    assert entry["training_tables"] == ["sts/stsb_train", "wikipedia/sentences"] and entry["unknown"] == []
    assert any(note.startswith(f"sts-sed: sts12: {TRAINED} of ") for note in found["notes"])
    clean = [row for row in found["results"] if row["rows"] == "clean"]
    assert {row["role"] for row in clean} == {"backbone", "member", "ensemble", "student"}, "the same rows for all"
    assert {row["dataset"] for row in clean} == {e["task"] for e in found["contamination"] if e.get("trained_rows")}
    whole = {row["n"] for row in clean if row["aggregation"] == "all" and row["dataset"] == "sts12"}
    assert whole == {entry["clean_rows"]} and 0 < entry["clean_rows"] <= size - TRAINED
    report = Path(found["report"]).read_text(encoding="utf-8")
    assert f"sts-sed: sts12: {TRAINED} of {size:,} rows are training rows" in report


@pytest.mark.whole
def test_evaluating_one_model_of_the_run_knows_its_whole_chain(found: dict[str, Any], where: list[object]) -> None:
    run = next(row["run_id"] for row in found["results"] if row["role"] == "student")
    again = result("evaluate", run, *where, "--tasks", "sts12", "--resamples", 0)
    (entry,) = again["contamination"]
    assert entry["trained_rows"] == TRAINED
    assert set(entry["training_tables"]) == {"wikipedia/sentences", "sts/stsb_train"}

    def clean(rows: list[dict[str, Any]]) -> dict[tuple[Any, ...], float]:
        keys = ("layers", "metric", "aggregation", "subset", "n")
        mine = [row for row in rows if row["run_id"] == run and row["rows"] == "clean" and row["dataset"] == "sts12"]
        return {tuple(row[key] for key in keys): row["value"] for row in mine}

    own, of_run = clean(again["results"]), clean(found["results"])
    assert own and own == pytest.approx({key: of_run[key] for key in own}, abs=1e-6)
    outcome = raysts("evaluate", run, *where, "--tasks", "sts12", "--strict-contamination")
    assert outcome.code == 2 and f"--strict-contamination: {TRAINED} of" in outcome.err
    outcome = raysts("evaluate", run, *where, "--tasks", "snli-2way", "--resamples", 0, "--strict-contamination")
    assert outcome.code == 0 and "snli-2way" in outcome.out


def test_a_model_without_a_variance_says_nothing_about_the_direction(where: list[object], tiny_backbone: Path) -> None:
    outcome = raysts("evaluate", tiny_backbone, *where, "--tasks", "snli-direction", "--resamples", 0)
    assert outcome.code == 0 and "snli-direction: the model has neither a variance nor" in outcome.out


def test_a_model_from_elsewhere_is_unknown(where: list[object], tiny_backbone: Path) -> None:
    found = package.evaluate(tiny_backbone, ["sts12"], data=str(where[1]), storage=str(where[3]), resamples=0)
    (entry,) = found["contamination"]
    assert entry["task"] is None and str(tiny_backbone) in entry["unknown"][0]
    assert "not on record" in found["notes"][0]
