"""Ensemble members on Ray Train: workers take them from a queue, one after the other.

Each node has one Ray Train run, with a worker for each member that it trains at once: processes do not grow with members,
and a lost node costs its run alone. Members of several workers have a run for each that trains at once. A run ends when a
worker dies, and the driver begins it again while members are left, each from its checkpoint.
"""

import gc
import os
import secrets
import signal
from collections.abc import Collection, Sequence
from contextlib import closing, suppress
from functools import partial
from itertools import count
from typing import Any, NamedTuple

import ray
import ray.train.torch
import torch

from raysts.cluster import runs
from raysts.cluster.capacity import UNKNOWN, ClusterNode, Room, affinity, holds, may_grow, nodes, slot_count
from raysts.cluster.connect import head_answers, quiet_data
from raysts.cluster.metrics import show, show_line
from raysts.cluster.preflight import Requirements, node_problem
from raysts.cluster.queue import MemberQueue, QueueState, RunEnd, Slot
from raysts.cluster.stream import read_streamed
from raysts.errors import InputError, RunFailed
from raysts.log import say
from raysts.models.pretrained import worker_gigabytes
from raysts.pipeline.executor import attempt, fail_chain
from raysts.recipes.recipe import Resources
from raysts.storage.runs import RunFolder
from raysts.storage.store import Store
from raysts.training.job import Job
from raysts.training.monitor import RunMonitor
from raysts.training.runtime import Preempted, Preemption, Runtime

MOST_RUNS = 16  # Ray Train runs at once: each is processes of a few hundred MB beside its workers
LOOK_SECONDS = 0.5
LAST_SECONDS = 10.0  # runs may take so long to end when all members have; most take one
DEATHS = 3  # of its processes that a member survives without progress on disk, each from its last checkpoint

Chains = Sequence[Sequence[Job]]


def train_members(chains: Chains, resources: Resources, requirements: Requirements | None = None) -> list[str | None]:
    """Train every chain. Return for each the reason why it failed, or None."""
    if requirements is not None:
        resources = _reserve_memory(resources, chains)
    reasons: dict[int, str | None] = {}
    facts, total = chains[0][0].facts, sum(map(len, chains))
    with closing(_Runs(chains, resources, requirements)) as started, RunMonitor(total) as monitor:
        while len(reasons) < len(chains):
            state = started.look()
            reasons |= state.ended
            for reason in filter(None, dict(state.ended).values()):
                say(f"failed: {reason}")
            at_work = [job for number in (*state.training, *dict(state.ended)) for job in chains[number]]
            monitor.update(at_work, len(state.waiting))
            done = [*reasons.values()].count(None)
            counts = {"waiting": len(state.waiting), "training": len(state.training), "done": done}
            counts = {f"members_{name}": count for name, count in (counts | {"failed": len(reasons) - done}).items()}
            show(counts | {"restarts": state.restarts}, pipeline=facts["system"], stage=facts["stage"])
            started.room.report(len(state.training))
        started.wait(state.begun)
    return [reasons[number] for number in range(len(chains))]


def _reserve_memory(resources: Resources, chains: Chains) -> Resources:
    """Return the resources with an estimate of memory, if nodes have it and the recipe says nothing."""
    if resources.memory is not None:
        return resources
    larger = resources.replace(memory=max(worker_gigabytes(chain[0].parent, bool(resources.gpus)) for chain in chains))
    fits = all(node.slots(larger) for node in nodes() if node.slots(resources))
    return larger if fits and holds(larger) >= min(holds(resources), larger.least) else resources


class _Run(NamedTuple):
    """A Ray Train run: its host, the node that it is bound to, its width and its end, a reference."""

    host: Any
    node: ClusterNode | None
    width: int
    ended: Any


class _Runs:
    """The Ray Train runs that train the members of one queue."""

    def __init__(self, chains: Chains, resources: Resources, requirements: Requirements | None) -> None:
        self.chains, self.resources, self.room, first = chains, resources, Room(resources), chains[0][0]
        self.name = f"{first.facts['system']}-{first.facts['stage']}-{first.id[:6]}"
        self.folder = str(first.folder.parent.parent / "ray")
        self.cause, self.numbers, self.runs = "", count(1), dict[int, _Run]()
        queue, name = ray.remote(MemberQueue), f"{self.name}-{secrets.token_hex(3)}-queue"
        self.queue = queue.options(num_cpus=0, scheduling_strategy=affinity(), name=name).remote(len(chains))
        # Once for all workers: members have much in common, such as the dev set.
        self.work = [ray.put(partial(take_members, chains, resources, requirements, self.queue))]
        for node, width in placements(resources, len(chains)):
            self._start(node, width)

    def wait(self, begun: Collection[int]) -> None:
        """Wait for the end of runs: if a host is killed, Ray shows a failure and keeps detached actors."""
        if ends := [run.ended for number, run in self.runs.items() if number in begun]:
            ray.wait(ends, num_returns=len(ends), timeout=LAST_SECONDS)

    def close(self) -> None:
        """End the runs that wait for room and, where the command ends, all others."""
        if not head_answers():  # Ray is what has ended
            return
        with suppress(Exception):
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
                f"the process that hands out the members of {self.name} has died: it was killed, or the node of this command "
                f"has no memory left; what was trained is kept, and the same command goes on from there"
            ) from None
        if state.refused:
            raise InputError(state.refused)
        if self.runs or state.ended:
            return state
        cause = f"its workers do not start: {self.cause}"
        return state._replace(ended=[(number, fail_chain(self.chains[number], cause)) for number in state.waiting])

    def _start(self, node: ClusterNode | None, width: int, number: int = 0) -> None:
        """Start a run, or the one of this number anew."""
        if node is not None and node.id not in {other.id for other in nodes()}:
            node = None  # another one may come for it
        number, place = number or next(self.numbers), "SPREAD" if node is None else affinity(node.id)
        options = {"scheduling_strategy": place, "runtime_env": {"env_vars": runs.environment(self.resources)}}
        kind = ray.remote(runs.TrainRun).options(num_cpus=0, **options)
        host = kind.remote(f"{self.name}-{number}", self.folder, node, self.resources, self.work, number)
        self.runs[number] = _Run(host, node, width, host.fit.remote(width))

    def _again(self, number: int) -> None:
        """Begin a run again that has ended, while members are left and its workers begin some in between."""
        run = self.runs[number]
        try:
            ended: RunEnd = ray.get(run.ended)
        except ray.exceptions.RayError as error:
            ended = RunEnd(str(error), None)
        unfinished, failures, group, in_use = ray.get(self.queue.release.remote(number, ended))
        # Of a run that is gone nothing is left to give back its room. Its workers may not have come to name it.
        if not group and len(in_use) == len(self.runs) - 1:
            group = self.room.groups().keys() - in_use
        self.room.give_back(group)
        shared = ended.waited and run.node is not None and run.width > 1
        if unfinished and failures <= DEATHS and ended.deaths is not None and not shared:
            self.runs[number] = run._replace(ended=run.host.fit.remote(run.width))
            return
        ray.kill(self.runs.pop(number).host)
        if not unfinished or failures > DEATHS:
            self.cause = self.cause or ended.cause
        elif shared and len(self.runs) < MOST_RUNS - 1:  # on a node that others use too there may be room for a part
            self._start(run.node, run.width // 2)
            self._start(run.node, run.width - run.width // 2)
        else:
            self._start(run.node, run.width, number)


def placements(resources: Resources, members: int) -> list[tuple[ClusterNode | None, int]]:
    """Return the runs to begin: the node that each is bound to, or None, and its width.

    Members of one worker have a run per node, and for what the cluster may grow by runs of 1, 1, 2, 4 ... workers: of so many
    as come at least half work.
    """
    if resources.workers > 1:
        return [(None, resources.workers)] * min(max(1, slot_count(resources) // resources.least), members, MOST_RUNS)
    bound: list[tuple[ClusterNode | None, int]] = []
    rest = members
    for node in nodes():
        if width := min(node.slots(resources), rest):
            bound.append((node, width))
            rest -= width
    if len(bound) > MOST_RUNS:
        return [(None, (members - rest + number) // MOST_RUNS) for number in range(MOST_RUNS)]
    ahead, come = min(rest, UNKNOWN) if may_grow() else int(not bound), 0
    while come < ahead and len(bound) < MOST_RUNS:
        bound.append((None, min(max(1, come), ahead - come)))
        come += bound[-1][1]
    return bound


class RayRuntime(Runtime):
    """A Ray Train worker that trains a run alone or together with the others of its run."""

    def __init__(self, resources: Resources, rank: int) -> None:
        device = ray.train.torch.get_device() if resources.gpus else "cpu"
        super().__init__(device, threads=resources.cpus, read=read_streamed)
        if resources.workers > 1:
            self.rank, self.world = rank, ray.train.get_context().get_world_size()
        self.shards = resources.shard and self.world > 1
        self.where = f"Ray Train, node {ray.util.get_node_ip_address()}"

    def observe(self, job: Job, line: dict[str, Any]) -> None:
        facts, member = job.facts, job.facts.get("member")
        names = facts["system"], facts["stage"], facts["role"] if member is None else member
        show_line(*names, line, job.recipe.spec.sentences)

    def preemption(self) -> Preemption:
        return Preemption.END if runs.told_to_end.is_set() else Preemption.NONE


def take_members(
    chains: Chains, resources: Resources, requirements: Requirements | None, queue: Any, number: int
) -> None:
    """Train members of the queue until none is left, as a worker of the run of this number."""
    quiet_data()
    if problem := node_problem(requirements):
        return ray.get(queue.refuse.remote(problem))
    rank = ray.train.get_context().get_world_rank()
    runtime = RayRuntime(resources, rank)
    if rank == 0:
        queue.hold.remote(number, ray.util.get_current_placement_group().id.hex())
    try:
        with runs.at_work:
            while (taken := _take(queue, (number, rank), chains, runtime)) is not None:
                member, reason = taken
                reason = reason or attempt(chains[member], runtime).reason
                if runtime.rank == 0:
                    ray.get(queue.end.remote((number, rank), reason))
                gc.collect()  # the next one begins where this one did
                if not gc.get_freeze_count():
                    gc.freeze()  # imports stay: a later collection need not look through them
                if resources.gpus:
                    torch.cuda.empty_cache()
    except Preempted:
        os._exit(128 + signal.SIGTERM)  # the member goes on in another process
    return None


def _take(queue: Any, slot: Slot, chains: Chains, runtime: Runtime) -> tuple[int, str | None] | None:
    """Take the next member, the same on all ranks: its number, and why it is not tried again, or None."""
    taken: list[tuple[int, str | None] | None] = [None]
    if runtime.rank == 0 and (member := ray.get(queue.take.remote(slot))) is not None:
        folders, reason = [job.folder for job in chains[member]], None
        stand = [  # as the storage has it: this node may be new
            RunFolder(run).done_record() is not None or max(Store.of(run).list(run / "checkpoints"), default=None)
            for run in folders
        ]
        progress = ray.get(queue.begin.remote(slot, stand))
        if progress.deaths > DEATHS:
            cause = f"its processes died {progress.deaths} times without getting on, the last time so: {progress.cause}"
            reason = fail_chain(chains[member], cause)
        taken = [(member, reason)]
    if runtime.world > 1:
        torch.distributed.broadcast_object_list(taken, src=0, device=runtime.device)
    return taken[0]
