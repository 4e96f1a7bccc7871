"""``raysts compare`` on the runs of a small storage."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from run_commands import EVALUATION, TINY, Finished, overrides, raysts, result

from raysts.evaluation import results

NAME = "first"


@pytest.fixture(scope="module")
def options(finished: Finished, tmp_path_factory: pytest.TempPathFactory) -> list[object]:
    """``--data`` and ``--storage``, in which ``nli-ct-sed`` has run, as ``first`` alone."""
    assert finished.results["nli-ct-sed"]
    storage = shutil.copytree(finished.storage, tmp_path_factory.mktemp("compared") / "storage")
    where = ["--data", finished.data, "--storage", storage]
    for record in storage.glob("pipelines/*.json"):
        record.unlink()
    result("run", "nli-ct-sed", "--name", NAME, *where, *overrides(TINY, EVALUATION), "--address", "none")
    return where


def compared(options: list[object], a: object, b: object, *more: object) -> dict[str, Any]:
    return result("compare", a, b, *options, "--tasks", "sts12,stsb", "--resamples", 40, *more)


def measured(options: list[object], role: str, layers: str = "1") -> dict[str, list[float]]:
    """Spearman of every model of a role, by set, as the run recorded it."""
    import pyarrow.parquet as pq

    files = [path for path in Path(str(options[3]), "results").glob("*.parquet") if results.EVALUATION not in path.name]
    rows = [row for path in files for row in pq.ParquetFile(path).read().to_pylist()]
    wanted = {"role": role, "layers": layers, "metric": "spearman", "aggregation": "all", "rows": "all"}
    wanted["system"] = "nli-ct-sed"
    found: dict[str, dict[str, float]] = {}
    for row in rows:
        if wanted.items() <= row.items():
            found.setdefault(row["dataset"], {})[row["run_id"]] = row["value"]
    return {dataset: [*values.values()] for dataset, values in found.items()}


def spearman(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["dataset"]: row for row in found["comparison"] if row["metric"] == "spearman"}


def test_roles_of_a_run_have_the_values_that_the_run_recorded(options: list[object]) -> None:
    found = compared(options, f"{NAME}:student", f"{NAME}:members")
    assert found["layers"] == "1", "the student pools two layers by itself and the members one"
    student, members, rows = measured(options, "student"), measured(options, "member"), spearman(found)
    for dataset in ("sts12", "stsb"):
        row = rows[dataset]
        assert row["a"] == pytest.approx(student[dataset][0], abs=1e-6) and row["a_std"] is None
        assert row["b"] == pytest.approx(np.mean(members[dataset]), abs=1e-6)
        assert row["b_std"] == pytest.approx(np.std(members[dataset], ddof=1), abs=1e-6) and row["b_models"] == 2
    assert rows["overall"]["a"] == pytest.approx(np.mean([student[name][0] for name in ("sts12", "stsb")]), abs=1e-6)
    assert f"{NAME}:student" in found["conclusion"] and found["status"] == "done"
    ensemble = compared(options, f"{NAME}:ensemble", NAME, "--layers", 2)
    assert ensemble["layers"] == "2"
    assert spearman(ensemble)["sts12"]["a"] == pytest.approx(measured(options, "ensemble", "2")["sts12"][0], abs=1e-6)
    assert spearman(ensemble)["sts12"]["b"] == pytest.approx(measured(options, "student", "2")["sts12"][0], abs=1e-6)
    assert spearman(ensemble)["sts12"]["test"] == "williams"


def record(options: list[object]) -> dict[str, Any]:
    return json.loads(Path(str(options[3]), "pipelines", f"{NAME}.json").read_text())


def test_a_run_its_system_a_run_id_and_a_directory_are_the_same_model(options: list[object]) -> None:
    student = record(options)["outcome"]["selected"]
    for a, b in ((NAME, "nli-ct-sed"), (student, Path(str(options[3]), "runs", student, "model"))):
        found = compared(options, a, b)
        assert {row["difference"] for row in found["comparison"]} == {0.0}
        assert found["conclusion"].startswith("No difference is shown between") and found["layers"] == "1"


def test_people_get_a_table_and_a_sentence(options: list[object]) -> None:
    outcome = raysts("compare", NAME, f"{NAME}:members", *options, "--tasks", "sts12", "--resamples", 40)
    assert outcome.code == 0, outcome.err
    lines = outcome.out.splitlines()
    assert lines[0] == f"A: {NAME}" and lines[1] == f"B: {NAME}:members (2 models, mean ± std)"
    assert "pooled layers of both: 1" in lines and "the spearman on sts12 is" in lines[-1]
    sizes = [line.partition(" M parameters")[0].rsplit(": ", 1)[0] for line in lines if " M parameters" in line]
    assert sizes == [f"A: {NAME}", *(f"B: {member}" for member in record(options)["members"])]


def test_a_margin_and_costs_in_words_and_numbers(options: list[object]) -> None:
    found = compared(options, NAME, f"{NAME}:members", "--margin", 99, "--draw-sets")
    units = {"sts12": "pairs", "stsb": "pairs", "overall": "sets"}
    assert [(row["dataset"], row["within"], row["unit"]) for row in found["margins"]] == [
        (name, True, unit) for name, unit in units.items()
    ]
    assert "not more than 99.00 below (95 %" in found["conclusion"]
    student, *members = found["models"]
    assert [model["role"] for model in found["models"]] == ["a", "b", "b"] and student["parameters"] == members[0][
        "parameters"
    ] > 0
    assert student["bytes"] == 4 * student["parameters"] and student["dimensions"] == 128
    assert student["texts_per_second"] > 0 and 2 < student["tokens"] < 40
    plain = compared(options, NAME, f"{NAME}:members")
    assert plain["margins"] == [] and plain["comparison"][0] == found["comparison"][0]


def test_wrong_input_is_refused_in_words(options: list[object], tmp_path: Path) -> None:
    def refused(*arguments: object, where: list[object] = options) -> str:
        outcome = raysts("compare", *arguments, *where)
        assert outcome.code == 2 and not outcome.out
        return outcome.err

    assert "no run and no system 'nope'" in refused("nope:student", NAME)
    assert f"run '{NAME}'" not in refused("./nope", NAME) and "is not there" in refused("./nope", NAME)
    for more, said in (
        (("--resamples", -1), "--resamples=-1 must be from 1 to"),
        (("--tasks", "snli-direction"), "says nothing about the direction"),
        (("--tasks", "stsbb"), "unknown task 'stsbb'"),
        (("--margin", 0), "--margin 0: must be above 0"),
        (("--margin", "nan"), "--margin nan: must be above 0"),
        (("--margin", 2, "--resamples", 0), "--resamples 0 gives no interval"),
        (("--draw-sets", "--tasks", "stsb"), "--draw-sets: needs at least two sets"),
        (("--layers", 99), "the encoder has"),
    ):
        assert said in refused(NAME, NAME, *more)
    broken = shutil.copytree(str(options[3]), tmp_path / "storage", ignore=shutil.ignore_patterns("model"))
    said = refused(NAME, NAME, where=["--data", options[1], "--storage", broken])
    assert "not finished; finish it with: raysts run nli-ct-sed" in said


def test_a_run_that_delivers_the_best_means_what_it_delivered(options: list[object]) -> None:
    """Its members have the ids of the first run's; the student's rate ruins it, so that the best is another, of other layers."""
    chosen = overrides(TINY, EVALUATION, {"deliver": "best", "sed.optim.lr": 0.3, "evaluation.tasks": "[stsb]"})
    command = ["run", "nli-ct-sed", "--name", "best", *options, *chosen, "--address", "none"]
    run = result(*command)
    assert run["delivered"]["what"] != "student", "else the name's role is meant and nothing is shown"
    for other, same in ((run["model"], True), ("best:student", False)):
        found = result("compare", "best", other, *options, "--tasks", "stsb", "--resamples", 40)
        assert (found["comparison"][0]["difference"] == 0.0) is same
    path = Path(run["model"]).with_name("run.json")
    written = json.loads(path.read_text(encoding="utf-8"))
    path.unlink()  # a kill came after the model, and before its record
    assert result(*command)["model"] == run["model"]
    assert json.loads(path.read_text(encoding="utf-8")) == written and written["pooled_again"]


def test_generated_sentences_are_said_to_be_generated(
    tiny_backbone: Path, tmp_path: Path, options: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAYSTS_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    asked = ["--tasks", "sts12", "--resamples", 0]
    commands = [["evaluate", tiny_backbone, *asked], ["compare", tiny_backbone, tiny_backbone, *asked]]
    for command in commands:
        assert "generated" not in raysts(*command, *options).err
    assert not [*tmp_path.glob("cache/raysts/world-*")], "no copy of what is not read"
    for command in commands:
        assert "The sentences are generated" in raysts(*command, "--storage", tmp_path / "storage").err
