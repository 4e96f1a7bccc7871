"""What Ray's dashboards, and Prometheus behind them, show of training: ``ray_raysts_*`` at every node's metrics port."""

import math
from functools import cache
from typing import Any

from ray.util.metrics import Counter, Gauge

TAGS = ("pipeline", "stage", "member")

OF_RUNS = {
    "step": "Optimiser steps so far",
    "steps": "Optimiser steps in all",
    "loss": "Mean training loss since the last line",
    "dev": "Score on the development set",
    "sentences_per_second": "Sentences that training sends through an encoder, a second",
}
"""Gauges of a training run, each named ``raysts_<name>``."""

OF_MEMBERS = {
    "waiting": "Members that wait for a slot",
    "training": "Members that train",
    "done": "Members that ended well",
    "failed": "Members that failed",
}
"""Gauges of a pipeline, each named ``raysts_members_<name>``."""


def show_line(pipeline: str, stage: str, member: Any, line: dict[str, Any], sentences: int) -> None:
    """A metrics line of a training run; ``sentences`` of an example."""
    found = {
        name: line.get(name) for name in ("step", "steps", "loss", "dev")
    } | {"sentences_per_second": sentences * line.get("examples_per_second", math.nan)}  # fmt: skip
    tags = {"pipeline": pipeline, "stage": stage, "member": str(member)}
    for name, value in found.items():
        if value is not None and math.isfinite(value):
            _gauge(f"raysts_{name}", OF_RUNS[name], TAGS).set(value, tags)


def show_members(pipeline: str, stage: str, counts: dict[str, int], deaths: int) -> None:
    """How the members of a pipeline stand, and how many workers have died since the last call."""
    tags = {"pipeline": pipeline, "stage": stage}
    for name, description in OF_MEMBERS.items():
        _gauge(f"raysts_members_{name}", description, TAGS[:2]).set(counts[name], tags)
    if deaths:
        _restarts().inc(deaths, tags)


@cache
def _gauge(name: str, description: str, tags: tuple[str, ...]) -> Gauge:
    return Gauge(name, description, tags)


@cache
def _restarts() -> Counter:
    return Counter("raysts_restarts", "Workers that died and were replaced", TAGS[:2])
