"""Execution of a pipeline in this process: for tests, machines without Ray and single GPUs."""

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
    """Interface to the processes that run the steps of a pipeline."""

    def map(
        self, worker: Worker, args: tuple[Any, ...], units: Sequence[Any], resources: Resources, say: Say
    ) -> Iterator[Any]:
        """Yield a worker's result for each unit of work, in order of the units.

        Args:
            worker: a class. Each process makes one, from its device and ``args``, and calls it with one unit after the
                other. A
                unit is complete or absent, because it is repeated after a kill.
            args: picklable.
            units: picklable.
            resources: of one process.
            say: receives progress messages.

        Raises:
            RunFailed: a unit failed.
        """

    def keeping(self) -> contextlib.AbstractContextManager[None]:
        """Let idle processes wait for the next map of their worker within the block.

        Nothing is trained in such a block.
        """

    def train(self, chains: Sequence[Sequence[Job]], resources: Resources, say: Say) -> list[str | None]:
        """Train chains, concurrently if possible. Return each chain's reason of failure, or None."""


class LocalExecutor:
    """Executor in this process: one unit and one chain after the other.

    Args:
        threads: CPU threads; None: keep torch's setting.
        device: default: the first GPU, if one exists and the resources request GPUs.
    """

    def __init__(self, threads: int | None = None, device: str | None = None) -> None:
        self.threads, self.device = threads, device

    def map(
        self, worker: Worker, args: tuple[Any, ...], units: Sequence[Any], resources: Resources, say: Say
    ) -> Iterator[Any]:
        """Do the work of :meth:`Executor.map`. Errors are those of the worker."""
        work = worker(self.device or resources.device, *args) if units else None
        for unit in units:
            assert work is not None
            yield work(unit)

    def keeping(self) -> contextlib.AbstractContextManager[None]:
        """Return a context without effect, because this process stays."""
        return contextlib.nullcontext()

    def train(self, chains: Sequence[Sequence[Job]], resources: Resources, say: Say) -> list[str | None]:
        """Do the work of :meth:`Executor.train`, one chain after the other."""
        from raysts.training.monitor import RunMonitor
        from raysts.training.runtime import Runtime

        reasons: list[str | None] = []
        with RunMonitor(say, sum(map(len, chains))) as monitor:

            def runtime(job: Job) -> Runtime:
                return Runtime(
                    self.device or resources.device,
                    threads=self.threads,
                    say=None if monitor.bars else lambda text: say(f"{title(job)}: {text}"),
                    watch=lambda: monitor.update([job], len(chains) - len(reasons) - 1),
                )

            for chain in chains:
                reasons.append(train_chain(chain, runtime))
        return reasons


def train_chain(chain: Sequence[Job], runtime: Callable[[Job], Runtime]) -> str | None:
    """Train the runs of a member in order and return the reason of failure, or None.

    Training is deterministic, so a retry repeats the error. An error therefore ends the chain and is recorded. Only
    the death of the process is retried, by the process that started it.
    """
    from raysts.training.loop import train

    for job in chain:
        try:
            train(job, runtime(job))
        except Exception as error:
            return fail(job, error)
    return None


def fail(job: Job, error: BaseException) -> str:
    """Mark a run as failed and return the reason as a message."""
    expected = isinstance(error, (InputError, RunFailed))
    reason = str(error) if expected else limit_reached(error) or f"{type(error).__name__}: {error}"
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
