"""Progress of a command: one bar on a terminal, and a sign of life in a log."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from raysts.commands.options import say_on_stderr
from raysts.data.world import world_path
from raysts.models.pretrained import weight_bytes
from raysts.pipeline.plan import Plan
from raysts.pipeline.step import Step
from raysts.training.monitor import duration, progress_bar

FIRST_SIGN, LAST_SIGN = 5.0, 60.0
"""Seconds of silence before the first sign of life in a log, and before those of a long step."""

COSTS = {"tokens": 0.02, "train": 3.0}
"""Time per sentence of a kind of step, relative to embedding it."""

PARAMETERS_A_SECOND, TINY_PARAMETERS, LONG = 1.1e9, 1e6, 3600
"""Parameters times sentences that a CPU embeds in a second (MiniLM: benchmarks/RESULTS.md), and seconds worth a message."""


class Screen:
    """A function for messages that also shows how far the command is.

    On a terminal one bar stays below the messages. Without a terminal a message names the step after 5 s of silence,
    then after 10, 20, 40 and every 60.
    """

    def __init__(self, write: Callable[[str], None]) -> None:
        self.write, self.title = write, "starting"
        self.began = self.spoke = time.monotonic()
        self.pause, self.total, self.rest, self.running, self.part = FIRST_SIGN, 0.0, 0.0, 0.0, 0.0
        self.bar: Any = None
        self.ended = threading.Event()
        self.thread: threading.Thread | None = None

    def __enter__(self) -> Screen:
        if isinstance(self.write, Screen):  # of a command around this one
            return self.write
        if self.write is say_on_stderr:
            if bar := progress_bar():
                self.bar = bar
                self.task = bar.add_task(self.title, total=1.0, note="")
                bar.start()
            self.thread = threading.Thread(target=self._live, daemon=True)
            self.thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.ended.set()
        if self.thread is not None:
            self.thread.join()
        if self.bar is not None:
            self.bar.stop()

    def __call__(self, text: str) -> None:
        """Show a message."""
        self.spoke, self.pause = time.monotonic(), FIRST_SIGN
        self.write(text)

    def follow(self, running: Sequence[Step], waiting: Sequence[Step]) -> None:
        """Take note of the steps that begin, and of all that are not done, these among them."""
        self.title = running[0].title if len(running) == 1 else f"{len(running)} runs train"
        self.rest, self.running = (sum(map(_cost, steps)) for steps in (waiting, running))
        self.total, self.part = max(self.total, self.rest), 0.0
        self.show()

    def within(self, part: float) -> None:
        """Take note of how much of the running steps is done, from 0 to 1."""
        self.part = part
        self.show()

    @property
    def fraction(self) -> float:
        """Return how much of the work is done, from 0 to 1."""
        return 1 - (self.rest - self.part * self.running) / self.total if self.total else 0.0

    @property
    def note(self) -> str:
        """Return the percentage, the time so far and an estimate of the time left."""
        seconds, fraction = time.monotonic() - self.began, self.fraction
        parts = [f"{100 * fraction:.0f} %", f"{duration(seconds)} so far"]
        return ", ".join([*parts, f"about {duration(seconds * (1 / fraction - 1))} left"] if fraction > 0.02 else parts)

    def show(self) -> None:
        """Draw the bar."""
        if self.bar is not None:
            self.bar.update(self.task, description=self.title, completed=self.fraction, note=self.note)

    def live(self) -> None:
        """Draw the bar again, or break a silence in a log."""
        if self.bar is not None:
            self.show()
        elif self.total and time.monotonic() - self.spoke >= self.pause:  # wrong input has one message alone
            self.pause = min(2 * self.pause, LAST_SIGN)
            self.spoke = time.monotonic()
            self.write(f"... {self.title}: {self.note}")

    def _live(self) -> None:
        while not self.ended.wait(0.5):
            self.live()


def cautions(plan: Plan, address: str | None) -> list[str]:
    """Return warnings before a run: generated sentences, hours on this machine."""
    lines, states = [], plan.states()
    waiting = [step for step in plan.steps if states[step.id] != "done"]
    if not waiting:
        return []
    if plan.corpus.root == world_path() and not plan.corpus.text and plan.pipeline.name != "quickstart":
        lines.append(
            "The sentences are generated: neither --data nor --text is given. The scores say nothing about real text."
        )
    import torch

    if address not in (None, "none", "local") or os.environ.get("RAY_ADDRESS") or torch.cuda.is_available():
        return lines
    cpus, parameters = os.cpu_count() or 1, weight_bytes(plan.backbone) / 4 or TINY_PARAMETERS
    seconds = sum(map(_cost, waiting)) * parameters / (PARAMETERS_A_SECOND * cpus)
    if seconds > LONG:
        lines.append(
            f"This run processes {sum(step.sentences for step in waiting):,} sentences: roughly {duration(seconds)} on the "
            f"{cpus} CPUs of this machine, by the size of the encoder. --set train.max_steps=N or members=N makes it shorter."
        )
    return lines


def _cost(step: Step) -> float:
    return 1 + step.sentences * COSTS.get(step.kind, 1.0)
