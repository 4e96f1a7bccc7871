"""What the report of a run shows, read from the storage."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from raysts.evaluation.compare import Difference
from raysts.evaluation.results import ResultRow, git_commit
from raysts.evaluation.run_metric import RunMetric
from raysts.evaluation.standings import AGREEMENT, named_teachers
from raysts.models.layers import Layers
from raysts.pipeline.deliver import against, cautions, delivered
from raysts.pipeline.inputs import TINY
from raysts.pipeline.outcome import Option
from raysts.pipeline.plan import Plan
from raysts.pipeline.step import Step
from raysts.recipes.overrides import dump
from raysts.storage.store import Store, at_once
from raysts.training.metrics import read_metrics

ABOUT_TINY = (
    "The backbone is a small randomly initialised BERT for the embedded world; its scores say nothing about real text."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSummary:
    """One node of the pipeline as it ran. ``seconds``: of work; None where it has not run."""

    id: str
    kind: str
    title: str
    status: str
    seconds: float | None
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """One training run. ``member``: number; None for the only student. ``record``: its ``run.json``, perhaps partial; a failed
    one has ``reason``."""

    id: str
    stage: str
    role: str
    member: int | None
    record: Mapping[str, Any]
    metrics: Sequence[Mapping[str, Any]]

    @property
    def name(self) -> str:
        return self.role if self.member is None else f"{self.role} {self.member}"

    @property
    def failed(self) -> bool:
        return self.record.get("status") == "failed"

    @property
    def steps(self) -> int | None:
        return self.record.get("steps") or (self.metrics[-1]["step"] if self.metrics else None)


@dataclass(frozen=True, kw_only=True)
class ReportData:
    """Everything the report of one pipeline shows.

    Attributes:
        teachers: names of the models that were there before, by the run id in their rows.
        compare_layers: number of pooled last layers at which systems are compared.
        distributed: pooling and layers of the backbone as it was distributed.
        environment: what a reader needs to judge times and numbers (versions, machine, commit).
        delivered: what is handed over and how it compares with the input, in a sentence; None before the run is done.
        candidates: what that was chosen among, where the best is handed over.
        dev: by stage the score of the training curves, and the rows of its development set.
        against: by role and set, how far what comes out is above the others (:func:`raysts.pipeline.deliver.against`).
    """

    name: str
    command: str
    created_at: str
    recipe_yaml: str
    nodes: Sequence[NodeSummary]
    runs: Sequence[RunSummary]
    rows: Sequence[ResultRow]
    compare_layers: Layers
    distributed: tuple[str, Layers]
    environment: Mapping[str, str]
    notes: Sequence[str]
    delivered: str | None = None
    candidates: Sequence[Option] = ()
    dev: Mapping[str, tuple[RunMetric, int]] = field(default_factory=dict)
    against: Mapping[str, Mapping[str, Difference]] = field(default_factory=dict)
    teachers: Mapping[str, str] = field(default_factory=dict)


def report_data(plan: Plan, name: str, command: str, seconds: Mapping[str, float]) -> ReportData:
    """Everything the report of a plan shows. ``seconds``: by node, of those that do not train."""
    nodes = [step for step in plan.steps if step.job]
    records = dict(zip([node.id for node in nodes], at_once(lambda node: node.record, nodes), strict=True))
    took = {id_: (record.get("timings") or {}).get("train_seconds") for id_, record in records.items()}
    statuses, outcome = plan.states(), plan.outcome
    complete = all(statuses[node.step.id] == "done" for node in plan.evaluations)
    known = delivered(plan, outcome) if complete else None
    return ReportData(
        name=name,
        command=command,
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        recipe_yaml=dump(plan.pipeline),
        nodes=[
            NodeSummary(
                id=node.id,
                kind=node.kind,
                title=node.title,
                status=statuses[node.id],
                seconds={**seconds, **took}.get(node.id),
                detail=f"{node.sentences:,} sentences",
            )
            for node in plan.steps
        ],
        runs=[_run(node, records[node.id]) for node in nodes if records[node.id]],
        rows=named_teachers(plan.rows_on_record(), plan.teacher_names),
        teachers=plan.teacher_names,
        compare_layers=plan.pipeline.compared,
        distributed=plan.distributed,
        environment=environment(
            next(filter(None, records.values()), {}), data=plan.corpus.described, storage=Store.of(plan.storage).uri
        ),
        notes=_notes(plan, any(statuses[node.step.id] == "done" for node in plan.evaluations)),
        delivered=known.sentence if known else None,
        candidates=outcome.candidates,
        dev=_dev_sets(plan),
        against=against(plan, outcome) if complete else {},
    )


def environment(record: Mapping[str, Any], **more: str) -> dict[str, str]:
    """What a reader needs to judge times and numbers: of the first run's record and this machine, and ``more``."""
    where = {"device": record.get("device", ""), "host": os.uname().nodename, **more, "git commit": git_commit()}
    return {key: value for key, value in {**(record.get("versions") or {}), **where}.items() if value}


def _run(node: Step, record: dict[str, Any]) -> RunSummary:
    folder = node.training.folder
    metrics = Store.of(folder).get(folder / "metrics.jsonl")
    return RunSummary(
        id=node.id,
        stage=record.get("stage", ""),
        role=record.get("role", ""),
        # A student that is one of several here may have been trained as the only one.
        member=node.training.facts["member"],
        record=record,
        metrics=read_metrics(metrics) if metrics else [],
    )


def _dev_sets(plan: Plan) -> dict[str, tuple[RunMetric, int]]:
    tables = {stage: recipe.spec.dev for stage, recipe in plan.pipeline.recipes.items()}
    return {
        stage: (RunMetric(dev.metrics[0], table, selecting=True), dev.size)
        for stage, table in tables.items()
        if (dev := plan.dev(table)) is not None
    }


def _notes(plan: Plan, evaluated: bool) -> list[str]:
    notes = []
    if plan.pipeline.backbone == TINY:
        notes.append(ABOUT_TINY)
    for member in plan.left_out:
        notes.append(
            f"Member {member['member']} failed and is left out: ensemble and student are made of the "
            f"{len(plan.members)} of {plan.pipeline.members} members that finished. Its reason: {member['reason']}"
        )
    notes += plan.text_notes()
    notes += [f"Training data is not whole; {line}" for line in plan.skipped_lines]
    by_labels = [stage for stage, recipe in plan.pipeline.recipes.items() if recipe.by_dev]
    if by_labels:
        names = dict.fromkeys(plan.dev_name(plan.pipeline.recipes[stage].spec.dev) for stage in by_labels)
        said = (
            f"Labels of {' and '.join(names)}"
            if AGREEMENT not in names
            else "Agreement with the ensemble, without labels,"
        )
        notes.append(f"{said} chose the kept checkpoint in: {', '.join(by_labels)}.")
    if choice := plan.outcome.choice:
        notes.append(choice)
    for stage, recipe in plan.pipeline.recipes.items():
        rows, asked = plan.rows(recipe), recipe.data.sample
        if asked and rows < asked:
            notes.append(f"{stage}: the table has {rows:,} rows, fewer than the {asked:,} asked for; all were used.")
    notes += [*cautions(plan), *plan.cut()]
    if evaluated:
        notes += plan.contamination().lines(plan.pipeline.name)
    return notes


def throughput(metrics: Sequence[Mapping[str, Any]]) -> float | None:
    """Examples per second over all logged steps (time adds up, rates do not); None when nothing was logged."""
    steps = seconds = 0.0
    before = 0
    for line in metrics:
        rate = line.get("examples_per_second")
        if rate is not None and rate > 0:
            steps += line["step"] - before
            seconds += (line["step"] - before) / rate
        before = line["step"]
    return steps / seconds if seconds else None
