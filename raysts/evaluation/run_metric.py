"""Metrics that compare training runs: a score on the development set, or the training loss."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from raysts.evaluation.dev import DEVS
from raysts.evaluation.statistics import METRICS

LOSS = "loss"
"""Name of the training loss, smaller is better: the mean over the steps since the metrics line before the last one."""

Mode = Literal["max", "min"]


def list_metrics(table: str) -> tuple[str, ...]:
    """Return the metrics of a run with development set ``table``. The first selects checkpoints."""
    return (*DEVS[table], LOSS)


@dataclass(frozen=True, slots=True)
class RunMetric:
    """Metric of training runs: its place in a run, its direction, and its form for people.

    Attributes:
        name: one of ``list_metrics(table)``.
        selecting: whether it selects checkpoints if a set of the user has other scores than ``table``.
    """

    name: str
    table: str
    selecting: bool = False

    @property
    def mode(self) -> Mode:
        return "min" if self.name == LOSS else "max"

    @property
    def key(self) -> str:
        """Its key in a line of ``metrics.jsonl``. ``dev`` is the score that selects checkpoints."""
        if self.name == LOSS:
            return LOSS
        return "dev" if self.selecting or self.name == DEVS[self.table][0] else f"dev_{self.name}"

    @property
    def factor(self) -> int:
        return 1 if self.name == LOSS else 100

    @property
    def label(self) -> str:
        return self.key.replace("_", " ")

    @property
    def title(self) -> str:
        """Its name in a report: ``Dev spearman × 100``."""
        return "Training loss" if self.name == LOSS else f"Dev {self.name} × 100"

    @property
    def description(self) -> str:
        return "training loss at the end" if self.name == LOSS else f"{self.name} of the kept model on {self.table}"

    def value_of_line(self, line: Mapping[str, Any]) -> float | None:
        """Return its value in a metrics line of an evaluation, or None."""
        return line.get(self.key) if self.name != LOSS or "dev" in line else None

    def value_of_run(self, run: Mapping[str, Any], lines: Sequence[Mapping[str, Any]]) -> float | None:
        """Return its value in the record of a finished run, or in its metrics lines, or None."""
        if self.name == LOSS:
            return lines[-1][LOSS] if lines else None
        dev = run.get("dev") or {}
        return dev.get("kept") if self.key == "dev" else (dev.get("scores") or {}).get(self.name)

    def interval(self, value: float, rows: int) -> tuple[float, float]:
        """Return the approximate 95 % interval of one score by the rows of the development set.

        Of a correlation it is by Fisher's z (Bonett & Wright 2000), of an area as of a share. A loss has none.
        """
        if self.name == LOSS or rows < 4 or not -1 < value < 1:
            return value, value
        if self.name in METRICS:
            half = 1.96 * math.sqrt((1 + value**2 / 2) / (rows - 3))
            return math.tanh(math.atanh(value) - half), math.tanh(math.atanh(value) + half)
        half = 1.96 * math.sqrt(max(0.0, value * (1 - value)) / rows)
        return value - half, value + half

    def text(self, value: float | None) -> str:
        """Return ``82.41`` of a score, ``0.0312`` of a loss, a dash for None."""
        if value is None:
            return "-"
        return f"{value:.4g}" if self.name == LOSS else f"{100 * value:.2f}"


def rank(value: float | None, mode: Mode) -> float:
    """Return a number by which a larger value is better, and None the worst."""
    if value is None:
        return float("-inf")
    return value if mode == "max" else -value
