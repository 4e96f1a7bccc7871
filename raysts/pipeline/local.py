"""Runs a pipeline's work in this process: what tests, machines without Ray and single-GPU boxes use."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from raysts.errors import InputError, RunFailed, StoreFailed, limit_reached, without_secrets
from raysts.recipes.recipe import Resources
from raysts.storage.runs import RunFolder
from raysts.storage.store import Store
from raysts.training.job import Job, title

if TYPE_CHECKING:  # a plan needs no torch
    from raysts.training.runtime import Runtime

Say = Callable[[str], None]
Worker = Callable[..., Callable[[Any], Any]]


class Executor(Protocol):
    """Where the nodes of a pipeline run."""

    def map(
        self, worker: Worker, args: tuple[Any, ...], units: Sequence[Any], resources: Resources, say: Say
    ) -> Iterator[Any]:
        """What a worker makes of each unit of work, in order of the units.

        Args:
            worker: a class. Made once per process, of its device and ``args``, it is called with one unit after the other;
                a unit is complete or absent, for it is done again after its process was killed.
            args: picklable.
            units: picklable.
            resources: of one process.
            say: takes progress.

        Raises:
            RunFailed: a unit failed.
        """

    def keeping(self) -> contextlib.AbstractContextManager[None]:
        """For the length of a block in which nothing is trained a process may wait for the next map of its worker."""

    def train(self, chains: Sequence[Sequence[Job]], resources: Resources, say: Say) -> list[str | None]:
        """Train each chain of jobs in order, chains concurrently where possible; per chain the reason it failed."""


class LocalExecutor:
    """An executor in this process: one unit, one chain after the other.

    Args:
        threads: CPU threads; none: leave torch's setting.
        device: default: the first GPU if there is one, and the resources asked for are not without.
    """

    def __init__(self, threads: int | None = None, device: str | None = None) -> None:
        self.threads, self.device = threads, device

    def map(
        self, worker: Worker, args: tuple[Any, ...], units: Sequence[Any], resources: Resources, say: Say
    ) -> Iterator[Any]:
        """As :meth:`Executor.map`; errors are those of the worker."""
        work = worker(self.device or resources.device, *args) if units else None
        for unit in units:
            assert work is not None
            yield work(unit)

    def keeping(self) -> contextlib.AbstractContextManager[None]:
        """Nothing: this process stays."""
        return contextlib.nullcontext()

    def train(self, chains: Sequence[Sequence[Job]], resources: Resources, say: Say) -> list[str | None]:
        """As :meth:`Executor.train`; one after the other."""
        from raysts.training.runtime import Runtime

        def runtime(job: Job) -> Runtime:
            return Runtime(
                self.device or resources.device, threads=self.threads, say=lambda text: say(f"{title(job)}: {text}")
            )

        return [train_chain(chain, runtime) for chain in chains]


def train_chain(chain: Sequence[Job], runtime: Callable[[Job], Runtime]) -> str | None:
    """Train the jobs of a member in order; None, or why it failed.

    Training is deterministic, so an error of its own would come again: it ends the chain with its reason on record and
    is not retried. Only the death of the process is (by whoever started it).
    """
    from raysts.training.loop import train

    for job in chain:
        try:
            train(job, runtime(job))
        except Exception as error:
            return fail(job, error)
    return None


def fail(job: Job, error: BaseException) -> str:
    """Put on record that a run failed, and why; the reason as people read it."""
    ours = isinstance(error, (InputError, RunFailed))
    reason = str(error) if ours else limit_reached(error) or f"{type(error).__name__}: {error}"
    reason, log = without_secrets(reason), job.folder / "error.log"
    try:
        job.folder.mkdir(parents=True, exist_ok=True)
        log.write_text(without_secrets("".join(traceback.format_exception(error))), encoding="utf-8")
        run = RunFolder(job.folder)
        run.write(run.written() | {"status": "failed", "reason": reason})
        with contextlib.suppress(StoreFailed):  # it may be the reason
            for path in (log, job.folder / "run.json"):
                Store.of(path).upload(path)
    except OSError:
        return f"{title(job)} (run {job.id}): {reason}"  # nothing can be written; the reason still reaches the user
    return f"{title(job)} (run {job.id}): {reason} [log: {log}]"
