"""Trial of a search: its steps, and a result for every way in which it can end."""

import errno
import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import torch

from raysts.errors import Infeasible, first_line, limit_of
from raysts.evaluation.dev import RunMetric
from raysts.log import showing
from raysts.pipeline.executor import LocalExecutor, attempt
from raysts.pipeline.step import Context, Step
from raysts.recipes.recipe import Resources
from raysts.search.space import Point, text_of
from raysts.storage.runs import State
from raysts.storage.store import Store
from raysts.training.job import Job
from raysts.training.loop import train
from raysts.training.metrics import read_metrics
from raysts.training.runtime import Runtime


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A point of a search with one of its seeds."""

    point: Point
    seed: int
    job: Job  # the training run that is measured
    earlier: tuple[Step, ...] = ()  # the steps before it, without those that all points share
    bytes: int = 0  # of its model, roughly

    @property
    def id(self) -> str:
        return self.job.id

    @property
    def title(self) -> str:
        return f"{text_of(self.point)} seed {self.seed}"


class TrialOutcome(NamedTuple):
    """Outcome of a trial.

    ``finished``: it has the ``value`` of the metric. ``stopped``: early stopping ended it. ``infeasible``: it ran out of
    memory or its loss was not finite, as it would again at the same point. ``failed``: the reason lies outside the point
    (a full disk, an unreadable file), and the next run of the command repeats the trial.
    """

    status: Literal["finished", "stopped", "infeasible", "failed"]
    value: float | None = None
    reason: str | None = None


class TrialRuntime(Runtime):
    """Runtime of a trial in this process.

    It writes no checkpoint at its end, which would take three times the size of the weights and protect only the moment
    of writing the model. A kill in that moment costs the steps since the last checkpoint.

    Args:
        metric: compares the trials.
        report: takes the value of the metric and the metrics line of every evaluation but the last. Early stopping raises
            an exception in it, and has nothing to save at the last step.
    """

    saves_end = False

    def __init__(
        self,
        device: str | None = None,
        *,
        metric: RunMetric,
        report: Callable[[float, dict[str, Any]], None] = lambda value, line: None,
        place: str = "in-process",
        **options: Any,
    ) -> None:
        super().__init__(device, **options)
        self.where, self.metric, self._report = place, metric, report

    def report(self, job: Job, line: dict[str, Any]) -> None:
        value = self.metric.value_of_line(line)
        if value is not None and line["step"] < line["steps"]:
            self._report(value, line)


def make(step: Step, device: str) -> None:
    """Do a step in this process, unless it is done."""
    store = Store.of(step.output)
    if step.state(store) == State.DONE:
        return
    if step.job:
        train(step.job, Runtime(device))
    elif step.work:
        resources = Resources(cpus=int(step.resources["cpus"] or 1), gpus=step.resources["gpus"] or 0)
        with showing(quiet=True):  # the search has one message for each trial
            step.work(Context(LocalExecutor(device=device), store, resources))


def run_trial(job: Job, runtime: TrialRuntime, earlier: Sequence[Step] = ()) -> TrialOutcome:
    """Do the steps before a training run, train it from its last checkpoint, if any, and free its memory.

    Return the outcome of a run that raises an Exception too.
    """
    outcome = None
    try:
        outcome = _train(job, runtime, earlier)
    finally:
        if outcome is None or outcome.status != "finished":
            # The traceback of an exception keeps the tensors of its frames alive until it is collected. A finished run
            # keeps none, and a collection takes 0.2 s.
            gc.collect()
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()
    return outcome


def _train(job: Job, runtime: TrialRuntime, earlier: Sequence[Step]) -> TrialOutcome:
    before = [(step.job or job, partial(make, step, str(runtime.device))) for step in earlier]
    record, error, reason = attempt([job], runtime, before)
    if error is not None:
        if limit_of(error) == errno.ENOMEM:
            return TrialOutcome("infeasible", None, f"out of memory: {first_line(error)}")
        return TrialOutcome("infeasible" if isinstance(error, Infeasible) else "failed", None, reason)
    value = runtime.metric.value_of_run(record, read_metrics(job.folder / "metrics.jsonl"))
    if value is None:
        reason = f"run {job.id}: its record holds no {runtime.metric.name}; remove its folder, {job.folder}"
        return TrialOutcome("failed", None, reason)
    return TrialOutcome("finished", float(value))
