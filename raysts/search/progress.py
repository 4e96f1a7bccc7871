"""Progress of a search: a line per ended trial, and a live table on a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from raysts.search.record import Record
from raysts.search.space import text_of
from raysts.search.study import Study
from raysts.search.trial import Trial
from raysts.training.metrics import last_metrics
from raysts.training.monitor import console, duration

EVERY = 1.0
"""Seconds between reads of the files of running trials."""


class SearchProgress:
    """Messages about ended trials, the best point so far, and an estimate of the remaining time."""

    def __init__(self, study: Study, say: Callable[[str], None]) -> None:
        self.study, self.total = study, study.search.points * study.search.seeds
        self.began: float | None = None
        self.before, self.looked = 0, 0.0
        self.live: Any = None
        self.say = say

    def __enter__(self) -> SearchProgress:
        if sys.stderr.isatty() and not console().is_dumb_terminal:  # that cannot overwrite lines
            from rich.live import Live

            self.live = Live(console=console(), transient=True, auto_refresh=False)
            self.live.start()
            self.say = partial(console().print, markup=False, highlight=False)
        return self

    def __exit__(self, *error: object) -> None:
        if self.live is not None:
            self.live.stop()

    def ended(self, record: Record) -> None:
        metric = self.study.search.objective
        seed = f"seed {record.seed}" if self.study.search.seeds > 1 else ""
        result = {
            "finished": f"{metric.label} {metric.text(record.value)}",
            "stopped": f"stopped early at step {record.step} of {record.steps}",
            "infeasible": f"infeasible: {record.reason}",
        }[record.status]
        took = f" in {duration(record.seconds)}" if record.seconds else ""
        point = " ".join(part for part in (text_of(record.point), seed) if part)
        self.say(f"{len(self.study.records)}/{self.total}  {point}: {result}{took}{self._outlook()}")

    def running(self, trials: Iterable[Trial]) -> None:
        """Draw the live table of running trials, at most once a second."""
        if self.began is None:
            self.began, self.before = time.monotonic(), len(self.study.records)
        if self.live is None or time.monotonic() - self.looked < EVERY:
            return
        from rich.table import Table

        self.looked = time.monotonic()
        table = Table(box=None, pad_edge=False)
        keys = list(dict.fromkeys(("loss", "dev", self.study.search.objective.key)))
        for head in (f"{self.study.name}: {len(self.study.records)}/{self.total}", "seed", "step", *keys):
            table.add_column(head)
        for trial in trials:
            line = last_metrics(trial.job.folder / "metrics.jsonl") or {}
            step = f"{line['step']}/{line['steps']}" if line else "starting"
            numbers = [f"{line[name]:.4f}" if line.get(name) is not None else "" for name in keys]
            table.add_row(text_of(trial.point), str(trial.seed), step, *numbers)
        self.live.update(table, refresh=True)

    def _outlook(self) -> str:
        metric, done = self.study.search.objective, len(self.study.records) - self.before
        best = self.study.best_point
        parts = [f"best {text_of(best.point)} {metric.text(best.mean)}"] if best is not None and best.values else []
        trials_left = self.total - len(self.study.records)
        if trials_left and done and self.began is not None:
            parts.append(f"about {duration((time.monotonic() - self.began) / done * trials_left)} left")
        return f"; {', '.join(parts)}" if parts else ""
