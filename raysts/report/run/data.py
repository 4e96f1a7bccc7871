"""What the report of a run shows, read from the storage."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from raysts.evaluation.compare import Difference
from raysts.evaluation.results import ResultRow, git_commit, read_rows
from raysts.evaluation.run_metric import RunMetric
from raysts.evaluation.standings import named_teachers
from raysts.models.layers import Layers
from raysts.pipeline.outcome import Option, outcome_of
from raysts.pipeline.step import Step
from raysts.pipeline.verdict import Delivered
from raysts.recipes.overrides import dump
from raysts.recipes.recipe import Pipeline
from raysts.recipes.tree import built
from raysts.storage.store import Store, at_once
from raysts.training.metrics import read_metrics


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
        delivered: the delivered model and its comparison, in words; None before the run is done.
        model: folder of the delivered model, empty without one.
        candidates: the variants among which it was selected, if the best is delivered.
        dev: by stage the score of the training curves, and the rows of its development set.
        against: by role and set, how far what comes out is above the others (:func:`raysts.pipeline.verdict.Verdict`).
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
    model: str = ""
    candidates: Sequence[Option] = ()
    dev: Mapping[str, tuple[RunMetric, int]] = field(default_factory=dict)
    against: Mapping[str, Mapping[str, Difference]] = field(default_factory=dict)
    teachers: Mapping[str, str] = field(default_factory=dict)


def report_data(store: Store, record: Mapping[str, Any]) -> ReportData:
    """Return everything the report of a run shows, by its record (``pipelines/<name>.json``) and its storage."""
    steps = [Step.from_record(recorded, store.root) for recorded in record["steps"]]
    states = at_once(lambda step: step.state(store), steps)
    members = {recorded["id"]: recorded["member"] for recorded in record["steps"] if "member" in recorded}
    trained = [step for step in steps if step.id in members]
    records = dict(zip([step.id for step in trained], at_once(lambda step: step.record, trained), strict=True))
    seconds = {id_: (run.get("timings") or {}).get("train_seconds") for id_, run in records.items()}
    seconds = {**record["seconds"], **seconds}
    parts = [step.output for step in steps if step.kind == "scores"]
    pipeline = built(Pipeline, record["pipeline"])
    pooling, layers = record["distributed"]
    delivered = record.get("delivered")
    against = {
        role: {s: Difference(*gap) for s, gap in sets.items()} for role, sets in record.get("against", {}).items()
    }
    return ReportData(
        name=record["name"],
        command=record["command"],
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        recipe_yaml=dump(pipeline),
        nodes=[
            NodeSummary(
                id=step.id,
                kind=step.kind,
                title=step.title,
                status=state,
                seconds=seconds.get(step.id),
                detail=f"{step.sentences:,} sentences",
            )
            for step, state in zip(steps, states, strict=True)
        ],
        runs=[_run(step, records[step.id], members[step.id]) for step in trained if records[step.id]],
        rows=named_teachers([row for part in parts for row in read_rows(part)], record["teachers"]),
        teachers=record["teachers"],
        compare_layers=pipeline.compared,
        distributed=(pooling, layers),
        environment=environment(next(filter(None, records.values()), {}), data=record["sources"], storage=store.uri),
        notes=record.get("notes", ()),
        delivered=Delivered(**delivered).sentence if delivered else None,
        model=str(store.path(record["model"])) if record["model"] else "",
        candidates=outcome_of(record).candidates,
        dev={
            stage: (RunMetric(dev["metric"], dev["table"], selecting=True), dev["rows"])
            for stage, dev in record.get("dev", {}).items()
        },
        against=against,
    )


def environment(record: Mapping[str, Any], **more: str) -> dict[str, str]:
    """What a reader needs to judge times and numbers: of the first run's record and this machine, and ``more``."""
    where = {"device": record.get("device", ""), "host": os.uname().nodename, **more, "git commit": git_commit()}
    return {key: value for key, value in {**(record.get("versions") or {}), **where}.items() if value}


def _run(step: Step, record: Mapping[str, Any], member: int | None) -> RunSummary:
    store = Store.of(step.output)
    metrics = store.get(step.output.parent / "metrics.jsonl")
    return RunSummary(
        id=step.id,
        stage=record.get("stage", ""),
        role=record.get("role", ""),
        # A student that is one of several here may have been trained as the only one.
        member=member,
        record=record,
        metrics=read_metrics(metrics) if metrics else [],
    )


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
