"""The report of a study: one self-contained HTML file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raysts.evaluation.run_metric import RunMetric
from raysts.report.charts.markup import Markup, join, tag
from raysts.report.charts.study_charts import Shown, best_so_far, parallel_chart, score_chart
from raysts.report.charts.study_grid import fits_grid, grid_chart
from raysts.report.charts.style import STYLE
from raysts.report.run.tables import facts_table
from raysts.search.space import numeric
from raysts.storage.store import aside
from raysts.training.monitor import duration

_MORE = """
.error { stroke: var(--series); stroke-width: 1.4; opacity: .6; } .faint { fill: var(--series); opacity: .35; }
.best polyline { fill: none; stroke: var(--accent); stroke-width: 1.6; }
.cell { fill: var(--series); }
.other polyline { fill: none; stroke: var(--wait); stroke-width: .9; opacity: .4; }
"""
"""What the charts of a study need beyond the common style sheet."""


@dataclass(frozen=True, slots=True)
class StudyData:
    """Everything the report of a study shows.

    Attributes:
        name: name of the study.
        command: the command that makes or continues it.
        created_at: ISO time.
        headline: what came out, a sentence each.
        winning: the command that trains the chosen point.
        metric: what points are compared by.
        options: searched options and the values they may take.
        points: points that have a finished trial.
        ended: values of finished trials in the order in which they ended.
        importance: share of each option in how the scores differ; empty where it cannot be told.
        table: head and rows of the trials.
        outcomes: how many trials ended in which way.
        trial_seconds: training time of all trials together.
        facts: what a reader needs to judge it.
        notes: what the reader must know.
    """

    name: str
    command: str
    created_at: str
    headline: Sequence[str]
    winning: str | None
    metric: RunMetric
    options: dict[str, str]
    points: Sequence[Shown]
    ended: Sequence[float]
    importance: dict[str, float]
    table: tuple[Sequence[str], Sequence[Sequence[Any]]]
    outcomes: dict[str, int]
    trial_seconds: float
    facts: dict[str, str]
    notes: Sequence[str]


def write_study_report(data: StudyData, folder: Path) -> Path:
    """Write the report as ``folder/index.html``, aside then renamed, and return that path."""
    path = folder / "index.html"
    with aside(path) as draft:
        draft.write_text(render_study(data), encoding="utf-8")
    return path


def render_study(data: StudyData) -> str:
    """The report as HTML; everything in ``data`` is escaped, nothing is loaded from anywhere."""
    made = data.created_at.replace("T", " ").replace("+00:00", " UTC")
    body = tag(
        "main",
        tag(
            "header",
            tag("h1", data.name),
            tag("p", "raysts study, report made ", tag("time", made, datetime=data.created_at), class_="meta"),
            tag("div", *(tag("p", sentence) for sentence in data.headline), class_="result"),
            tag("ul", *(tag("li", text) for text in _cost(data)), class_="chips"),
        ),
        _section("What was found", *_charts(data)),
        _section("What was searched", facts_table("Options and their values", data.options)),
        _section("Trials", _trials(*data.table)),
        _section("How it was made", *_making(data)),
        _section("Notes", tag("ul", *(tag("li", note) for note in data.notes))) if data.notes else None,
    )
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("link", rel="icon", href="data:,"),
        tag("title", f"{data.name} · raysts study"),
        tag("style", Markup(STYLE + _MORE)),
    )
    return f"<!DOCTYPE html>\n{tag('html', head, tag('body', body), lang='en')}\n"


def _section(title: str, *content: object) -> Markup:
    return tag("section", tag("h2", title), *content)


def _cost(data: StudyData) -> list[str]:
    count = sum(data.outcomes.values())
    found = [f"{number} {status}" for status, number in data.outcomes.items() if number]
    found.append(f"{duration(data.trial_seconds)} of training in all trials")
    return [*found, f"{duration(data.trial_seconds / count)} a trial"] if count else found


def _charts(data: StudyData) -> list[Markup]:
    if not data.points:
        return [tag("p", "No trial has finished.", class_="empty")]
    charts = [
        score_chart(f"score-{i}", option, data.points, data.metric)
        for i, option in enumerate(data.options)
        if numeric([point.values[option] for point in data.points])
    ]
    if fits_grid(list(data.options), data.points):
        charts.insert(0, grid_chart("grid", list(data.options), data.points, data.metric))
    elif len(data.options) > 1:
        charts.insert(0, parallel_chart("parallel", list(data.options), data.points, data.metric))
    charts.append(best_so_far("best", data.ended, data.metric))
    hint = "A bar is one standard deviation over the seeds to both sides; a ring marks the chosen point."
    found = [tag("p", hint, class_="hint"), tag("div", *charts, class_="charts")]
    if data.importance:
        shares = {option: f"{100 * share:.0f} %" for option, share in data.importance.items()}
        found.append(facts_table("Share of each option in how the scores differ (PED-ANOVA)", shares))
    return found


def _trials(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> Markup:
    heads = tag("tr", *(tag("th", name, scope="col") for name in head))
    lines = [tag("tr", *(tag("td", _cell(value)) for value in row)) for row in rows]
    table = tag(
        "table", tag("caption", f"{len(rows)} trials, best first"), tag("thead", heads), tag("tbody", join(*lines))
    )
    shown = tag("div", table, class_="scroll", tabindex="0", role="region", aria_label="Trials")
    return shown if len(rows) <= 30 else tag("details", tag("summary", f"All {len(rows)} trials"), shown)


def _cell(value: Any) -> str:
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def _making(data: StudyData) -> list[Markup]:
    found = [tag("h3", "Command"), tag("pre", tag("code", data.command))]
    if data.winning:
        found += [tag("h3", "The chosen point, trained alone"), tag("pre", tag("code", data.winning))]
    return [*found, facts_table("Environment", data.facts)]


def score_text(metric: RunMetric, mean: float, std: float | None, n: int) -> str:
    """``71.20 ± 0.31 over 10 seeds``."""
    return metric.text(mean) + (f" ± {metric.text(std)} over {n} seeds" if std is not None else "")
