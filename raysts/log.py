"""Messages of the logger ``raysts``, and the screen that shows them with how far the command is.

A message goes to stderr, because stdout is for results. On a terminal bars stay below the messages. Without a terminal a
message names the step after 5 s of silence, and after ten minutes once a minute. Debug records go to the log in the storage,
and with ``-v`` to the screen.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import os
import shutil
import sys
import textwrap
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from raysts.errors import redact

logger = logging.getLogger("raysts")
logger.propagate = False  # a handler of the root would show every message twice
logger.setLevel(logging.DEBUG)
say = logger.info

VERBOSE = "RAYSTS_VERBOSE"
"""Environment variable that shows debug records, in the processes of a cluster too."""

CHECKING, SIGN, LATE_SIGN, LATE = 1.0, 4.5, 60.0, 600.0
"""Seconds of silence before a sign of life in a log: at first, then, and after ``LATE`` seconds."""

TRUST = 0.25
"""Share of the expected seconds by measured rates that the estimate of the time left believes beside the pace at the beginning.

It falls with the cube of what is left: a pace over the first hundredth holds the start of processes, one over half is the pace.
"""

STRETCH = 0.05
"""Share of all costs after which the pace is taken anew within a step; each step has one of its own at least."""

EARLY = 180.0
"""Seconds in which most of what assumed rates are held against is the start of processes: an estimate waits for 15 %."""

MOST_START = 0.25
"""Share of a step's costs that its start takes at most, before the first of its progress."""


class Screen(logging.Handler):
    """Handler that prints messages and draws bars: one for the command, one for each run in training."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG if os.environ.get(VERBOSE) else logging.INFO)
        self.bars: Any = None
        self.active = False
        self._begin()

    def _begin(self) -> None:
        self.title, self.began, self.spoke = "", time.monotonic(), time.monotonic()
        self.total, self.rest, self.running, self.part, self.head = 0.0, 0.0, 0.0, 0.0, (0.0, 0.0)
        self.texts = 0
        self.stretches: list[tuple[float, float]] = []  # seconds and costs of each
        self.mark = 0.0, self.began  # costs that were done, and the moment, where the stretch began
        self.started, self.moved, self.measured = self.began, self.began, 0.0
        self.tasks: dict[str, Any] = {}

    def emit(self, record: logging.LogRecord) -> None:
        """Print a message."""
        self.spoke = time.monotonic()
        seconds = f"{self.spoke - self.began:8.2f} s  " if self.level == logging.DEBUG else ""
        print(f"{seconds}{record.getMessage()}", file=sys.stderr, flush=True)  # noqa: T201

    @contextlib.contextmanager
    def working(self, title: str = "checking data and models") -> Iterator[None]:
        """Show how far the command is, for the block. Within another such block it does nothing."""
        if self.active:
            yield
            return
        self._begin()
        self.title = title
        self.active, ended = True, threading.Event()
        if bars := progress_bars() if self.level <= logging.INFO else None:
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

    def follow(self, title: str, rest: float, running: float, measured: float = 0.0, texts: int = 0) -> None:
        """Take note of steps that begin: their title, the cost of all steps left, and theirs.

        ``measured``: share of the costs that is in seconds by measured rates. ``texts``: those that the steps embed.
        """
        self.texts = texts
        self.title, self.rest, self.running, self.measured = title, rest, running, measured
        self.moved = time.monotonic()
        if not self.total:
            self.started, self.mark = self.moved, (0.0, self.moved)
        self.total, self.part, self.head = max(self.total, rest), 0.0, (0.0, 0.0)
        self._end_stretch()
        self.show()

    def within(self, part: float) -> None:
        """Take note of how much of the running steps is done, from 0 to 1."""
        moment = time.monotonic()
        if part > self.part == 0.0:  # what passed until then was their start, as far as rates are measured
            waited = min(self.measured * (moment - self.moved), (part + MOST_START) * self.running)
            self.head = part, max(part * self.running, waited)
        self.moved = moment if part > self.part else self.moved
        self.part = part
        if self.fraction * self.total - self.mark[0] >= STRETCH * self.total:
            self._end_stretch()
        self.show()

    def _end_stretch(self) -> None:
        done = self.fraction * self.total
        if done > self.mark[0]:
            self.stretches = self._stretches(done, self.moved)
            self.mark = done, self.moved

    def _stretches(self, done: float, moment: float) -> list[tuple[float, float]]:
        """Return the stretches and the current one. Without costs, its seconds count for the one before."""
        seconds, cost = moment - self.mark[1], done - self.mark[0]
        if cost > 0 or not self.stretches:
            return [*self.stretches, (seconds, cost)]
        *before, (spent, paid) = self.stretches
        return [*before, (spent + seconds, paid)]

    def embed(self, texts: int) -> None:
        """Take note of texts that this process has embedded."""
        if self.texts:
            self.within(min(1.0, self.part + texts / self.texts))

    def draw(self, key: str, title: str, done: int, total: int, note: str) -> None:
        """Draw the bar of one training run, until it is done."""
        if self.bars is not None:
            if key not in self.tasks:
                self.tasks[key] = self.bars.add_task(title, total=total, note=note)
            self.bars.update(self.tasks[key], completed=done, note=note, visible=done < total)

    @property
    def running_done(self) -> float:
        """Return the costs of the running steps that are done: their start, and what they told since."""
        first, head = self.head
        return head + ((self.part - first) / (1 - first) * (self.running - head) if first < 1 else 0.0)

    @property
    def fraction(self) -> float:
        """Return how much of the work is done, from 0 to 1."""
        return 1 - (self.rest - self.running_done) / self.total if self.total else 0.0

    @property
    def seconds_left(self) -> float | None:
        """Return the expected costs of what is left at the pace so far, None until there is one.

        The pace is the median over the work that is done: a step that waited for a busy machine, or found its work done,
        is not what comes. As far as the costs are by measured rates, ``TRUST`` of them counts as done in the time that was
        expected. Without them, a step that is silent for longer than all took before it leaves no pace.
        """
        moment = time.monotonic()
        trusted = TRUST * (1 - self.fraction) ** 3 * self.measured * self.total
        waited = moment - self.moved
        if (1 - self.measured) * waited > self.moved - self.started:
            return None
        done = self.fraction * self.total + min(self.measured * waited, self.running - self.running_done)
        early = moment - self.started < EARLY * (1 - self.measured)
        if done + trusted <= (0.15 if early else 0.02) * self.total:
            return None
        pace = _median_pace(self._stretches(done, moment))
        return max(0.0, self.total - done) * (pace * done + trusted) / (done + trusted)

    @property
    def note(self) -> str:
        """Return the percentage, the time so far and an estimate of the time left."""
        parts = [f"{100 * self.fraction:.0f} %"] if self.total else []
        parts.append(f"{duration(time.monotonic() - self.began)} so far")
        parts += [f"about {duration(left)} left"] if (left := self.seconds_left) else []
        return ", ".join(parts)

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
        elif time.monotonic() - self.spoke >= self._pause:
            say("... %s: %s", self.title, self.note)
            self.spoke = time.monotonic()  # also if the level hides it

    @property
    def _pause(self) -> float:
        if not self.total and self.spoke == self.began:
            return CHECKING  # wrong input has one message alone, unless it takes longer
        return SIGN if time.monotonic() - self.began < LATE else LATE_SIGN

    def _live(self, ended: threading.Event) -> None:
        while not ended.wait(0.5):
            self.live()


def _median_pace(stretches: Sequence[tuple[float, float]]) -> float:
    """Return the median of the stretches' seconds per cost, by their costs."""
    half = sum(cost for _, cost in stretches) / 2
    for pace, cost in sorted((seconds / cost, cost) for seconds, cost in stretches if cost > 0):
        half -= cost
        if half <= 0:
            return pace
    return 1.0


screen = Screen()
logger.addHandler(screen)


@contextlib.contextmanager
def showing(*, verbose: bool = False, quiet: bool = False) -> Iterator[None]:
    """Show debug records too, or warnings and errors alone, for the block."""
    before = screen.level, os.environ.get(VERBOSE)
    if verbose:
        os.environ[VERBOSE] = "1"
        screen.setLevel(logging.DEBUG)
    elif quiet:
        screen.setLevel(logging.WARNING)
    try:
        yield
    finally:
        screen.setLevel(before[0])
        if before[1] is None:
            os.environ.pop(VERBOSE, None)


class _LogFile(logging.FileHandler):
    """Log file that holds no secrets. What cannot be written there is dropped."""

    def format(self, record: logging.LogRecord) -> str:
        return redact(super().format(record))

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        """Do nothing: the disk may be full."""


@contextlib.contextmanager
def log_file(path: Path) -> Iterator[None]:
    """Append all messages and debug records to a file, for the block, and the traceback that ends it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handler = _LogFile(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logger.addHandler(handler)
    try:
        yield
    except BaseException:
        logger.debug("the command ends here", exc_info=True)
        raise
    finally:
        logger.removeHandler(handler)
        with contextlib.suppress(OSError):  # the disk may be full
            handler.close()


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


def columns(usual: int = 100) -> int:
    """Return the width of the terminal, ``usual`` without one."""
    return shutil.get_terminal_size((usual, 24)).columns


def fold(text: str) -> str:
    """Return a sentence or a note in lines that fit the terminal. A file gets it in one."""
    if not sys.stdout.isatty():
        return text
    indent = "  " if text.startswith("- ") else ""
    return textwrap.fill(text, columns(), subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


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
