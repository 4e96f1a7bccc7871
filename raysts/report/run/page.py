"""The report page: one self-contained HTML file that needs neither network nor scripts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from raysts.report.charts.curves import Series, line_chart
from raysts.report.charts.dots import dot_plot
from raysts.report.charts.graph import pipeline_graph
from raysts.report.charts.markup import Markup, join, tag
from raysts.report.charts.style import STYLE
from raysts.report.run.data import ReportData, Run, failed, run_name
from raysts.report.run.headline import headline
from raysts.report.run.scores import AVERAGE, Table, standings, views
from raysts.report.run.tables import describe, facts_table, nodes_table, pooled, scores_table, time_table
from raysts.storage.store import aside
from raysts.training.monitor import duration


def write_report(data: ReportData, folder: Path) -> Path:
    """Write the report as ``folder/index.html``, aside then renamed, and return that path."""
    path = folder / "index.html"
    with aside(path) as draft:
        draft.write_text(render(data), encoding="utf-8")
    return path


def render(data: ReportData) -> str:
    """The report as HTML; everything in ``data`` is escaped, nothing is loaded from anywhere."""
    shown = views(data.rows, data.compare_layers)
    tables = [standings(data.rows, view) for view in shown]
    main = tables[0] if tables and shown[0].split == "test" else None
    body = tag(
        "main",
        _header(data, main),
        _scores(data, main, tables),
        _dots(main),
        _section("The pipeline as it ran", *_pipeline(data)),
        _section("Training", *_curves(data.runs)),
        _section("Time and throughput", *_time(data)),
        _failures(data),
        _section("How it was made", *_making(data)),
        _section("Notes", tag("ul", *(tag("li", note) for note in data.notes))) if data.notes else None,
    )
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("link", rel="icon", href="data:,"),
        tag("title", f"{data.name} · raysts report"),
        tag("style", Markup(STYLE)),
    )
    return f"<!DOCTYPE html>\n{tag('html', head, tag('body', body), lang='en')}\n"


def _section(title: str, *content: object) -> Markup:
    return tag("section", tag("h2", title), *content)


def _header(data: ReportData, main: Table | None) -> Markup:
    counts = Counter(node["status"] for node in data.nodes)
    bad_runs = sum(map(failed, data.runs))
    chips = [(f"{counts['done']} of {len(data.nodes)} nodes done", "done" if counts["done"] == len(data.nodes) else "")]
    chips += [(f"{counts[status]} {status}", status) for status in ("failed", "waiting") if counts[status]]
    if bad_runs and not counts["failed"]:
        chips.append((f"{bad_runs} {'run' if bad_runs == 1 else 'runs'} failed", "failed"))
    made = data.created_at.replace("T", " ").replace("+00:00", " UTC")
    known = [node["seconds"] for node in data.nodes if node["seconds"] is not None]
    if known:
        chips.append((f"{duration(sum(known))} of work", ""))
    return tag(
        "header",
        tag("h1", data.name),
        tag("p", "raysts report, made ", tag("time", made, datetime=data.created_at), class_="meta"),
        tag("div", *(tag("p", sentence) for sentence in headline(main)), class_="result"),
        tag("ul", *(tag("li", text, class_=f"is-{kind}" if kind else None) for text, kind in chips), class_="chips"),
    )


def _scores(data: ReportData, main: Table | None, tables: Sequence[Table]) -> Markup:
    if main is None:
        shown: list[object] = [tag("p", "No test result has been recorded.", class_="empty")]
    else:
        spread = "Brackets: 95 % bootstrap interval over the pairs. ±: standard deviation over members, or students (ddof 1)."
        if AVERAGE in main.columns:
            spread += f" {AVERAGE}: mean of {', '.join(main.averaged)}."
        shown = [scores_table(main), tag("p", spread, class_="hint")]
        if main.view.layers != str(data.compare_layers):
            wanted = f"The recipe compares systems with {pooled(str(data.compare_layers))}; no score was measured so."
            shown.append(tag("p", wanted, class_="hint"))
    others = [table for table in tables if table is not main]
    if others:
        title = "Other numbers of pooled layers, metrics and aggregations"
        shown.append(tag("details", tag("summary", f"{title} ({len(others)} tables)"), *map(scores_table, others)))
    return _section("Scores", *shown)


def _dots(main: Table | None) -> Markup | None:
    if main is None:
        return None
    figures = []
    for index, dataset in enumerate(column for column in main.columns if column != AVERAGE):
        plot = dot_plot(f"dots-{index}", dataset, main.standings)
        figures.append(tag("figure", tag("figcaption", tag("b", dataset)), plot))
    hint = (
        f"{describe(main.view)}. Each dot is one model with its 95 % interval; the upright line is the members' mean. "
        f"Every set has its own axis; an arrow stands for a value far to the left of it."
    )
    return _section("Members, ensemble, student", tag("p", hint, class_="hint"), tag("div", *figures, class_="charts"))


def _pipeline(data: ReportData) -> list[Markup]:
    graph = tag("div", pipeline_graph("pipeline", data.nodes), class_="scroll", tabindex="0", role="region",
                aria_label="Pipeline graph")  # fmt: skip
    hint = "Each box: title, kind and time, id. ✓ done, ✕ failed, … waiting. Point at a box for the details."
    return [graph, tag("p", hint, class_="hint")]


def _curves(runs: Sequence[Run]) -> list[Markup]:
    if not runs:
        return [tag("p", "No run has been started.", class_="empty")]
    stages: dict[str, list[Run]] = {}
    for run in runs:
        stages.setdefault(run["stage"], []).append(run)
    hint = "Losses are means over the steps since the line's last point. A ring marks the step whose model was kept."
    curves = [part for i, (stage, group) in enumerate(stages.items()) for part in _stage_curves(i, stage, group)]
    return [tag("p", hint, class_="hint"), *curves]


def _stage_curves(index: int, stage: str, runs: Sequence[Run]) -> list[Markup]:
    charts = []
    for key, title, factor in (("loss", "Loss", 1.0), ("dev", "Dev score × 100", 100.0)):
        series = [
            Series(
                run_name(run),
                number,
                [(line["step"], factor * line[key]) for line in run["metrics"] if line.get(key) is not None],
                (run["record"].get("kept") or {}).get("step") if key == "dev" else None,
            )
            for number, run in enumerate(runs)
        ]
        if key == "loss" or any(s.points for s in series):
            name = f"curve-{index}-{key}"
            charts.append(line_chart(name, f"{title} by step, {stage}", title, series, log=key == "loss"))
    legend = None
    if len(runs) > 1:
        names = (tag("li", run_name(run), class_=f"s{number % 10}") for number, run in enumerate(runs))
        legend = tag("ul", *names, class_="legend")
    return [tag("h3", stage), join(legend), tag("div", *charts, class_="charts")]


def _time(data: ReportData) -> list[Markup | None]:
    return [time_table(data.runs) if data.runs else None, nodes_table(data.nodes)]


def _failures(data: ReportData) -> Markup | None:
    found = []
    bad_runs = [run for run in data.runs if failed(run)]
    for run in bad_runs:
        reason = run["record"].get("reason") or "The run record gives no reason."
        found.append((f"{run['stage']}, {run_name(run)}, run {run['run_id']}", reason))
    known = {run["run_id"] for run in bad_runs}
    for node in data.nodes:
        if node["status"] == "failed" and node["id"] not in known:
            found.append((f"{node['title']}, {node['kind']} node {node['id']}", node["detail"]))
    if not found:
        return None
    return _section("Failures", *(tag("div", tag("h3", who), tag("pre", why), class_="failure") for who, why in found))


def _making(data: ReportData) -> list[Markup]:
    return [
        tag("h3", "Command"),
        tag("pre", tag("code", data.command)),
        facts_table("Environment", data.environment) if data.environment else join(),
        tag("details", tag("summary", "Recipe, fully resolved (YAML)"), tag("pre", tag("code", data.recipe_yaml))),
    ]
