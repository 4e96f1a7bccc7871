from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from run_commands import raysts, result

from raysts.commands.look import plan
from raysts.commands.run import run as run_recipe
from raysts.errors import InputError
from raysts.evaluation import results
from raysts.papers.measured import every_row, report_data


@pytest.mark.whole
def test_a_pipeline_measures_every_layer_and_words_as_evaluate_does_and_the_report_finds_them(
    tiny_backbone: Path, few_world: Path, tmp_path: Path
) -> None:
    where = ("--data", few_world, "--storage", tmp_path)
    settings = {"evaluation.also": ["words"], "evaluation.layers": ["only-1", "only-2"], "evaluation.resamples": 20}
    overrides = {"backbone": str(tiny_backbone), **settings}
    (step,) = plan("raw", overrides, few_world, tmp_path)["nodes"]
    (without,) = plan("raw", overrides | {"evaluation.also": []}, few_world, tmp_path)["nodes"]
    assert step["title"] == "evaluate backbone with words" and step["id"] != without["id"]
    assert step["sentences"] > without["sentences"]
    found = run_recipe("raw", overrides, few_world, tmp_path, address="none")["results"]
    arguments = ("evaluate", tiny_backbone, *where, "--tasks", "stsb,words", "--layers", "only-all", "--resamples", 20)
    directly = result(*arguments)["results"]
    columns = ("dataset", "metric", "layers", "similarity", "value", "ci_low", "ci_high", "n")
    measured = [{name: row[name] for name in columns} for row in found]
    assert len(directly) > 8 and {"world", "world-nouns", "stsb"} <= {row["dataset"] for row in directly}
    assert {row["layers"] for row in directly} == {"only-1", "only-2"}
    for row in directly:
        assert {name: row[name] for name in columns} in measured
    parts = sorted(path.name for path in (tmp_path / "results").glob("[!.]*"))
    assert sum(name.startswith(results.EVALUATION) for name in parts) == 1
    result(*arguments)  # again: it replaces its part
    assert sorted(path.name for path in (tmp_path / "results").glob("[!.]*")) == parts
    of_evaluation = [each for each in every_row(tmp_path) if each.run != "raw" and each.row["dataset"] == "stsb"]
    shown = {(each.backbone, each.row["layers"]) for each in of_evaluation}
    assert shown == {(tiny_backbone.name, "only-1"), (tiny_backbone.name, "only-2")}


@pytest.mark.whole
def test_a_member_measured_again_is_one_of_its_pipeline(few_world: Path, tmp_path: Path) -> None:
    where = ("--data", few_world, "--storage", tmp_path)
    small = {"backbone": "tiny", "members": 2, "train.max_steps": 2, "train.eval_every": 2, "evaluation.resamples": 0}
    settings = [part for key, value in small.items() for part in ("--set", f"{key}={value}")]
    found = result("run", "nli", *where, *settings, "--set", "evaluation.tasks=[stsb]", "--address", "none")["results"]
    member = next(row["run_id"] for row in found if row["role"] == "member")
    assert raysts("evaluate", member, *where, "--tasks", "sts12", "--resamples", 0).code == 0
    again = [each for each in every_row(tmp_path) if each.row["dataset"] == "sts12"]
    assert again and {(each.run, each.backbone, each.row["role"]) for each in again} == {("nli", "tiny", "member")}


def test_what_shows_no_words_is_refused_before_anything_starts(few_world: Path, tmp_path: Path) -> None:
    shutil.copytree(few_world / "web", tmp_path / "data" / "web")
    shutil.copytree(few_world / "senteval", tmp_path / "data" / "senteval")
    for option in ("tasks", "also"):
        with pytest.raises(InputError, match="task 'words': a contextual model has vectors of words in sentences"):
            plan("raw", {f"evaluation.{option}": ["words", "transfer"]}, tmp_path / "data", tmp_path / "storage")
    with pytest.raises(InputError, match=r"unknown task 'wrds' \(did you mean 'words'"):
        plan("raw", {"evaluation.also": ["wrds"]}, few_world, tmp_path / "storage")
    with pytest.raises(InputError, match="probe=senteval: is of transfer; name it in tasks or also"):
        plan("raw", {"evaluation.probe": "senteval"}, few_world, tmp_path / "storage")


@pytest.mark.whole
def test_the_probes_of_a_pipeline_have_rows_of_their_own(tiny_backbone: Path, few_world: Path, tmp_path: Path) -> None:
    """As `evaluate` has them; a cell of Table 7 takes SentEval's alone."""
    data = tmp_path / "data"
    (data / "senteval").mkdir(parents=True)
    pq.write_table(pq.read_table(few_world / "senteval/cr.parquet").slice(0, 30), data / "senteval/cr.parquet")
    where, rows = ("--data", data, "--storage", tmp_path / "storage"), {}
    for probe in ("standard", "senteval"):
        settings = {"evaluation.also": ["transfer"], "evaluation.probe": probe, "evaluation.resamples": 0}
        settings |= {"evaluation.layers": [1], "evaluation.compare": 1}
        overrides = {"backbone": str(tiny_backbone), **settings}
        found = run_recipe("raw", overrides, data, tmp_path / "storage", address="none")
        rows[probe] = {row["layers"]: row for row in found["results"]}
        (table,) = report_data("sed", tmp_path / "storage", [7]).tables
        cells = {table.table.columns[j].name: [*values.values()] for (_, j, _), values in table.measured.items()}
        assert [*cells] == (["CR"] if probe == "senteval" else []), "values of the standard probe stand nowhere"
    directly = result("evaluate", tiny_backbone, *where, "--tasks", "transfer", "--probe", probe, "--resamples", 0)
    columns = ("dataset", "split", "similarity", "value", "n")
    for row in directly["results"]:
        assert [row[name] for name in columns] == [rows[probe][row["layers"]][name] for name in columns]
    assert cells["CR"][0].value == rows["senteval"]["1"]["value"]
    assert {probe: {row["similarity"] for row in found.values()} for probe, found in rows.items()} == {
        "standard": {None}, "senteval": {"senteval"},
    }  # fmt: skip
