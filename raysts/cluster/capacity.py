"""Nodes of the connected cluster, and the room that a command asks them for."""

import time
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import ray
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from raysts.cluster.compat import has_autoscaler, lacks
from raysts.errors import InputError
from raysts.log import say
from raysts.recipes.recipe import Resources

LOOK_SECONDS, REPEAT_SECONDS = 10.0, 300.0
UNKNOWN = 64  # workers that a command asks for where the cluster may grow: Ray tells nobody how far


class ClusterNode(NamedTuple):
    """A node that is alive."""

    id: str
    address: str
    amounts: Mapping[str, float]
    labels: Mapping[str, str]
    host: str = ""

    def slots(self, resources: Resources) -> int:
        """Return how many workers the node holds at once when idle."""
        for key, rule in resources.selector.items():  # by Ray's rules: a missing label is unlike any value
            value = rule.removeprefix("!")
            choices = value[3:-1].split(",") if value.startswith("in(") else [value]
            if (self.labels.get(key) in [choice.strip() for choice in choices]) == rule.startswith("!"):
                return 0
        return int(min(self.amounts.get(name, 0.0) / amount for name, amount in resources.bundle.items()) + 1e-9)

    def __str__(self) -> str:
        kinds = [name.partition(":")[2] for name in self.amounts if name.startswith("accelerator_type:")]
        return ", ".join([*(_number(self.amounts.get(kind, 0), kind) for kind in ("CPU", "GPU")), *kinds])


def nodes() -> list[ClusterNode]:
    """Return the nodes that are alive."""
    columns = ("NodeID", "NodeManagerAddress", "Resources", "Labels", "NodeManagerHostname")
    return [ClusterNode(*(node[column] for column in columns)) for node in ray.nodes() if node["Alive"]]


def affinity(node: str = "") -> NodeAffinitySchedulingStrategy:
    """Return the place of what runs on a node, or on the one of this process."""
    return NodeAffinitySchedulingStrategy(node or ray.get_runtime_context().get_node_id(), soft=False)


def may_grow() -> bool:
    """Return True if the cluster may get more nodes. One on loopback never does."""
    return not all(node.address in ("127.0.0.1", "::1") for node in nodes()) and has_autoscaler()


def holds(resources: Resources) -> int:
    """Return how many workers the nodes hold at once."""
    return sum(node.slots(resources) for node in nodes())


def slot_count(resources: Resources) -> int:
    """Return how many workers to ask for at once, at least 1."""
    return max(1, holds(resources), UNKNOWN * may_grow())


def resolve_gpus(resources: Resources) -> Resources:
    """Return the resources with one GPU per worker if the recipe says nothing and the cluster has some."""
    if resources.gpus is not None:
        return resources
    return resources.replace(gpus=1.0 if resources.accelerator_type or ray.cluster_resources().get("GPU") else 0.0)


def check_resources(resources: Resources, private: bool) -> None:
    """Refuse workers that this Ray does not know, or that no node of a cluster that cannot grow holds."""
    if problems := lacks(resources):
        raise InputError(problems)
    resources = resolve_gpus(resources)
    room, least = holds(resources), resources.least
    if room < least and (private or not may_grow()):
        part = f"a run of {least} workers (resources.workers) has no room, the cluster holds {room} of them"
        why = part if room else "no node can hold such a worker"
        raise InputError(
            f"resources.cpus={resources.cpus}, resources.gpus={resources.gpus:g}: {why} ({_needs(resources)}); the cluster's "
            f"nodes have: {_describe_nodes()}; ask for less, or connect to a larger cluster with --address"
        )


def announce(resources: Resources) -> None:
    """Say that work waits for its first node, if it does."""
    if not holds(resources):
        have = _describe_nodes()
        say(f"no node with {_needs(resources)} is there yet; the cluster's nodes have: {have}; it may grow")


class Room:
    """The placement groups that a command asks the cluster for, each of workers of the same resources."""

    def __init__(self, resources: Resources) -> None:
        self.resources, self.before = resources, set[str]()
        self.before, self.look_at, self.waiting = {*self.groups()}, 0.0, 0

    def groups(self) -> dict[str, str]:
        """Return state by id of the command's groups, by job (the end of the id) and shape of the bundles."""
        worker = {"CPU": float(self.resources.cpus), "GPU": float(self.resources.gpus or 0)}
        job = ray.get_runtime_context().get_job_id()
        return {
            name: group["state"]
            for name, group in ray.util.placement_group_table().items()
            if name.endswith(job) and name not in self.before and group["state"] != "REMOVED"
            if all({kind: bundle.get(kind, 0.0) for kind in worker} == worker for bundle in group["bundles"].values())
        }

    def give_back(self, names: Iterable[str]) -> None:
        """Remove groups. A process that was killed leaves them, and so does a run that waits."""
        for name in names:
            ray.util.remove_placement_group(PlacementGroup(ray.PlacementGroupID.from_hex(name)))

    def report(self, training: int) -> None:
        """Say how many runs wait for room, when as many did a while ago, and then every few minutes.

        On a cluster that does not grow, runs wait their turn while others train.
        """
        if (clock := time.monotonic()) < self.look_at:
            return
        self.look_at, before = clock + LOOK_SECONDS, self.waiting
        self.waiting = sum(state in ("PENDING", "RESCHEDULING") for state in self.groups().values())
        if self.waiting and self.waiting == before and (may_grow() or not training):
            self.look_at = clock + REPEAT_SECONDS
            workers = f"{self.resources.workers} workers with " if self.resources.workers > 1 else ""
            say(
                f"waiting for the cluster to have room for {_number(self.waiting, 'training run')}: needs {workers}"
                f"{_needs(self.resources)} each; its nodes have: {_describe_nodes()}"
            )


def _describe_nodes() -> str:
    return "; ".join(map(str, nodes()))


def _number(count: float, noun: str) -> str:
    return f"{count:g} {noun}{'' if count == 1 else 's'}"


def _needs(resources: Resources) -> str:
    """Return what a worker needs, for a message."""
    memory = resources.memory and f"{resources.memory:.1f} GB of memory"
    needs = (_number(resources.cpus, "CPU"), _number(resources.gpus or 0, "GPU"), memory, resources.accelerator_type)
    return ", ".join([need for need in needs if need] + [*resources.label_selector])
