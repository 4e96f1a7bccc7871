"""The report of a plan, read back from the storage."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from raysts.data.shards import skipped_line
from raysts.evaluation.results import git_commit
from raysts.pipeline import overlap
from raysts.pipeline.plan import TINY, Plan, stored_rows
from raysts.recipes.overrides import dump
from raysts.report.run.data import ReportData
from raysts.report.run.page import write_report
from raysts.storage.store import location
from raysts.training.record import read_metrics


def write(plan: Plan, name: str, command: str, seconds: dict[str, float]) -> Path:
    """Write the report of a plan from what the storage holds; its path."""
    return write_report(report_data(plan, name, command, seconds, stored_rows(plan)), plan.storage / "reports" / name)


def report_data(
    plan: Plan, name: str, command: str, seconds: dict[str, float], rows: list[dict[str, Any]]
) -> ReportData:
    """Everything the report shows, read back from the storage."""
    runs, nodes = [], []
    for node in plan.nodes:
        record = node.record if node.kind == "train" else {}
        took = (record.get("timings") or {}).get("train_seconds") if node.kind == "train" else seconds.get(node.id)
        nodes.append(
            {
                "id": node.id,
                "kind": node.kind,
                "title": node.title,
                "needs": list(node.needs),
                "status": node.status,
                "seconds": took,
                "detail": f"{node.sentences:,} sentences",
            }
        )
        if node.kind == "train" and record:
            runs.append(
                {
                    "run_id": node.id,
                    "stage": record.get("stage"),
                    "role": record.get("role"),
                    "member": node.job.facts["member"] if node.job else record.get("member"),
                    "record": record,
                    "metrics": read_metrics(node.marker.parent / "metrics.jsonl"),
                }
            )
    notes = []
    if plan.pipeline.backbone == TINY:
        notes.append(
            "The backbone is a small randomly initialised BERT for the embedded world; its scores say nothing about real text."
        )
    for gone in plan.left_out:
        notes.append(
            f"Member {gone['member']} failed and is left out: ensemble and student are made of the "
            f"{len(plan.members)} of {plan.pipeline.members} members that finished. Its reason: {gone['reason']}"
        )
    if choice := plan.outcome.choice:
        notes.append(choice)
    notes += [f"Training data is not whole; {skipped_line(each)}" for each in plan.skipped]
    chosen_by_labels = [stage for stage, recipe in plan.pipeline.recipes.items() if recipe.by_dev]
    if chosen_by_labels:
        notes.append(f"Labels of STS-B dev chose the kept checkpoint in: {', '.join(chosen_by_labels)}.")
    for stage, recipe in plan.pipeline.recipes.items():
        rows_there = plan.rows(recipe)
        if recipe.data.sample and rows_there < recipe.data.sample:
            notes.append(
                f"{stage}: the table has {rows_there:,} rows, fewer than the {recipe.data.sample:,} asked for; all were used."
            )
    if any(node.status == "done" for node in plan.evaluations):
        notes += overlap.searched(plan).lines(plan.pipeline.name)
    first = next((node.record for node in plan.nodes if node.kind == "train" and node.record), {})
    environment = {
        **{f"{package}": version for package, version in (first.get("versions") or {}).items()},
        "device": first.get("device", ""),
        "host": os.uname().nodename,
        "data": plan.corpus.where,
        "storage": location(plan.storage),
        "git commit": git_commit() or "",
    }
    return ReportData(
        name=name,
        command=command,
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        recipe_yaml=dump(plan.pipeline),
        nodes=nodes,
        runs=runs,
        rows=rows,
        compare_layers=plan.pipeline.evaluation.compare,
        environment={key: value for key, value in environment.items() if value},
        notes=notes,
    )
