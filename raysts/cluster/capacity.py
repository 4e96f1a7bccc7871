"""What the nodes of the connected cluster hold, what an autoscaler could add, and what is said while workers wait for it."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import ray
import yaml

from raysts.cluster.ray_internals import HEAD, autoscaler_config, monitored_node_types, on_private_cluster
from raysts.pipeline.local import Say
from raysts.recipes.recipe import Resources

LOOK_SECONDS = 2.0
REPEAT_SECONDS = 300.0
RAY_LABELS = "ray.io/"


@dataclass(frozen=True)
class NodeType:
    """A kind of node that the autoscaler may start."""

    name: str
    has: Mapping[str, float]
    labels: Mapping[str, str]
    most: int

    def slots(self, resources: Resources) -> int:
        """Workers that such a node holds at once. What the file does not say (memory, say) an autoscaler cannot promise."""
        # Ray gives labels of its own to nodes when they come.
        known = {key: value for key, value in resources.selector.items() if not key.startswith(RAY_LABELS)}
        return slots(self.has, resources) if matches(self.labels, known) else 0

    def __str__(self) -> str:
        return f"{self.name} ({described(self.has)}; at most {self.most})"


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
            has = {what: float(amount) for what, amount in (kind.get("resources") or {}).items()}
            kinds.append(NodeType(name, has, kind.get("labels") or {}, most))
    return kinds, most_nodes


def may_grow() -> bool:
    """Whether the cluster may get more nodes: not one that no autoscaler looks after, as far as that can be told, nor one
    that nobody else can reach."""
    if on_private_cluster():
        return False
    types = monitored_node_types()
    return not types or any(kind != f"node_{node}" for node, kind in types.items())


@dataclass(frozen=True)
class Present:
    """A node that is there: its resources and labels."""

    has: Mapping[str, float]
    labels: Mapping[str, str]

    def slots(self, resources: Resources) -> int:
        """Workers that it holds at once, were it idle."""
        return slots(self.has, resources) if matches(self.labels, resources.selector) else 0


def nodes() -> list[Present]:
    """Every node that is there."""
    return [Present(node["Resources"], node.get("Labels") or {}) for node in ray.nodes() if node["Alive"]]


def reachable(resource: str) -> float:
    """How much of ``CPU`` or ``GPU`` the cluster has, or would have when grown to its limits, were that more."""
    grown = sum(kind.has.get(resource, 0.0) * kind.most for kind in node_types())
    return max(float(ray.cluster_resources().get(resource, 0)), grown)


def at_once(resources: Resources) -> int:
    """As :func:`holds`, at least 1."""
    return max(1, holds(resources))


def holds(resources: Resources) -> int:
    """Workers that the cluster holds at once, or would hold when grown to its limits, were that more."""
    kinds, nodes_left = _limits()
    grown = sum(node.slots(resources) for node in nodes() if HEAD in node.has)  # the head stays what it is
    for per_node, most in sorted(((kind.slots(resources), kind.most) for kind in kinds), reverse=True):
        grown += per_node * min(most, nodes_left)
        nodes_left -= min(most, nodes_left)
    return max(sum(node.slots(resources) for node in nodes()), grown)


def slots(has: Mapping[str, float], resources: Resources) -> int:
    """Workers that a node of these resources holds at once."""
    return int(min(has.get(name, 0.0) / amount for name, amount in resources.bundle.items()) + 1e-9)


def matches(labels: Mapping[str, str], selector: Mapping[str, str]) -> bool:
    """Whether a node of these labels is one that the selector means, by Ray's rules: a label that a node does not have is
    unlike any value."""
    for key, rule in selector.items():
        wanted, value = not rule.startswith("!"), rule.removeprefix("!")
        among = value[3:-1].split(",") if value.startswith("in(") else [value]
        if (labels.get(key) in [choice.strip() for choice in among]) != wanted:
            return False
    return True


def fits_now(resources: Resources) -> bool:
    """Whether a node that is there could hold a worker, were it idle."""
    return any(node.slots(resources) for node in nodes())


def describe_nodes() -> str:
    """What the nodes that are there have."""
    return "; ".join(described(node.has) for node in nodes())


def described(has: Mapping[str, float]) -> str:
    """``2 CPUs, 1 GPU``, and the kind of GPU where it is known."""
    kinds = [name.partition(":")[2] for name in has if name.startswith("accelerator_type:")]
    return ", ".join([quantities(has.get("CPU", 0), has.get("GPU", 0)), *kinds])


def quantities(cpus: float, gpus: float) -> str:
    """``2 CPUs, 1 GPU``."""
    return f"{cpus:g} CPU{'' if cpus == 1 else 's'}, {gpus:g} GPU{'' if gpus == 1 else 's'}"


def needs(resources: Resources) -> str:
    """What a worker needs, as people read it."""
    memory = [f"{resources.memory:.1f} GB of memory"] if resources.memory else []
    kind = [resources.accelerator_type] if resources.accelerator_type else []
    return ", ".join([quantities(resources.cpus, resources.gpus or 0), *memory, *kind, *resources.label_selector])


def announce(resources: Resources, say: Say) -> None:
    """Say so before work starts that has to wait for its first node."""
    kinds = node_types()
    if kinds and not fits_now(resources):
        say(f"no node with {needs(resources)} is there yet; the cluster may start {', '.join(map(str, kinds))}")


@dataclass
class PendingReporter:
    """Says which training runs wait for a node, when that changes and every few minutes.

    Silent where the nodes that are there can hold the workers of a run and no others may come: then runs take turns.
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
        if waiting and news and (self.kinds or holds(self.resources) < self.resources.least):
            self.spoke_at = now
            self.say(self._text(waiting))
        self.reported = waiting

    def _pending_groups(self) -> int:
        """Training runs whose workers of this shape have no place yet: a group may hold the workers of several."""
        worker = {"CPU": float(self.resources.cpus), "GPU": float(self.resources.gpus or 0)}
        return sum(
            max(1, len(group["bundles"]) // self.resources.workers)  # one of variable size may ask for fewer
            for group in ray.util.placement_group_table().values()
            if group["state"] in ("PENDING", "RESCHEDULING")
            and all({name: bundle.get(name, 0.0) for name in worker} == worker for bundle in group["bundles"].values())
        )

    def _text(self, waiting: int) -> str:
        workers = f"{self.resources.workers} workers with " if self.resources.workers > 1 else ""
        wanted = f"{workers}{needs(self.resources)}"
        may_come = "it may start " + ", ".join(map(str, self.kinds))
        offer = may_come if self.kinds else f"its nodes have: {describe_nodes()}"
        runs = f"{waiting} training run{'' if waiting == 1 else 's'}"
        return f"waiting for the cluster to start nodes for {runs}: needs {wanted} each; {offer}"
