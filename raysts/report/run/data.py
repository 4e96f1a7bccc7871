"""What a report is made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from raysts.models.layers import Layers

Row = dict[str, Any]
"""One row of the results table (``raysts.schema.RESULTS``)."""

Node = dict[str, Any]
"""One node of the pipeline as it ran: ``id``, ``kind`` (tokens | train | teacher | evaluate), ``title``, ``needs``
(ids), ``status`` (done | failed | waiting), ``seconds`` (None where it has not run), ``detail``."""

Run = dict[str, Any]
"""One training run: ``run_id``, ``stage``, ``role`` (member | student), ``member`` (None for a student), ``record``
(its ``run.json``, perhaps partial; a failed one has ``reason``), ``metrics`` (the lines of its ``metrics.jsonl``)."""


@dataclass(frozen=True)
class ReportData:
    """Everything the report of one pipeline shows.

    Attributes:
        name: name of the pipeline as it was run.
        command: the exact command.
        created_at: ISO time.
        recipe_yaml: the resolved recipe.
        nodes: the pipeline as it ran.
        runs: training runs of members and student.
        rows: results rows of backbone, members, ensemble, student and baselines.
        compare_layers: number of pooled last layers at which systems are compared.
        environment: what a reader needs to judge times and numbers (versions, machine, commit).
        notes: what the reader must know.
    """

    name: str
    command: str
    created_at: str
    recipe_yaml: str
    nodes: list[Node]
    runs: list[Run]
    rows: list[Row]
    compare_layers: Layers
    environment: dict[str, str]
    notes: list[str]


def run_name(run: Run) -> str:
    """``member 3``, ``student``."""
    return run["role"] if run["member"] is None else f"{run['role']} {run['member']}"


def failed(run: Run) -> bool:
    """Whether the run ended badly."""
    return run["record"].get("status") == "failed"
