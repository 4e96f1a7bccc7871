"""Ensemble members on Ray Train: workers take them from a queue, one after the other.

Each node has one Ray Train run, with a worker for each member that the node trains at once: the number of processes does not
grow with that of members, and a lost node costs its run alone. Members of several workers have a run for each that trains
at once. A run ends when a worker dies, and the driver begins it again while members are left, each from its checkpoint.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from raysts.cluster import runs
from raysts.cluster.capacity import UNKNOWN, ClusterNode, Room, at_once, holds, may_grow, nodes
from raysts.cluster.metrics import show_members
from raysts.cluster.preflight import Requirements
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
    chains: Sequence[Sequence[Job]], resources: Resources, say: Say, requirements: Requirements | None = None
) -> list[str | None]:
    """Train every chain; return for each the reason why it failed, or None. A failure does not end the others.

    Args:
        chains: of jobs, each the stages of a member.
        resources: of a worker, GPUs decided.
        say: takes progress.
        requirements: that a node must meet to take part, on a cluster that others share.

    Raises:
        InputError: a node that joined cannot take part.
    """
    if requirements is not None:
        resources = _with_memory(resources, chains)
    reasons: dict[int, str | None] = {}
    facts, restarts = chains[0][0].facts, 0
    with (
        _Runs(chains, resources, requirements, Room(resources, say)) as started,
        RunMonitor(say, sum(map(len, chains))) as monitor,
    ):
        while len(reasons) < len(chains):
            state = started.look()
            if state.refused:
                raise InputError(state.refused)
            for number, reason in state.ended:
                reasons[number] = reason
                if reason is not None:
                    say(f"failed: {reason}")
            changing = [*state.training, *(number for number, _ in state.ended)]
            monitor.update([job for number in changing for job in chains[number]], state.waiting)
            failed = sum(reason is not None for reason in reasons.values())
            counts = {"waiting": state.waiting, "training": len(state.training), "done": len(reasons) - failed}
            show_members(facts["system"], facts["stage"], {**counts, "failed": failed}, state.restarts - restarts)
            restarts = state.restarts
            started.room.report(len(state.training))
    return [reasons[index] for index in range(len(chains))]


def _with_memory(resources: Resources, chains: Sequence[Sequence[Job]]) -> Resources:
    """Return the resources with the memory that the models are estimated to take, if the nodes have it and no recipe says."""
    if resources.memory is not None:
        return resources
    on_gpu = bool(resources.gpus)
    larger = replace(resources, memory=max(worker_gigabytes(chain[0].parent, on_gpu) for chain in chains))
    fits = all(node.slots(larger) for node in nodes() if node.slots(resources))
    return larger if fits and holds(larger) >= min(holds(resources), larger.least) else resources


@dataclass
class _Run:
    """A Ray Train run: its host, the node that it is bound to, its width, and the reference of its end.

    Attributes:
        failures: how often it ended since its workers last began a member.
        begun: members that they had begun by then.
    """

    host: Any
    node: ClusterNode | None
    width: int
    ended: Any
    failures: int = 0
    begun: int = 0


class _Runs:
    """The Ray Train runs that train the members of one queue."""

    def __init__(
        self, chains: Sequence[Sequence[Job]], resources: Resources, requirements: Requirements | None, room: Room
    ) -> None:
        self.chains, self.resources, self.requirements, self.room = chains, resources, requirements, room
        first = chains[0][0]
        self.name = f"{first.facts['system']}-{first.facts['stage']}-{first.id[:6]}"
        self.open, self.cause, self.number = set(range(len(chains))), "", 0
        self.runs: dict[int, _Run] = {}

    def __enter__(self) -> _Runs:
        driver = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        name = f"{self.name}-{secrets.token_hex(3)}-queue"
        kind = ray.remote(MemberQueue).options(num_cpus=0, scheduling_strategy=driver, name=name)
        self.queue = kind.remote(len(self.chains))
        self.shared = ray.put(self.chains)  # once for all workers: members have much in common, such as the dev set
        for node, width in placements(self.resources, len(self.chains)):
            self._start(node, width)
        return self

    def __exit__(self, *error: object) -> None:
        """End the runs that wait for room and, where the command ends, all others."""
        with contextlib.suppress(Exception):  # Ray may be what has ended
            for run in self.runs.values():
                ray.kill(run.host)
            ray.kill(self.queue)
            self.room.give_back(self.room.groups())

    def look(self) -> QueueState:
        """Wait a moment, begin again the runs that have ended, and return how the members stand."""
        numbers = {run.ended: number for number, run in self.runs.items()}
        try:
            for reference in ray.wait(list(numbers), timeout=LOOK_SECONDS)[0] if numbers else ():
                self._again(numbers[reference])
            state: QueueState = ray.get(self.queue.state.remote())
        except ray.exceptions.RayActorError:
            raise RunFailed(
                f"the process that hands out the members of {self.name} has died, as one does that is killed or for want of "
                f"memory on the node of this command; what was trained is kept, and the same command goes on from there"
            ) from None
        self.open -= {number for number, _ in state.ended}
        if self.runs or state.ended or state.refused or not self.open:
            return state
        cause = f"its workers do not start: {self.cause}"
        return state._replace(ended=[(number, fail_chain(self.chains[number], cause)) for number in sorted(self.open)])

    def _start(self, node: ClusterNode | None, width: int, failures: int = 0) -> None:
        if node is not None and node.id not in {other.id for other in nodes()}:
            node = None  # another one may come for it
        self.number += 1
        kind = ray.remote(runs.TrainRun).options(
            num_cpus=0,
            scheduling_strategy="SPREAD" if node is None else NodeAffinitySchedulingStrategy(node.id, soft=False),
            runtime_env={"env_vars": runs.environment(self.resources)},
        )
        work = runs.Work(self.number, self.queue, [self.shared], self.resources, self.requirements)
        host = kind.remote(work, node, self.name, str(self.chains[0][0].folder.parent.parent / "ray"))
        self.runs[self.number] = _Run(host, node, width, host.fit.remote(width), failures)

    def _again(self, number: int) -> None:
        """Begin a run again that has ended, while members are left and its workers begin some in between."""
        run = self.runs[number]
        try:
            ended = ray.get(run.ended)
        except ray.exceptions.RayError as error:
            ended = runs.Ended(str(error), None)
        if ended.deaths is None:  # no process is left that would give back its room
            in_use = {group for other, group in ray.get(self.queue.groups.remote()).items() if other != number}
            if len(in_use) == len(self.runs) - 1:  # else the group of a run that has just started would go too
                self.room.give_back(self.room.groups().keys() - in_use)
        unfinished, begun = ray.get(self.queue.release.remote(number, ended.deaths, ended.cause))
        has_begun = begun > run.begun or ended.waited
        run.failures, run.begun = 0 if has_begun else run.failures + 1, begun
        shared = ended.waited and run.node is not None and run.width > 1
        if unfinished and run.failures <= DEATHS and ended.deaths is not None and not shared:
            run.ended = run.host.fit.remote(run.width)
            return
        ray.kill(self.runs.pop(number).host)
        if not unfinished or run.failures > DEATHS:
            self.cause = self.cause or ended.cause
        elif shared and len(self.runs) < MOST_RUNS - 1:  # on a node that others use too there may be room for a part
            self._start(run.node, run.width // 2)
            self._start(run.node, run.width - run.width // 2)
        else:
            self._start(run.node, run.width, run.failures)


def placements(resources: Resources, members: int) -> list[tuple[ClusterNode | None, int]]:
    """Return the runs to begin: the node that each is bound to, or None, and its width.

    Members of one worker have a run per node. For what the cluster may grow by there are runs of 1, 1, 2, 4 ... workers: of
    so many as come at least half work.
    """
    if resources.workers > 1:
        return [(None, resources.workers)] * min(max(1, at_once(resources) // resources.least), members, MOST_RUNS)
    bound: list[tuple[ClusterNode | None, int]] = []
    rest = members
    for node in nodes():
        if width := min(node.slots(resources), rest):
            bound.append((node, width))
            rest -= width
    if len(bound) > MOST_RUNS:
        return [(None, (members - rest + number) // MOST_RUNS) for number in range(MOST_RUNS)]
    ahead = min(rest, UNKNOWN) if may_grow() else int(not bound)
    widths: list[int] = []
    while ahead and len(bound) + len(widths) < MOST_RUNS:
        widths.append(min(max(1, sum(widths)), ahead))
        ahead -= widths[-1]
    return bound + [(None, width) for width in widths]
