"""Searches on Ray Tune: the trials of a plain loop, whatever is killed."""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from processes import Command, trainer, wait_until, writer_of

from raysts.cluster import capacity
from raysts.commands.tune import tune as run_search
from raysts.errors import InputError
from raysts.recipes.recipe import Resources
from raysts.search.named import SEARCHES
from raysts.storage.atomic import ASIDE
from raysts.storage.foreign import read_json

BOUND = "sts.settings.lower_bound"
SHORT = {"train.max_length": 24, "sts.data.sample": 96, "train.precision": "fp32"}
ALL_BUT_CLASSES = [
    f"space.{key.removeprefix('latte.')}" for key in SEARCHES["latte-mix"]("").space if not key.endswith(".classes")
]
FOUR = {**SHORT, "space.lower_bound": "0,0.6", "seeds": 2}


@pytest.fixture
def commands() -> Iterator[list[Command]]:
    """Commands that a test starts; whatever is left of them when it ends is swept away."""
    started: list[Command] = []
    yield started
    for command in started:
        command.sweep()


def processes_shown() -> list[tuple[str, str]]:
    """Class and name of every living actor, as Ray's dashboard has them (which reads them here too)."""
    from ray._private.state import state
    from ray.core.generated.gcs_pb2 import ActorTableData

    table = state._connect_and_get_accessor().get_actor_table(None, "ALIVE")
    return [(actor.class_name, actor.repr_name) for actor in map(ActorTableData.FromString, table)]


def quiet(text: str) -> None:
    """Says nothing."""


def test_trials_on_ray_are_those_of_a_plain_loop_and_what_does_not_fit_is_infeasible(
    small_world: Path, tiny_backbone: Path, tmp_path: Path, cluster: None
) -> None:
    fixed = dict.fromkeys(ALL_BUT_CLASSES)
    overrides = {
        **fixed, "backbone": str(tiny_backbone), "space.settings.classes": [4, 10**13, 8], "num_samples": None, "seeds": 2,
        "train.max_steps": 3, "train.max_length": 24, "train.precision": "fp32", "data.sample": 64, "data.sources": [],
        "settings.dims": 4, "keep": 3,
    }  # fmt: skip
    here = run_search("latte-mix", overrides, small_world, tmp_path / "here", address="none", say=quiet)
    names: set[tuple[str, str]] = set()

    def look(text: str) -> None:
        if text.startswith("1/6"):
            names.update(processes_shown())

    there = run_search("latte-mix", overrides, small_world, tmp_path / "there", say=look)
    assert ("RaystsTrial", "trials of latte-mix") in names, names  # what Ray's dashboard shows
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
    assert len({writer_of(run) for run in runs}) <= 2 < len(runs)  # an actor trains one trial after the other
    assert all(read_json(run / "run.json")["where"].startswith("Ray Tune") for run in runs if run.name in kept)
    assert not (Path(there["study"]) / "tune").exists() and not (Path.home() / "ray_results").exists()
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("there/runs/*/run.json")}
    again = run_search("latte-mix", overrides, small_world, tmp_path / "there", say=quiet)
    assert again["points"] == there["points"] and before == {path: path.stat().st_mtime_ns for path in before}


def test_early_stopping_stops_some_and_says_so(
    small_world: Path, tiny_backbone: Path, tmp_path: Path, cluster: None
) -> None:
    """A good rate first, then some that learn nothing: these end at a rung. The loss decides, so the smaller goes on."""
    overrides = {
        **SHORT, "backbone": str(tiny_backbone), "space.optim.lr": [2e-3, 1e-9, 1e-10, 1e-11], f"space.{BOUND}": None,
        "seeds": 1, "train.epochs": 10, "train.max_steps": 20, "train.eval_every": 5, "concurrency": 1, "keep": 4,
        "asha.grace": 0.3, "asha.reduction": 2.0, "optim.schedule": "constant", "optim.warmup": 0.0, "metric": "loss",
    }  # fmt: skip
    found = run_search("lower-bound", overrides, small_world, tmp_path, say=quiet)
    points = {point["overrides"]["sts.optim.lr"]: point for point in found["points"]}
    assert found["mode"] == "min" and found["best"]["value"] == min(point["value"] for point in found["points"])
    stopped = [rate for rate, point in points.items() if point["status"] == "stopped"]
    assert len(points) == 4 and stopped and points[2e-3]["status"] == "finished"
    assert "1 of 1 stopped early and not in the mean" in found["table"]
    for rate in stopped:
        run = tmp_path / "runs" / points[rate]["run"]
        assert read_json(run / "run.json")["status"] == "stopped" and not (run / "checkpoints").exists()
        steps = [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()]
        assert steps[-1] in (10, 15) and not (run / "model").exists()  # at the rung, not a step later


def test_a_trial_that_no_node_can_hold_is_refused_with_what_there_is(
    small_world: Path, tiny_backbone: Path, tmp_path: Path, cluster: None
) -> None:
    """A cluster that no autoscaler looks after will not grow: to wait for it would be to wait for ever."""
    wait_until(lambda: not capacity.may_grow(), 60)  # Ray's monitor looks every five seconds
    overrides = {**FOUR, "backbone": str(tiny_backbone), "resources.gpus": 2}
    with pytest.raises(
        InputError, match=r"resources.gpus=2: no node can hold.*the cluster's nodes have: 2 CPUs, 0 GPUs"
    ):
        run_search("lower-bound", overrides, small_world, tmp_path, say=quiet)
    assert not list(tmp_path.glob("runs/*"))


def test_several_trials_share_a_gpu_and_what_a_trial_asks_for_is_counted_per_node() -> None:
    quarter = Resources(cpus=2, gpus=0.25)
    slots = capacity.slots
    assert slots({"CPU": 16, "GPU": 1}, quarter) == 4 and slots({"CPU": 4, "GPU": 1}, quarter) == 2
    assert slots({"CPU": 16, "GPU": 1}, Resources(gpus=0.1)) == 10  # not nine, as floats have it
    assert slots({"CPU": 16}, quarter) == 0 and slots({"CPU": 5}, Resources(cpus=2, gpus=0.0)) == 2


# -- kills ---------------------------------------------------------------------------------------------------------------


class Search:
    """A lower-bound search as a command, started again and again on one storage."""

    def __init__(
        self, world: Path, backbone: Path, folder: Path, commands: list[Command], overrides: dict[str, Any]
    ) -> None:
        self.storage, self.commands, self.folder = folder / "storage", commands, folder
        sets = [
            part for key, value in {**overrides, "backbone": backbone}.items() for part in ("--set", f"{key}={value}")
        ]
        self.arguments = ["-m", "raysts", "tune", "lower-bound", *sets, "--data", world, "--storage", self.storage]

    def start(self) -> Command:
        arguments = [str(argument) for argument in (*self.arguments, "--address", "local", "--json")]
        self.commands.append(Command(arguments, self.folder / f"{len(self.commands)}.log"))
        return self.commands[-1]

    def records(self) -> dict[str, int]:
        """Records of trials and when they were written."""
        found = (self.storage / "studies/lower-bound/trials").glob("*.json")
        return {path.stem: path.stat().st_mtime_ns for path in found if not path.name.startswith(ASIDE)}

    def lines(self) -> int:
        return sum(path.read_bytes().count(b"\n") for path in self.storage.glob("runs/*/metrics.jsonl"))

    def check(self, printed: str, trials: int, expected: dict[str, Any]) -> None:
        """Nothing lost, nothing doubled, the values of an undisturbed search, no trial of the database running."""
        import optuna

        found = json.loads(printed.splitlines()[-1])
        assert found["trials"] == trials == len(self.records())
        assert found["best"] == expected["best"]
        values = [{(str(p["overrides"]), p["seed"]): p["value"] for p in each["points"]} for each in (found, expected)]
        assert values[0] == values[1] and len(values[0]) == trials
        study = optuna.load_study(study_name="lower-bound", storage=f"sqlite:///{found['study']}/optuna.db")
        assert [trial.state.name for trial in study.trials] == ["COMPLETE"] * trials
        assert len({json.dumps(trial.params, sort_keys=True) for trial in study.trials}) == trials
        assert not (Path(found["study"]) / "tune").exists()
        assert not [path for path in self.storage.rglob(f"{ASIDE}*") if "locks" not in path.parts]


def test_a_killed_driver_and_a_killed_trial_cost_nothing_that_had_ended(
    small_world: Path, tiny_backbone: Path, tmp_path: Path, commands: list[Command]
) -> None:
    # One after the other: each trial at once more is a process more to start, three times over.
    overrides = {**FOUR, "train.max_steps": 30, "train.checkpoint_every": 5, "train.eval_every": 10, "concurrency": 1}
    expected = run_search(
        "lower-bound", {**overrides, "backbone": str(tiny_backbone)}, small_world, tmp_path / "calm", address="none", say=quiet
    )  # fmt: skip
    search = Search(small_world, tiny_backbone, tmp_path, commands, overrides)
    first = search.start()
    wait_until(lambda: search.records() or first.ended())
    assert not first.ended(), first.stderr()
    first.signal_driver(signal.SIGKILL)
    first.process.wait()
    kept = search.records()
    second = search.start()
    wait_until(lambda: (len(search.records()) > len(kept) and trainer(search.storage)) or second.ended())
    victim = trainer(search.storage)
    if victim is not None:
        os.kill(victim, signal.SIGKILL)
    printed = second.stdout()
    assert second.process.returncode == 0, second.stderr()
    search.check(printed, 4, expected)
    assert {name: search.records()[name] for name in kept} == kept
    for command in commands:
        assert command.left_behind() == []


@pytest.mark.slow
def test_ten_kills_at_random_moments(
    small_world: Path, tiny_backbone: Path, tmp_path: Path, commands: list[Command]
) -> None:
    """The driver, its process group (driver and head at once), a trial's process, Ctrl-C."""
    overrides = {
        **SHORT, "space.lower_bound": "0,0.2,0.4,0.6,0.8", "seeds": 4, "train.max_steps": 40, "train.checkpoint_every": 5,
        "train.eval_every": 10,
    }  # fmt: skip
    expected = run_search(
        "lower-bound", {**overrides, "backbone": str(tiny_backbone)}, small_world, tmp_path / "calm", address="none", say=quiet
    )  # fmt: skip
    search, dice = Search(small_world, tiny_backbone, tmp_path, commands, overrides), random.Random(7)
    kinds = itertools.cycle(("driver", "group", "worker", "interrupt"))
    kept: dict[str, int] = {}
    kills = 0
    while kills < 10:
        command, kind = search.start(), next(kinds)
        moment = search.lines() + dice.randint(1, 12)
        wait_until(lambda c=command, m=moment: search.lines() >= m or c.ended(), pause=0.005)
        if kind == "worker":
            wait_until(lambda c=command: trainer(search.storage) or c.ended(), pause=0.005)
        assert not command.ended(), command.stderr()
        kills += 1
        if kind == "worker":
            victim = trainer(search.storage)
            if victim is not None:
                os.kill(victim, signal.SIGKILL)
            before = len(search.records())
            wait_until(lambda c=command, n=before: len(search.records()) > n or c.ended(), pause=0.005)
            kind = "driver"
        if kind == "interrupt":
            os.killpg(command.pid, signal.SIGINT)
            assert command.process.wait(timeout=120) == 130
            said = [line for line in command.stderr().splitlines() if line.startswith("raysts:")]
            assert len(said) == 1 and "To go on: raysts tune lower-bound" in said[0]
        elif kind == "driver":
            command.signal_driver(signal.SIGKILL)
        else:
            command.kill_group()
        command.process.wait()
        now = search.records()
        assert {name: now[name] for name in kept} == kept
        kept = now
    command = search.start()
    printed = command.stdout()
    assert command.process.returncode == 0, command.stderr()
    search.check(printed, 20, expected)
    assert {name: search.records()[name] for name in kept} == kept
    for command in commands:
        assert command.left_behind() == []


@pytest.mark.slow
def test_a_trial_that_ray_kills_for_want_of_memory_is_infeasible(
    small_world: Path, tiny_backbone: Path, tmp_path: Path, commands: list[Command]
) -> None:
    """Ray Tune ends when that happens; the search does not."""
    import psutil

    memory = psutil.virtual_memory()
    if memory.available < 8 << 30:
        pytest.skip("needs 8 GB of free memory")
    threshold = (memory.total - memory.available + (3 << 30)) / memory.total
    fixed = dict.fromkeys(ALL_BUT_CLASSES, "none")
    overrides = {
        **fixed, "backbone": tiny_backbone, "space.settings.classes": f"4,{2 * 10**7},8", "num_samples": "none",
        "train.max_steps": 3, "train.max_length": 24, "data.sample": 64, "data.sources": "[]", "settings.dims": 2,
    }  # fmt: skip
    sets = [part for key, value in overrides.items() for part in ("--set", f"{key}={value}")]
    arguments = ["-m", "raysts", "tune", "latte-mix", *sets, "--data", small_world, "--storage", tmp_path / "storage"]
    environment = {"RAY_memory_usage_threshold": f"{threshold:.3f}", "RAY_memory_monitor_refresh_ms": "50"}
    all_arguments = [str(argument) for argument in (*arguments, "--address", "local", "--json")]
    commands.append(Command(all_arguments, tmp_path / "log", environment))
    printed = commands[0].stdout()
    assert commands[0].process.returncode == 0, commands[0].stderr()
    points = json.loads(printed.splitlines()[-1])["points"]
    status = {point["overrides"]["latte.settings.classes"]: point["status"] for point in points}
    assert status == {4: "finished", 8: "finished", 2 * 10**7: "infeasible"}
    assert "ran out of memory; the others go on" in commands[0].stderr()
