"""A run as its report sees it, made up: results rows, training runs, nodes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from raysts.recipes import names
from raysts.recipes.tree import to_plain
from raysts.report.run import ReportData, RunSummary
from raysts.schema import RESULTS

DATASETS = ("sts12", "stsb", "sickr")


def score_rows(
    role: str, member: int | None = None, base: float = 0.6, datasets: tuple[str, ...] = DATASETS
) -> list[dict[str, Any]]:
    rng = np.random.default_rng([7, len(role), 0 if member is None else member + 1])
    rows = []
    for layers in ("1", "2"):
        for metric in ("spearman", "pearson"):
            for aggregation in ("all", "mean"):
                for dataset in datasets:
                    value = base + float(rng.normal(0, 0.01))
                    rows.append(
                        dict.fromkeys(RESULTS.names)
                        | {
                            "schema_version": 1, "run_id": f"{role}-{member}", "system": "nli-ct-sed", "role": role,
                            "member": member, "seed": member, "dataset": dataset, "split": "test", "rows": "all",
                            "aggregation": aggregation, "pooling": "mean", "layers": layers, "similarity": "cosine",
                            "metric": metric, "value": value, "ci_low": value - 0.02, "ci_high": value + 0.02,
                            "n": 1379, "created_at": "2026-01-01T00:00:00+00:00",
                        }
                    )  # fmt: skip
    return rows


def run(stage: str, role: str, member: int | None, **record: Any) -> RunSummary:
    rng = np.random.default_rng([3, len(stage), 0 if member is None else member + 1])
    metrics = []
    for step in range(10, 201, 10):
        line = {
            "step": step, "steps": 200, "epoch": step / 200, "loss": float(2 / step + 1 + rng.normal(0, 0.02)),
            "lr": 1e-5, "examples_per_second": 100.0, "seconds": step / 10,
        }  # fmt: skip
        metrics.append(line | ({"dev": 0.6 + step / 2000 + 0.001 * (member or 0)} if step % 50 == 0 else {}))
    return RunSummary(
        id=f"{stage}{member}".encode().hex()[:16].ljust(16, "0"), stage=stage, role=role, member=member,
        record={
            "run_id": f"{stage}{member}", "status": "done", "seed": 1, "stage": stage, "member": member,
            "layout": {"world_size": 1, "threads": 2, "precision": "bf16"}, "device": "AMD EPYC", "where": "node-1",
            "timings": {"startup_seconds": 1.5, "train_seconds": 70.25, "last_start_seconds": 71.0}, "steps": 200,
            "kept": {"step": 200, "candidate": "encoder"}, "dev": {"kept": 0.7, "best": 0.7, "best_step": 200},
        } | record,
        metrics=metrics,
    )  # fmt: skip


def node(node_id: str, kind: str, title: str) -> dict[str, Any]:
    done = {"status": "done", "seconds": 5.0, "seconds_expected": None, "sentences": 1_000}
    return {"id": node_id, "kind": kind, "title": title, **done}


def recorded(data: ReportData, **fields: Any) -> ReportData:
    """The report of a run with other fields of its record."""
    return replace(data, record={**data.record, **fields})


def report_data(members: int = 4, stages: tuple[str, ...] = ("nli", "ct")) -> ReportData:
    runs, nodes = [], [node(f"tokens-{stage}", "tokens", f"tokenise {stage}") for stage in (*stages, "sed")]
    for member in range(members):
        for stage in stages:
            runs.append(run(stage, "member", member))
            nodes.append(node(runs[-1].id, "train", f"member {member}: {stage}"))
    runs.append(run("sed", "student", None))
    nodes.append(node("teacher", "teacher", f"mean embeddings of {members} members"))
    nodes.append(node(runs[-1].id, "train", "sed"))
    nodes.append(node("evaluate-backbone", "evaluate", "evaluate backbone"))
    nodes.append(node("evaluate-members", "evaluate", "evaluate members"))
    nodes.append(node("evaluate-student", "evaluate", "evaluate student"))
    rows = score_rows("backbone", base=0.3)
    for member in range(members):
        rows += score_rows("member", member, base=0.69)
    rows += score_rows("ensemble", base=0.72) + score_rows("student", base=0.71)
    record = {
        "name": "quickstart", "status": "done", "command": "raysts run quickstart", "teachers": {}, "distributed": ["mean", 1],
        "pipeline": to_plain(names.pipeline("quickstart")), "notes": ["labels of STS-B dev chose the checkpoints"],
        "members": [],
    }  # fmt: skip
    environment = {"torch": "2.13", "host": "node-1"}
    return ReportData(record=record, nodes=nodes, runs=runs, rows=rows, environment=environment)


def exact(role: str, value: float, member: int | None = None) -> list[dict[str, Any]]:
    given = {"value": value, "ci_low": None, "ci_high": None}
    return [row | given for row in score_rows(role, member, datasets=("stsb",))]
