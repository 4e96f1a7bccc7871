"""The report of a study: its content from the records, and its page."""

import contextlib
import itertools
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
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
from raysts.report.charts import Dot, Marks, Scale, X, Y, chart, draw_line, fit_scale, frame, polyline, tag, tick_text
from raysts.report.run import environment
from raysts.search.record import Record
from raysts.search.sampler import importance
from raysts.search.scores import RACE, RACED, PointScores, best_by_mean, best_trial, front, level_with, verdict
from raysts.search.space import Point, Space, numeric, text_of
from raysts.search.study import Study
from raysts.storage.store import Store


@dataclass(frozen=True, slots=True)
class PointResult:
    """Point of a study: values by option, scores of its finished trials, mean and deviation.

    Attributes:
        level: it is not shown to be worse than the chosen point.
        cost: mean cost of its trials, in a search that has one.
        on_front: no point is better and at most as expensive.
    """

    values: Point
    scores: Sequence[float]
    mean: float
    std: float | None
    chosen: bool = False
    level: bool = False
    cost: float | None = None
    on_front: bool = False

    def dot(self, x: float, name: str, metric: RunMetric) -> Dot:
        """Return its dot at ``x``: the mean with one standard deviation and, of several seeds, each score."""
        factor, std = metric.factor, self.std
        return Dot(
            x=x,
            y=factor * self.mean,
            text=f"{name}: {mean_text(metric, self.mean, std, len(self.scores))}",
            std=None if std is None else factor * std,
            singles=[] if std is None else [factor * score for score in self.scores],
            ring=self.chosen,
        )


@dataclass(frozen=True, slots=True)
class StudyData:
    """Content of the report of a study.

    Attributes:
        winning: the command that trains the chosen point. None: no point is chosen, or its recipe has no name.
        ended: values of finished trials in the order in which they ended.
        importance: share of each option in the variance of the scores, and its 90 % interval. Empty if it cannot be estimated.
        cost: name of the second measure; empty without one.
        reach: ends of the approximate 95 % interval of the best score over the rows of the development set, not times
            100. Empty if the score has no interval.
    """

    name: str
    command: str
    created_at: str
    headline: Sequence[str]
    winning: str | None
    metric: RunMetric
    options: Mapping[str, str]
    points: Sequence[PointResult]
    ended: Sequence[float]
    importance: Mapping[str, tuple[float, float, float]]
    table: tuple[Sequence[str], Sequence[Sequence[Any]]]
    outcomes: Mapping[str, int]
    trial_seconds: float
    facts: Mapping[str, str]
    notes: Sequence[str]
    reach: Sequence[float] = ()
    cost: str = ""


MOST_LEVEL = 12
"""Points level with the best that the headline names, at most."""
_ENDINGS = {"finished": "finished", "stopped": "stopped early", "infeasible": "infeasible"}


def report_data(study: Study) -> StudyData:
    """Read the content of the report of a study."""
    store, scores = Store.of(study.plan.storage), study.scores()
    about = store.read_json(study.folder / "study.json", fresh=True) or {}
    metric, space, records = study.search.objective, study.search.space, list(study.records.values())
    best = best_by_mean(scores, metric.mode)
    raced = sum((record.reason or "").startswith(RACED) for record in records)
    level, cheapest = level_with(scores, metric.mode), front(scores, metric.mode)
    ranked = sorted(records, key=lambda r: -rank(r.value if r.status == "finished" else None, metric.mode))
    first = next((store.read_json(store.path(f"runs/{r.id}/run.json")) or {} for r in ranked), {})
    winning = None
    with contextlib.suppress(InputError):  # a recipe file may have a name that no command takes
        winning = winning_command(study, best) if best else None
    return StudyData(
        name=study.name,
        command=about.get("command", ""),
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        headline=_headline(study, scores, about.get("untrained")),
        winning=winning,
        metric=metric,
        options={key: dimension.text for key, dimension in space.items()},
        points=[
            PointResult(
                s.point, s.values, s.mean, s.std, s is best, s in level, s.cost, any(s is point for point in cheapest)
            )
            for s in scores
            if s.mean is not None
        ],
        cost=study.search.cost or "",
        ended=[r.value for r in records if r.status == "finished" and r.value is not None],
        importance=importance(study.search, scores),
        table=(
            [*(key.rsplit(".", 1)[-1] for key in space), "seed", metric.title, "status", "step", "seconds", "run"],
            [_trial(record, space, metric) for record in ranked],
        ),
        outcomes={text: sum(r.status == status for r in records) for status, text in _ENDINGS.items()},
        trial_seconds=sum(r.seconds or 0.0 for r in records),
        facts=environment(
            first,
            objective=_objective(study),
            data=study.plan.corpus.sources_text,
            study=str(study.folder),
            expected=about.get("price") or "",
        ),
        reach=_reach(study, best),
        notes=[f"{text_of(point.point)}: {point.remark}." for point in scores if point.remark]
        + ([f"Race: {RACE}; {raced} of {len(records)} trials were not trained for that."] if study.search.race else [])
        + [ABOUT_TINY] * (study.search.pipeline.backbone == TINY),
    )


def _trial(record: Record, space: Space, metric: RunMetric) -> list[Any]:
    value = None if record.value is None else metric.text(record.value)
    status = record.reason or record.status
    values = [record.point.get(key, "") for key in space]
    return [*values, record.seed, value, status, record.step, record.seconds, record.id]


def _headline(study: Study, scores: Sequence[PointScores], untrained: float | None) -> list[str]:
    metric = study.search.objective
    best, run = best_by_mean(scores, metric.mode), best_trial(scores, metric.mode)
    if best is None or best.mean is None or run is None:
        return ["No trial has finished."]
    score = mean_text(metric, best.mean, best.std, len(best.values), " seeds")
    chosen = "Chosen by mean over seeds" if study.search.seeds > 1 else "Chosen"
    unit = " (× 100)" if metric.factor == 100 else ""
    measure = _objective(study)
    sentences = [f"{chosen}: {text_of(best.point)}. {measure[0].upper()}{measure[1:]}: {score}{unit}."]
    if untrained is not None and "backbone_layers" in study.search.space:
        sentences.append(f"The starting model with all of its layers, before any training: {metric.text(untrained)}.")
    elif untrained is not None:
        is_level = rank(best.mean, metric.mode) <= rank(untrained, metric.mode)
        sentences.append(f"The starting model, before any training: {metric.text(untrained)}.")
        sentences += ["No point is above it: training gained nothing on this set."] * is_level
    if names := [text_of(point.point) for point in level_with(scores, metric.mode) if point is not best]:
        sentences.append(
            f"Level with it: {'; '.join(names[:MOST_LEVEL])}{' and others' if len(names) > MOST_LEVEL else ''}."
        )
    sentences += [conclusion] if (conclusion := verdict(scores, metric.mode, study.search.usual)) else []
    if study.search.seeds > 1 and run.value is not None:
        sentences.append(f"The best single run: {text_of(run.point)} with seed {run.seed}: {metric.text(run.value)}.")
    return sentences


def _objective(study: Study) -> str:
    """Return what compares the trials, with the name of the development set."""
    metric, dev = study.search.objective, study.dev
    return metric.description.replace(metric.table, dev.name if dev else metric.table)


def mean_text(metric: RunMetric, mean: float, std: float | None, n: int, unit: str = "") -> str:
    """Return ``71.20 ± 0.31 over 10``, or only the mean if ``std`` is None."""
    return metric.text(mean) + (f" ± {metric.text(std)} over {n}{unit}" if std is not None else "")


def _reach(study: Study, best: PointScores | None) -> Sequence[float]:
    if best is None or best.mean is None or study.dev is None:
        return ()
    return study.search.objective.interval(best.mean, study.dev.size)


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


# -- the page ------------------------------------------------------------------------------------------------------------

_LOG_ABOVE = 9.0
"""An option whose largest value is this many times its smallest is drawn on a log scale."""


def write_report(data: StudyData, folder: Path) -> Path:
    """Write the page into ``folder`` and return its path."""
    return html.write_page(render(data), folder)


def render(data: StudyData) -> str:
    """Return the page as HTML."""
    return html.render("study.html", data=data, charts=_charts(data), trials=sum(data.outcomes.values()))


def _charts(data: StudyData) -> list[Markup]:
    if not data.points:
        return []
    charts = [
        score_chart(f"score-{i}", option, [p for p in data.points if option in p.values], data.metric, data.reach)
        for i, option in enumerate(data.options)
        if any(option in point.values for point in data.points)
    ]
    charts.append(best_so_far("best", data.ended, data.metric, data.reach))
    if len(data.options) > 1:
        charts.append(parallel("parallel", [*data.options], data.points, data.metric))
    if any(len(point.scores) > 1 for point in data.points):
        charts.append(seeds_chart("seeds", data.points, data.metric))
    if any(point.cost is not None for point in data.points):
        charts.append(front_chart("front", data.cost, data.points, data.metric))
    return charts


def seeds_chart(name: str, points: Sequence[PointResult], metric: RunMetric) -> Markup:
    """Draw the points, best first, each with the scores of its seeds."""
    ranked = sorted(points, key=lambda point: -rank(point.mean, metric.mode))
    dots = [point.dot(place, text_of(point.values), metric) for place, point in enumerate(ranked, start=1)]
    x = fit_scale([1, max(2, len(dots))], *X)
    y = fit_scale([end for dot in dots for end in dot.ends], *Y)
    parts = [*frame(x.marks(6, integers=True), y.marks(5), "points, best first"), *draw_line(dots, x, y, joined=False)]
    return _figure(name, f"{metric.title}: spread of the seeds", f"{len(dots)} points with their seeds.", parts)


def front_chart(name: str, cost: str, points: Sequence[PointResult], metric: RunMetric) -> Markup:
    """Draw the metric against the cost, with a line through the Pareto front."""
    dots = [
        Dot(
            x=point.cost,
            y=metric.factor * point.mean,
            text=f"{text_of(point.values)}: {metric.text(point.mean)}, {point.cost:,.6g} {cost}",
            ring=point.on_front,
        )
        for point in sorted(points, key=lambda point: (point.cost or 0.0, point.mean))
        if point.cost is not None
    ]
    x, y = fit_scale([dot.x for dot in dots], *X), fit_scale([dot.y for dot in dots], *Y)
    best = [dot for dot in dots if dot.ring]
    steps = [(x(b.x), y(a.y)) for a, b in itertools.pairwise(best)]
    corners = [(x(dot.x), y(dot.y)) for dot in best]
    line = [place for pair in itertools.zip_longest(corners, steps) for place in pair if place is not None]
    parts = [*frame(x.marks(6), y.marks(5), cost), polyline(line, class_="line"), *draw_line(dots, x, y, joined=False)]
    shown = "; ".join(dot.text for dot in best)
    return _figure(name, f"{metric.title} against {cost}: rings are the Pareto front", shown, parts)


def parallel(name: str, options: Sequence[str], points: Sequence[PointResult], metric: RunMetric) -> Markup:
    """Draw a line for each point through its values and its score. Level points stand out."""
    axes: dict[str, tuple[Marks, list[float]]] = {}
    for option in (*options, metric.title):
        scores = [metric.factor * point.mean for point in points]
        has_value = [option not in options or option in point.values for point in points]
        values: list[Any] = [point.values.get(option) for point in points] if option in options else scores
        values = [*itertools.compress(values, has_value)]
        names = _names(values)
        places = [float(names.index(str(value))) if names else float(value) for value in values]
        log = not names and min(places, default=0) > 0 and max(places) > _LOG_ABOVE * min(places)
        scale = fit_scale(places, *Y, log=log)
        marks = (
            [(scale(place), text) for place, text in enumerate(_short(names))]
            if names
            else scale.marks(4, _are_integers(values))
        )
        heights = map(scale, places)
        if not all(has_value):
            marks = [*marks, (Y[0], "-")]
        axes[option] = marks, [next(heights) if has_one else Y[0] for has_one in has_value]
    across = fit_scale([0, len(axes) - 1], X[0], X[1] - 30, pad=0.0)
    parts: list[Markup] = []
    for number, (option, (marks, _)) in enumerate(axes.items()):
        left = across(number)
        parts.append(tag("line", x1=left, x2=left, y1=Y[0], y2=Y[1], class_="axis"))
        label = option.rsplit(".", 1)[-1] if option in options else metric.label
        parts.append(
            tag("text", label, x=left, y=Y[0] + 18, text_anchor="middle" if number else "start", class_="label")
        )
        parts += [tag("text", text, x=left + 4, y=down + 3, class_="tick") for down, text in marks]
    for index, point in sorted(enumerate(points), key=lambda pair: pair[1].level or pair[1].chosen):
        line = [(across(n), heights[index]) for n, (_, heights) in enumerate(axes.values())]
        tooltip = tag("title", f"{text_of(point.values)}: {metric.text(point.mean)}")
        parts.append(tag("g", tooltip, polyline(line, class_="line" if point.level or point.chosen else "others")))
    title = "Every point: its options and its score. Full lines are level with the best"
    return _figure(name, title, f"{len(points)} points over {len(options)} options.", parts)


def score_chart(
    name: str, option: str, points: Sequence[PointResult], metric: RunMetric, reach: Sequence[float] = ()
) -> Markup:
    """Draw the metric against one option: a dot per trial, the mean with one standard deviation."""
    values = [point.values[option] for point in points]
    names = _names(values)

    def place(point: PointResult) -> float:
        value = point.values[option]
        return float(names.index(str(value)) if names else value)

    ranked = sorted(points, key=place)
    dots = [point.dot(place(point), f"{option}={_label(point.values[option])}", metric) for point in ranked]
    if names:
        x = Scale(-0.5, len(names) - 0.5, *X)
        marks: Marks = [(x(index), text) for index, text in enumerate(_short(names))]
    else:
        log = min(values) > 0 and max(values) > _LOG_ABOVE * min(values)
        x = fit_scale([dot.x for dot in dots], *X, pad=0.03, log=log)
        marks = x.marks(6, _are_integers(values))
    y = fit_scale([*(end for dot in dots for end in dot.ends), *(metric.factor * end for end in reach)], *Y)
    # Names, single trials at scattered values, and points that differ in another option have no order for a line.
    joined = not names and any(len(point.scores) > 1 for point in points) and len({*values}) == len(values)
    best = max(points, key=lambda point: rank(point.mean, metric.mode))
    description = f"{metric.title} against {option}; best {metric.text(best.mean)} at {best.values[option]}."
    parts = [*frame(marks, y.marks(5), option), *draw_line(dots, x, y, joined)]
    return _figure(name, f"{metric.title} against {option}", description, parts)


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
    return _figure(name, f"{metric.title}: the best so far", f"{len(scores)} trials, best {metric.text(best)}.", parts)


def _figure(name: str, title: str, description: str, parts: list[Markup]) -> Markup:
    return chart(name, title, title, description, [tag("g", *parts, class_="s0")])


def _names(values: Sequence[Any]) -> Sequence[str]:
    """Return the distinct values as text, numbers first and in their order, or nothing if all are numbers."""
    distinct = {str(value): value for value in values}
    numbers = [name for name, value in distinct.items() if numeric([value])]
    if len(numbers) == len(distinct):
        return []
    return sorted(numbers, key=distinct.__getitem__) + sorted(distinct.keys() - {*numbers})


def _are_integers(values: Sequence[Any]) -> bool:
    return all(isinstance(value, int) for value in values)


def _short(names: Sequence[str]) -> Sequence[str]:
    """Return the last parts of paths, if they tell them apart."""
    last = [name.rstrip("/").rpartition("/")[2] for name in names]
    return last if len(set(last)) == len(last) and all(last) else names


def _label(value: Any) -> str:
    return tick_text(value) if numeric([value]) else str(value)
