"""What the nodes of the connected cluster hold, and what is said while workers wait for more."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import ray

from raysts.cluster.compat import has_autoscaler
from raysts.pipeline.local import Say
from raysts.recipes.recipe import Resources

LOOK_SECONDS = 2.0
REPEAT_SECONDS = 300.0
LOOPBACK = ("127.0.0.1", "::1")

UNKNOWN = 64
"""Workers that are asked for at most where the cluster may grow: Ray tells nobody how far."""


@dataclass(frozen=True)
class Present:
    """A node that is there."""

    id: str
    address: str
    has: Mapping[str, float]
    labels: Mapping[str, str]

    def slots(self, resources: Resources) -> int:
        """Return how many workers it holds at once, were it idle."""
        return slots(self.has, resources) if matches(self.labels, resources.selector) else 0


def nodes() -> list[Present]:
    """Return every node that is there."""
    return [
        Present(node["NodeID"], node["NodeManagerAddress"], node["Resources"], node.get("Labels") or {})
        for node in ray.nodes()
        if node["Alive"]
    ]


def may_grow() -> bool:
    """Return True if the cluster may get more nodes, as far as that can be told; one that nobody else can reach may not."""
    return not all(node.address in LOOPBACK for node in nodes()) and has_autoscaler() is not False


def holds(resources: Resources) -> int:
    """Return how many workers the nodes that are there hold at once."""
    return sum(node.slots(resources) for node in nodes())


def at_once(resources: Resources) -> int:
    """Return how many workers to ask for at once, at least 1."""
    return max(1, holds(resources), UNKNOWN * may_grow())


def slots(has: Mapping[str, float], resources: Resources) -> int:
    """Return how many workers a node of these resources holds at once."""
    return int(min(has.get(name, 0.0) / amount for name, amount in resources.bundle.items()) + 1e-9)


def matches(labels: Mapping[str, str], selector: Mapping[str, str]) -> bool:
    """Return True if a node of these labels is one that the selector means, by Ray's rules: a label that a node does not have
    is unlike any value."""
    for key, rule in selector.items():
        wanted, value = not rule.startswith("!"), rule.removeprefix("!")
        among = value[3:-1].split(",") if value.startswith("in(") else [value]
        if (labels.get(key) in [choice.strip() for choice in among]) != wanted:
            return False
    return True


def describe_nodes() -> str:
    """Return what the nodes that are there have."""
    return "; ".join(described(node.has) for node in nodes())


def described(has: Mapping[str, float]) -> str:
    """Return ``2 CPUs, 1 GPU``, and the kind of GPU where it is known."""
    kinds = [name.partition(":")[2] for name in has if name.startswith("accelerator_type:")]
    return ", ".join([quantities(has.get("CPU", 0), has.get("GPU", 0)), *kinds])


def quantities(cpus: float, gpus: float) -> str:
    """Return ``2 CPUs, 1 GPU``."""
    return f"{cpus:g} CPU{'' if cpus == 1 else 's'}, {gpus:g} GPU{'' if gpus == 1 else 's'}"


def needs(resources: Resources) -> str:
    """Return what a worker needs, as people read it."""
    memory = [f"{resources.memory:.1f} GB of memory"] if resources.memory else []
    kind = [resources.accelerator_type] if resources.accelerator_type else []
    return ", ".join([quantities(resources.cpus, resources.gpus or 0), *memory, *kind, *resources.label_selector])


def announce(resources: Resources, say: Say) -> None:
    """Say so before work starts that has to wait for its first node."""
    if not holds(resources):
        say(f"no node with {needs(resources)} is there yet; the cluster's nodes have: {describe_nodes()}; it may grow")


@dataclass
class PendingReporter:
    """Says how many training runs wait for a node, when that changes and every few minutes.

    Silent where the nodes that are there can hold the workers of a run and no others may come: then runs take turns.

    Attributes:
        waiting: tells how many runs have no room.
    """

    resources: Resources
    say: Say
    waiting: Callable[[], int]
    looked_at: float = 0.0
    spoke_at: float = 0.0
    reported: int = 0
    pending: int = 0

    def update(self) -> None:
        """Look at the requests that Ray has not met, at most every two seconds."""
        now = time.monotonic()
        if now - self.looked_at < LOOK_SECONDS:
            return
        self.looked_at = now
        # A request that is met at once is not one that waits: it must show in two looks.
        before, self.pending = self.pending, self.waiting()
        waiting = min(before, self.pending)
        news = waiting != self.reported or now - self.spoke_at > REPEAT_SECONDS
        if waiting and news and (holds(self.resources) < self.resources.least or may_grow()):
            self.spoke_at = now
            self.say(self._text(waiting))
        self.reported = waiting

    def _text(self, waiting: int) -> str:
        workers = f"{self.resources.workers} workers with " if self.resources.workers > 1 else ""
        runs = f"{waiting} training run{'' if waiting == 1 else 's'}"
        return (
            f"waiting for the cluster to have room for {runs}: needs {workers}{needs(self.resources)} each; its nodes have: "
            f"{describe_nodes()}"
        )
