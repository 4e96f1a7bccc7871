"""Progress of training runs from their metrics files, as bars on a terminal or as messages."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from typing import Any

from raysts.errors import StoreFailed
from raysts.log import duration, say, screen
from raysts.storage.runs import RunFolder, State
from raysts.storage.store import run_parallel
from raysts.training import trackers
from raysts.training.job import Job
from raysts.training.metrics import figures, last_metrics

EVERY = 1.0
"""Seconds between looks at the files."""

STATUS_EVERY = 60.0
"""Seconds between lines on how all of it stands, where there is no terminal."""

EVERY_REMOTE = 15.0
"""Seconds between looks at an object store, for runs on other machines."""


class RunMonitor:
    """Monitor of run folders: bars on a terminal, else a message for each finished run."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.lines: dict[str, dict[str, Any]] = {}
        self.waiting = 0
        self.spoke = time.monotonic()
        self.watched: dict[str, Job] = {}
        self.finished: set[str] = set()
        self.looked = self.looked_far = 0.0

    def __enter__(self) -> RunMonitor:
        return self

    @property
    def draws(self) -> bool:
        """Return True if bars show the runs, which then need no messages."""
        return screen.bars is not None

    def __exit__(self, *error: object) -> None:
        self.looked = self.looked_far = 0.0
        self.update([], self.waiting)

    def update(self, jobs: Sequence[Job], waiting: int) -> None:
        """Read the files of the runs that train or have just ended, at most once a second.

        ``waiting``: members that have not begun.
        """
        self.waiting, current = waiting, {job.id: job for job in jobs if job.id not in self.finished}
        self.watched |= current
        for job in current.values():
            trackers.follow(job)
        if time.monotonic() - self.looked < EVERY:
            return
        self.looked = time.monotonic()
        if time.monotonic() - self.looked_far >= EVERY_REMOTE:
            self.looked_far = time.monotonic()
            with contextlib.suppress(StoreFailed):  # whoever trains says so
                run_parallel(RunFolder.record, [RunFolder(job.folder) for job in self.watched.values()])
        for job in list(self.watched.values()):
            line = last_metrics(job.folder / "metrics.jsonl")
            record = RunFolder(job.folder).written()
            if line is not None:
                self.lines[job.id] = line
                note = " ".join([f"{line['step']}/{line['steps']}", *figures(line)])
                screen.draw(job.id, job.title, line["step"], line["steps"], note)
            if record.get("status") == State.DONE:
                self.finished.add(job.id)
                seconds = (record.get("timings") or {}).get("train_seconds") or 0.0
                result = figures({"loss": (line or {}).get("loss"), "dev": (record.get("dev") or {}).get("kept")})
                say(", ".join([f"{job.title}: {record.get('steps')} steps in {seconds:.1f} s", *result]))
            if job.id in self.finished or (record.get("status") == State.FAILED and job.id not in current):
                del self.watched[job.id]
                self.lines.pop(job.id, None)

        training = (self.lines[job] for job in self.watched if job in self.lines)
        done = len(self.finished) + sum(line["step"] / line["steps"] for line in training)
        screen.within(done / self.total)
        if not self.draws and time.monotonic() - self.spoke >= STATUS_EVERY:
            self.spoke = time.monotonic()
            say(self.status())

    def status(self) -> str:
        running = [(job, self.lines[job.id]) for job in self.watched.values() if job.id in self.lines]
        parts = [f"{len(self.finished)} of {self.total} runs done", f"{len(running)} training, {self.waiting} waiting"]
        values = {name: [line[name] for _, line in running if line.get(name) is not None] for name in ("loss", "dev")}
        parts += figures({name: sum(column) / len(column) for name, column in values.items() if column})
        rate = sum(job.recipe.spec.sentences * line.get("examples_per_second", 0.0) for job, line in running)
        parts += [f"{rate:.0f} sentences/s"] if rate else []
        parts += [f"about {duration(screen.seconds_left)} left"] if screen.seconds_left is not None else []
        return "; ".join(parts)
