"""Charts of a study: its scores by options, and the best score so far.

Axes of scores span the interval of the best score (``reach``).
"""

from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from raysts.evaluation.run_metric import RunMetric, rank
from raysts.report.charts.axes import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Marks, Scale, fitted, frame, tick_text
from raysts.report.charts.lines import Dot, line
from raysts.report.charts.svg import drawing, figure, polyline, tag
from raysts.report.study.data import PointResult, mean_text
from raysts.search.space import numeric

_LOG_ABOVE = 9.0
"""An option whose largest value is this many times its smallest is drawn on a log scale."""


def score_chart(
    name: str, option: str, points: Sequence[PointResult], metric: RunMetric, reach: Sequence[float] = ()
) -> Markup:
    """Draw the metric against one option: a dot per trial, the mean with one standard deviation."""
    values = [point.values[option] for point in points]
    names = [] if numeric(values) else sorted(set(map(str, values)))

    def place(point: PointResult) -> float:
        value = point.values[option]
        return float(names.index(str(value)) if names else value)

    dots = [
        Dot(
            x=place(point),
            y=metric.factor * point.mean,
            text=f"{option}={_label(point.values[option])}: {mean_text(metric, point.mean, point.std, len(point.scores))}",
            std=None if point.std is None else metric.factor * point.std,
            singles=[] if point.std is None else [metric.factor * score for score in point.scores],
            ring=point.chosen,
        )
        for point in sorted(points, key=place)
    ]
    if names:
        x = Scale(-0.5, len(names) - 0.5, LEFT, RIGHT)
        marks: Marks = [(x(index), text) for index, text in enumerate(names)]
    else:
        log = min(values) > 0 and max(values) > _LOG_ABOVE * min(values)
        x = fitted([dot.x for dot in dots], LEFT, RIGHT, pad=0.03, log=log)
        marks = x.marks(6)
    y = fitted([*(end for dot in dots for end in dot.ends), *(metric.factor * end for end in reach)], BOTTOM, TOP)
    # Names, and single trials at scattered values, have no order that a line could show.
    joined = not names and any(len(point.scores) > 1 for point in points)
    best = max(points, key=lambda point: rank(point.mean, metric.mode))
    description = f"{metric.title} against {option}; best {metric.text(best.mean)} at {best.values[option]}."
    parts = [*frame(marks, y.marks(5), option), *line(dots, x, y, joined)]
    return _figure(name, f"{metric.title} against {option}", description, parts)


def best_so_far(name: str, scores: Sequence[float], metric: RunMetric, reach: Sequence[float] = ()) -> Markup:
    """Draw the trials in the order in which they ended, and the best score so far."""
    x = fitted([1, max(2, len(scores))], LEFT, RIGHT, pad=0.0)
    y = fitted([metric.factor * score for score in (*scores, *reach)], BOTTOM, TOP)
    best: float | None = None
    steps: list[tuple[float, float]] = []
    parts = frame(x.marks(6), y.marks(5), "trial")
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
    return figure(title, drawing(name, title, description, [tag("g", *parts, class_="s0")], WIDTH, HEIGHT))


def _label(value: Any) -> str:
    return tick_text(value) if numeric([value]) else str(value)
