"""Progress of a search: a line per ended trial, and bars of the running ones on a terminal."""

from __future__ import annotations

import time
from collections.abc import Iterable

from raysts.log import duration, say, screen
from raysts.search.record import Record
from raysts.search.space import text_of
from raysts.search.study import Study
from raysts.search.trial import Trial
from raysts.training.metrics import last_metrics
from raysts.training.trackers import follow

EVERY = 1.0
"""Seconds between reads of the files of running trials."""


class SearchProgress:
    """Messages about ended trials, the best point so far, and an estimate of the remaining time."""

    def __init__(self, study: Study) -> None:
        self.study, self.total = study, study.search.points * study.search.seeds
        self.began: float | None = None
        self.before, self.looked = 0, 0.0

    def ended(self, record: Record) -> None:
        metric = self.study.search.objective
        seed = f"seed {record.seed}" if self.study.search.seeds > 1 else ""
        result = {
            "finished": f"{metric.label} {metric.text(record.value)}",
            "stopped": record.reason or f"stopped early at step {record.step} of {record.steps}",
            "infeasible": f"infeasible: {record.reason}",
        }[record.status]
        took = f" in {duration(record.seconds)}" if record.seconds else ""
        point = " ".join(part for part in (text_of(record.point), seed) if part)
        say(f"{len(self.study.records)}/{self.total}  {point}: {result}{took}{self._outlook()}")
        screen.draw(record.id, "", 1, 1, "")  # it is over
        self._follow()

    def running(self, trials: Iterable[Trial]) -> None:
        """Draw the bars of the running trials, at most once a second."""
        if self.began is None:
            self.began, self.before = time.monotonic(), len(self.study.records)
            self._follow()
        trials = list(trials)
        for trial in trials:
            name, place = f"{text_of(trial.point)} seed={trial.seed}", {**trial.point, "seed": trial.seed}
            follow(trial.job, name, {**place, "run": trial.id})
        if screen.bars is None or time.monotonic() - self.looked < EVERY:
            return
        self.looked = time.monotonic()
        for trial in trials:
            line = last_metrics(trial.job.folder / "metrics.jsonl")
            if line:
                keys = dict.fromkeys(("loss", "dev", self.study.search.objective.key))
                numbers = [f"{name} {line[name]:.4f}" for name in keys if line.get(name) is not None]
                note = " ".join([f"seed {trial.seed}", f"{line['step']}/{line['steps']}", *numbers])
                screen.draw(trial.id, text_of(trial.point), line["step"], line["steps"], note)

    def _follow(self) -> None:
        done = len(self.study.records)
        screen.follow(f"{self.study.name}: {done}/{self.total}", self.total - done, 0)

    def _outlook(self) -> str:
        metric, done = self.study.search.objective, len(self.study.records) - self.before
        best = self.study.best_point
        parts = [f"best {text_of(best.point)} {metric.text(best.mean)}"] if best is not None and best.values else []
        trials_left = self.total - len(self.study.records)
        if trials_left and done and self.began is not None:
            parts.append(f"about {duration((time.monotonic() - self.began) / done * trials_left)} left")
        return f"; {', '.join(parts)}" if parts else ""
