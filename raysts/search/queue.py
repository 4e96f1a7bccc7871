"""Queue of the trials of a search, their progress, and a session that trains them.

A sampler proposes points. The queue tries no point twice, and each point with all of its seeds.
"""

import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import Any

from raysts.data.checks import skipped_line
from raysts.ids import derive_seed
from raysts.log import duration, say, screen
from raysts.pipeline.price import Price
from raysts.recipes.recipe import Resources
from raysts.search.exports import exporter
from raysts.search.record import Record
from raysts.search.sampler import Sampler
from raysts.search.scores import PointScores, clearly_worse
from raysts.search.space import grid, key_of, text_of
from raysts.search.study import Study
from raysts.search.trial import Trial, TrialOutcome, TrialRuntime, run_trial
from raysts.training.metrics import last_metrics
from raysts.training.trackers import follow

RACERS = 2
"""Seeds that every point of a race gets."""
EVERY = 1.0
"""Seconds between reads of the files of running trials."""


class SearchProgress:
    """Messages about ended trials, the best point so far, and an estimate of the remaining time."""

    def __init__(self, study: Study) -> None:
        self.study, self.total, self.looked = study, study.search.points * study.search.seeds, 0.0
        self.cost, self.measured = 1.0, 0.0
        """Cost of a trial by the clock, and the share of it that is in seconds by measured rates."""

    def report_end(self, record: Record) -> None:
        metric, best = self.study.search.objective, self.study.best_point
        seed = f" seed {record.seed}" if self.study.search.seeds > 1 else ""
        result = {
            "finished": f"{metric.label} {metric.text(record.value)}",
            "stopped": record.reason or f"stopped early at step {record.step} of {record.steps}",
            "infeasible": f"infeasible: {record.reason}",
        }[record.status]
        took = f" in {duration(record.seconds)}" if record.seconds else ""
        self._follow()
        outlook = [f"best {text_of(best.point)} {metric.text(best.mean)}"] if best is not None and best.values else []
        outlook += [f"about {duration(left)} left"] if (left := screen.seconds_left) else []
        text = f"{text_of(record.point)}{seed}: {result}{took}{'; ' * bool(outlook)}{', '.join(outlook)}"
        say(f"{len(self.study.records)}/{self.total}  {text}")
        screen.draw(record.id, "", 1, 1, "")  # it is over

    def expect(self, price: Price) -> None:
        """Take note of the price of the trials that are left."""
        left = self.total - len(self.study.records)
        self.cost, self.measured = max(price.seconds, 1.0) / max(1, left), price.measured

    def running(self, trials: Collection[Trial]) -> None:
        """Read how far the running trials are, and draw their bars, at most once a second."""
        for trial in trials:
            name = f"{text_of(trial.point)} seed={trial.seed}"
            follow(trial.job, name, {**trial.point, "seed": trial.seed, "run": trial.id})
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


class TrialQueue:
    """Queue of the remaining trials of a study, which takes their outcomes.

    Points of earlier sessions that lack seeds come first, then the grid or the first points of the search. Up to
    ``num_samples``, the sampler then proposes points from all scores so far.

    Args:
        earlier: points and scores of another study that the sampler learns from.
        on_end: takes the record of a trial that has ended.
    """

    def __init__(
        self,
        study: Study,
        earlier: Sequence[PointScores] = (),
        on_end: Callable[[Record], None] = lambda record: None,
    ) -> None:
        self.study, self.search, self.on_end = study, study.search, on_end
        self.ready: deque[Trial] = deque()
        self.running: dict[str, Trial] = {}
        self.failures: list[str] = []
        self._held: dict[str, list[Trial]] = {}  # further seeds of the points that race, by point id

        complete = [scores for scores in study.scores() if not scores.missing_seeds]
        begun = [scores.point for scores in study.scores() if scores.missing_seeds] + study.asked
        planned = grid(self.search.space) if self.search.num_samples is None else None
        self._tried = {scores.key for scores in complete}
        waiting = {key_of(point): point for point in (*begun, *(planned or self.search.first))}
        first = [point for key, point in waiting.items() if key not in self._tried]
        self._points_left = len(first)
        if planned is None:
            self._points_left = max(0, self.search.points - len(complete))
            first = first[: self._points_left]
        # The seed differs between sessions, because an equal seed would propose the same points again.
        seed = derive_seed(self.search.pipeline.seed, "sampler", len(complete))
        self.sampler = Sampler(self.search, first, seed)
        for scores in (*earlier, *complete):
            self.sampler.complete(scores)

    @property
    def full(self) -> bool:
        return self.search.concurrency is not None and len(self.running) >= self.search.concurrency

    def next(self) -> Trial | None:
        """Return a trial, or None if none is left or all that are left wait for a step of a running one."""
        while True:
            busy = {step.id for trial in self.running.values() for step in trial.earlier}
            free = (trial for trial in self.ready if busy.isdisjoint(step.id for step in trial.earlier))
            if (trial := next(free, None)) is not None:
                self.ready.remove(trial)
                self.running[trial.id] = trial
                return trial
            if not self._begin_point():
                return None

    def report(self, trial_id: str, value: float, step: int) -> None:
        """Pass an intermediate value to the sampler.

        Only a point of one trial has such values: the sampler learns how far a stopped trial came.
        """
        if self.search.seeds == 1:
            self.sampler.report(self.running[trial_id].point, value, step)

    def done(self, trial_id: str, outcome: TrialOutcome) -> None:
        trial = self.running.pop(trial_id)
        if outcome.status == "failed":
            self.failures.append(f"{trial.title}: {outcome.reason}")
            self.sampler.forget(trial.point)
        else:
            self._end(self.study.finish(trial, outcome))

    def requeue(self) -> None:
        self.ready.extendleft(reversed(self.running.values()))
        self.running.clear()

    def _begin_point(self) -> bool:
        point = self.sampler.propose(self._tried) if self._points_left else None
        if point is None:
            self._points_left = 0
            return False
        self._points_left -= 1
        self._tried.add(key_of(point))
        if self.search.num_samples is not None:
            self.study.ask(point)
        trials = [trial for trial in self.study.trials(point) if trial.id not in self.study.records]
        if self.search.race:
            self._held[key_of(point)] = [trial for trial in trials if trial.seed >= RACERS]
            trials = [trial for trial in trials if trial.seed < RACERS]
        self._offer(trials)
        self._judge(key_of(point))
        return True

    def _offer(self, trials: Sequence[Trial]) -> None:
        for trial in trials:
            record = self.study.reuse_finished(trial)
            if record is None:
                self.ready.append(trial)
            else:
                self._end(record)

    def _judge(self, key: str) -> None:
        """Offer the further seeds of a point after its first ones, or end them if it lost the race."""
        if not (trials := self._held.get(key)):
            return
        scores = self.study.scores(key)
        if not scores or sum(record.seed < RACERS for record in scores[0].records) < RACERS:
            return
        del self._held[key]
        if clearly_worse(scores[0], self.study.scores(), self.search.objective.mode):
            for trial in trials:
                self._end(self.study.leave_out(trial))
        else:
            self._offer(trials)

    def _end(self, record: Record) -> None:
        """Announce an ended trial. After the last one of its point, the sampler learns the score."""
        self.on_end(record)
        (scores,) = self.study.scores(record.key)
        if scores.missing_seeds:
            self._judge(record.key)
        else:
            self.sampler.complete(scores)


RunTrials = Callable[[TrialQueue, SearchProgress], None]


def run_session(
    study: Study, earlier: Sequence[PointScores], prepare: Callable[[], RunTrials], progress: SearchProgress
) -> list[str]:
    """Run the remaining trials of an open study, close it, and return the failures.

    If a trial remains, ``prepare`` makes the data and the backbone for the trials, and returns their trainer.
    """
    study.cleanup()
    if lost := study.take_back():
        say(f"{study.name}: {len(lost)} models that are kept are gone or damaged; their trials are trained again")
    export = exporter(study)
    for skipped in study.plan.skipped_files:
        say(skipped_line(skipped))
    say(f"{study.name}: {progress.total} trials, {len(study.records)} have ended; study: {study.folder}")

    def record_end(record: Record) -> None:
        export(record)
        progress.report_end(record)

    failures: list[str] = []
    if not study.complete:
        run_trials = prepare()
        queue = TrialQueue(study, earlier, record_end)
        run_trials(queue, progress)
        failures = queue.failures
    study.close("failed" if failures or study.best_point is None else "done")
    return failures


def run_locally(queue: TrialQueue, progress: SearchProgress, resources: Resources) -> None:
    """Train the remaining trials in this process, one after another."""

    def report(value: float, line: dict[str, Any]) -> None:
        queue.report(next(iter(queue.running)), value, line["step"])

    def show(*watched: object) -> None:
        progress.running(queue.running.values())

    options: dict[str, Any] = {"threads": resources.cpus, "metric": queue.search.objective}
    runtime = TrialRuntime(resources.device, **options, report=report, watch=show)
    while (trial := queue.next()) is not None:
        show()
        queue.done(trial.id, run_trial(trial.job, runtime, trial.earlier))
