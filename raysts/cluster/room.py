"""What a trial asks of the cluster."""

from __future__ import annotations

from dataclasses import replace

from raysts.cluster.executor import settled
from raysts.recipes.recipe import Resources
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
