"""The executor on Ray: actors that units of work are given to, and training runs of the members."""

import contextlib
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import Any

import ray

from raysts.cluster import capacity, compat
from raysts.cluster.members import train_members
from raysts.cluster.preflight import Seen
from raysts.cluster.units import UNFIT, UnitActor
from raysts.errors import InputError, RunFailed
from raysts.pipeline.local import Say, Worker
from raysts.recipes.recipe import Resources
from raysts.training.job import Job

IN_FLIGHT = 2
"""Units that an actor holds at once, so that it never waits for whoever takes the results."""


class RayExecutor:
    """Runs the nodes of a pipeline on the connected Ray cluster. ``seen``: what nodes that join must see to take part; none:
    nobody looks."""

    def __init__(self, seen: Seen | None = None) -> None:
        self.seen = seen
        self._keeps = False
        self._kept: dict[tuple[Worker, Resources], Any] = {}

    @contextlib.contextmanager
    def keeping(self) -> Iterator[None]:
        """As :meth:`raysts.pipeline.local.Executor.keeping`: the last actor of a map waits for the next."""
        self._keeps = True
        try:
            yield
        finally:
            self._keeps = False
            self._end_kept()

    def _end_kept(self) -> None:
        end(self._kept.values())
        self._kept = {}

    def map(
        self, worker: Worker, args: tuple[Any, ...], units: Sequence[Any], resources: Resources, say: Say
    ) -> Iterator[Any]:
        """As :meth:`raysts.pipeline.local.Executor.map`, on as many actors as the cluster has, or may get, room for.

        Those that have no place yet are what an autoscaler sees; the others work meanwhile. A killed actor is started
        again and its units redone.

        Raises:
            RunFailed: a unit failed for a reason of its own.
            InputError: a node that joined is not fit to take part.
        """
        resources = with_gpus(resources)
        if not units:
            return
        capacity.announce(resources, say)
        kept = self._kept.pop((worker, resources), None)
        self._end_kept()
        actors = [kept] if kept else []
        more = min(len(units), capacity.at_once(resources)) - len(actors)
        actors += start_actors(worker, more, resources, self.seen)
        try:
            last = yield from _results(actors, ray.put(args), units)
            if self._keeps:
                actors.remove(last)
                self._kept[worker, resources] = last
        finally:
            end(actors)

    def train(self, chains: Sequence[Sequence[Job]], resources: Resources, say: Say) -> list[str | None]:
        """As :meth:`raysts.pipeline.local.Executor.train`, by Ray Train workers that take chains from a queue."""
        return train_members(chains, with_gpus(resources), say, self.seen)


def start_actors(worker: Worker, count: int, resources: Resources, seen: Seen | None = None) -> list[Any]:
    """Ask for ``count`` actors that bear the worker's name."""
    name = getattr(worker, "__name__", "Worker")
    kind = ray.remote(type(name, (UnitActor,), {})).options(
        num_cpus=resources.cpus,
        num_gpus=resources.gpus or None,
        memory=resources.bundle.get("memory"),
        accelerator_type=resources.accelerator_type,
        label_selector=resources.selector or None,
        max_restarts=-1,
        max_task_retries=-1,
    )
    return [kind.remote(worker, resources, seen) for _ in range(count)]


def end(actors: Iterable[Any]) -> None:
    """End actors, whatever they do; without Ray, to which this would connect again, they have ended."""
    for actor in actors if ray.is_initialized() else ():
        ray.kill(actor)


def _results(actors: Sequence[Any], args: Any, units: Sequence[Any]) -> Generator[Any, None, Any]:
    """What the actors make of the units, in order of the units; an actor gets some once it has a place. Returns the one that is
    left: any other is ended as soon as there is nothing for it to do."""
    starting = {actor.__ray_ready__.remote(): actor for actor in actors}
    working: dict[Any, tuple[int, Any]] = {}
    results: dict[int, Any] = {}
    queue, taken = deque(range(len(units))), 0
    while taken < len(units):
        if taken in results:
            value, error = ray.get(results.pop(taken))
            if error is not None:
                raise (InputError if value == UNFIT else RunFailed)(error)
            yield value
            taken += 1
            continue
        for reference in ray.wait([*starting, *working])[0]:
            if reference in starting:
                actor, room = starting.pop(reference), IN_FLIGHT
            else:
                (number, actor), room = working.pop(reference), 1
                results[number] = reference
            room = min(room, max(1, len(queue) - len(starting)))  # of few units each actor gets one
            for _ in range(min(room, len(queue))):
                number = queue.popleft()
                working[actor.run.remote([args], units[number])] = number, actor
            if working and not any(actor is busy for _, busy in working.values()):
                ray.kill(actor)  # its place may be what a killed one waits for
        if not queue:
            end(starting.values())  # nor is any demand left that an autoscaler should see
            starting.clear()
    return actor


def with_gpus(resources: Resources) -> Resources:
    """Return the resources with their GPUs decided: one per worker where the cluster has GPUs, or where a kind of GPU is asked
    for, unless the recipe says."""
    if resources.gpus is not None:
        return resources
    return resources.updated(gpus=1.0 if resources.accelerator_type or ray.cluster_resources().get("GPU") else 0.0)


def check_resources(resources: Resources, private: bool) -> None:
    """Refuse workers that this Ray, or the nodes of this cluster, cannot have, however it grows.

    Where nobody can tell whether it grows, it is waited for.

    Raises:
        InputError: no node has that many CPUs or GPUs, or too few have.
    """
    if problems := compat.lacks(resources):
        raise InputError(problems)
    resources = with_gpus(resources)
    holds = capacity.holds(resources)
    if holds >= resources.least or not (private or not capacity.may_grow()):
        return
    short = "no node can hold such a worker"
    if holds:
        short = f"a run of {resources.least} workers (resources.workers) has no room, the cluster holds {holds} of them"
    raise InputError(
        f"resources.cpus={resources.cpus}, resources.gpus={resources.gpus:g}: {short} ({capacity.needs(resources)}); the "
        f"cluster's nodes have: {capacity.describe_nodes()}; ask for less, or connect to a larger cluster with --address"
    )
