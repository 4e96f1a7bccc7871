"""Execution of a pipeline in this process: for tests, machines without Ray and single GPUs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from raysts.recipes.recipe import Resources
from raysts.training.job import Job

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
        from raysts.training.attempt import attempt
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
