"""The report of a study: its page, drawn from the records."""

import contextlib
import itertools
import json
import shlex
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from typing import Any

from markupsafe import Markup

from raysts.errors import InputError
from raysts.evaluation.dev import RunMetric, rank
from raysts.pipeline.inputs import TINY
from raysts.pipeline.verdict import ABOUT_TINY
from raysts.recipes import names
from raysts.recipes.recipe import DISTILLATION
from raysts.recipes.tree import leaves, parse_value, to_plain
from raysts.report import html
from raysts.report.charts import Dot, Marks, Scale, X, Y, draw_line, fit_scale, frame, plot, polyline, tag, tick_text
from raysts.report.run import environment
from raysts.search.record import Record
from raysts.search.sampler import importance
from raysts.search.scores import RACE, RACED, PointScores, best_by_mean, best_trial, front, level_with, verdict
from raysts.search.space import numeric, text_of
from raysts.search.study import Study
from raysts.storage.store import Store

MOST_LEVEL = 12
"""Points level with the best that the headline names, at most."""
_ENDINGS = {"finished": "finished", "stopped": "stopped early", "infeasible": "infeasible"}


def write_report(study: Study, folder: Path) -> Path:
    """Write the page of a study into ``folder`` and return its path."""
    store, scores = Store.of(study.plan.storage), study.scores()
    about = store.read_json(study.folder / "study.json", fresh=True) or {}
    search, metric, records = study.search, study.search.objective, list(study.records.values())
    best = best_by_mean(scores, metric.mode)
    ranked = sorted(records, key=lambda r: -rank(r.value if r.status == "finished" else None, metric.mode))
    first = next((store.read_json(store.path(f"runs/{r.id}/run.json")) or {} for r in ranked), {})
    winning = None
    with contextlib.suppress(InputError):  # a recipe file may have a name that no command takes
        winning = winning_command(study, best) if best else None
    notes = [f"{text_of(point.point)}: {point.remark}." for point in scores if point.remark]
    if search.race:
        raced = sum((record.reason or "").startswith(RACED) for record in records)
        notes.append(f"Race: {RACE}; {raced} of {len(records)} trials were not trained for that.")
    if search.pipeline.backbone == TINY:
        notes.append(ABOUT_TINY)
    # The approximate 95 % interval of the best score over the rows of the development set.
    mean = best.mean if best else None
    reach = metric.interval(mean, study.dev.size) if mean is not None and study.dev else ()
    ended = [r.value for r in records if r.status == "finished" and r.value is not None]
    short = [key.rsplit(".", 1)[-1] for key in search.space]
    heads = [*short, "seed", metric.title, "status", "step", "seconds", "run"]
    facts = {"objective": _objective(study), "data": study.plan.corpus.sources_text, "study": str(study.folder)}
    page = html.render(
        "study.html",
        name=study.name,
        command=about.get("command", ""),
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        headline=_headline(study, scores, about.get("untrained")),
        winning=winning,
        options={key: dimension.text for key, dimension in search.space.items()},
        charts=draw_charts([*search.space], scores, metric, ended, reach, search.cost or ""),
        reach=reach,
        importance=importance(search, scores),
        outcomes={text: sum(r.status == status for r in records) for status, text in _ENDINGS.items()},
        heads=heads,
        trials=[_trial(record, study) for record in ranked],
        trial_seconds=sum(r.seconds or 0.0 for r in records),
        environment=environment(first, **facts, expected=about.get("price") or ""),
        remarks=notes,
    )
    return html.write_page(page, folder)


def _trial(record: Record, study: Study) -> list[Any]:
    value = None if record.value is None else study.search.objective.text(record.value)
    values = [record.point.get(key, "") for key in study.search.space]
    return [*values, record.seed, value, record.reason or record.status, record.step, record.seconds, record.id]


def _headline(study: Study, scores: Sequence[PointScores], untrained: float | None) -> list[str]:
    metric = study.search.objective
    best, run = best_by_mean(scores, metric.mode), best_trial(scores, metric.mode)
    if best is None or best.mean is None:
        return ["No trial has finished."]
    chosen = "Chosen by mean over seeds" if study.search.seeds > 1 else "Chosen"
    unit = " (× 100)" if metric.factor == 100 else ""
    measure = _objective(study)
    score = mean_text(metric, best, " seeds")
    sentences = [f"{chosen}: {text_of(best.point)}. {measure[0].upper()}{measure[1:]}: {score}{unit}."]
    if untrained is not None and "backbone_layers" in study.search.space:
        sentences.append(f"The starting model with all of its layers, before any training: {metric.text(untrained)}.")
    elif untrained is not None:
        sentences.append(f"The starting model, before any training: {metric.text(untrained)}.")
        if rank(best.mean, metric.mode) <= rank(untrained, metric.mode):
            sentences.append("No point is above it: training gained nothing on this set.")
    if level := [text_of(point.point) for point in level_with(scores, metric.mode) if point is not best]:
        rest = " and others" if len(level) > MOST_LEVEL else ""
        sentences.append(f"Level with it: {'; '.join(level[:MOST_LEVEL])}{rest}.")
    if conclusion := verdict(scores, metric.mode, study.search.usual):
        sentences.append(conclusion)
    if run and study.search.seeds > 1:
        sentences.append(f"The best single run: {text_of(run.point)} with seed {run.seed}: {metric.text(run.value)}.")
    return sentences


def _objective(study: Study) -> str:
    """Return what compares the trials, with the name of the development set."""
    metric, dev = study.search.objective, study.dev
    return metric.description.replace(metric.table, dev.name if dev else metric.table)


def mean_text(metric: RunMetric, point: PointScores, unit: str = "") -> str:
    """Return ``71.20 ± 0.31 over 10`` of the seeds of a point, or only the mean of one."""
    spread = "" if point.std is None else f" ± {metric.text(point.std)} over {len(point.values)}{unit}"
    return metric.text(point.mean) + spread


IN_DISTILL = ("name", "combine", "teachers", "members")
"""Options of a pipeline that are words of ``raysts distill``."""


def winning_command(study: Study, best: PointScores) -> str:
    """Return the command that trains the chosen point as its trials did.

    It names data, storage, and every option that differs from the default of the system.
    """
    search, plan = study.search, study.plan
    pipeline = search.pipeline_at(best.point)
    words = ["run", pipeline.name]
    usual = leaves(to_plain(names.pipeline(f"sts-{DISTILLATION}" if pipeline.teachers else pipeline.name)))
    point_settings = leaves(to_plain(pipeline))
    if pipeline.teachers:  # whose defaults depend on the teachers
        words = ["distill", *pipeline.teachers]
        usual = {path: value for path, value in usual.items() if not path.startswith(f"recipes.{DISTILLATION}.")}
        point_settings = {
            path: value for path, value in point_settings.items() if path.partition(".")[0] not in IN_DISTILL
        }
    options = {path: value for path, value in point_settings.items() if path not in usual or usual[path] != value}
    texts = [f"{path.removeprefix('recipes.')}={_as_option(value)}" for path, value in options.items()]
    settings = [part for text in texts for part in ("--set", text)]
    places = ["--data", plan.corpus.uri] if plan.corpus.uri else []
    places += [*plan.corpus.user.arguments(), "--storage", Store.of(plan.storage).uri]
    skip = ["--skip-bad"] if plan.corpus.skip_bad else []
    return shlex.join(["raysts", *words, *settings, *places, *skip])


def _as_option(value: Any) -> str:
    return value if isinstance(value, str) and parse_value(value) == value else json.dumps(value)


# -- charts --------------------------------------------------------------------------------------------------------------

_LOG_ABOVE = 9.0
"""An option whose largest value is this many times its smallest is drawn on a log scale."""


def draw_charts(
    options: Sequence[str],
    scores: Iterable[PointScores],
    metric: RunMetric,
    ended: Sequence[float],
    reach: Sequence[float] = (),
    cost: str = "",
) -> list[Markup]:
    """Draw the points that have a score in every chart that shows something of them.

    Args:
        options: those of the space.
        scores: points; a ring marks the chosen one.
        metric: the value that compares trials.
        ended: values of the finished trials in the order in which they ended.
        reach: scores, not times 100, that the axis of scores includes.
        cost: name of the second measure, empty without one.
    """
    points = [point for point in scores if point.values]
    if not points:
        return []
    chosen = best_by_mean(points, metric.mode)
    charts = [
        score_chart(f"score-{i}", option, [point for point in points if option in point.point], metric, chosen, reach)
        for i, option in enumerate(options)
        if any(option in point.point for point in points)
    ]
    charts.append(best_so_far("best", ended, metric, reach))
    if len(options) > 1:
        charts.append(parallel("parallel", options, points, metric))
    if any(len(point.values) > 1 for point in points):
        charts.append(seeds_chart("seeds", points, metric, chosen))
    if any(point.cost is not None for point in points):
        charts.append(front_chart("front", cost, points, metric))
    return charts


def _dot(point: PointScores, x: float, name: str, metric: RunMetric, best: PointScores | None) -> Dot:
    """Return the mean of a point with one standard deviation and, of several seeds, each score."""
    return Dot(
        x=x,
        y=metric.factor * fmean(point.values),
        text=f"{name}: {mean_text(metric, point)}",
        std=None if point.std is None else metric.factor * point.std,
        singles=[] if point.std is None else [metric.factor * score for score in point.values],
        ring=point is best,
    )


def seeds_chart(name: str, points: Sequence[PointScores], metric: RunMetric, chosen: PointScores | None) -> Markup:
    """Draw the points, best first, each with the scores of its seeds."""
    ranked = sorted(points, key=lambda point: -rank(point.mean, metric.mode))
    dots = [_dot(point, place, text_of(point.point), metric, chosen) for place, point in enumerate(ranked, start=1)]
    x = fit_scale([1, max(2, len(dots))], *X)
    y = fit_scale([end for dot in dots for end in dot.ends], *Y)
    title, text = f"{metric.title}: spread of the seeds", f"{len(dots)} points with their seeds."
    parts = [*frame(x.marks(6, integers=True), y.marks(5), "points, best first"), *draw_line(dots, x, y, joined=False)]
    return plot(name, title, text, parts)


def front_chart(name: str, cost: str, points: Sequence[PointScores], metric: RunMetric) -> Markup:
    """Draw the metric against the cost, with a line through the Pareto front."""
    cheapest = front(points, metric.mode)
    dots = [
        Dot(
            x=point.cost,
            y=metric.factor * fmean(point.values),
            text=f"{text_of(point.point)}: {metric.text(point.mean)}, {point.cost:,.6g} {cost}",
            ring=any(point is other for other in cheapest),
        )
        for point in sorted(points, key=lambda point: (point.cost or 0.0, fmean(point.values)))
        if point.cost is not None
    ]
    x, y = fit_scale([dot.x for dot in dots], *X), fit_scale([dot.y for dot in dots], *Y)
    best = [dot for dot in dots if dot.ring]
    steps = [(x(b.x), y(a.y)) for a, b in itertools.pairwise(best)]
    corners = [(x(dot.x), y(dot.y)) for dot in best]
    line = [place for pair in itertools.zip_longest(corners, steps) for place in pair if place is not None]
    parts = [*frame(x.marks(6), y.marks(5), cost), polyline(line, class_="line"), *draw_line(dots, x, y, joined=False)]
    title = f"{metric.title} against {cost}: rings are the Pareto front"
    return plot(name, title, "; ".join(dot.text for dot in best), parts)


def parallel(name: str, options: Sequence[str], points: Sequence[PointScores], metric: RunMetric) -> Markup:
    """Draw a line for each point through its values and its score. Level points stand out."""
    rows = [{**point.point, metric.title: metric.factor * fmean(point.values)} for point in points]
    across = fit_scale([0, len(options)], X[0], X[1] - 30, pad=0.0)
    parts: list[Markup] = []
    lines: list[list[tuple[float, float]]] = [[] for _ in points]
    for number, option in enumerate((*options, metric.title)):
        left = across(number)
        places, scale, marks = _axis([row[option] for row in rows if option in row], Y, 4)
        heights = map(scale, places)
        for row, line in zip(rows, lines, strict=True):
            line.append((left, next(heights) if option in row else Y[0]))
        if len(places) < len(rows):
            marks = [*marks, (Y[0], "-")]
        label = option.rsplit(".", 1)[-1] if option in options else metric.label
        parts.append(tag("line", x1=left, x2=left, y1=Y[0], y2=Y[1], class_="axis"))
        parts.append(
            tag("text", label, x=left, y=Y[0] + 18, text_anchor="middle" if number else "start", class_="label")
        )
        parts += [tag("text", text, x=left + 4, y=down + 3, class_="tick") for down, text in marks]
    level = {id(point) for point in level_with(points, metric.mode)}
    for point, line in sorted(zip(points, lines, strict=True), key=lambda drawn: id(drawn[0]) in level):
        tooltip = tag("title", f"{text_of(point.point)}: {metric.text(point.mean)}")
        parts.append(tag("g", tooltip, polyline(line, class_="line" if id(point) in level else "others")))
    title = "Every point: its options and its score. Full lines are level with the best"
    return plot(name, title, f"{len(points)} points over {len(options)} options.", parts)


def score_chart(
    name: str,
    option: str,
    points: Sequence[PointScores],
    metric: RunMetric,
    chosen: PointScores | None,
    reach: Sequence[float] = (),
) -> Markup:
    """Draw the metric against one option: a dot per trial, the mean with one standard deviation."""
    values = [point.point[option] for point in points]
    places, x, marks = _axis(values, X, 6)
    texts = [f"{option}={tick_text(value) if numeric([value]) else value}" for value in values]
    dots = [_dot(*of_point, metric, chosen) for of_point in zip(points, places, texts, strict=True)]
    dots.sort(key=lambda dot: dot.x)
    y = fit_scale([*(end for dot in dots for end in dot.ends), *(metric.factor * end for end in reach)], *Y)
    # Names, single trials at scattered values, and points that differ in another option have no order for a line.
    joined = numeric(values) and any(len(point.values) > 1 for point in points) and len({*values}) == len(values)
    best = max(points, key=lambda point: rank(point.mean, metric.mode))
    title = f"{metric.title} against {option}"
    text = f"{title}; best {metric.text(best.mean)} at {best.point[option]}."
    return plot(name, title, text, [*frame(marks, y.marks(5), option), *draw_line(dots, x, y, joined)])


def best_so_far(name: str, scores: Sequence[float], metric: RunMetric, reach: Sequence[float] = ()) -> Markup:
    """Draw the trials in the order in which they ended, and the best score so far."""
    x = fit_scale([1, max(2, len(scores))], *X, pad=0.0)
    y = fit_scale([metric.factor * score for score in (*scores, *reach)], *Y)
    best: float | None = None
    steps: list[tuple[float, float]] = []
    parts = frame(x.marks(6, integers=True), y.marks(5), "trial")
    for number, score in enumerate(scores, start=1):
        if best is not None:  # a step, not a slope
            steps.append((x(number), y(metric.factor * best)))
        best = max(score, score if best is None else best, key=lambda value: rank(value, metric.mode))
        steps.append((x(number), y(metric.factor * best)))
        tooltip = tag("title", f"trial {number}: {metric.text(score)}")
        parts.append(tag("circle", tooltip, cx=x(number), cy=y(metric.factor * score), r=2.2, class_="faint"))
    parts.append(polyline(steps, class_="line"))
    title, text = f"{metric.title}: the best so far", f"{len(scores)} trials, best {metric.text(best)}."
    return plot(name, title, text, parts)


def _axis(values: Sequence[Any], ends: tuple[float, float], count: int) -> tuple[Sequence[float], Scale, Marks]:
    """Return the places of an option's values on its axis, the scale, and about ``count`` marks.

    Beside words, numbers stand first and in their order.
    """
    if numeric(values):
        log = min(values) > 0 and max(values) > _LOG_ABOVE * min(values)
        scale = fit_scale(values, *ends, pad=0.03, log=log)
        return values, scale, scale.marks(count, integers=all(isinstance(value, int) for value in values))
    by_text = {str(value): value for value in values}
    numbers = sorted((text for text, value in by_text.items() if numeric([value])), key=by_text.__getitem__)
    texts = [*numbers, *sorted(by_text.keys() - {*numbers})]
    scale = Scale(-0.5, len(texts) - 0.5, *ends)
    last = [text.rstrip("/").rpartition("/")[2] for text in texts]  # of paths, if that tells them apart
    shown = last if len({*last}) == len(last) and all(last) else texts
    return (
        [float(texts.index(str(value))) for value in values],
        scale,
        [(scale(n), text) for n, text in enumerate(shown)],
    )
