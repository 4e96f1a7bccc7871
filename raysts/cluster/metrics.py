"""Metrics of training for Ray's dashboards and Prometheus, ``ray_raysts_*``."""

import math
from functools import cache
from typing import Any

from ray.util.metrics import Counter, Gauge

TAGS = ("pipeline", "stage", "member")
RUN_GAUGES = {
    "step": "Optimiser steps so far",
    "steps": "Optimiser steps in all",
    "loss": "Mean training loss since the last line",
    "dev": "Score on the development set",
    "sentences_per_second": "Sentences that training sends through an encoder, a second",
}
MEMBER_GAUGES = {
    "waiting": "Members that wait for a slot",
    "training": "Members that train",
    "done": "Members that ended well",
    "failed": "Members that failed",
}


def show_line(pipeline: str, stage: str, member: Any, line: dict[str, Any], sentences: int) -> None:
    """Show a metrics line of a training run, an example of which is so many sentences."""
    line = {**line, "sentences_per_second": sentences * line.get("examples_per_second", math.nan)}
    tags = {"pipeline": pipeline, "stage": stage, "member": str(member)}
    for name, description in RUN_GAUGES.items():
        value = line.get(name)
        if value is not None and math.isfinite(value):
            _metric(Gauge, f"raysts_{name}", description, TAGS).set(value, tags)


def show_members(pipeline: str, stage: str, counts: dict[str, int], deaths: int) -> None:
    """Show the state of a pipeline's members, and how many workers have died since the last call."""
    tags = {"pipeline": pipeline, "stage": stage}
    for name, description in MEMBER_GAUGES.items():
        _metric(Gauge, f"raysts_members_{name}", description, TAGS[:2]).set(counts[name], tags)
    if deaths:
        _metric(Counter, "raysts_restarts", "Workers that died and were replaced", TAGS[:2]).inc(deaths, tags)


@cache
def _metric(kind: Any, name: str, description: str, tags: tuple[str, ...]) -> Any:
    return kind(name, description, tags)
