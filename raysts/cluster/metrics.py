"""Metrics of training for Ray's dashboards and Prometheus, ``ray_raysts_*``."""

import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from ray.util.metrics import Gauge

SHOWN = ("step", "steps", "loss", "dev", "sentences_per_second")


def show_line(pipeline: str, stage: str, member: Any, line: Mapping[str, Any], sentences: int) -> None:
    """Show a metrics line of a training run. ``sentences``: texts of an example."""
    line = {**line, "sentences_per_second": sentences * line.get("examples_per_second", math.nan)}
    values = {name: line[name] for name in SHOWN if line.get(name) is not None and math.isfinite(line[name])}
    _show(values, {"pipeline": pipeline, "stage": stage, "member": str(member)})


def show_members(
    facts: Mapping[str, Any], waiting: int, training: int, reasons: Sequence[str | None], restarts: int
) -> None:
    """Show how the members of a pipeline stand. Each that has ended has a reason to fail, or None."""
    done = reasons.count(None)
    counts = {"waiting": waiting, "training": training, "done": done, "failed": len(reasons) - done}
    values = {f"members_{name}": count for name, count in counts.items()} | {"restarts": restarts}
    _show(values, {"pipeline": facts["system"], "stage": facts["stage"]})


def _show(values: Mapping[str, float], tags: dict[str, str]) -> None:
    for name, value in values.items():
        _gauge(name, tuple(tags)).set(value, tags)


@cache
def _gauge(name: str, tags: tuple[str, ...]) -> Gauge:
    return Gauge(f"raysts_{name}", tag_keys=tags)
