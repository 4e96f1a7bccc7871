"""Searches whose driver, or a trial, is killed: nothing is lost or done twice (often: `benchmarks/kill_search.py`)."""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from processes import Command, family_of_title, trainer, wait_until
from run_commands import raysts

from raysts.commands.tune import tune as run_search
from raysts.search.search import SEARCHES
from raysts.storage.atomic import ASIDE

SHORT = {"train.max_length": 24, "sts.data.sample": 96, "train.precision": "fp32"}


class Search:
    """A lower-bound search as a command, started again and again on one storage."""

    def __init__(
        self, world: Path, backbone: Path, folder: Path, commands: list[Command], overrides: dict[str, Any]
    ) -> None:
        self.storage, self.commands, self.folder = folder / "storage", commands, folder
        given = {**overrides, "backbone": backbone}
        sets = [part for key, value in given.items() for part in ("--set", f"{key}={value}")]
        self.arguments = ["-m", "raysts", "tune", "lower-bound", *sets, "--data", world, "--storage", self.storage]

    def start(self) -> Command:
        arguments = [str(argument) for argument in (*self.arguments, "--address", "local", "--json")]
        self.commands.append(Command(arguments, self.folder / f"{len(self.commands)}.log"))
        return self.commands[-1]

    def records(self) -> dict[str, int]:
        """Records of trials and when they were written."""
        found = (self.storage / "studies/lower-bound/trials").glob("*.json")
        return {path.stem: path.stat().st_mtime_ns for path in found if not path.name.startswith(ASIDE)}

    def check(self, printed: str, trials: int, expected: dict[str, Any]) -> None:
        """Nothing lost, nothing doubled, the values of an undisturbed search, no trial of the database running."""
        import optuna

        found = json.loads(printed.splitlines()[-1])
        assert found["trials"] == trials == len(self.records()) and found["best"] == expected["best"]
        values = [{(str(p["overrides"]), p["seed"]): p["value"] for p in each["points"]} for each in (found, expected)]
        assert values[0] == values[1] and len(values[0]) == trials
        study = optuna.load_study(study_name="lower-bound", storage=f"sqlite:///{found['study']}/optuna.db")
        assert [trial.state.name for trial in study.trials] == ["COMPLETE"] * trials
        assert len({json.dumps(trial.params, sort_keys=True) for trial in study.trials}) == trials
        assert not (Path(found["study"]) / "tune").exists()
        assert not [path for path in self.storage.rglob(f"{ASIDE}*") if "locks" not in path.parts]


@pytest.mark.slow  # a private cluster, twice; test_tune kills a trial, test_jobs and test_remote_storage a driver
def test_a_killed_driver_and_a_killed_trial_cost_nothing_that_had_ended(
    small_world: Path, tiny_backbone: Path, tmp_path: Path, commands: list[Command]
) -> None:
    # One after the other: each trial at once more is a process more to start, three times over. By the loss: then no actor
    # measures the backbone.
    overrides = {
        **SHORT, "space.lower_bound": "0,0.3,0.6", "seeds": 1, "train.max_steps": 20, "train.checkpoint_every": 5,
        "train.eval_every": 10, "concurrency": 1, "metric": "loss",
    }  # fmt: skip
    expected = run_search(
        "lower-bound", {**overrides, "backbone": str(tiny_backbone)}, small_world, tmp_path / "calm", address="none",
    )  # fmt: skip
    search = Search(small_world, tiny_backbone, tmp_path, commands, overrides)
    shutil.copytree(tmp_path / "calm/tokens", search.storage / "tokens")  # an actor less, which is not what is killed
    first = search.start()
    wait_until(lambda: search.records() or first.ended())
    assert not first.ended(), first.stderr()
    first.signal_driver(signal.SIGKILL)
    first.process.wait()
    kept = search.records()
    over = threading.Event()

    def kill() -> None:
        """The process of a trial, in the middle of it, when another one has ended."""
        wait_until(lambda: (len(search.records()) > len(kept) and trainer(search.storage)) or over.is_set())
        victim = trainer(search.storage)
        if victim is not None:
            os.kill(victim, signal.SIGKILL)

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    second = raysts(*search.arguments[2:], "--address", "local", "--json")  # here: what a command imports is there
    over.set()
    killer.join()
    assert second.code == 0, second.err
    search.check(second.out, 3, expected)
    assert {name: search.records()[name] for name in kept} == kept and first.left_behind() == []
    wait_until(
        lambda: not [*family_of_title("ray::", os.getpid()), *family_of_title("/site-packages/ray/", os.getpid())],
        pause=0.2,
    )


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
    space = (key.removeprefix("latte.") for key in SEARCHES["latte-mix"]["space"])
    fixed = {f"space.{key}": "none" for key in space if not key.endswith(".classes")}
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
    assert "ran out of memory; it is tried again alone" in commands[0].stderr()
