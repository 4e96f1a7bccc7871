"""Charts of a study: scores against one option with error bars, parallel axes over all of them, best so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from raysts.evaluation.run_metric import RunMetric, rank
from raysts.report.charts.axes import Scale, fitted, tick_text
from raysts.report.charts.markup import Markup, tag
from raysts.search.space import numeric

WIDTH, HEIGHT = 560, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 48, 14, 12, 42
_LOG_ABOVE = 9.0
"""An option whose largest value is this many times its smallest is drawn on a log scale."""


@dataclass(frozen=True, slots=True)
class Shown:
    """One point of a study: values by option, scores of its finished trials, their mean and standard deviation."""

    values: dict[str, Any]
    scores: Sequence[float]
    mean: float
    std: float | None
    chosen: bool = False


def score_chart(name: str, option: str, points: Sequence[Shown], metric: RunMetric) -> Markup:
    """The metric against one option: a dot per trial, the mean with a bar of one standard deviation to both sides.

    Args:
        name: unique in the page.
        option: a key of the points' values; all of its values are numbers.
        points: what is shown.
        metric: what their scores are.
    """
    factor = metric.factor
    shown = sorted(points, key=lambda point: point.values[option])
    ends = [factor * end for p in shown for end in (*p.scores, p.mean - (p.std or 0), p.mean + (p.std or 0))]
    xs = [float(point.values[option]) for point in shown]
    x, y = _axis(xs), fitted(ends, HEIGHT - _BOTTOM, _TOP)
    line = " ".join(f"{x(v):.1f},{y(factor * p.mean):.1f}" for v, p in zip(xs, shown, strict=True))
    several = any(len(point.scores) > 1 for point in shown)
    parts = [*_grid(x, y, option)]
    if several:  # single trials at scattered values have no line through them
        parts.append(tag("polyline", points=line, class_="line"))
    for value, point in zip(xs, shown, strict=True):
        place, middle = x(value), y(factor * point.mean)
        said = f"{option}={tick_text(value)}: {metric.text(point.mean)}"
        said += f" ± {metric.text(point.std)} over {len(point.scores)}" if point.std is not None else ""
        if point.std is not None:
            top, low = y(factor * (point.mean + point.std)), y(factor * (point.mean - point.std))
            parts.append(tag("line", x1=place, x2=place, y1=top, y2=low, class_="error"))
            parts += [tag("circle", cx=place, cy=y(factor * score), r=1.8, class_="faint") for score in point.scores]
        parts.append(tag("circle", tag("title", said), cx=place, cy=middle, r=3.6, class_="dot"))
        if point.chosen:
            parts.append(tag("circle", cx=place, cy=middle, r=7, class_="ring"))
    best = max(shown, key=lambda point: rank(point.mean, metric.mode))
    text = f"{metric.title} against {option}; best {metric.text(best.mean)} at {best.values[option]}."
    return figure(name, f"{metric.title} against {option}", text, parts)


def parallel_chart(name: str, options: Sequence[str], points: Sequence[Shown], metric: RunMetric) -> Markup:
    """One axis per option and one for the metric; a line per point, the best tenth of them on top in colour."""
    factor = metric.factor
    ranked = sorted(points, key=lambda point: rank(point.mean, metric.mode))
    top = set(map(id, ranked[-max(1, len(ranked) // 10) :]))
    axes = [_option_axis(option, ranked) for option in options]
    scores = fitted([factor * point.mean for point in ranked], HEIGHT - _BOTTOM, _TOP + 8)
    step = (WIDTH - 2 * _LEFT) / len(options)
    parts: list[Markup] = []
    for point in ranked:
        places = [
            (_LEFT + step * i, axis(point.values[option]))
            for i, (option, axis) in enumerate(zip(options, axes, strict=True))
        ]
        places.append((WIDTH - _LEFT, scores(factor * point.mean)))
        said = f"{metric.text(point.mean)}: " + ", ".join(f"{key}={value}" for key, value in point.values.items())
        line = tag("polyline", tag("title", said), points=" ".join(f"{a:.1f},{b:.1f}" for a, b in places))
        parts.append(tag("g", line, class_="best" if id(point) in top else "other"))
    for i, (option, axis) in enumerate(zip(options, axes, strict=True)):
        parts += _upright(_LEFT + step * i, option.rsplit(".", 1)[-1], axis.marks)
    parts += _upright(WIDTH - _LEFT, metric.label, [(scores(value), tick_text(value)) for value in scores.ticks(5)])
    best = ranked[-1]
    text = f"{len(ranked)} points; best {metric.text(best.mean)} at {best.values}."
    return figure(name, f"Every point: its options and {metric.title}; the best tenth in colour", text, parts)


def best_so_far(name: str, scores: Sequence[float], metric: RunMetric) -> Markup:
    """The trials in the order in which they ended, and the best of them so far."""
    factor = metric.factor
    x = fitted([1, max(2, len(scores))], _LEFT, WIDTH - _RIGHT, pad=0.0)
    y = fitted([factor * score for score in scores], HEIGHT - _BOTTOM, _TOP)
    best: float | None = None
    line = []
    parts = _grid(x, y, "trial")
    for number, score in enumerate(scores, start=1):
        if best is not None:  # a step, not a slope
            line.append(f"{x(number):.1f},{y(factor * best):.1f}")
        best = max(score, score if best is None else best, key=lambda value: rank(value, metric.mode))
        line.append(f"{x(number):.1f},{y(factor * best):.1f}")
        label = tag("title", f"trial {number}: {metric.text(score)}")
        parts.append(tag("circle", label, cx=x(number), cy=y(factor * score), r=2.2, class_="faint"))
    parts.append(tag("polyline", points=" ".join(line), class_="line"))
    return figure(name, f"{metric.title}: the best so far", f"{len(scores)} trials, best {metric.text(best)}.", parts)


@dataclass(frozen=True, slots=True)
class _Axis:
    places: dict[Any, float]
    scale: Scale | None
    marks: list[tuple[float, str]]

    def __call__(self, value: Any) -> float:
        return self.scale(float(value)) if self.scale is not None else self.places[value]


def _option_axis(option: str, points: Sequence[Shown]) -> _Axis:
    values = [point.values[option] for point in points]
    low, high = HEIGHT - _BOTTOM, _TOP + 8
    if numeric(values):
        numbers = [float(value) for value in values]
        scale = fitted(numbers, low, high, log=_log(numbers))
        return _Axis({}, scale, [(scale(value), tick_text(value)) for value in scale.ticks(5)])
    names = sorted(set(values), key=str)
    step = (low - high) / (len(names) + 1)
    places = {value: low - step * (i + 1) for i, value in enumerate(names)}
    return _Axis(places, None, [(place, str(value)) for value, place in places.items()])


def _log(values: Sequence[float]) -> bool:
    return min(values) > 0 and max(values) > _LOG_ABOVE * min(values)


def _axis(values: Sequence[float]) -> Scale:
    return fitted(values, _LEFT, WIDTH - _RIGHT, pad=0.03, log=_log(values))


def _grid(x: Scale, y: Scale, label: str) -> list[Markup]:
    low, right = HEIGHT - _BOTTOM, WIDTH - _RIGHT
    parts = [tag("line", x1=_LEFT, x2=right, y1=low, y2=low, class_="axis")]
    for value in y.ticks(5):
        parts.append(tag("line", x1=_LEFT, x2=right, y1=y(value), y2=y(value), class_="grid"))
        parts.append(tag("text", tick_text(value), x=_LEFT - 6, y=y(value) + 3.5, text_anchor="end", class_="tick"))
    for value in x.ticks(6):
        parts.append(tag("line", x1=x(value), x2=x(value), y1=low, y2=low + 4, class_="axis"))
        parts.append(tag("text", tick_text(value), x=x(value), y=low + 16, text_anchor="middle", class_="tick"))
    parts.append(tag("text", label, x=(_LEFT + right) / 2, y=HEIGHT - 6, text_anchor="middle", class_="label"))
    return parts


def _upright(x: float, label: str, marks: Sequence[tuple[float, str]]) -> list[Markup]:
    parts = [tag("line", x1=x, x2=x, y1=_TOP, y2=HEIGHT - _BOTTOM, class_="axis")]
    parts += [tag("text", text, x=x + 4, y=y + 3.5, class_="tick") for y, text in marks]
    parts.append(tag("text", label, x=x, y=HEIGHT - 18, text_anchor="middle", class_="label"))
    return parts


def figure(name: str, title: str, described: str, parts: Sequence[Markup], height: float = HEIGHT) -> Markup:
    """A drawing with its caption; what it shows is also said in words."""
    drawing = tag(
        "svg",
        tag("title", title, id=f"{name}-t"),
        tag("desc", described, id=f"{name}-d"),
        tag("g", *parts, class_="s0"),
        viewBox=f"0 0 {WIDTH} {height:g}",
        width=WIDTH,
        height=height,
        role="img",
        aria_labelledby=f"{name}-t {name}-d",
        class_="chart",
    )
    return tag("figure", tag("figcaption", title), drawing)
