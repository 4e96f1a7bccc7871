"""Searches over systems of several training runs: what points have in common, and in what order trials run."""

from __future__ import annotations

import html
import itertools
import json
import re
import shlex
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import small_runs
from run_commands import listening, overrides, raysts, result

from raysts.commands.context import plan_of
from raysts.commands.look import plan
from raysts.commands.options import RunOptions
from raysts.commands.tune import tune
from raysts.errors import InputError
from raysts.search.queue import TrialQueue
from raysts.search.search import find_search
from raysts.search.study import Study

SHORT = {"train.max_steps": 2, "train.eval_every": 2, "train.max_length": 24, "data.sample": 64, "precision": "fp32"}
CT, NLI = "ct.optim.lr", "nli.optim.lr"


def trained(storage: Path) -> Counter[str]:
    """How many runs of each stage have been trained, of pruned ones too."""
    return Counter(json.loads(path.read_text())["stage"] for path in storage.glob("runs/*/run.json"))


def study_of(name: str, overrides: dict[str, Any], data: Path, storage: Path) -> Study:
    search = find_search(name, {**SHORT, "backbone": "tiny", **overrides})
    return Study(search, plan_of(search.pipeline_at({}), RunOptions(data, storage, None, "none", "")), name)


def test_points_that_begin_alike_share_the_beginning(few_world: Path, tiny_backbone: Path, tmp_path: Path) -> None:
    storage, said, short = tmp_path / "s", [], {**SHORT, "backbone": str(tiny_backbone)}
    space = {f"space.{CT}": [1e-5, 1e-2]}
    with listening(said.append):
        found = tune("nli-ct", {**short, **space}, few_world, storage, address="none")
    assert found["trials"] == 2 and trained(storage) == {"nli": 1, "ct": 2}
    assert any("every point begins with the same step, done once instead of 2 times" in line for line in said)
    # The best trial's system is that of the same name: nothing is left to train.
    planned = plan("nli-ct", {**short, **found["best"]["overrides"], "members": 1}, few_world, storage)
    assert {node["status"] for node in planned["nodes"] if node["kind"] == "train"} == {"done"}


def test_a_stage_is_trained_once_for_its_points(few_world: Path, tiny_backbone: Path, tmp_path: Path) -> None:
    storage = tmp_path / "s"
    space = {f"space.{NLI}": [1e-5, 1e-3], f"space.{CT}": [1e-5, 1e-3]}
    overrides = {**SHORT, "backbone": str(tiny_backbone), **space, "keep": 1}
    found = tune("nli-ct", overrides, few_world, storage, address="none")
    assert found["trials"] == 4 and trained(storage) == {"nli": 2, "ct": 4}
    # The kept trial keeps what it comes from; the other first stage goes with the last trial.
    kept = [path.parent.name for path in storage.glob("runs/*/model")]
    assert found["best_run"]["run"] in kept and len(kept) == 2
    assert "nli.lr=1e-05 ct.lr=0.001" in found["table"]
    again = tune("nli-ct", overrides, few_world, storage, address="none")
    assert again["points"] == found["points"] and trained(storage) == {"nli": 2, "ct": 4}


def test_a_trial_waits_for_a_step_that_another_one_makes(few_world: Path, tmp_path: Path) -> None:
    overrides = {f"space.{NLI}": [1e-5, 1e-3], f"space.{CT}": [1e-5, 1e-3], "num_samples": None}
    study = study_of("nli-ct", overrides, few_world, tmp_path / "s")
    study.open("")
    queue = TrialQueue(study)
    first, second = queue.next(), queue.next()
    assert first and second and first.point[NLI] != second.point[NLI]
    assert queue.next() is None and len(queue.ready) == 2  # each of the rest needs a first stage that is in work
    del queue.running[first.id]
    third = queue.next()
    assert third and third.point[NLI] == first.point[NLI]


@pytest.mark.parametrize("labels", [pytest.param(True, marks=pytest.mark.slow, id="by labels"), False])
def test_students_of_models(few_world: Path, tiny_backbone: Path, tmp_path: Path, labels: bool) -> None:
    words = map(str.split, ("big small red", "dog cat cow", "bread fish corn grass apple cake", "1 2 3 4 5 6"))
    texts = [f"a {size} {animal} eats {food} at {hour}" for size, animal, food, hour in itertools.product(*words)]
    (tmp_path / "own.txt").write_text("\n".join(texts))
    arguments: list[Any] = ["tune", "distill", tiny_backbone, "--storage", tmp_path / "s", "--address", "none"]
    arguments += ["--data", few_world] if labels else ["--text", tmp_path / "own.txt"]
    arguments += overrides({"backbone": tiny_backbone, "space.backbone_layers": "1,2", "train.max_steps": 3})
    found = result(*arguments, "--set", "data.sample=60", "--set", "batch=16")
    assert found["trials"] == 2 and trained(tmp_path / "s") == {"sed": 2}
    # The teacher's vectors do not depend on the points.
    assert len(list((tmp_path / "s").glob("teachers/*/manifest.json")) or [0]) == 1
    assert {point["overrides"]["backbone_layers"] for point in found["points"]} == {1, 2}
    # The command that the report shows makes the best student: it is there already.
    page = Path(found["report"]).read_text(encoding="utf-8")
    assert "The starting model with all of its layers" in page and "training gained nothing" not in page
    shown = re.search("raysts (distill [^<]*)", page)
    assert shown
    few = overrides({"evaluation.resamples": 2}, {"evaluation.tasks": "[stsb]"} if labels else {})
    ended = result(*shlex.split(html.unescape(shown.group(1))), "--address", "none", *few)
    assert trained(tmp_path / "s") == {"sed": 2} and found["best_run"]["run"] in ended["model"]


def test_the_best_students_of_a_search_are_combined(few_world: Path, tiny_backbone: Path, tmp_path: Path) -> None:
    """As an ensemble, an average or teachers. The record names the trial of each."""
    place: list[Any] = ["--storage", tmp_path / "s", "--address", "none"]
    start, students = overrides({"backbone": tiny_backbone}), ["--from-study", "distill"]
    space = overrides({"space.sed.optim.lr": "1e-4,1e-3", "seeds": 2, "train.max_steps": 3, "data.sample": 60})
    found = result("tune", "distill", tiny_backbone, *place, "--data", few_world, *start, *space)
    best = sorted(found["points"], key=lambda point: (-point["value"], point["run"]))[:3]
    few = overrides({"evaluation.tasks": "[stsb]", "evaluation.resamples": 2})
    names = [f"sed.optim.lr={p['overrides']['sed.optim.lr']}, seed {p['seed']}" for p in best]
    for role in ("ensemble", "soup"):
        arguments = ["distill", *students, "--top", 3, "--name", role, *place, *few, "--set", f"combine={role}"]
        made = result(*arguments)
        record = json.loads((tmp_path / "s" / "pipelines" / f"{role}.json").read_text())
        assert record["pipeline"]["trials"] == [{"point": p["overrides"], "seed": p["seed"]} for p in best]
        assert record["pipeline"]["teachers"] == [p["run"] for p in best]
        assert {row["role"] for row in made["results"]} == {"backbone", "member", "ensemble"} | {role}
        assert all(any(name in note for note in made["notes"]) for name in names)
        compared = result("compare", role, tiny_backbone, *place[:2], "--data", few_world, "--tasks", "stsb")
        assert ("mean of 3 models' vectors" in compared["a"]) == (role == "ensemble"), "no starting model"
    averaged = json.loads((Path(made["model"]).parent / "run.json").read_text())
    assert (averaged["role"], averaged["parents"]) == ("soup", [p["run"] for p in best])
    assert trained(tmp_path / "s") == {"sed": 4, "soup": 1}, "no student is trained again"
    planned = result("plan", "distill", *students, *place[:2], *few)
    assert any(all(name in note for name in names) for note in planned["notes"]), "so they are as teachers"


@pytest.mark.parametrize("widths", [pytest.param("of backbones", marks=pytest.mark.slow), "of heads"])
def test_the_next_command_that_a_search_prints_works(
    widths: str, few_world: Path, tiny_backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where trials have no common starting model, and where the vectors are those of a fitted head."""
    monkeypatch.setattr(small_runs, "HIDDEN", 48)
    wide, storage = small_runs.write_backbone(tmp_path / "wide", "bert"), tmp_path / "my storage"
    system, space = "ct", {**SHORT, "space.backbone": f"{tiny_backbone},{wide}"}
    if widths == "of heads":
        small = {"backbone": str(tiny_backbone), "latte.settings.dims": 3, "latte.data.sources": []}
        system, chosen = "nli-latte", {"space.latte.settings.classes": "4,8", "by": "point", "keep": 1}
        space = {**SHORT, **small, **chosen}
    place = ["--data", few_world, "--storage", storage, "--address", "none"]
    told = raysts("tune", system, *place, *overrides(space))
    _, *command = shlex.split(re.search("next:(.*)", told.out)[1])  # type: ignore[index]
    few = {"sed.data.sample": 60, "sed.batch": 8, "train.max_steps": 2, "evaluation.tasks": "[stsb]"}
    assert result(*command, "--address", "none", *overrides(few, {"evaluation.resamples": 0}))["model"]


def test_teachers_are_of_distill_alone(few_world: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="needs teachers"):
        tune("distill", {"space.sed.optim.lr": [1e-4]}, few_world, tmp_path)
    with pytest.raises(InputError, match="only 'tune distill' takes teachers"):
        tune("nli-ct", {f"space.{CT}": [1e-4]}, few_world, tmp_path, models=["a"])
