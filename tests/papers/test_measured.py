from __future__ import annotations

from pathlib import Path

from run_commands import raysts, result

from raysts.evaluation import results
from raysts.papers.measured import every_row


def test_evaluate_measures_every_layer_and_the_report_finds_it(
    tiny_backbone: Path, small_world: Path, tmp_path: Path
) -> None:
    where = ("--data", small_world, "--storage", tmp_path)
    arguments = ("evaluate", tiny_backbone, *where, "--tasks", "stsb,words", "--layer", "all", "--resamples", 0)
    found = result(*arguments)["results"]
    assert {row["layers"] for row in found} == {"only-1", "only-2"}
    alone = result("evaluate", tiny_backbone, *where, "--tasks", "stsb", "--layer", 2, "--resamples", 0)["results"]
    key = ("metric", "aggregation")
    wanted = {tuple(row[name] for name in key): row["value"] for row in alone}
    assert wanted == {
        tuple(row[name] for name in key): row["value"]
        for row in found
        if row["dataset"] == "stsb" and row["layers"] == "only-2"
    }
    parts = sorted(path.name for path in (tmp_path / "results").glob("[!.]*"))
    assert len(parts) == 2 and all(name.startswith(results.EVALUATION) for name in parts)
    result(*arguments)  # again: it replaces its part
    assert sorted(path.name for path in (tmp_path / "results").glob("[!.]*")) == parts
    assert {(each.backbone, each.row["layers"]) for each in every_row(tmp_path) if each.row["dataset"] == "stsb"} == {
        (f"{tiny_backbone.name}", "only-1"), (f"{tiny_backbone.name}", "only-2"),
    }  # fmt: skip


def test_a_member_measured_again_is_one_of_its_pipeline(small_world: Path, tmp_path: Path) -> None:
    where = ("--data", small_world, "--storage", tmp_path)
    small = {"backbone": "tiny", "members": 2, "train.max_steps": 2, "train.eval_every": 2, "evaluation.resamples": 0}
    settings = [part for key, value in small.items() for part in ("--set", f"{key}={value}")]
    found = result("run", "nli", *where, *settings, "--set", "evaluation.tasks=[stsb]", "--address", "none")["results"]
    member = next(row["run_id"] for row in found if row["role"] == "member")
    assert raysts("evaluate", member, *where, "--tasks", "sts12", "--resamples", 0).code == 0
    again = [each for each in every_row(tmp_path) if each.row["dataset"] == "sts12"]
    assert again and {(each.run, each.backbone, each.row["role"]) for each in again} == {("nli", "tiny", "member")}
    named = raysts("run", "nli", *where, *settings, "--set", "evaluation.tasks=[words]", "--address", "none")
    assert named.code == 2 and "evaluation.tasks: 'words' is measured on a model itself" in named.err
