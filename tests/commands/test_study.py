"""``raysts tune`` on a study whose trials have ended: what it gives, and how it ends where none finished."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from raysts.commands.options import RunOptions
from raysts.commands.study import plan_study, run_study
from raysts.errors import InputError, RunFailed
from raysts.search.record import Record
from raysts.search.study import Study

BOUND = "sts.settings.lower_bound"


@pytest.fixture
def options(few_world: Path, tmp_path: Path) -> RunOptions:
    return RunOptions(data=few_world, storage=tmp_path / "my storage", name="mine", address="none")


def ended(study: Study, points: list[dict[str, Any]], values: list[float | None], **more: Any) -> None:
    """Write a record of each trial of the points, in their order."""
    trials = [trial for point in points for trial in study.trials(point)]
    for trial, value in zip(trials, values, strict=True):
        status = "infeasible" if value is None else "finished"
        study.store.write_json(f"studies/{study.name}/trials/{trial.id}.json", Record(
            id=trial.id, point=trial.point, seed=trial.seed, status=status, value=value, finished_at="2026", **more,
        ).__dict__)  # fmt: skip
        with study.store.put(f"runs/{trial.id}/model/weights") as draft:
            draft.touch()


def test_the_best_point_and_the_best_run_of_a_search_that_has_ended(options: RunOptions, tiny_backbone: Path) -> None:
    """The point by the mean of its seeds. The command that goes on names a starting model that was varied."""
    space = {"space.lower_bound": "0,0.5", "seeds": 2, "cost": "bytes", "backbone": str(tiny_backbone)}
    study = plan_study("lower-bound", space, options)
    ended(study, [{BOUND: 0.0}, {BOUND: 0.5}], [0.5, 0.9, 0.8, 0.8], cost=2.0)
    told = run_study(study, options)
    assert (told["metric"], told["mode"], told["trials"]) == ("spearman", "max", 4)
    assert told["best"] == {"overrides": {BOUND: 0.5}, "value": pytest.approx(0.8)}
    assert (told["best_run"]["value"], told["best_run"]["seed"]) == (0.9, 1)
    assert [point["cost"] for point in told["points"]] == [2.0] * 4 and told["front"]
    assert shlex.split(told["next"]) == ["raysts", "distill", "--from-study", "mine", "--storage", str(options.storage)]
    backbones = {"space.backbone": f"{tiny_backbone},tiny", "seeds": 1, "num_samples": 2}
    named = replace(options, name="two")
    study = plan_study("sts", backbones, named)
    ended(study, [{"backbone": "tiny"}, {"backbone": str(tiny_backbone)}], [0.5, 0.9])
    told = run_study(study, named)
    assert shlex.split(told["next"])[-2:] == ["--set", f"backbone={tiny_backbone}"]
    assert "front" not in told and "cost" not in told["points"][0]


def test_a_search_in_which_no_trial_finished_says_why(options: RunOptions, tiny_backbone: Path) -> None:
    space = {"space.lower_bound": "0,0.5", "seeds": 1, "backbone": str(tiny_backbone)}
    for name, reason, said in (
        ("a", "no batch", "no trial of a finished: no batch$"),
        ("b", None, "all were stopped early$"),
    ):
        named = replace(options, name=name)
        study = plan_study("lower-bound", space, named)
        ended(study, [{BOUND: 0.0}, {BOUND: 0.5}], [None, None], reason=reason)
        with pytest.raises(RunFailed, match=said):
            run_study(study, named)


def test_early_stopping_needs_trials_that_train_at_once(options: RunOptions, tiny_backbone: Path) -> None:
    for option in ("asha", "median"):
        study = plan_study("lower-bound", {option: True, "backbone": str(tiny_backbone), "num_samples": 2}, options)
        with pytest.raises(InputError, match="asha, median: need trials that train at once"):
            run_study(study, options)
