from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_runs import Interrupted, Stage, Watched, difference, interrupted_at, metrics

from raysts.training import checkpoint, loop
from raysts.training.checkpoint import CheckpointPolicy
from raysts.training.job import Job
from raysts.training.loop import train
from raysts.training.runtime import Preempted, Preemption

Calm = tuple[Watched, list[dict[str, Any]]]


class Told(Watched):
    """Gets a notice after a number of steps."""

    def __init__(self, after: int, notice: Preemption) -> None:
        super().__init__()
        self.after, self.told, self.steps = after, notice, 0

    def preemption(self) -> Preemption:
        self.steps += 1
        return self.told if self.steps >= self.after else Preemption.NONE


def saved(folder: Path) -> list[int]:
    """The steps of the files there, none of which is a best model that dev has not been asked to choose."""
    return sorted(int(path.stem.split("-")[1]) for path in (folder / "checkpoints").glob("[!.]*"))


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint by the clock after every step."""
    for name in ("FIRST", "EVERY", "DEAR"):
        monkeypatch.setattr(checkpoint, name, 0.0)


def job(stage: Stage, folder: Path, **train: Any) -> Job:
    """15 steps with dropout."""
    return stage.job("nli", folder, rows=80, eval_every=7, dev=True, **train)


@pytest.fixture(scope="module")
def calm(stage: Stage, tmp_path_factory: pytest.TempPathFactory) -> Calm:
    """The run that nothing disturbs, and its lines."""
    folder, run = tmp_path_factory.mktemp("calm"), Watched()
    train(job(stage, folder, checkpoint_every=1000), run)
    return run, metrics(folder)


def test_by_the_clock_a_kill_costs_a_step_and_no_bit(calm: Calm, stage: Stage, tmp_path: Path, impatient: None) -> None:
    killed = job(stage, tmp_path)
    with pytest.raises(Interrupted):
        train(killed, Watched(read=interrupted_at(9)))
    assert saved(tmp_path) == [9]
    train(killed, run := Watched())
    assert difference(calm[0].weights(), run.weights()) == 0.0 and calm[1] == metrics(tmp_path)


def test_a_recipe_that_counts_steps_has_no_clock(stage: Stage, tmp_path: Path, impatient: None) -> None:
    made = job(stage, tmp_path, checkpoint_every=4)
    with pytest.raises(Interrupted):
        train(made, Watched(read=interrupted_at(7)))
    assert saved(tmp_path) == [4]


def test_the_loss_of_a_line_is_the_mean_since_the_last_though_a_checkpoint_comes_between(
    calm: Calm,
    stage: Stage, tmp_path: Path, impatient: None, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Lines every 5 steps, as in a long run; killed between them."""
    start = loop.Run.__init__

    def sparse(self: Any, *arguments: Any) -> None:
        start(self, *arguments)
        self.log_every = 5

    monkeypatch.setattr(loop.Run, "__init__", sparse)
    for step in (3, 9):
        with pytest.raises(Interrupted):
            train(job(stage, tmp_path), Watched(read=interrupted_at(step)))
    train(job(stage, tmp_path), Watched())
    lines, losses, first = metrics(tmp_path), [line["loss"] for line in calm[1]], 0
    assert [line["step"] for line in lines] == [5, 7, 10, 14, 15]
    for line in lines:
        assert line["loss"] == pytest.approx(np.mean(losses[first : line["step"]]), abs=1e-6)
        first = line["step"]


@pytest.mark.parametrize(
    ("ago", "seconds", "due"),
    [(3, None, True), (2.9, None, False), (10, 0.1, True), (9.9, 0.1, False), (100, 5.0, True), (99, 5.0, False)],
)
def test_dear_checkpoints_are_rarer(ago: float, seconds: float | None, due: bool) -> None:
    """The first comes early; later ones take 5 % of the time at most; never where the clock does not count."""

    def decision(by_clock: bool) -> Preemption:
        return CheckpointPolicy(by_clock).decide(Preemption.NONE, ago, seconds)

    assert decision(by_clock=True) == (Preemption.SAVE if due else Preemption.NONE)
    assert decision(by_clock=False) == Preemption.NONE


def test_who_is_told_to_end_saves_first(calm: Calm, stage: Stage, tmp_path: Path) -> None:
    told = job(stage, tmp_path, checkpoint_every=1000)
    with pytest.raises(Preempted):
        train(told, Told(6, Preemption.END))
    assert saved(tmp_path) == [6]
    train(told, after := Told(1, Preemption.NONE))
    assert after.steps == 15 - 6 and difference(calm[0].weights(), after.weights()) == 0.0
