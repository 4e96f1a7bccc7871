"""Ensemble members on Ray Train: a queue of their chains, and workers that take from it one after the other.

There is a Ray Train run per node, with a worker for each member that the node trains at once: what is started does not
grow with the number of members, and a lost node costs its own run. Members of several workers have a run for each that is
trained at once. A run ends when a worker dies, and is begun again while members are left: each goes on from its checkpoint.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ray
import ray.train
import ray.train.torch
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from raysts.cluster import runs
from raysts.cluster.capacity import UNKNOWN, PendingReporter, Present, at_once, holds, may_grow, nodes
from raysts.cluster.metrics import show_members
from raysts.cluster.preflight import Seen
from raysts.cluster.queue import MemberQueue, QueueState
from raysts.cluster.worker import DEATHS, fail_chain
from raysts.errors import InputError, RunFailed
from raysts.models.memory import worker_gigabytes
from raysts.pipeline.local import Say
from raysts.recipes.recipe import Resources
from raysts.training.job import Job
from raysts.training.monitor import RunMonitor

MOST_RUNS = 16
"""Ray Train runs at once, at most: each is processes of its own, a few hundred MB beside its workers."""

LOOK_SECONDS = 0.5


def train_members(
    chains: Sequence[Sequence[Job]], resources: Resources, say: Say, seen: Seen | None = None
) -> list[str | None]:
    """Train every chain; return for each None or the reason it failed. The others go on.

    Args:
        chains: of jobs, each the stages of a member.
        resources: of a worker, GPUs decided.
        say: takes progress.
        seen: what nodes must see to take part; None: nobody looks.

    Raises:
        InputError: a node that joined is not fit for it.
    """
    if seen is not None:
        resources = _with_memory(resources, chains)
    reasons: dict[int, str | None] = {}
    facts, deaths = chains[0][0].facts, 0
    with _Runs(chains, resources, seen) as started, RunMonitor(say, sum(map(len, chains))) as monitor:
        pending = PendingReporter(resources, say, started.without_room)
        while len(reasons) < len(chains):
            state = started.look()
            if state.refused:
                raise InputError(state.refused)
            for number, reason in state.ended:
                reasons[number] = reason
                if reason is not None:
                    say(f"failed: {reason}")
            looked_at = [*state.training, *(number for number, _ in state.ended)]
            failed = sum(reason is not None for reason in reasons.values())
            monitor.update([job for number in looked_at for job in chains[number]], state.waiting)
            counts = {"waiting": state.waiting, "training": len(state.training), "done": len(reasons) - failed}
            show_members(facts["system"], facts["stage"], {**counts, "failed": failed}, state.restarts - deaths)
            deaths = state.restarts
            pending.update()
    return [reasons[index] for index in range(len(chains))]


def _with_memory(resources: Resources, chains: Sequence[Sequence[Job]]) -> Resources:
    """Ask for the memory that the models are estimated to take, unless the recipe says: where that is more than a node has an
    estimate is no reason not to use it; nor where the nodes hold a worker of it and not those of a run."""
    if resources.memory is not None:
        return resources
    on_gpu = bool(resources.gpus)
    larger = resources.updated(memory=max(worker_gigabytes(chain[0].parent, on_gpu) for chain in chains))
    fits = all(node.slots(larger) for node in nodes() if node.slots(resources))
    return larger if fits and holds(larger) >= min(holds(resources), larger.least) else resources


@dataclass
class _Run:
    """A Ray Train run that goes on: its actor, the node it is bound to, its width, and what its ``fit`` is to give.

    Attributes:
        failures: how often it ended since its workers last began a member.
        begun: how many members they had begun by then.
    """

    host: Any
    place: Present | None
    width: int
    ended: Any = None
    failures: int = 0
    begun: int = 0


class _Runs:
    """The Ray Train runs whose workers take members from one queue."""

    def __init__(self, chains: Sequence[Sequence[Job]], resources: Resources, seen: Seen | None) -> None:
        self.chains, self.resources, self.seen = chains, resources, seen
        first = chains[0][0]
        self.name = f"{first.facts['system']}-{first.facts['stage']}-{first.id[:6]}"
        self.open, self.cause, self.number = set(range(len(chains))), "", 0
        self.runs: dict[int, _Run] = {}

    def __enter__(self) -> _Runs:
        self.before = runs.groups(self.resources)
        driver = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        name = f"{self.name}-{secrets.token_hex(3)}-queue"
        kind = ray.remote(MemberQueue).options(num_cpus=0, scheduling_strategy=driver, name=name)
        self.queue = kind.remote(len(self.chains))
        self.shared = ray.put(self.chains)  # once for all workers: members have much in common, such as the dev set
        for place, width in placements(self.resources, len(self.chains)):
            self._start(place, width)
        return self

    def __exit__(self, *error: object) -> None:
        """End what is left: runs that wait for room, and where the command ends all of them."""
        with contextlib.suppress(Exception):  # Ray may be what has ended
            for run in self.runs.values():
                ray.kill(run.host)
            ray.kill(self.queue)
            runs.give_back(self._groups())

    def look(self) -> QueueState:
        """Wait a moment, begin again what has ended, and return how the members stand."""
        waited_for = {run.ended: number for number, run in self.runs.items()}
        try:
            for reference in ray.wait(list(waited_for), timeout=LOOK_SECONDS)[0] if waited_for else ():
                self._again(waited_for[reference])
            state: QueueState = ray.get(self.queue.state.remote())
        except ray.exceptions.RayActorError:
            raise RunFailed(
                f"the process that hands out the members of {self.name} has died, as one does that is killed or for want of "
                f"memory on the node of this command; what was trained is kept, and the same command goes on from there"
            ) from None
        self.open -= {number for number, _ in state.ended}
        if self.runs or state.ended or state.refused or not self.open:
            return state
        cause = RunFailed(f"its workers do not start: {self.cause}")
        return state._replace(ended=[(number, fail_chain(self.chains[number], cause)) for number in sorted(self.open)])

    def without_room(self) -> int:
        """Return how many runs wait for room."""
        states = [state for name, state in runs.groups(self.resources).items() if name not in self.before]
        return sum(state in ("PENDING", "RESCHEDULING") for state in states)

    def _groups(self) -> set[str]:
        return runs.groups(self.resources).keys() - self.before.keys()

    def _start(self, place: Present | None, width: int) -> None:
        if place is not None and place.id not in {node.id for node in nodes()}:
            place = None  # another node may come for it
        strategy = "SPREAD" if place is None else NodeAffinitySchedulingStrategy(place.id, soft=False)
        kind = ray.remote(runs.TrainRun).options(
            num_cpus=0, scheduling_strategy=strategy, runtime_env={"env_vars": runs.environment(self.resources)}
        )
        self.number += 1
        host = kind.remote(
            self.number, place, self.queue, [self.shared], self.resources, self.seen, self.name,
            str(self.chains[0][0].folder.parent.parent / "ray"),
        )  # fmt: skip
        self.runs[self.number] = _Run(host, place, width, host.fit.remote(width))

    def _again(self, number: int) -> None:
        """Begin a run again that has ended, while members are left and its workers begin some in between."""
        run = self.runs[number]
        try:
            ended = ray.get(run.ended)
        except ray.exceptions.RayError as error:
            ended = runs.Ended(str(error), None)
        if ended.deaths is None:  # nobody is left who would give back its room
            rooms = ray.get(self.queue.rooms.remote())
            in_use = {room.id.hex() for other, room in rooms.items() if other != number}
            if len(in_use) == len(self.runs) - 1:
                runs.give_back(self._groups() - in_use)
        unfinished, begun = ray.get(self.queue.release.remote(number, ended.deaths, ended.cause))
        run.failures, run.begun = (0 if begun > run.begun or ended.waited else run.failures + 1), begun
        if not unfinished or run.failures > DEATHS:
            self.cause = self.cause or ended.cause
            ray.kill(self.runs.pop(number).host)
        elif ended.deaths is None or (ended.waited and run.place is not None and run.width > 1):
            ray.kill(self.runs.pop(number).host)
            # On a node that others use too there may be room for a part of it.
            parts = (
                [run.width - run.width // 2, run.width // 2] if ended.waited and len(self.runs) < MOST_RUNS - 1 else []
            )
            for width in parts or [run.width]:
                self._start(run.place, width)
                self.runs[self.number].failures = run.failures
        else:
            run.ended = run.host.fit.remote(run.width)


def placements(resources: Resources, members: int) -> list[tuple[Present | None, int]]:
    """Return the runs to begin: the node that each is bound to, or None, and its width.

    Of members of one worker there is a run per node, and for what the cluster may grow by runs of 1, 1, 2, 4 ... workers: of so
    many as come at least half work.
    """
    if resources.workers > 1:
        room = max(1, at_once(resources) // resources.least)
        return [(None, resources.workers)] * min(room, members, MOST_RUNS)
    bound: list[tuple[Present | None, int]] = []
    rest = members
    for node in nodes():
        width = min(node.slots(resources), rest)
        if width:
            bound.append((node, width))
            rest -= width
    if len(bound) > MOST_RUNS:
        total = members - rest
        return [(None, (total + number) // MOST_RUNS) for number in range(MOST_RUNS)]
    ahead = 0 if bound else 1
    if may_grow():
        ahead = min(rest, UNKNOWN)
    widths: list[int] = []
    while ahead and len(bound) + len(widths) < MOST_RUNS:
        widths.append(min(max(1, sum(widths)), ahead))
        ahead -= widths[-1]
    return bound + [(None, width) for width in widths]
