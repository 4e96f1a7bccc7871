from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from small_runs import Interrupted, Stage, Watched, difference, interrupted_at, metrics, without

from raysts.training import checkpoint, loop
from raysts.training.checkpoint import CheckpointPolicy
from raysts.training.job import Job
from raysts.training.loop import train
from raysts.training.runtime import Preempted, Preemption


class Told(Watched):
    """Gets a notice after a number of steps."""

    def __init__(self, after: int, notice: Preemption) -> None:
        super().__init__()
        self.after, self.told, self.steps = after, notice, 0

    def preemption(self) -> Preemption:
        self.steps += 1
        return self.told if self.steps >= self.after else Preemption.NONE


def saved(folder: Path) -> list[int]:
    return sorted(int(path.stem.split("-")[1]) for path in (folder / "checkpoints").glob("step-*.pt"))


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint by the clock after every step."""
    for name in ("FIRST", "EVERY", "DEAR"):
        monkeypatch.setattr(checkpoint, name, 0.0)


def job(stage: Stage, folder: Path, **train: Any) -> Job:
    """15 steps with dropout."""
    return stage.job("nli", folder, rows=80, eval_every=7, dev=True, **train)


def test_by_the_clock_a_killed_run_loses_a_step_and_not_a_bit(stage: Stage, tmp_path: Path, impatient: None) -> None:
    calm, killed = (Watched() for _ in range(2))
    train(job(stage, tmp_path / "calm", checkpoint_every=1000), calm)
    once = without(job(stage, tmp_path / "killed"), id="test-nli")
    with pytest.raises(Interrupted):
        train(once, Watched(read=interrupted_at(9)))
    assert saved(once.folder) == [9]
    train(once, killed)
    assert difference(calm.weights(), killed.weights()) == 0.0
    assert metrics(tmp_path / "calm") == metrics(tmp_path / "killed")


def test_a_recipe_that_counts_steps_has_no_clock(stage: Stage, tmp_path: Path, impatient: None) -> None:
    made = job(stage, tmp_path, checkpoint_every=4)
    with pytest.raises(Interrupted):
        train(made, Watched(read=interrupted_at(7)))
    assert saved(tmp_path) == [4]


def test_a_loss_between_two_lines_is_counted_though_a_checkpoint_comes_between(
    stage: Stage, tmp_path: Path, impatient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lines every 5 steps; killed between them: the mean is over all five."""
    start = loop.Run.__init__

    def sparse(self: Any, *arguments: Any) -> None:
        start(self, *arguments)
        self.log_every = 5

    monkeypatch.setattr(loop.Run, "__init__", sparse)
    train(job(stage, tmp_path / "calm", checkpoint_every=1000), Watched())
    for step in (3, 8, 9):
        with pytest.raises(Interrupted):
            train(job(stage, tmp_path / "killed"), Watched(read=interrupted_at(step)))
    train(job(stage, tmp_path / "killed"), Watched())
    lines = metrics(tmp_path / "calm")
    assert [line["step"] for line in lines] == [5, 7, 10, 14, 15] and metrics(tmp_path / "killed") == lines


@pytest.mark.parametrize(
    ("ago", "seconds", "due"),
    [(4, None, True), (2, None, False), (11, 0.1, True), (9, 0.1, False), (101, 5.0, True), (99, 5.0, False)],
)
def test_dear_checkpoints_are_rarer(ago: float, seconds: float | None, due: bool) -> None:
    """The first comes early; later ones take 5 % of the time at most; never where the clock does not count."""

    def decision(by_clock: bool) -> Preemption:
        return CheckpointPolicy(by_clock).decide(Preemption.NONE, ago, seconds)

    assert decision(by_clock=True) == (Preemption.SAVE if due else Preemption.NONE)
    assert decision(by_clock=False) == Preemption.NONE


def test_who_is_told_to_end_saves_first(stage: Stage, tmp_path: Path) -> None:
    train(job(stage, tmp_path / "calm", checkpoint_every=1000), calm := Watched())
    told = job(stage, tmp_path / "told", checkpoint_every=1000)
    with pytest.raises(Preempted):
        train(told, Told(6, Preemption.END))
    assert saved(told.folder) == [6]
    train(told, after := Told(1, Preemption.NONE))
    assert after.steps == 15 - 6 and difference(calm.weights(), after.weights()) == 0.0
