"""Messages of the logger ``raysts``, and the screen that shows them with how far the command is.

A message goes to stderr, because stdout is for results. On a terminal bars stay below the messages. Without a terminal a
message names the step after 5 s of silence, then after 10, 20, 40 and every 60.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

logger = logging.getLogger("raysts")
logger.propagate = False  # a handler of the root would show every message twice
logger.setLevel(logging.INFO)
say = logger.info

FIRST_SIGN, LAST_SIGN = 5.0, 60.0
"""Seconds of silence before the first sign of life in a log, and before those of a long step."""


class Screen(logging.Handler):
    """Handler that prints messages and draws bars: one for the command, one for each run in training."""

    def __init__(self) -> None:
        super().__init__()
        self.bars: Any = None
        self.active = False
        self._begin()

    def _begin(self) -> None:
        self.title, self.began, self.spoke = "starting", time.monotonic(), time.monotonic()
        self.pause, self.total, self.rest, self.running, self.part = FIRST_SIGN, 0.0, 0.0, 0.0, 0.0
        self.tasks: dict[str, Any] = {}

    def emit(self, record: logging.LogRecord) -> None:
        """Print a message."""
        self.spoke, self.pause = time.monotonic(), FIRST_SIGN
        print(record.getMessage(), file=sys.stderr, flush=True)  # noqa: T201

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """Show how far the command is, for the block. Within another such block it does nothing."""
        if self.active:
            yield
            return
        self._begin()
        self.active, ended = True, threading.Event()
        if bars := progress_bars():
            self.bars = bars
            bars.start()
        thread = threading.Thread(target=self._live, args=(ended,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
            self.active, self.bars = False, None
            if bars:
                bars.stop()

    def follow(self, title: str, rest: float, running: float) -> None:
        """Take note of the steps that begin: their title, the cost of all that is left, these among it, and theirs."""
        self.title, self.rest, self.running = title, rest, running
        self.total, self.part = max(self.total, rest), 0.0
        self.show()

    def within(self, part: float) -> None:
        """Take note of how much of the running steps is done, from 0 to 1."""
        self.part = part
        self.show()

    def draw(self, key: str, title: str, done: int, total: int, note: str) -> None:
        """Draw the bar of one training run, until it is done."""
        if self.bars is not None:
            if key not in self.tasks:
                self.tasks[key] = self.bars.add_task(title, total=total, note=note)
            self.bars.update(self.tasks[key], completed=done, note=note, visible=done < total)

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
        """Draw the bar of the command."""
        if self.bars is not None:
            if "" not in self.tasks:
                self.tasks[""] = self.bars.add_task(self.title, total=1.0, note="")
            self.bars.update(self.tasks[""], description=self.title, completed=self.fraction, note=self.note)

    def live(self) -> None:
        """Draw the bar again, or break a silence in a log."""
        if self.bars is not None:
            self.show()
        elif self.total and time.monotonic() - self.spoke >= self.pause:  # wrong input has one message alone
            pause = min(2 * self.pause, LAST_SIGN)
            say("... %s: %s", self.title, self.note)
            self.pause = pause

    def _live(self, ended: threading.Event) -> None:
        while not ended.wait(0.5):
            self.live()


screen = Screen()
logger.addHandler(screen)


@functools.cache
def console() -> Any:
    """Return the console of stderr, which all displays share."""
    from rich.console import Console

    return Console(stderr=True)


def progress_bars() -> Any:
    """Return a display of bars on stderr, or None without a terminal that can overwrite lines."""
    if not sys.stderr.isatty() or console().is_dumb_terminal:
        return None
    from rich.progress import BarColumn, Progress, TextColumn

    columns = TextColumn("{task.description:<16}"), BarColumn(), TextColumn("{task.fields[note]}")
    return Progress(*columns, console=console(), transient=True)


def duration(seconds: float | None) -> str:
    """Return seconds as text for people, or a dash without a measurement."""
    if seconds is None or not math.isfinite(seconds):
        return "–"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    rounded = round(seconds)
    if rounded < 60:
        return f"{rounded} s"
    hours, minutes = divmod(rounded // 60, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rounded % 60:02} s"
