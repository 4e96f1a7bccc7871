"""What a trial asks of the cluster, how many it holds at once, and whether it could ever hold one."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import ray
from ray._private.ray_constants import DEBUG_AUTOSCALING_STATUS
from ray.experimental.internal_kv import _internal_kv_get

from raysts.cluster.run import check_resources, settled
from raysts.recipe import Resources
from raysts.search.retention import weights
from raysts.search.study import Study

SMALL = 200 * 2**20
"""Bytes of weights below which a trial takes a quarter of a GPU unless the search says otherwise."""


def trial_resources(study: Study) -> Resources:
    """What a trial asks for: several small ones share a GPU unless the search says how much one takes."""
    asked = study.search.pipeline.resources
    found = settled(asked)
    if asked.gpus is None and found.gpus and weights(study.plan.backbone) < SMALL:
        return replace(found, gpus=0.25)
    return found


def trials_at_once(resources: Resources) -> int:
    """Trials that the cluster as it is holds at once; 1 where it has to grow first."""
    return max(1, sum(places(node["Resources"], resources) for node in ray.nodes() if node["Alive"]))


def places(node: Mapping[str, float], resources: Resources) -> int:
    """Trials that a node of these resources holds at once."""
    fits = [int(node.get("CPU", 0) // resources.cpus)]
    if resources.gpus:
        fits.append(int(node.get("GPU", 0) / resources.gpus + 1e-9))
    return min(fits)


def check_room(resources: Resources) -> str | None:
    """Refuse a trial that no node can hold, unless the cluster may grow; then what is waited for, to be said.

    Raises:
        InputError: no node has that many CPUs or GPUs, and there will be no other nodes.
    """
    if any(places(node["Resources"], resources) for node in ray.nodes() if node["Alive"]):
        return None
    if not may_grow():
        check_resources(resources)
    return (
        f"no node can hold a trial yet: it asks for {resources.cpus} CPUs and {resources.gpus:g} GPUs, and the cluster's "
        f"nodes have: {offers()}; waiting for the cluster to grow"
    )


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


def offers() -> str:
    """What the nodes have."""
    return described(node["Resources"] for node in ray.nodes() if node["Alive"])


def described(nodes: Iterable[Mapping[str, float]]) -> str:
    """``2 CPUs, 0 GPUs; 16 CPUs, 4 GPUs``."""
    return "; ".join(f"{node.get('CPU', 0):g} CPUs, {node.get('GPU', 0):g} GPUs" for node in nodes)
