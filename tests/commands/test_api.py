from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import run_commands
from run_commands import EVALUATION, TASKS, TINY, overrides, plan_of, result

import raysts
from raysts.commands import parser
from raysts.commands.distill import open_distillation
from raysts.errors import InputError
from raysts.recipes.names import pipeline
from raysts.schema import RESULTS


def run_of(found: dict[str, Any], role: str) -> str:
    return next(row["run_id"] for row in found["results"] if row["role"] == role)


def values(rows: list[dict[str, Any]]) -> dict[tuple[Any, ...], float]:
    keys = ("dataset", "subset", "aggregation", "layers", "metric")
    return {tuple(row[key] for key in keys): row["value"] for row in rows}


def test_run_and_plan_agree_with_the_commands(finished: run_commands.Finished) -> None:
    chosen = {**TINY, "evaluation.resamples": 4, "evaluation.tasks": list(TASKS)}
    found = raysts.run("nli-ct-sed", chosen, finished.data, finished.storage, address="none")
    assert found == finished.results["nli-ct-sed"]
    told = result("plan", *finished.arguments("nli-ct-sed"))
    assert told["price"]["device_seconds"] == 0 and all(node["seconds_expected"] > 0 for node in told["nodes"])
    assert raysts.plan("nli-ct-sed", chosen, finished.data, finished.storage) == told
    own = plan_of(pipeline("nli-ct-sed", chosen), None, finished.data, finished.storage)
    assert [step.id for step in own.steps] == [node["id"] for node in told["nodes"]]
    assert len(plan_of(own.pipeline, {"members": 3}, finished.data, finished.storage).members) == 3


def test_errors_are_one_kind_with_the_cli_text(finished: run_commands.Finished, tmp_path: Path) -> None:
    for wrong in (
        lambda: raysts.run("nil", storage=tmp_path / "s"),
        lambda: raysts.run("nli", {"optim.lrr": 1}, storage=tmp_path / "s"),
        lambda: raysts.run(5, storage=tmp_path / "s"), lambda: raysts.tune(5, storage=tmp_path / "s"),
        lambda: raysts.plan("nli", data=tmp_path / "none"), lambda: raysts.evaluate(tmp_path),
        lambda: raysts.embed(finished.results["nli"]["model"], tmp_path, "text", tmp_path / "out"),
        lambda: raysts.export(tmp_path / "none", tmp_path / "out"), lambda: raysts.distill(),
        lambda: raysts.load(tmp_path / "none"),
    ):  # fmt: skip
        with pytest.raises(InputError) as caught:
            wrong()
        assert caught.value.problems
    assert not list(tmp_path.iterdir())


def test_the_package_offers_what_it_says() -> None:
    assert {*parser.COMMANDS} & {*raysts.__all__} == {*raysts.__all__} - {"load", "InputError", "RunFailed"}
    assert all(callable(getattr(raysts, name)) for name in raysts.__all__)
    assert {*raysts.__all__} <= {*dir(raysts)} and "importlib" not in dir(raysts), "what Tab shows"
    assert raysts.InputError is InputError and Path(raysts.__file__).with_name("py.typed").exists()
    with pytest.raises(AttributeError):
        raysts.nothing  # noqa: B018


@pytest.mark.parametrize("role", ["member", "student"])
def test_evaluating_a_run_gives_its_rows_again(role: str, finished: run_commands.Finished) -> None:
    found = finished.results["nli-ct-sed"]
    run = run_of(found, role)
    again = result("evaluate", run, *finished.options(), "--tasks", ",".join(TASKS), "--resamples", "4")
    assert again["model"] == str(finished.storage / "runs" / run / "model")
    (layers,) = {row["layers"] for row in again["results"]}
    wanted = [row for row in found["results"] if row["run_id"] == run and row["layers"] == layers]
    assert all(list(row) == RESULTS.names for row in again["results"])
    assert values(again["results"]) == pytest.approx(values(wanted), abs=1e-5)
    same = ("run_id", "role", "member", "seed", "step", "pooling", "similarity", "dataset_sha256", "n")
    assert {tuple(row[c] for c in same) for row in again["results"]} == {tuple(row[c] for c in same) for row in wanted}


FEW = {"train.max_steps": 2, "sed.data.sample": 64}


def distilled(*arguments: object) -> dict[str, Any]:
    return result("distill", *arguments, "--address", "none", *overrides(FEW, EVALUATION))


def test_distilling_the_best_members_of_a_run(finished: run_commands.Finished) -> None:
    """From a run that has no student: the members' run ids, backbone and data come from its record."""
    run = finished.results["nli"]["results"]
    found = distilled("--from-run", "nli", "--top", "1", "--storage", finished.storage)
    assert found["name"] == "nli-distilled"
    members = {row["run_id"] for row in run if row["role"] == "member"}
    records = {id_: json.loads((finished.storage / "runs" / id_ / "run.json").read_text()) for id_ in members}
    best = max(records, key=lambda id_: records[id_]["dev"]["kept"])

    def of(rows: list[dict[str, Any]], **wanted: str) -> dict[tuple[Any, ...], float]:
        return values([row for row in rows if wanted.items() <= row.items()])

    rows = found["results"]
    assert {row["role"] for row in rows} == {"backbone", "member", "ensemble", "student"}
    assert of(rows, role="ensemble") == pytest.approx(of(rows, run_id=best)), "an ensemble of one is that one"
    assert of(rows, role="backbone") == pytest.approx(of(run, role="backbone")), "it starts where the members did"
    assert raysts.load(found["model"]).dim == raysts.load(best, storage=finished.storage).dim


def test_distilling_takes_the_settings_of_the_run(finished: run_commands.Finished) -> None:
    """A run with a student: its distillation recipe; the student pools what it was trained with."""
    assert finished.results["nli-ct-sed"]
    made, _, _ = open_distillation([], {"sed.batch": 8}, from_run="nli-ct-sed", storage=finished.storage)
    assert made.student_pooling is None and made.sed is not None
    assert (made.sed.train.max_steps, made.sed.batch) == (TINY["train.max_steps"], 8)


def test_distilling_models(finished: run_commands.Finished) -> None:
    """By run id and by folder; the student starts where they did."""
    runs = sorted({row["run_id"] for row in finished.results["nli-ct-sed"]["results"] if row["role"] == "member"})
    models = [runs[0], finished.storage / "runs" / runs[1] / "model"]
    found = distilled(*models, *finished.options(), "--name", "of-models")
    assert found["delivered"]["what"] == "student" and Path(found["model"], "README.md").is_file()
    settings = {**FEW, "evaluation.resamples": 4, "evaluation.tasks": TASKS}
    named: dict[str, Any] = {"name": "of-models", "address": "none"}
    assert raysts.distill([*map(str, models)], settings, finished.data, finished.storage, **named) == found


def test_an_export_is_the_model(finished: run_commands.Finished, tmp_path: Path) -> None:
    student = run_of(finished.results["nli-ct-sed"], "student")
    told = result("export", student, "--to", tmp_path / "out" / "encoder", "--storage", finished.storage)
    assert told["model"] == str(tmp_path / "out" / "encoder")
    called = raysts.export(student, tmp_path / "python", storage=finished.storage)
    assert called == told | {"model": str(tmp_path / "python")}
    texts = ["a dog sleeps", "the cat", "x"]
    model = raysts.load(student, finished.storage)
    for folder in (tmp_path / "out" / "encoder", tmp_path / "python"):
        assert (folder / "README.md").is_file()
        np.testing.assert_array_equal(raysts.load(folder).encode(texts), model.encode(texts))
    by_name = raysts.load("nli-ct-sed", finished.storage)
    np.testing.assert_array_equal(by_name.encode(texts), model.encode(texts), "the name of its run")
    two_layers = result("export", student, "--to", tmp_path / "two", "--storage", finished.storage, "--layers", "2")
    sentence_transformers = pytest.importorskip("sentence_transformers")
    theirs = sentence_transformers.SentenceTransformer(two_layers["model"], device="cpu").encode(texts)
    np.testing.assert_allclose(raysts.load(student, finished.storage, layers=2).encode(texts), theirs, atol=1e-5)
    assert not np.allclose(theirs, model.encode(texts), atol=1e-3)


def test_reports_are_written_again(finished: run_commands.Finished, tmp_path: Path) -> None:
    """From the storage alone."""
    page = Path(finished.results["nli"]["report"])
    before = page.read_text(encoding="utf-8")
    page.unlink()
    finished.data.rename(tmp_path / "gone")
    try:
        assert result("report", "--name", "nli", "--storage", finished.storage)["reports"] == [str(page)]
    finally:
        (tmp_path / "gone").rename(finished.data)
    after = page.read_text(encoding="utf-8")
    assert "member 0, step 1: " in after and "raysts run nli" in after
    created = re.compile(r"<time[^>]*>[^<]*</time>|20\d\d-\d\d-\d\d[ T]\d\d:\d\d[^<]*")
    assert created.sub("", after) == created.sub("", before)
