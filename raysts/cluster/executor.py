"""The executor on Ray: actors that work on units, and training runs of the members."""

import gc
import os
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import Any

import ray

from raysts.cluster.capacity import announce, resolve_gpus, slot_count
from raysts.cluster.connect import head_answers
from raysts.cluster.preflight import Requirements, node_problem
from raysts.errors import InputError, RunFailed
from raysts.pipeline.executor import Worker
from raysts.recipes.recipe import Resources
from raysts.training.job import Job

IN_FLIGHT = 2  # units that an actor holds at once, so that it never waits for the driver
DEATHS = 10  # of its processes that a unit survives: of more it may be the cause
KERNELS = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "64", "LRU_CACHE_CAPACITY": "64"}
"""Kernels that oneDNN and torch's bindings to it keep, 1 MB each: those of one batch, for batches differ in their shapes."""


class RayExecutor:
    """An executor on the connected cluster. Its last actor waits for the next map.

    Nodes that join must meet the requirements.
    """

    def __init__(self, requirements: Requirements | None = None) -> None:
        self.requirements = requirements
        self._idle: dict[Resources, list[Any]] = {}

    def close(self) -> None:
        """End the actor that waits."""
        while self._idle:
            end(self._idle.popitem()[1])

    def map(self, worker: Worker, args: tuple[Any, ...], units: Sequence[Any], resources: Resources) -> Iterator[Any]:
        """Yield the results of units, in order, by as many actors as the cluster may get room for.

        An autoscaler sees the actors that have no place yet; the others work meanwhile. A killed actor does its units again.
        """
        if not units:
            return
        announce(resources := resolve_gpus(resources))
        actors, count = self._idle.pop(resources, []), min(len(units), slot_count(resources))
        self.close()
        actors += start_actors(count - len(actors), resources, self.requirements)
        try:
            last = yield from _results(actors, getattr(worker, "__name__", "work"), ray.put((worker, args)), units)
            actors.remove(last)
            self._idle[resources] = [last]
        finally:
            end(actors)

    def slots(self, resources: Resources) -> int:
        """Return how many processes the nodes hold, and an autoscaler brings, at once."""
        return slot_count(resolve_gpus(resources))

    def train(self, chains: Sequence[Sequence[Job]], resources: Resources) -> list[str | None]:
        from raysts.cluster.members import train_members  # imports Ray Train, which an actor does without

        self.close()
        return train_members(chains, resolve_gpus(resources), self.requirements)


def start_actors(count: int, resources: Resources, requirements: Requirements | None = None) -> list[Any]:
    """Ask for ``count`` actors."""
    kind = ray.remote(UnitActor).options(
        num_cpus=resources.cpus, num_gpus=resources.gpus or None, memory=resources.bundle.get("memory"),
        accelerator_type=resources.accelerator_type, label_selector=resources.selector or None,
        max_restarts=-1, max_task_retries=DEATHS,
    )  # fmt: skip
    return [kind.remote(resources, requirements) for _ in range(count)]


def end(actors: Iterable[Any]) -> None:
    """Kill actors. Without Ray, to which this would connect again, they have ended."""
    for actor in actors if head_answers() else ():
        ray.kill(actor)


def _results(actors: Sequence[Any], name: str, work: Any, units: Sequence[Any]) -> Generator[Any, None, Any]:
    """Yield the results in order of the units. Return the one actor that has not run out of work.

    Ray's dashboard shows ``name``. ``work``: reference to the worker and its arguments.
    """
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
                    working[actor.run.options(name=name).remote([work], units[number])] = number, actor
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
    """An actor for any worker, which it makes with the first unit of a map. The map fails if that fails."""

    def __init__(self, resources: Resources, requirements: Requirements | None) -> None:
        os.environ.update(KERNELS | os.environ)  # read when the first kernel is made
        import torch

        torch.set_num_threads(resources.cpus)
        self.device, self.problem = "cuda" if resources.gpus else "cpu", node_problem(requirements)
        self.work: Any = None
        self.made_of = ""

    def run(self, work: list[Any], unit: Any) -> tuple[Any, Exception | None]:
        """Return what the worker makes of a unit and None, or why it failed, in one line."""
        if self.problem is not None:
            return None, InputError(self.problem)
        try:
            # Not arguments of the constructor: a restart would look for them after Ray has let them go.
            if self.made_of != work[0].hex():
                if self.work is not None:  # its models go first, which refer to themselves
                    self.work = None
                    gc.collect()
                worker, args = ray.get(work[0])
                self.work, self.made_of = worker(self.device, *args), work[0].hex()
            return self.work(unit), None
        except Exception as error:
            return None, RunFailed(str(error) if isinstance(error, RunFailed) else f"{type(error).__name__}: {error}")
