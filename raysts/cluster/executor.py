"""The executor on Ray: actors that work on units, and training runs of the members."""

import contextlib
import os
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import Any

import ray

from raysts.cluster.capacity import announce, resolve_gpus, slot_count
from raysts.cluster.connect import head_answers
from raysts.cluster.preflight import Requirements, node_problem
from raysts.errors import InputError, RunFailed
from raysts.pipeline.local import Worker
from raysts.recipes.recipe import Resources
from raysts.training.job import Job

IN_FLIGHT = 2  # units that an actor holds at once, so that it never waits for the driver
DEATHS = 10  # of its processes that a unit survives: of more it may be the cause
KERNELS = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "64", "LRU_CACHE_CAPACITY": "64"}
"""Kernels that oneDNN and torch's bindings to it keep, 1 MB each: those of one batch, for batches differ in their shapes."""


class RayExecutor:
    """An executor on the connected cluster. Nodes that join must meet the requirements."""

    def __init__(self, requirements: Requirements | None = None) -> None:
        self.requirements, self._keeps = requirements, False
        self._idle: dict[tuple[Worker, Resources], list[Any]] = {}

    @contextlib.contextmanager
    def keeping(self) -> Iterator[None]:
        """Keep the last actor of a map for the next map of its worker, within the block."""
        self._keeps = True
        try:
            yield
        finally:
            self._keeps = False
            self._end_idle()

    def _end_idle(self) -> None:
        while self._idle:
            end(self._idle.popitem()[1])

    def map(self, worker: Worker, args: tuple[Any, ...], units: Sequence[Any], resources: Resources) -> Iterator[Any]:
        """Yield the results of units, in order, by as many actors as the cluster may get room for.

        An autoscaler sees the actors that have no place yet; the others work meanwhile. A killed actor does its units again.
        """
        if not units:
            return
        announce(resources := resolve_gpus(resources))
        actors = self._idle.pop((worker, resources), [])
        self._end_idle()
        actors += start_actors(
            worker, min(len(units), slot_count(resources)) - len(actors), resources, self.requirements
        )
        try:
            last = yield from _results(actors, ray.put(args), units)
            if self._keeps:
                actors.remove(last)
                self._idle[worker, resources] = [last]
        finally:
            end(actors)

    def slots(self, resources: Resources) -> int:
        """Return how many processes the nodes hold, and an autoscaler brings, at once."""
        return slot_count(resolve_gpus(resources))

    def train(self, chains: Sequence[Sequence[Job]], resources: Resources) -> list[str | None]:
        from raysts.cluster.members import train_members  # imports Ray Train, which an actor does without

        return train_members(chains, resolve_gpus(resources), self.requirements)


def start_actors(
    worker: Worker, count: int, resources: Resources, requirements: Requirements | None = None
) -> list[Any]:
    """Ask for ``count`` actors that bear the worker's name."""
    kind = ray.remote(type(getattr(worker, "__name__", "Worker"), (UnitActor,), {})).options(
        num_cpus=resources.cpus, num_gpus=resources.gpus or None, memory=resources.bundle.get("memory"),
        accelerator_type=resources.accelerator_type, label_selector=resources.selector or None,
        max_restarts=-1, max_task_retries=DEATHS,
    )  # fmt: skip
    return [kind.remote(worker, resources, requirements) for _ in range(count)]


def end(actors: Iterable[Any]) -> None:
    """Kill actors. Without Ray, to which this would connect again, they have ended."""
    for actor in actors if head_answers() else ():
        ray.kill(actor)


def _results(actors: Sequence[Any], args: Any, units: Sequence[Any]) -> Generator[Any, None, Any]:
    """Yield the results in order of the units. Return the one actor that has not run out of work."""
    starting = {actor.__ray_ready__.remote(): actor for actor in actors}
    working: dict[Any, tuple[int, Any]] = {}
    results: dict[int, Any] = {}
    queue = deque(range(len(units)))
    for taken in range(len(units)):
        while taken not in results:
            for reference in ray.wait([*starting, *working])[0]:
                if reference in starting:
                    actor, room = starting.pop(reference), IN_FLIGHT
                else:
                    (number, actor), room = working.pop(reference), 1
                    results[number] = reference
                room = min(room, max(1, len(queue) - len(starting)))  # of few units each actor gets one
                for number in [queue.popleft() for _ in range(min(room, len(queue)))]:
                    working[actor.run.remote([args], units[number])] = number, actor
                if working and not any(actor is busy for _, busy in working.values()):
                    ray.kill(actor)  # a killed one may wait for its place
            if not queue:
                end(starting.values())  # an autoscaler sees their demand no longer
                starting.clear()
        try:
            value, error = ray.get(results.pop(taken))
        except ray.exceptions.RayError as death:
            cause = " ".join(str(death).split())
            raise RunFailed(
                f"its process died {DEATHS + 1} times in the same work, the last time so: {cause}"
            ) from death
        if error is not None:
            raise error
        yield value
    return actor


class UnitActor:
    """An actor that makes its worker with the first unit of a map, which fails if that fails."""

    def __init__(self, worker: Worker, resources: Resources, requirements: Requirements | None) -> None:
        os.environ.update(KERNELS | os.environ)  # read when the first kernel is made
        import torch

        torch.set_num_threads(resources.cpus)
        self.worker, self.device, self.problem = worker, "cuda" if resources.gpus else "cpu", node_problem(requirements)
        self.work: Any = None
        self.made_of = ""

    def run(self, args: list[Any], unit: Any) -> tuple[Any, Exception | None]:
        """Return what the worker makes of a unit and None, or why it failed, in one line."""
        if self.problem is not None:
            return None, InputError(self.problem)
        try:
            # Not arguments of the constructor: a restart would look for them after Ray has let them go.
            if self.made_of != args[0].hex():
                self.work = None  # the models of the last map go first
                self.work, self.made_of = self.worker(self.device, *ray.get(args[0])), args[0].hex()
            return self.work(unit), None
        except Exception as error:
            return None, RunFailed(str(error) if isinstance(error, RunFailed) else f"{type(error).__name__}: {error}")
