"""Executors of pipelines, the one in this process, and attempts to train, which every executor makes."""

from __future__ import annotations

import contextlib
import os
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from raysts.errors import InputError, LockedError, RunFailed, StoreFailed, limit_reached, redact
from raysts.log import logger
from raysts.recipes.recipe import Resources
from raysts.storage.runs import RunFolder, State
from raysts.storage.store import Store
from raysts.training.job import Job

if TYPE_CHECKING:
    from raysts.training.runtime import Runtime

Worker = Callable[..., Callable[[Any], Any]]


class Executor(Protocol):
    """Interface to the processes that run the steps of a pipeline."""

    def map(self, worker: Worker, args: tuple[Any, ...], units: Sequence[Any], resources: Resources) -> Iterator[Any]:
        """Yield a worker's result for each unit of work, in order of the units.

        Args:
            worker: a class. Each process makes one, from its device and ``args``, and calls it with one unit after the
                other. A unit is complete or absent, because it is repeated after a kill.
            args: picklable.
            units: picklable.
            resources: of one process.

        Raises:
            RunFailed: a unit failed.
        """

    def slots(self, resources: Resources) -> int:
        """Return how many processes work at once."""

    def train(self, chains: Sequence[Sequence[Job]], resources: Resources) -> list[str | None]:
        """Train chains, concurrently if possible. Return each chain's reason of failure, or None."""


class LocalExecutor:
    """Executor in this process: one unit and one chain after the other.

    Args:
        threads: CPU threads; None: keep torch's setting.
        device: default: the first GPU, if one exists and the resources request GPUs.
    """

    def __init__(self, threads: int | None = None, device: str | None = None) -> None:
        self.threads, self.device = threads, device

    def map(self, worker: Worker, args: tuple[Any, ...], units: Sequence[Any], resources: Resources) -> Iterator[Any]:
        work = worker(self.device or resources.device, *args) if units else None
        for unit in units:
            assert work is not None
            yield work(unit)

    def slots(self, resources: Resources) -> int:
        return 1

    def train(self, chains: Sequence[Sequence[Job]], resources: Resources) -> list[str | None]:
        from raysts.training.monitor import RunMonitor
        from raysts.training.runtime import Runtime

        reasons: list[str | None] = []
        with RunMonitor(sum(map(len, chains))) as monitor:
            runtime = Runtime(
                self.device or resources.device,
                threads=self.threads,
                reports=not monitor.draws,
                watch=lambda job: monitor.update([job], len(chains) - len(reasons) - 1),
            )
            for chain in chains:
                reasons.append(attempt(chain, runtime).reason)
        return reasons


class Attempt(NamedTuple):
    """Result of an attempt: the record of the last run, or the error that ended it and its message."""

    record: dict[str, Any]
    error: Exception | None = None
    reason: str | None = None


def attempt(chain: Sequence[Job], runtime: Runtime, before: Sequence[tuple[Job, Callable[[], object]]] = ()) -> Attempt:
    """Train the runs of a chain in order, each from its last checkpoint.

    Training is deterministic, so an error ends the chain and is recorded. Only the death of the process is retried, by the
    process that started it. Of several processes that train together, one may meet the echo of another's death, which
    leaves the others in a collective: such an error is raised, and ends them. ``before``: work that precedes the chain, with
    the run that fails if it does.
    """
    from raysts.training.loop import train  # imports torch, which a driver of others needs not

    record: Any = {}
    tasks: list[tuple[Job, Callable[[], object]]] = [(job, partial(train, job, runtime)) for job in chain]
    for job, work in [*before, *tasks]:
        began = time.monotonic()
        logger.debug("%s (run %s): begins in process %d; writes %s", job.title, job.id, os.getpid(), job.folder)
        try:
            record = work()
        except Exception as error:
            if runtime.world > 1 and (isinstance(error, StoreFailed) or not isinstance(error, RunFailed)):
                raise
            return Attempt({}, error, fail(job, error) if runtime.rank == 0 else str(error))
        logger.debug("%s (run %s): ends after %.1f s", job.title, job.id, time.monotonic() - began)
    return Attempt(record)


def fail(job: Job, error: BaseException) -> str:
    """Mark a run as failed, unless another process trains it, and return the reason as a message."""
    expected = isinstance(error, (InputError, RunFailed))
    reason = str(error) if expected else limit_reached(error) or f"{type(error).__name__}: {error}"
    reason, log = redact(reason), job.folder / "error.log"
    message = f"{job.title} (run {job.id}): {reason}"
    if isinstance(error, LockedError):
        return message
    try:
        job.folder.mkdir(parents=True, exist_ok=True)
        log.write_text(redact("".join(traceback.format_exception(error))), encoding="utf-8")
        run = RunFolder(job.folder)
        run.write(run.written() | {"status": State.FAILED, "reason": reason})
        with contextlib.suppress(StoreFailed):  # it may be the reason
            for path in (log, job.folder / "run.json"):
                Store.of(path).upload(path)
    except OSError:
        return message  # nothing can be written, and the reason still reaches the user
    return f"{message} [log: {log}]"


def fail_chain(chain: Sequence[Job], cause: str) -> str | None:
    """Mark the first unfinished run of a chain as failed. Return the reason, or None if all are finished."""
    unfinished = next((job for job in chain if RunFolder(job.folder).done_record() is None), None)
    return None if unfinished is None else fail(unfinished, RunFailed(cause))
