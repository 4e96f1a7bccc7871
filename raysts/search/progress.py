"""Progress of a search: a line per ended trial, and bars of the running ones on a terminal."""

from __future__ import annotations

import time
from collections.abc import Iterable

from raysts.log import duration, say, screen
from raysts.pipeline.price import Price
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
        self.study, self.total, self.looked = study, study.search.points * study.search.seeds, 0.0
        self.cost, self.measured = 1.0, 0.0
        """Cost of a trial by the clock, and the share of it that is in seconds by measured rates."""

    def report_end(self, record: Record) -> None:
        metric = self.study.search.objective
        seed = f"seed {record.seed}" if self.study.search.seeds > 1 else ""
        result = {
            "finished": f"{metric.label} {metric.text(record.value)}",
            "stopped": record.reason or f"stopped early at step {record.step} of {record.steps}",
            "infeasible": f"infeasible: {record.reason}",
        }[record.status]
        took = f" in {duration(record.seconds)}" if record.seconds else ""
        point = " ".join(part for part in (text_of(record.point), seed) if part)
        self._follow()
        say(f"{len(self.study.records)}/{self.total}  {point}: {result}{took}{self._outlook()}")
        screen.draw(record.id, "", 1, 1, "")  # it is over

    def expect(self, price: Price) -> None:
        """Take note of the price of the trials that are left."""
        left = self.total - len(self.study.records)
        self.cost, self.measured = max(price.seconds, 1.0) / max(1, left), price.measured

    def running(self, trials: Iterable[Trial]) -> None:
        """Read how far the running trials are, and draw their bars, at most once a second."""
        trials = list(trials)
        for trial in trials:
            name, place = f"{text_of(trial.point)} seed={trial.seed}", {**trial.point, "seed": trial.seed}
            follow(trial.job, name, {**place, "run": trial.id})
        if time.monotonic() - self.looked < EVERY:
            return
        self.looked, done = time.monotonic(), 0.0
        for trial in trials:
            line = last_metrics(trial.job.folder / "metrics.jsonl")
            if line:
                done += line["step"] / line["steps"]
                keys = dict.fromkeys(("loss", "dev", self.study.search.objective.key))
                numbers = [f"{name} {line[name]:.4f}" for name in keys if line.get(name) is not None]
                note = " ".join([f"seed {trial.seed}", f"{line['step']}/{line['steps']}", *numbers])
                screen.draw(trial.id, text_of(trial.point), line["step"], line["steps"], note)
        self._follow(len(trials))
        screen.within(done / max(1, len(trials)))

    def _follow(self, running: int = 0) -> None:
        done = len(self.study.records)
        title = f"{self.study.name}: {done}/{self.total}"
        screen.follow(title, self.cost * (self.total - done), self.cost * running, self.measured)

    def _outlook(self) -> str:
        metric, best = self.study.search.objective, self.study.best_point
        parts = [f"best {text_of(best.point)} {metric.text(best.mean)}"] if best is not None and best.values else []
        parts += [f"about {duration(left)} left"] if (left := screen.seconds_left) else []
        return f"; {', '.join(parts)}" if parts else ""
