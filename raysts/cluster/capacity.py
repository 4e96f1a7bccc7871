"""What the nodes of the connected cluster hold, what an autoscaler could add, and what is said while workers wait for it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import ray
import yaml

from raysts.cluster.ray_internals import HEAD, autoscaler_config, monitored_node_types
from raysts.pipeline.local import Say
from raysts.recipes.recipe import Resources

LOOK_SECONDS = 2.0
REPEAT_SECONDS = 300.0


@dataclass(frozen=True)
class NodeType:
    """A kind of node that the autoscaler may start.

    Attributes:
        name: as in the cluster's file.
        cpus: CPUs of such a node.
        gpus: GPUs of such a node.
        most: nodes of the kind at once, at most.
    """

    name: str
    cpus: float
    gpus: float
    most: int

    def slots(self, resources: Resources) -> int:
        return slots({"CPU": self.cpus, "GPU": self.gpus}, resources)

    def __str__(self) -> str:
        return f"{self.name} ({quantities(self.cpus, self.gpus)}; at most {self.most})"


def node_types() -> list[NodeType]:
    """The kinds of nodes that the autoscaler may start.

    None are found where the cluster does not grow, and from a driver that is not on the head (or, on Kubernetes, not in
    the autoscaler's container): there nothing is refused for want of a kind that holds it.
    """
    return _limits()[0]


def _limits() -> tuple[list[NodeType], int]:
    """The kinds of nodes, and how many nodes the autoscaler may start of all kinds together."""
    file = autoscaler_config(ray.get_runtime_context().gcs_address)
    if file is None:
        return [], 0
    config = yaml.safe_load(file.read_text(encoding="utf-8"))
    most_nodes = int(config.get("max_workers", 0))
    kinds = []
    for name, kind in config.get("available_node_types", {}).items():
        # The head's type starts no workers unless the file says so: autoscalers read it in this way.
        most = min(most_nodes, int(kind.get("max_workers", 0 if name == config.get("head_node_type") else most_nodes)))
        if most:
            has = kind.get("resources") or {}
            kinds.append(NodeType(name, float(has.get("CPU", 0)), float(has.get("GPU", 0)), most))
    return kinds, most_nodes


def may_grow() -> bool:
    """Whether the cluster may get more nodes: not one that no autoscaler looks after, as far as that can be told."""
    types = monitored_node_types()
    return not types or any(kind != f"node_{node}" for node, kind in types.items())


def nodes() -> list[dict[str, float]]:
    """The resources of every node that is there."""
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def reachable(resource: str) -> float:
    """How much of ``CPU`` or ``GPU`` the cluster has, or would have when grown to its limits, were that more."""
    grown = sum((kind.gpus if resource == "GPU" else kind.cpus) * kind.most for kind in node_types())
    return max(float(ray.cluster_resources().get(resource, 0)), grown)


def at_once(resources: Resources) -> int:
    """Workers that the cluster holds at once, or would hold when grown to its limits, were that more; at least 1."""
    kinds, nodes_left = _limits()
    grown = sum(slots(node, resources) for node in nodes() if HEAD in node)  # the head stays what it is
    for per_node, most in sorted(((kind.slots(resources), kind.most) for kind in kinds), reverse=True):
        grown += per_node * min(most, nodes_left)
        nodes_left -= min(most, nodes_left)
    return max(1, sum(slots(node, resources) for node in nodes()), grown)


def slots(node: Mapping[str, float], resources: Resources) -> int:
    """Workers that a node of these resources holds at once."""
    by_cpus = int(node.get("CPU", 0) // resources.cpus)
    return min(by_cpus, int(node.get("GPU", 0) / resources.gpus + 1e-9)) if resources.gpus else by_cpus


def fits_now(resources: Resources) -> bool:
    """Whether a node that is there could hold a worker, were it idle."""
    return any(slots(node, resources) for node in nodes())


def describe_nodes() -> str:
    """What the nodes that are there have."""
    return "; ".join(quantities(node.get("CPU", 0), node.get("GPU", 0)) for node in nodes())


def quantities(cpus: float, gpus: float) -> str:
    """``2 CPUs, 1 GPU``."""
    return f"{cpus:g} CPU{'' if cpus == 1 else 's'}, {gpus:g} GPU{'' if gpus == 1 else 's'}"


def announce(resources: Resources, say: Say) -> None:
    """Say so before work starts that has to wait for its first node."""
    kinds = node_types()
    if kinds and not fits_now(resources):
        needs = quantities(resources.cpus, resources.gpus or 0)
        say(f"no node with {needs} is there yet; the cluster may start {', '.join(map(str, kinds))}")


@dataclass
class PendingReporter:
    """Says which training runs wait for a node, when that changes and every few minutes.

    Silent where the nodes that are there can hold a worker and no others may come: then runs take turns.
    """

    resources: Resources
    say: Say
    kinds: list[NodeType] = field(default_factory=node_types)
    looked_at: float = 0.0
    spoke_at: float = 0.0
    reported: int = 0
    pending: int = 0

    def update(self, unfinished: int) -> None:
        """Look at the requests that Ray has not met, at most every two seconds."""
        now = time.monotonic()
        if now - self.looked_at < LOOK_SECONDS:
            return
        self.looked_at = now
        # A request that is met at once is not one that waits: it must show in two looks.
        before, self.pending = self.pending, min(unfinished, self._pending_groups())
        waiting = min(before, self.pending)
        news = waiting != self.reported or now - self.spoke_at > REPEAT_SECONDS
        if waiting and news and (self.kinds or not fits_now(self.resources)):
            self.spoke_at = now
            self.say(self._text(waiting))
        self.reported = waiting

    def _pending_groups(self) -> int:
        """Worker groups of this shape that have no place yet."""
        worker = {"CPU": float(self.resources.cpus), "GPU": float(self.resources.gpus or 0)}
        return sum(
            group["state"] in ("PENDING", "RESCHEDULING")
            and [{name: bundle.get(name, 0.0) for name in worker} for bundle in group["bundles"].values()]
            == [worker] * self.resources.workers
            for group in ray.util.placement_group_table().values()
        )

    def _text(self, waiting: int) -> str:
        workers = f"{self.resources.workers} workers with " if self.resources.workers > 1 else ""
        needs = f"{workers}{quantities(self.resources.cpus, self.resources.gpus or 0)}"
        may_come = "it may start " + ", ".join(map(str, self.kinds))
        offer = may_come if self.kinds else f"its nodes have: {describe_nodes()}"
        runs = f"{waiting} training run{'' if waiting == 1 else 's'}"
        return f"waiting for the cluster to start nodes for {runs}: needs {needs} each; {offer}"
