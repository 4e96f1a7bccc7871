"""What a trial asks of the cluster, and how many it holds at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import ray

from raysts.cluster.run import settled
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
