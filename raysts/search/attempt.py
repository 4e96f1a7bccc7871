"""One trial: a training run whose end, however it comes, is a result."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple

import torch

from raysts.data.batches import Order, read_here
from raysts.data.windows import Windows
from raysts.errors import RunFailed
from raysts.objectives.objective import Share
from raysts.training.here import fail
from raysts.training.loop import Job, train
from raysts.training.runtime import Runtime

Status = Literal["finished", "stopped", "infeasible", "failed"]


class Outcome(NamedTuple):
    """How a trial ended.

    ``finished``: with the dev score ``value`` of the kept model. ``stopped``: by early stopping. ``infeasible``: it ran
    out of memory or its loss was not finite, which the same point would again. ``failed``: for a reason outside the point
    (a full disk, a file that cannot be read): it is tried again by the next run of the command.
    """

    status: Status
    value: float | None = None
    reason: str | None = None


class Stopped(Exception):  # noqa: N818
    """Raised inside a training run that is to end early."""


class TrialRuntime(Runtime):
    """Where a trial trains: in this process, with a look at every step whether it is to stop.

    Args:
        device: as :class:`Runtime`.
        threads: as :class:`Runtime`.
        report: takes a metrics line with a dev score, of every evaluation but the last.
        stopped: whether to stop.
        where: for the run record.
    """

    def __init__(
        self,
        device: str | None = None,
        *,
        threads: int | None = None,
        report: Callable[[dict[str, Any]], None] = lambda line: None,
        stopped: Callable[[], bool] = lambda: False,
        where: str = "in-process",
    ) -> None:
        super().__init__(device, threads=threads, read=self._read)
        self.where, self._report, self._stopped = where, report, stopped

    def _read(
        self, windows: Windows, order: Order, start: int, stop: int, rank: int = 0, world: int = 1
    ) -> Iterator[Share]:
        for share in read_here(windows, order, start, stop, rank, world):
            if self._stopped():
                raise Stopped
            yield share

    def report(self, line: dict[str, Any]) -> None:
        """Hand on a dev score; at the last step there is nothing left to stop."""
        if line.get("dev") is not None and line["step"] < line["steps"]:
            self._report(line)


def attempt(job: Job, runtime: Callable[[], Runtime]) -> Outcome:
    """Train a trial, from its last checkpoint if it has one. Never raises; what it held in memory is returned."""
    try:
        outcome = _attempt(job, runtime)
    finally:
        # An exception's traceback holds the tensors of the frames it came through until it is collected.
        gc.collect()
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()
    return outcome


def _attempt(job: Job, runtime: Callable[[], Runtime]) -> Outcome:
    try:
        record = train(job, runtime())
    except Stopped:
        return Outcome("stopped")
    except Exception as error:
        reason = fail(job, error)
        if out_of_memory(error):
            return Outcome("infeasible", None, f"out of memory: {_first_line(error)}")
        return Outcome("infeasible" if isinstance(error, RunFailed) else "failed", None, reason)
    score = (record.get("dev") or {}).get("kept")
    if score is None:
        return Outcome("failed", None, f"run {job.id}: reported no dev score")
    return Outcome("finished", float(score))


def out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory was not enough."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    text = str(error)
    # On CPU torch says "DefaultCPUAllocator: can't allocate memory", or "not enough memory"; cuBLAS says ALLOC_FAILED.
    return isinstance(error, RuntimeError) and any(
        said in text for said in ("out of memory", "can't allocate memory", "not enough memory", "ALLOC_FAILED")
    )


def _first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
