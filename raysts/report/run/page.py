"""The page of a run."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from markupsafe import Markup

from raysts.evaluation.run_metric import RunMetric
from raysts.evaluation.standings import (
    AVERAGE,
    Standing,
    Standings,
    Value,
    kind_of,
    pooled,
    standings,
    views,
)
from raysts.pipeline.outcome import best
from raysts.pipeline.verdict import ROLE_NAMES
from raysts.report import html
from raysts.report.charts.axes import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, fitted, frame
from raysts.report.charts.lines import Dot, line
from raysts.report.charts.svg import drawing, figure, tag
from raysts.report.run.data import ReportData, RunSummary, throughput
from raysts.report.run.dots import dot_plot
from raysts.report.run.headline import headline
from raysts.report.run.summary import caption, label, metric_of, summary
from raysts.storage.store import Store
from raysts.training.monitor import duration
from raysts.training.tensorboard import write_scalars

_LOG_ABOVE = 40.0
"""A loss whose largest value is this many times its smallest is drawn on a log scale."""


def write_report(data: ReportData, folder: Path, refresh: int | None = None) -> Path:
    """Write the page, and the curves of its runs for TensorBoard, into ``folder``; the page's path.

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
    return html.write_page(render(data, refresh), folder)


def render(data: ReportData, refresh: int | None = None) -> str:
    """The page as HTML."""
    shown = views(data.rows, data.compare_layers)
    main = summary(data.rows, data.compare_layers, data.distributed)
    tables = [standings(data.rows, view) for view in shown if main is None or view != main.view]
    stages = list(dict.fromkeys(run.stage for run in data.runs))
    return html.render(
        "run/page.html",
        refresh=refresh,
        data=data,
        headline=[*([data.delivered] if data.delivered else []), *headline(main, data.against)],
        chosen=best([option.score for option in data.candidates]) if data.candidates else None,
        names={run.id: run.name for run in data.runs},
        role_names=ROLE_NAMES,
        chips=_chips(data),
        main=main,
        others=tables,
        score_rows=score_rows,
        caption=caption,
        metric_of=metric_of,
        average=AVERAGE,
        pooled=pooled,
        dot_plot=dot_plot,
        curves={
            stage: training_curves(
                f"curve-{number}", stage, [run for run in data.runs if run.stage == stage], data.dev.get(stage)
            )
            for number, stage in enumerate(stages)
        },
        stage_rows=stage_rows(data.runs),
        failed=[run for run in data.runs if run.failed],
    )


def _chips(data: ReportData) -> list[tuple[str, str]]:
    counts = Counter(node.status for node in data.nodes)
    bad_runs = sum(run.failed for run in data.runs)
    done = "done" if counts["done"] == len(data.nodes) else ""
    chips = [(f"{counts['done']} of {len(data.nodes)} steps done", done)]
    chips += [(f"{counts[status]} {status}", status) for status in ("failed", "waiting") if counts[status]]
    if bad_runs and not counts["failed"]:
        chips.append((f"{bad_runs} {'run' if bad_runs == 1 else 'runs'} failed", "failed"))
    seconds = [node.seconds for node in data.nodes if node.seconds is not None]
    return [*chips, (f"{duration(sum(seconds))} of work", "")] if seconds else chips


@dataclass(frozen=True, slots=True)
class ScoreRow:
    """One row of a table of scores: a value per data set of ``n`` individuals."""

    kind: str
    label: str
    note: str
    values: dict[str, Value]
    n: int = 1

    def spread(self, column: str) -> str:
        """What stands below a value: its interval or deviation, and its number of individuals where that is another."""
        value = self.values[column]
        spread = f"± {html.hundredfold(value.std)}" if value.std is not None else value.interval
        return spread + (f" (n = {value.n})" if value.n != self.n else "")


def score_rows(table: Standings) -> list[ScoreRow]:
    """Systems, values times 100; below several members or students the best of them."""
    several_systems = len({standing.system for standing in table.lines if standing.role != "backbone"}) > 1
    rows: list[ScoreRow] = []
    for standing in table.lines:
        name, remarks = label(standing), _remarks(standing, table, several_systems)
        name = name[0].upper() + name[1:] + (", mean ± std" if standing.n > 1 else "")
        rows.append(ScoreRow(kind_of(standing.role), name, remarks, standing.mean, standing.n))
        if standing.role in ("member", "student") and standing.n > 1:
            note = "chosen on this very test set, per set: an upper bound"
            rows.append(ScoreRow("best", f"Best {standing.role}", note, standing.best))
    return rows


def _remarks(standing: Standing, table: Standings, several_systems: bool) -> str:
    remarks = [standing.system or "" if several_systems else "", *standing.remarks]
    own = (standing.role, standing.system)
    if len({other.similarity for other in table.lines if (other.role, other.system) == own}) > 1:
        remarks.insert(1, f"similarity {standing.similarity}")
    return "; ".join(remark for remark in remarks if remark)


def training_curves(
    name: str, stage: str, runs: Sequence[RunSummary], dev: tuple[RunMetric, int] | None = None
) -> list[Markup]:
    """Loss and dev score of a stage's runs by step; a ring marks the step whose model was kept.

    The axis of scores spans about the 95 % interval that the rows of the development set (``dev``: score, rows) leave of
    the highest.
    """
    charts = []
    for key, quantity, factor in (("loss", "Loss", 1.0), ("dev", "Dev score × 100", 100.0)):
        lines = []
        for run in runs:
            kept = (run.record.get("kept") or {}).get("step") if key == "dev" else None
            steps = [step for step in run.metrics if step.get(key) is not None]
            lines.append([_dot(run, step["step"], factor * step[key], kept) for step in steps])
        if key == "loss" or any(lines):
            highest = max((dot.y for dots in lines for dot in dots if math.isfinite(dot.y)), default=None)
            reach = [] if key == "loss" or dev is None or highest is None else dev[0].interval(highest / factor, dev[1])
            charts.append(_curve(f"{name}-{key}", quantity, stage, runs, lines, [factor * end for end in reach]))
    return charts


def _dot(run: RunSummary, step: float, value: float, kept: float | None) -> Dot:
    said = f"{run.name}, step {step:g}: {value:.4g}{' (kept)' if step == kept else ''}"
    return Dot(x=step, y=value, text=said, ring=step == kept)


def _curve(
    name: str,
    quantity: str,
    stage: str,
    runs: Sequence[RunSummary],
    lines: Sequence[Sequence[Dot]],
    reach: Sequence[float],
) -> Markup:
    """A chart of a line per run, whose axis holds ``reach`` too; points that are not finite are left out."""
    shown = [[dot for dot in dots if math.isfinite(dot.x) and math.isfinite(dot.y)] for dots in lines]
    steps, values = [dot.x for dots in shown for dot in dots], [dot.y for dots in shown for dot in dots]
    if not values:
        return figure(quantity, tag("p", "No values were logged.", class_="empty"))
    log = quantity == "Loss" and min(values) > 0 and max(values) > _LOG_ABOVE * min(values)
    x, y = fitted([0.0, *steps], LEFT, RIGHT, pad=0.0), fitted([*values, *reach], BOTTOM, TOP, log=log)
    parts = frame(x.marks(5), y.marks(5), "step")
    last = []
    for number, (run, dots) in enumerate(zip(runs, shown, strict=True)):
        if dots:
            parts.append(tag("g", tag("title", run.name), *line(dots, x, y), class_=f"s{number % 10}"))
            last.append(f"{run.name} {dots[-1].y:.4g}")
    said = f"{quantity} from {min(values):.4g} to {max(values):.4g}; at the last step: {', '.join(last)}."
    chart = drawing(name, f"{quantity} by step, {stage}", said, parts, WIDTH, HEIGHT)
    return figure(f"{quantity} (log scale)" if log else quantity, chart)


def stage_rows(runs: Sequence[RunSummary]) -> list[tuple[str, ...]]:
    """Time and throughput of each stage, means over its runs: the cells of the table of training times."""
    stages: dict[tuple[str, str], list[RunSummary]] = {}
    for run in runs:
        stages.setdefault((run.stage, run.role), []).append(run)
    return [_stage_row(stage, role, group) for (stage, role), group in stages.items()]


def _stage_row(stage: str, role: str, runs: Sequence[RunSummary]) -> tuple[str, ...]:
    records = [run.record for run in runs]
    layouts = [record.get("layout") or {} for record in records]
    timings = [record.get("timings") or {} for record in records]
    failed, done = sum(run.failed for run in runs), sum(record.get("status") == "done" for record in records)
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
