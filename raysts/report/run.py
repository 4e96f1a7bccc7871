"""The report of a run: its content from the storage, and its page."""

import math
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from markupsafe import Markup

from raysts.evaluation.compare import Difference
from raysts.evaluation.cost import cost_rows
from raysts.evaluation.dev import RunMetric
from raysts.evaluation.results import ResultRow, git_commit, read_rows
from raysts.evaluation.standings import (
    AVERAGE,
    TEACHER,
    Standings,
    Value,
    describe_pooled,
    kind_of,
    main_standings,
    named_teachers,
    standings,
    views,
)
from raysts.log import duration
from raysts.pipeline.outcome import best, outcome_of
from raysts.pipeline.step import Step
from raysts.pipeline.verdict import Delivered
from raysts.recipes.overrides import dump
from raysts.recipes.recipe import ROLE_NAMES, Pipeline
from raysts.recipes.tree import build
from raysts.report import html
from raysts.report.charts import Dot, X, Y, draw_line, figure, fit_scale, frame, place_labels, plot, tag
from raysts.report.dots import dot_plot
from raysts.report.map import TextMap, write_map
from raysts.report.scores import caption, headline, label, metric_of
from raysts.storage.runs import State
from raysts.storage.store import Store, run_parallel
from raysts.training.trackers import write_scalars


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """Training run. ``member``: None of the only student. ``record``: ``run.json``, which may be partial."""

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
    def is_failed(self) -> bool:
        return self.record.get("status") == "failed"

    @property
    def steps(self) -> int | None:
        return self.record.get("steps") or (self.metrics[-1]["step"] if self.metrics else None)


@dataclass(frozen=True, kw_only=True)
class ReportData:
    """The record of a run, and what the report of it reads from the storage.

    Attributes:
        record: ``pipelines/<name>.json``.
        nodes: its steps: id, kind, title, status, sentences, seconds (of work, None before it has run), seconds_expected.
        rows: results, in which a teacher with a name has its own role (:func:`named_teachers`).
        environment: facts for the reader of times and numbers (versions, machine, commit).
        model: folder of the delivered model, empty without one.
        map: test texts as ensemble and student place them.
    """

    record: Mapping[str, Any]
    nodes: Sequence[Mapping[str, Any]]
    runs: Sequence[RunSummary]
    rows: Sequence[ResultRow]
    environment: Mapping[str, str]
    model: str = ""
    map: TextMap | None = None


def report_data(store: Store, record: Mapping[str, Any]) -> ReportData:
    """Return everything the report of a run shows, from its record and its storage."""
    steps = [Step.from_record(recorded, store.root) for recorded in record["steps"]]
    states = run_parallel(lambda step: step.state(store), steps)
    members = {recorded["id"]: recorded["member"] for recorded in record["steps"] if "member" in recorded}
    trained = [step for step in steps if step.id in members]
    records = dict(zip([step.id for step in trained], run_parallel(lambda step: step.record, trained), strict=True))
    seconds = {id_: (run.get("timings") or {}).get("train_seconds") for id_, run in records.items()}
    seconds = {**record["seconds"], **seconds}
    rows = [row for step in steps if step.kind == "scores" for row in read_rows(step.output)]
    if record["status"] == State.RUNNING:
        begun = [number for number, state in enumerate(states) if state == State.WAITING]
        in_training = [number for number in begun if records.get(steps[number].id, {}).get("status") == State.RUNNING]
        for number in in_training or begun[:1]:  # steps are done in their order
            states[number] = State.RUNNING
    expected = record.get("expected", {})
    nodes = [
        {"id": step.id, "kind": step.kind, "title": step.title, "status": state, "sentences": step.sentences,
         "seconds": seconds.get(step.id), "seconds_expected": expected.get(step.id)}
        for step, state in zip(steps, states, strict=True)
    ]  # fmt: skip
    first, facts = next(filter(None, records.values()), {}), record.get("price", {})
    return ReportData(
        record=record,
        nodes=nodes,
        runs=[
            RunSummary(id=step.id, stage=run.get("stage", ""), role=run.get("role", ""), member=members[step.id],
                       record=run, metrics=step.metrics)
            for step in trained
            if (run := records[step.id])
        ],
        rows=named_teachers(rows, record["teachers"]),
        environment=environment(first, data=record["sources"], storage=store.uri, **facts),
        model=str(store.path(record["model"])) if record["model"] else "",
        map=TextMap.read(store, record.get("maps", {})),
    )  # fmt: skip


def environment(record: Mapping[str, Any], **facts: str) -> dict[str, str]:
    """Return facts for the reader of times and numbers: of a run's record and this machine."""
    machine = {"device": record.get("device", ""), "host": os.uname().nodename, **facts, "git commit": git_commit()}
    return {key: value for key, value in {**(record.get("versions") or {}), **machine}.items() if value}


def throughput(metrics: Sequence[Mapping[str, Any]]) -> float | None:
    """Return examples per second over all logged steps, or None without any.

    Time adds up, and rates do not.
    """
    steps = seconds = 0.0
    before = 0
    for logged in metrics:
        rate = logged.get("examples_per_second")
        if rate is not None and rate > 0:
            steps += logged["step"] - before
            seconds += (logged["step"] - before) / rate
        before = logged["step"]
    return steps / seconds if seconds else None


# -- the page ------------------------------------------------------------------------------------------------------------

_LOG_ABOVE = 40.0
"""A loss whose largest value is this many times its smallest is drawn on a log scale."""


def write_report(data: ReportData, folder: Path, refresh: int | None = None) -> Path:
    """Write the page, and the curves of its runs for TensorBoard, into ``folder``. Return the page's path.

    A browser reads the page again after ``refresh`` seconds.
    """
    store, curves = Store.of(folder), folder / "tensorboard"
    named = {f"{run.stage} {run.name} {run.id}": run for run in data.runs if run.metrics}
    for path in store.list(curves):
        if path.name not in named:  # of runs that were this page's before
            store.delete(path)
    for name, run in named.items():
        began = run.record.get("started_at")
        write_scalars(curves / name, run.metrics, datetime.fromisoformat(began).timestamp() if began else 0.0)
    if data.map:
        names = [*data.record["teachers"].values()]
        write_map(
            data.map, data.record["name"], f"the teacher {names[0]}" if len(names) == 1 else "the ensemble", folder
        )
    return html.write_page(render(data, refresh), folder)


def render(data: ReportData, refresh: int | None = None) -> str:
    """Return the page as HTML."""
    record, pipeline = data.record, build(Pipeline, data.record["pipeline"])
    compared, (pooling, layers) = pipeline.compared_layers, record["distributed"]
    main = main_standings(data.rows, compared, (pooling, layers))
    against = {
        role: {name: Difference(*gap) for name, gap in sets.items()} for role, sets in record.get("against", {}).items()
    }
    delivered, candidates = record.get("delivered"), outcome_of(record).candidates
    verdict = [[Delivered(**delivered).sentence]] if delivered else []
    delivered_role = "student" if record["teachers"] else (delivered or {}).get("what", "")
    stages = list(dict.fromkeys(run.stage for run in data.runs))
    costs = record.get("models", ())
    return html.render(
        "run.html",
        refresh=refresh,
        data=data,
        record=record,
        notes_of_run=record.get("notes", ()),
        made_at=datetime.now(UTC).isoformat(timespec="seconds"),
        recipe=dump(pipeline),
        compared=str(compared),
        headline=[*verdict, *headline(main, against)],
        delivered_role=delivered_role,
        candidates=candidates,
        chosen=best([option.score for option in candidates]) if candidates else None,
        names={run.id: run.name for run in data.runs},
        role_names=ROLE_NAMES,
        chips=_chips(data),
        costs=cost_rows(costs),
        cost_chart=cost_chart(main, costs) if main else None,
        main=main,
        others=[standings(data.rows, view) for view in views(data.rows, compared) if main is None or view != main.view],
        score_rows=score_rows,
        caption=caption,
        metric_of=metric_of,
        average=AVERAGE,
        pooled=describe_pooled,
        dot_plot=dot_plot,
        curves={
            stage: training_curves(f"curve-{number}", stage, [run for run in data.runs if run.stage == stage], record)
            for number, stage in enumerate(stages)
        },
        stage_rows=stage_rows(data.runs),
        failed=[run for run in data.runs if run.is_failed],
    )


def cost_chart(table: Standings, models: Sequence[Mapping[str, Any]]) -> Markup | None:
    """Draw the score of each system against the texts a second of its models, or nothing for one."""
    column = next((name for name in (AVERAGE, *table.columns) if name in table.columns), "")
    dots = []
    for line in table.plot_lines:
        role, name = str(line.role), str(line.role).removeprefix(TEACHER)
        speeds = [m["texts_per_second"] for m in models if (m["model"] if name != role else m["role"]) == name]
        if speeds and column in line.mean:
            text = f"{ROLE_NAMES.get(name, name)}: {line.mean[column].text}, {_mean(speeds):.0f} texts a second"
            dots.append(Dot(x=sum(speeds) / len(speeds), y=100 * line.mean[column].value, text=text))
    if len(dots) < 2:
        return None
    x = fit_scale([dot.x for dot in dots], *X, pad=0.2, log=True)
    y = fit_scale([dot.y for dot in dots], *Y, pad=0.2)
    names = place_labels([(x(dot.x), y(dot.y), dot.text.split(":")[0]) for dot in dots])
    axes = frame(x.marks(5), y.marks(5), "texts a second on this machine (log scale)")
    caption = f"{metric_of(table, column)} × 100 against speed, {column}"
    parts = [*axes, *draw_line(dots, x, y, joined=False), *names]
    return plot("cost", "Score against cost", "; ".join(dot.text for dot in dots), parts, caption)


def _chips(data: ReportData) -> list[tuple[str, str]]:
    counts = Counter(node["status"] for node in data.nodes)
    bad_runs = sum(run.is_failed for run in data.runs)
    done = "done" if counts["done"] == len(data.nodes) else ""
    chips = [("stopped", "failed")] if data.record["status"] == State.STOPPED else []
    chips += [(f"{counts['done']} of {len(data.nodes)} steps done", done)]
    chips += [(f"{counts[state]} {state}", state) for state in ("failed", "running", "waiting") if counts[state]]
    if bad_runs and not counts["failed"]:
        chips.append((f"{bad_runs} {'run' if bad_runs == 1 else 'runs'} failed", "failed"))
    seconds = [node["seconds"] for node in data.nodes if node["seconds"] is not None]
    expected = [node["seconds_expected"] or 0.0 for node in data.nodes if node["seconds"] is not None]
    compared = f", {duration(sum(expected))} expected" if any(expected) else ""
    return [*chips, (f"{duration(sum(seconds))} of work{compared}", "")] if seconds else chips


@dataclass(frozen=True, slots=True)
class ScoreRow:
    """Row of a table of scores: a value per data set of ``n`` individuals."""

    kind: str
    label: str
    note: str
    values: dict[str, Value]
    n: int = 1

    def spread(self, column: str) -> str:
        """Return the interval or deviation of a value, and its number of models if it differs."""
        value = self.values[column]
        spread = f"± {html.hundredfold(value.std)}" if value.std is not None else value.interval
        return spread + (f" (n = {value.n})" if value.n != self.n else "")


def score_rows(table: Standings) -> list[ScoreRow]:
    """Return the systems with values times 100, and below several members or students the best of them."""
    several_systems = len({standing.system for standing in table.lines if standing.role != "backbone"}) > 1
    rows: list[ScoreRow] = []
    for standing in table.lines:
        system = standing.role, standing.system
        similarities = {other.similarity for other in table.lines if (other.role, other.system) == system}
        remarks = [standing.system] if several_systems else []
        remarks += [f"similarity {standing.similarity}"] if len(similarities) > 1 else []
        name = label(standing)
        name = name[0].upper() + name[1:] + (", mean ± std" if standing.n > 1 else "")
        note = "; ".join(filter(None, [*remarks, *standing.remarks]))
        rows.append(ScoreRow(kind_of(standing.role), name, note, standing.mean, standing.n))
        if standing.role in ("member", "student") and standing.n > 1:
            note = "chosen on this very test set, per set: an upper bound"
            rows.append(ScoreRow("best", f"Best {standing.role}", note, standing.best))
    return rows


def training_curves(name: str, stage: str, runs: Sequence[RunSummary], record: Mapping[str, Any]) -> list[Markup]:
    """Draw loss and dev score of a stage's runs by step, a line each.

    A ring marks the kept step. The axis of scores spans the 95 % interval of the highest by the rows of the development set.
    """
    charts, dev = [], record.get("dev", {}).get(stage)
    for key, quantity, factor in (("loss", "Loss", 1.0), ("dev", "Dev score × 100", 100.0)):
        lines = [_curve(run, key, factor) for run in runs]
        values = [dot.y for dots in lines for dot in dots]
        if not values:
            if key == "loss":
                charts.append(figure(quantity, tag("p", "No values were logged.", class_="empty")))
            continue
        reach: tuple[float, ...] = ()
        if key == "dev" and dev:
            metric = RunMetric(dev["metric"], dev["table"], selecting=True)
            reach = metric.interval(max(values) / factor, dev["rows"])
        log = key == "loss" and min(values) > 0 and max(values) > _LOG_ABOVE * min(values)
        x = fit_scale([0.0, *(dot.x for dots in lines for dot in dots)], *X, pad=0.0)
        y = fit_scale([*values, *(factor * end for end in reach)], *Y, log=log)
        parts, last = frame(x.marks(5, integers=True), y.marks(5), "step"), list[str]()
        for number, (run, dots) in enumerate(zip(runs, lines, strict=True)):
            if dots:
                parts.append(tag("g", tag("title", run.name), *draw_line(dots, x, y), class_=f"s{number % 10}"))
                last.append(f"{run.name} {dots[-1].y:.4g}")
        text = f"{quantity} from {min(values):.4g} to {max(values):.4g}; at the last step: {', '.join(last)}."
        caption = f"{quantity} (log scale)" if log else quantity
        charts.append(plot(f"{name}-{key}", f"{quantity} by step, {stage}", text, parts, caption))
    return charts


def _curve(run: RunSummary, key: str, factor: float) -> list[Dot]:
    """Return the finite values that a run has logged."""
    kept_step = (run.record.get("kept") or {}).get("step") if key == "dev" else None
    logged = [(line["step"], factor * line[key]) for line in run.metrics if line.get(key) is not None]
    return [
        Dot(x=x, y=y, text=f"{run.name}, step {x:g}: {y:.4g}{' (kept)' if x == kept_step else ''}", ring=x == kept_step)
        for x, y in logged
        if math.isfinite(x) and math.isfinite(y)
    ]


def stage_rows(runs: Sequence[RunSummary]) -> list[tuple[str, ...]]:
    """Return time and throughput of each stage, means over its runs, as cells of a table."""
    stages: dict[tuple[str, str], list[RunSummary]] = {}
    for run in runs:
        stages.setdefault((run.stage, run.role), []).append(run)
    return [_stage_row(stage, role, group) for (stage, role), group in stages.items()]


def _stage_row(stage: str, role: str, runs: Sequence[RunSummary]) -> tuple[str, ...]:
    records = [run.record for run in runs]
    layouts = [record.get("layout") or {} for record in records]
    timings = [record.get("timings") or {} for record in records]
    failed, done = sum(run.is_failed for run in runs), sum(record.get("status") == "done" for record in records)
    threads = [
        f"{layout['threads']}" + (f" × {layout['world_size']} workers" if layout.get("world_size", 1) > 1 else "")
        for layout in layouts
        if layout.get("threads") is not None
    ]
    return (
        stage,
        f"{done} of {len(runs)} {role}{'s' if len(runs) > 1 else ''}" + (f", {failed} failed" if failed else ""),
        html.quantity(_mean(throughput(run.metrics) for run in runs)),
        html.quantity(_mean(run.steps for run in runs)),
        duration(_mean(timing.get("train_seconds") for timing in timings)),
        duration(_mean(timing.get("startup_seconds") for timing in timings)),
        _distinct(record.get("where") for record in records),
        _distinct(record.get("device") for record in records),
        _distinct(threads),
        _distinct(layout.get("precision") for layout in layouts),
    )


def _mean(values: Iterable[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return sum(numbers) / len(numbers) if numbers else None


def _distinct(values: Iterable[object]) -> str:
    return ", ".join(dict.fromkeys(str(value) for value in values if value is not None)) or "–"
