"""What differs between releases of Ray, and the only private parts of Ray in use, each with what happens without it."""

import dataclasses
import json
from functools import cache

import ray
from ray.train import ScalingConfig

from raysts.recipes.recipe import Resources

HAS_SELECTORS = "2.55"
"""The release of Ray that was seen to have both: workers of Ray Train chosen by labels, and runs of variable size."""


@cache
def scales_with(field: str) -> bool:
    """Return True if this Ray's ``ScalingConfig`` has the field."""
    return field in {item.name for item in dataclasses.fields(ScalingConfig)}


def lacks(resources: Resources) -> list[str]:
    """Return what the resources ask for and this Ray cannot do, one message each."""
    features = {
        "label_selector": (bool(resources.label_selector), "label_selector"),
        "min_workers": (resources.min_workers is not None, "elastic_resize_monitor_interval_s"),
    }
    return [
        f"resources.{option}: Ray {ray.__version__} does not have it, Ray {HAS_SELECTORS} does; install that Ray on all "
        f"nodes, or do without the option"
        for option, (is_used, field) in features.items()
        if is_used and not scales_with(field)
    ]


def is_drained() -> bool:
    """Return True if this node is about to be taken away; without Ray's answer, False: a checkpoint is seconds old at most.

    Public is ``ray.train.get_preemption_info``, which makes all workers of a run meet.
    """
    try:
        draining = ray._private.state.state.get_draining_nodes()
    except Exception:
        return False
    return ray.get_runtime_context().get_node_id() in draining


def has_autoscaler() -> bool | None:
    """Return whether an autoscaler looks after the cluster; None where nobody can tell.

    The monitor of a head without one names the type of each node after the node itself.
    """
    try:
        status = ray.experimental.internal_kv._internal_kv_get(b"__autoscaling_status")
        types = json.loads(status)["autoscaler_report"]["node_type_mapping"]
    except Exception:
        return None
    return any(kind != f"node_{node}" for node, kind in types.items()) if types else None
