"""Differences between releases of Ray, and its private parts in use, each with a fallback."""

import dataclasses
import json

import ray
from ray.train import ScalingConfig

from raysts.recipes.recipe import Resources

FEATURES = {"label_selector": "label_selector", "min_workers": "elastic_resize_monitor_interval_s"}
"""By resource the field of ``ScalingConfig`` that it needs. Ray 2.55 was seen to have both."""


def scales_with(field: str) -> bool:
    """Return True if this Ray's ``ScalingConfig`` has the field."""
    return field in {item.name for item in dataclasses.fields(ScalingConfig)}


def lacks(resources: Resources) -> list[str]:
    """Return what the resources ask for and this Ray cannot do, one message each."""
    remedy = "Ray 2.55 does; install that Ray on all nodes, or do without the option"
    missing = [option for option, field in FEATURES.items() if getattr(resources, option) and not scales_with(field)]
    return [f"resources.{option}: Ray {ray.__version__} does not have it, {remedy}" for option in missing]


def has_autoscaler() -> bool:
    """Return False if all types of nodes are named after nodes, as without an autoscaler."""
    try:
        status = ray.experimental.internal_kv._internal_kv_get(b"__autoscaling_status")
        types = json.loads(status)["autoscaler_report"]["node_type_mapping"]
    except Exception:
        return True  # what nobody knows may be
    return not types or any(kind != f"node_{node}" for node, kind in types.items())
