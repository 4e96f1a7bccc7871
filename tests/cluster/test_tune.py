"""Searches on Ray Tune: the trials of a plain loop, whatever is killed."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from processes import trainer, wait_until, writer_of

from raysts.commands.options import RunOptions
from raysts.commands.study import plan_study
from raysts.commands.tune import tune as run_search
from raysts.errors import InputError
from raysts.pipeline.executor import LocalExecutor
from raysts.recipes.recipe import Resources
from raysts.search.search import SEARCHES
from raysts.storage.atomic import ASIDE
from raysts.storage.foreign import read_json

BOUND = "sts.settings.lower_bound"
SHORT = {"train.max_length": 24, "sts.data.sample": 96, "train.precision": "fp32"}
ALL_BUT_CLASSES = [
    f"space.{key.removeprefix('latte.')}" for key in SEARCHES["latte-mix"]["space"] if not key.endswith(".classes")
]
FOUR = {**SHORT, "space.lower_bound": "0,0.6", "seeds": 2}


@pytest.mark.anyray
def test_a_search_on_ray_is_that_of_a_plain_loop_though_a_trial_is_killed_and_one_does_not_fit(
    small_world: Path, tiny_backbone: Path, tmp_path: Path, cluster: None
) -> None:
    import optuna

    fixed = dict.fromkeys(ALL_BUT_CLASSES)
    overrides = {
        **fixed, "backbone": str(tiny_backbone), "space.settings.classes": [4, 10**13, 8], "num_samples": None, "seeds": 2,
        "train.epochs": 5, "train.checkpoint_every": 5, "train.max_length": 24, "train.precision": "fp32",
        "data.sample": 64, "data.sources": [], "settings.dims": 4, "keep": 3, "concurrency": 1,
    }  # fmt: skip
    here = run_search("latte-mix", overrides, small_world, tmp_path / "here", address="none")
    study = plan_study("latte-mix", overrides, RunOptions(data=small_world, storage=tmp_path / "there"))
    study.open("raysts tune")
    for do in (study.prepare, study.score_backbone):
        do(LocalExecutor(threads=1))  # without actors, of which others are the tests
    killed: list[int] = []

    def kill() -> None:
        """The process of a trial, in the middle of it."""
        wait_until(lambda: trainer(tmp_path / "there"), pause=0.005)
        killed.append(trainer(tmp_path / "there"))
        os.kill(killed[0], signal.SIGKILL)

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    there = run_search("latte-mix", overrides, small_world, tmp_path / "there")
    killer.join()
    assert killed
    classes = "latte.settings.classes"
    status = [(point["overrides"][classes], point["seed"], point["status"]) for point in there["points"]]
    assert sorted(status) == [(4, 0, "finished"), (4, 1, "finished"), (8, 0, "finished"), (8, 1, "finished"),
                              (10**13, 0, "infeasible"), (10**13, 1, "infeasible")]  # fmt: skip
    assert there["trials"] == 4 and "2 of 2 infeasible (out of memory)" in there["table"]
    assert [here[name] for name in ("best", "best_run")] == [there[name] for name in ("best", "best_run")]
    assert sorted(here["table"].splitlines()) == sorted(there["table"].splitlines())
    kept = sorted(path.parent.name for path in (tmp_path / "here").glob("runs/*/model"))
    assert kept == sorted(path.parent.name for path in (tmp_path / "there").glob("runs/*/model")) and len(kept) == 3
    for run in kept:
        for path in (tmp_path / "here" / "runs" / run / "model").rglob("*.safetensors"):
            other = tmp_path / "there" / path.relative_to(tmp_path / "here")
            assert path.read_bytes() == other.read_bytes(), path
    runs = list((tmp_path / "there" / "runs").iterdir())
    assert len({writer_of(run) for run in runs} - {*killed}) == 1 < len(runs)  # an actor trains one after the other
    assert all(read_json(run / "run.json")["where"].startswith("Ray Tune") for run in runs if run.name in kept)
    view = optuna.load_study(study_name="latte-mix", storage=f"sqlite:///{there['study']}/optuna.db")
    assert Counter(trial.state.name for trial in view.trials) == {"COMPLETE": 4, "FAIL": 2}, "none is running"
    assert not (Path(there["study"]) / "tune").exists() and not (Path.home() / "ray_results").exists()
    assert not [path for path in (tmp_path / "there").rglob(f"{ASIDE}*") if "locks" not in path.parts]
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("there/runs/*/run.json")}
    again = run_search("latte-mix", overrides, small_world, tmp_path / "there")
    assert again["points"] == there["points"] and before == {path: path.stat().st_mtime_ns for path in before}


@pytest.mark.slow  # samplers and early stopping go the same way without Ray, in search/test_metric.py
@pytest.mark.parametrize(
    "stopping", [{"asha.grace": 0.3, "asha.reduction": 2.0}, {"median": True}], ids=["asha", "median"]
)
def test_early_stopping_stops_some_and_says_so(
    stopping: dict[str, Any], small_world: Path, tiny_backbone: Path, tmp_path: Path, cluster: None
) -> None:
    """Good rates first, then some that learn nothing: these end early. The loss decides, so the smaller goes on."""
    rates = [2e-3, 1e-9, 1e-10, 1e-11] if "median" not in stopping else [2e-3, 1.5e-3, 1e-3, 1e-9, 1e-10]
    overrides = {
        **SHORT, "backbone": str(tiny_backbone), "space.optim.lr": rates, f"space.{BOUND}": None, "seeds": 1, "train.epochs": 10,
        "train.max_steps": 20, "train.eval_every": 5, "concurrency": 1, "keep": 4, "optim.schedule": "constant",
        "optim.warmup": 0.0, "metric": "loss", **stopping,
    }  # fmt: skip
    study = plan_study("lower-bound", overrides, RunOptions(data=small_world, storage=tmp_path))
    study.prepare(LocalExecutor(threads=1))
    found = run_search("lower-bound", overrides, small_world, tmp_path)
    points = {point["overrides"]["sts.optim.lr"]: point for point in found["points"]}
    assert found["mode"] == "min" and found["best"]["value"] == min(point["value"] for point in found["points"])
    stopped = [rate for rate, point in points.items() if point["status"] == "stopped"]
    assert len(points) == len(rates) and stopped and points[2e-3]["status"] == "finished"
    assert "1 of 1 stopped early and not in the mean" in found["table"]
    for rate in stopped:
        run = tmp_path / "runs" / points[rate]["run"]
        assert read_json(run / "run.json")["status"] == "stopped" and not (run / "checkpoints").exists()
        steps = [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()]
        assert steps[-1] in (5, 10, 15) and not (run / "model").exists()  # at the rung, not a step later


def test_a_trial_without_room_is_refused(small_world: Path, tiny_backbone: Path, tmp_path: Path, cluster: None) -> None:
    """A cluster that no autoscaler looks after will not grow: to wait for it would be to wait for ever."""
    overrides = {**FOUR, "backbone": str(tiny_backbone), "resources.gpus": 2}
    with pytest.raises(InputError, match=r"resources.gpus=2: no node can hold.*cluster's nodes have: 2 CPUs, 0 GPUs"):
        run_search("lower-bound", overrides, small_world, tmp_path / "storage")
    assert not (tmp_path / "storage").exists()


class Unreadable:
    """A step that another process cannot read, as one of a class that its node does not have."""

    def __deepcopy__(self, memory: Any) -> Unreadable:
        return self

    def __reduce__(self) -> Any:
        return int, ("no such class",)


@pytest.mark.slow  # a session of Tune; without Ray, a trial that cannot begin is in search/test_whole_search.py
@pytest.mark.parametrize(("step", "reason"), [
    (Path("no step"), "has no attribute 'job'"),
    (Unreadable(), "invalid literal for int() with base 10: 'no such class'"),
], ids=["no step", "unreadable"])  # fmt: skip
def test_an_error_of_a_trial_outside_its_training_is_its_reason(
    step: Any, reason: str, small_world: Path, tiny_backbone: Path, tmp_path: Path, cluster: None
) -> None:
    from raysts.cluster import tune
    from raysts.search.queue import SearchProgress, TrialQueue
    from raysts.search.trial import Trial

    class Spoilt(TrialQueue):
        def next(self) -> Trial | None:
            trial = super().next()
            return trial and replace(trial, earlier=(step,))

    given = {**SHORT, "space.lower_bound": "0.6", "backbone": str(tiny_backbone), "seeds": 1}
    study = plan_study("lower-bound", given, RunOptions(data=small_world, storage=tmp_path))
    study.open("raysts tune")
    queue = Spoilt(study)
    tune.run_on_ray(queue, SearchProgress(study), Resources(gpus=0))
    (failure,) = queue.failures
    assert reason in failure and ("died" in failure) == isinstance(step, Unreadable)


@pytest.mark.parametrize("names_actor", [True, False])
def test_a_trial_that_is_killed_for_memory_is_counted_and_tried_again_alone(
    names_actor: bool, small_world: Path, tiny_backbone: Path, tmp_path: Path, cluster: None, monkeypatch: Any
) -> None:
    """Where Ray's text does not name the process all that ran are counted, and each is tried alone."""
    import ray

    from raysts.cluster import tune
    from raysts.search.queue import SearchProgress, TrialQueue

    given = {**FOUR, "backbone": str(tiny_backbone)}
    study = plan_study("lower-bound", given, RunOptions(data=small_world, storage=tmp_path))
    study.open("raysts tune")
    sessions: list[list[str]] = []

    def killed(trials: tune.Trials, *others: Any) -> None:
        """A session of Tune in which Ray kills the second trial, or the only one, or none is left to be killed."""
        started = [name for name in "abcd" if isinstance(trials.suggest(name), dict)]
        sessions.append([trials.trials[name].id for name in started])
        victim = started[min(1, len(started) - 1)]
        trials.on_trial_result(victim, {tune.ACTOR: "f00"})
        if len(sessions) < 3:
            text = "Selected to kill: (Actor(f00), ..." if names_actor else "another text"
            raise RuntimeError(text) from ray.exceptions.OutOfMemoryError("killed")

    monkeypatch.setattr(tune, "_fit", killed)
    said: list[str] = []
    monkeypatch.setattr(tune, "say", said.append)
    tune.run_on_ray(TrialQueue(study), SearchProgress(study), Resources(gpus=0))
    together, alone, last = sessions
    assert len(together) == 4 and len(alone) == 1 and len(said) == 2
    assert alone == [together[1] if names_actor else together[0]]
    assert [(record.id, record.status) for record in study.records.values()] == [(alone[0], "infeasible")]
    rest = [run for run in together if run not in alone]
    assert last == (rest if names_actor else rest[:1])  # the others together, or each of those that were counted alone


def test_what_tune_keeps_of_each_trial_does_not_hold_the_study(
    small_world: Path, tiny_backbone: Path, tmp_path: Path, cluster: None, monkeypatch: Any
) -> None:
    """Tune pickles the functions that name a trial once a trial, and again at the end of a search."""
    import ray.tune
    from ray import cloudpickle

    from raysts.cluster import tune
    from raysts.search.queue import SearchProgress, TrialQueue

    given = {**FOUR, "backbone": str(tiny_backbone)}
    study = plan_study("lower-bound", given, RunOptions(data=small_world, storage=tmp_path))
    study.open("raysts tune")
    trials = tune.Trials(TrialQueue(study), Counter(), Resources(gpus=0))
    kept: list[int] = []

    class Tuner:
        def __init__(self, trainable: Any, *, tune_config: Any, run_config: Any) -> None:
            kept.extend(
                len(cloudpickle.dumps(part))
                for part in (trials.suggest("a"), tune_config.trial_name_creator, tune_config.trial_dirname_creator)
            )

        def fit(self) -> None: ...

    monkeypatch.setattr(ray.tune, "Tuner", Tuner)
    tune._fit(trials, SearchProgress(study), Resources(gpus=0))
    assert max(kept) < 4000, kept
