"""What an autoscaler could add to the connected cluster, and what is said while workers wait for it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray
import yaml
from ray._private.ray_constants import DEBUG_AUTOSCALING_STATUS
from ray.experimental.internal_kv import _internal_kv_get

from raysts.pipeline.local import Say
from raysts.recipes.recipe import Resources

MONITOR = "monitor.py"
"""File of Ray's autoscaler; it runs on the head."""
HEAD = "node:__internal_head__"
"""Resource that Ray gives to the head's node."""
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

    def holds(self, resources: Resources) -> bool:
        """Whether a worker fits on a node of the kind."""
        return self.cpus >= resources.cpus and self.gpus >= (resources.gpus or 0)

    def __str__(self) -> str:
        return f"{self.name} ({quantities(self.cpus, self.gpus)}; at most {self.most})"


def node_types() -> list[NodeType]:
    """The kinds of nodes that the autoscaler may start.

    Ray does not publish them. Its autoscaler names the cluster's file on its command line, and runs on the head, as jobs
    and their drivers do. None are found where the cluster does not grow, and from a driver that is not on the head (or, on
    Kubernetes, not in the autoscaler's container): there nothing is refused for want of a kind that holds it.
    """
    return _growth()[0]


def _growth() -> tuple[list[NodeType], int]:
    """The kinds of nodes, and how many nodes the autoscaler may start of all kinds together."""
    file = _cluster_file(ray.get_runtime_context().gcs_address)
    if file is None:
        return [], 0
    config = yaml.safe_load(file.read_text(encoding="utf-8"))
    most = int(config.get("max_workers", 0))
    found = []
    for name, kind in config.get("available_node_types", {}).items():
        its = int(kind.get("max_workers", 0 if name == config.get("head_node_type") else most))
        has = kind.get("resources") or {}
        found.append(NodeType(name, float(has.get("CPU", 0)), float(has.get("GPU", 0)), min(its, most)))
    return [kind for kind in found if kind.most], most


def may_grow() -> bool:
    """Whether the cluster may get more nodes: not one that no autoscaler looks after, as far as that can be told.

    Ray's monitor runs on every head; without an autoscaler it names each node's type after the node itself.
    """
    status = _internal_kv_get(DEBUG_AUTOSCALING_STATUS)
    types = _types(json.loads(status)) if status else {}
    return not types or any(kind != f"node_{node}" for node, kind in types.items())


def _types(status: Mapping[str, Any]) -> dict[str, str]:
    """Type by id of every node that the monitor knows."""
    return dict((status.get("autoscaler_report") or {}).get("node_type_mapping") or {})


def _cluster_file(gcs_address: str) -> Path | None:
    """The file that the autoscaler of this cluster works from, where it is one of the processes of this machine."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().decode().split("\0")
        except (OSError, UnicodeDecodeError):
            continue
        options = dict(word.split("=", 1) for word in words if word.startswith("--") and "=" in word)
        ours = any(Path(word).name == MONITOR for word in words) and options.get("--gcs-address") == gcs_address
        if ours and "--autoscaling-config" in options:
            file = Path(options["--autoscaling-config"]).expanduser()
            return file if file.is_file() else None
    return None


def reachable(resource: str) -> float:
    """How much of ``CPU`` or ``GPU`` the cluster has, or would have when grown to its limits, were that more."""
    grown = sum((kind.gpus if resource == "GPU" else kind.cpus) * kind.most for kind in node_types())
    return max(float(ray.cluster_resources().get(resource, 0)), grown)


def at_once(resources: Resources) -> int:
    """Workers that the cluster holds at once, or would hold when grown to its limits, were that more; at least 1."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    now = sum(places(node, resources) for node in nodes)
    kinds, left = _growth()
    grown = sum(places(node, resources) for node in nodes if HEAD in node)  # the head stays what it is
    for each, most in sorted(
        ((places({"CPU": k.cpus, "GPU": k.gpus}, resources), k.most) for k in kinds), reverse=True
    ):
        grown += each * min(most, left)
        left -= min(most, left)
    return max(1, now, grown)


def places(node: Mapping[str, float], resources: Resources) -> int:
    """Workers that a node of these resources holds at once."""
    fits = [int(node.get("CPU", 0) // resources.cpus)]
    if resources.gpus:
        fits.append(int(node.get("GPU", 0) / resources.gpus + 1e-9))
    return min(fits)


def fits_now(resources: Resources) -> bool:
    """Whether a node that is there could hold a worker, were it idle."""
    return any(
        node["Resources"].get("CPU", 0) >= resources.cpus and node["Resources"].get("GPU", 0) >= (resources.gpus or 0)
        for node in ray.nodes()
        if node["Alive"]
    )


def offers() -> str:
    """What the nodes that are there have."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    return "; ".join(quantities(node.get("CPU", 0), node.get("GPU", 0)) for node in nodes)


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
class Waiting:
    """Says which training runs wait for a node, when that changes and every few minutes.

    Silent where the nodes that are there can hold a worker and no others may come: then runs take turns.
    """

    resources: Resources
    say: Say
    kinds: list[NodeType] = field(default_factory=node_types)
    looked: float = 0.0
    spoke: float = 0.0
    said: int = 0
    before: int = 0

    def update(self, unfinished: int) -> None:
        """Look at the requests that Ray has not met, at most every two seconds."""
        now = time.monotonic()
        if now - self.looked < LOOK_SECONDS:
            return
        self.looked = now
        # A request that is met at once is not one that waits.
        count, self.before = self.before, min(unfinished, self._pending())
        count = min(count, self.before)
        if (
            count
            and (count != self.said or now - self.spoke > REPEAT_SECONDS)
            and (self.kinds or not fits_now(self.resources))
        ):
            self.spoke = now
            self.say(waiting_text(count, self.resources, self.kinds))
        self.said = count

    def _pending(self) -> int:
        """Worker groups of this shape that have no place yet."""
        return sum(
            group["state"] in ("PENDING", "RESCHEDULING") and self._is_ours(group["bundles"].values())
            for group in ray.util.placement_group_table().values()
        )

    def _is_ours(self, bundles: Iterable[dict[str, float]]) -> bool:
        needs = {"CPU": float(self.resources.cpus), "GPU": float(self.resources.gpus or 0)}
        found = [{name: bundle.get(name, 0.0) for name in needs} for bundle in bundles]
        return found == [needs] * self.resources.workers


def waiting_text(count: int, resources: Resources, kinds: list[NodeType]) -> str:
    """What is said of ``count`` training runs that wait."""
    workers = f"{resources.workers} workers with " if resources.workers > 1 else ""
    needs = f"{workers}{quantities(resources.cpus, resources.gpus or 0)}"
    which = "; it may start " + ", ".join(map(str, kinds)) if kinds else f"; its nodes have: {offers()}"
    runs = f"{count} training run{'' if count == 1 else 's'}"
    return f"waiting for the cluster to start nodes for {runs}: needs {needs} each{which}"
