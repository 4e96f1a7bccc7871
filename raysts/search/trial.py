"""Trial of a search: a training run with a result for every way in which it can end."""

import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch

from raysts.data.batches import BatchOrder, read_batches
from raysts.data.windows import Windows
from raysts.errors import Infeasible
from raysts.evaluation.run_metric import RunMetric
from raysts.models.tokens import LocalBatch
from raysts.pipeline.local import fail
from raysts.search.space import Point
from raysts.training.job import Job
from raysts.training.loop import train
from raysts.training.metrics import read_metrics
from raysts.training.runtime import Runtime

Status = Literal["finished", "stopped", "infeasible", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """Training run of a search: a point with one of its seeds."""

    point: Point
    seed: int
    job: Job

    @property
    def id(self) -> str:
        return self.job.id


class TrialOutcome(NamedTuple):
    """Outcome of a trial.

    ``finished``: it has the ``value`` of the metric. ``stopped``: early stopping ended it. ``infeasible``: it ran out of
    memory or its loss was not finite, as it would again at the same point. ``failed``: the reason lies outside the point
    (a full disk, an unreadable file), and the next run of the command repeats the trial.
    """

    status: Status
    value: float | None = None
    reason: str | None = None


class Stopped(Exception):  # noqa: N818
    """Signal that ends a training run early."""


class TrialRuntime(Runtime):
    """Runtime of a trial in this process, which checks for an early stop at every step.

    It writes no checkpoint at its end, which would take three times the size of the weights and protect only the moment
    of writing the model. A kill in that moment costs the steps since the last checkpoint.

    Args:
        metric: the metric to report.
        report: takes the value of the metric and the metrics line of every evaluation but the last.
        stopped: returns True if the trial must stop.
    """

    saves_end = False

    def __init__(
        self,
        device: str | None = None,
        *,
        threads: int | None = None,
        metric: RunMetric,
        report: Callable[[float, dict[str, Any]], None] = lambda value, line: None,
        stopped: Callable[[], bool] = lambda: False,
        where: str = "in-process",
    ) -> None:
        super().__init__(device, threads=threads, read=self._read)
        self.where, self._metric, self._report, self._stopped = where, metric, report, stopped

    def _read(
        self, windows: Windows, order: BatchOrder, start: int, stop: int, rank: int = 0, world: int = 1
    ) -> Iterator[LocalBatch]:
        for share in read_batches(windows, order, start, stop, rank, world):
            if self._stopped():
                raise Stopped
            yield share

    def report(self, line: dict[str, Any]) -> None:
        """Report a value, except at the last step, where an early stop saves nothing."""
        value = self._metric.of_line(line)
        if value is not None and line["step"] < line["steps"]:
            self._report(value, line)


def run_trial(job: Job, metric: RunMetric, runtime: Callable[[], Runtime]) -> TrialOutcome:
    """Train a trial from its last checkpoint, if any, and free its memory.

    Return the outcome of a run that raises an Exception too.
    """
    outcome = None
    try:
        outcome = _train(job, metric, runtime)
    finally:
        if outcome is None or outcome.status != "finished":
            # The traceback of an exception keeps the tensors of its frames alive until it is collected. A finished run
            # keeps none, and a collection takes 0.2 s.
            gc.collect()
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()
    return outcome


def _train(job: Job, metric: RunMetric, runtime: Callable[[], Runtime]) -> TrialOutcome:
    try:
        record = train(job, runtime())
    except Stopped:
        return TrialOutcome("stopped")
    except Exception as error:
        reason = fail(job, error)
        if out_of_memory(error):
            return TrialOutcome("infeasible", None, f"out of memory: {_first_line(error)}")
        return TrialOutcome("infeasible" if isinstance(error, Infeasible) else "failed", None, reason)
    value = metric.of_run(record, read_metrics(job.folder / "metrics.jsonl"))
    if value is None:
        return TrialOutcome(
            "failed", None, f"run {job.id}: its record holds no {metric.name}; remove its folder, {job.folder}"
        )
    return TrialOutcome("finished", float(value))


def out_of_memory(error: BaseException) -> bool:
    """Return True if an error reports a lack of memory."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    text = str(error)
    # On CPU torch says "DefaultCPUAllocator: can't allocate memory", or "not enough memory"; cuBLAS says ALLOC_FAILED.
    return isinstance(error, RuntimeError) and any(
        phrase in text for phrase in ("out of memory", "can't allocate memory", "not enough memory", "ALLOC_FAILED")
    )


def _first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
