"""Metrics of training for Ray's dashboards and Prometheus, ``ray_raysts_*``."""

import math
from collections.abc import Mapping
from functools import cache
from typing import Any

from ray.util.metrics import Gauge


def show(values: Mapping[str, float | None], **tags: Any) -> None:
    """Show the values that are finite numbers."""
    for name, value in values.items():
        if value is not None and math.isfinite(value):
            _gauge(name, *tags).set(value, {tag: str(text) for tag, text in tags.items()})


def show_line(pipeline: str, stage: str, member: Any, line: Mapping[str, Any], sentences: int) -> None:
    """Show a metrics line of a training run. ``sentences``: texts of an example."""
    values = {name: line.get(name) for name in ("step", "steps", "loss", "dev")}
    values["sentences_per_second"] = sentences * line.get("examples_per_second", math.nan)
    show(values, pipeline=pipeline, stage=stage, member=member)


@cache
def _gauge(name: str, *tags: str) -> Gauge:
    return Gauge(f"raysts_{name}", tag_keys=tags)
