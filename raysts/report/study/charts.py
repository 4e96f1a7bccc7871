"""Charts of a study: its scores by options, and the best so far; axes of scores span the interval of the best (``reach``)."""

from collections.abc import Iterable, Sequence
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
    """The metric against one option whose values are numbers: a dot per trial, the mean with one deviation to both sides."""
    dots = []
    for point in sorted(points, key=lambda point: point.values[option]):
        several = point.std is not None
        dots.append(
            Dot(
                x=float(point.values[option]),
                y=metric.factor * point.mean,
                text=f"{option}={tick_text(point.values[option])}: {_score(point, metric)}",
                std=metric.factor * point.std if point.std is not None else None,
                singles=[metric.factor * score for score in point.scores] if several else (),
                ring=point.chosen,
            )
        )
    x, y = (
        _option_scale([dot.x for dot in dots], LEFT, RIGHT),
        fitted([*(end for dot in dots for end in dot.ends), *(metric.factor * end for end in reach)], BOTTOM, TOP),
    )
    # Single trials at scattered values have no line through them.
    joined = any(len(point.scores) > 1 for point in points)
    best = _best(points, metric)
    said = f"{metric.title} against {option}; best {metric.text(best.mean)} at {best.values[option]}."
    parts = [*frame(x.marks(6), y.marks(5), option), *line(dots, x, y, joined)]
    return _figure(name, f"{metric.title} against {option}", said, parts)


def parallel_chart(
    name: str, options: Sequence[str], points: Sequence[PointResult], metric: RunMetric, reach: Sequence[float] = ()
) -> Markup:
    """One axis per option and one for the metric; a line per point, the best tenth of them on top in colour."""
    ranked = sorted(points, key=lambda point: rank(point.mean, metric.mode))
    top = set(map(id, ranked[-max(1, len(ranked) // 10) :]))
    scores = fitted([metric.factor * value for value in (*(point.mean for point in ranked), *reach)], BOTTOM, TOP + 8)
    axes = [_upright_axis([point.values[option] for point in ranked]) for option in options]
    step = (WIDTH - 2 * LEFT) / len(options)
    parts: list[Markup] = []
    for i, point in enumerate(ranked):
        pixels = [(LEFT + step * j, heights[i]) for j, (heights, _) in enumerate(axes)]
        values = ", ".join(f"{key}={value}" for key, value in point.values.items())
        said = tag("title", f"{metric.text(point.mean)}: {values}")
        drawn = polyline([*pixels, (WIDTH - LEFT, scores(metric.factor * point.mean))], said)
        parts.append(tag("g", drawn, class_="best" if id(point) in top else "other"))
    for j, (option, (_, marks)) in enumerate(zip(options, axes, strict=True)):
        parts += _upright(LEFT + step * j, option.rsplit(".", 1)[-1], marks)
    parts += _upright(WIDTH - LEFT, metric.label, scores.marks(5))
    said_all = f"{len(ranked)} points; best {metric.text(ranked[-1].mean)} at {ranked[-1].values}."
    return _figure(name, f"Every point: its options and {metric.title}; the best tenth in colour", said_all, parts)


def best_so_far(name: str, scores: Sequence[float], metric: RunMetric, reach: Sequence[float] = ()) -> Markup:
    """The trials in the order in which they ended, and the best of them so far."""
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
        said = tag("title", f"trial {number}: {metric.text(score)}")
        parts.append(tag("circle", said, cx=x(number), cy=y(metric.factor * score), r=2.2, class_="faint"))
    parts.append(polyline(steps, class_="line"))
    return _figure(name, f"{metric.title}: the best so far", f"{len(scores)} trials, best {metric.text(best)}.", parts)


MOST = 12
"""Values of an option beyond which the cells of a grid would be too small to read."""

_GRID_LEFT, _CELL = 64, 30.0


def fits_grid(options: Sequence[str], points: Sequence[PointResult]) -> bool:
    """Whether the points are of two options with few values each."""
    return len(options) == 2 and all(2 <= len({point.values[key] for point in points}) <= MOST for key in options)


def grid_chart(
    name: str, options: Sequence[str], points: Sequence[PointResult], metric: RunMetric, reach: Sequence[float] = ()
) -> Markup:
    """The first option downwards, the second to the right; a point without a finished trial leaves its cell empty."""
    down, right = options
    rows, columns = (_ordered(point.values[option] for point in points) for option in options)
    width = (WIDTH - _GRID_LEFT - 8) / len(columns)
    ranks = [rank(point.mean, metric.mode) for point in points]
    ends = [*ranks, *(rank(end, metric.mode) for end in reach)]
    low, high = min(ends), max(ends)
    parts: list[Markup] = []
    for point, place in zip(points, ranks, strict=True):
        x, y = _GRID_LEFT + width * columns.index(point.values[right]), TOP + _CELL * rows.index(point.values[down])
        share = (place - low) / (high - low) if high > low else 1.0
        said = tag("title", f"{down}={point.values[down]}, {right}={point.values[right]}: {_score(point, metric)}")
        parts += [
            tag("rect", said, x=x + 1, y=y + 1, width=width - 2, height=_CELL - 2, rx=3, class_="cell",
                fill_opacity=f"{0.06 + 0.5 * share:.2f}"),
            tag("text", metric.text(point.mean), x=x + width / 2, y=y + _CELL / 2 + 4, text_anchor="middle",
                class_="strong" if point.chosen else "number"),
        ]  # fmt: skip
        if point.chosen:
            parts.append(tag("rect", x=x + 2, y=y + 2, width=width - 4, height=_CELL - 4, rx=3, class_="ring"))
    bottom = TOP + _CELL * len(rows)
    for i, value in enumerate(rows):
        y = TOP + _CELL * (i + 0.5) + 4
        parts.append(tag("text", _label(value), x=_GRID_LEFT - 8, y=y, text_anchor="end", class_="tick"))
    for i, value in enumerate(columns):
        x = _GRID_LEFT + width * (i + 0.5)
        parts.append(tag("text", _label(value), x=x, y=bottom + 16, text_anchor="middle", class_="tick"))
    middle = (_GRID_LEFT + WIDTH) / 2
    parts.append(tag("text", right, x=middle, y=bottom + 36, text_anchor="middle", class_="label"))
    best = _best(points, metric)
    described = f"{len(points)} points; best {metric.text(best.mean)} at {best.values}."
    title = f"{metric.title}, mean: {down} downwards, {right} to the right"
    return _figure(name, title, described, parts, height=bottom + HEIGHT - BOTTOM)


def _figure(name: str, title: str, described: str, parts: list[Markup], height: float = HEIGHT) -> Markup:
    return figure(title, drawing(name, title, described, [tag("g", *parts, class_="s0")], WIDTH, height))


def _score(point: PointResult, metric: RunMetric) -> str:
    return mean_text(metric, point.mean, point.std, len(point.scores))


def _best(points: Sequence[PointResult], metric: RunMetric) -> PointResult:
    return max(points, key=lambda point: rank(point.mean, metric.mode))


def _label(value: Any) -> str:
    return tick_text(value) if numeric([value]) else str(value)


def _ordered(values: Iterable[Any]) -> list[Any]:
    distinct = set(values)
    return sorted(distinct, key=None if numeric(list(distinct)) else str)


def _option_scale(values: Sequence[float], start: float, end: float, pad: float = 0.03) -> Scale:
    return fitted(values, start, end, pad=pad, log=min(values) > 0 and max(values) > _LOG_ABOVE * min(values))


def _upright_axis(values: Sequence[Any]) -> tuple[list[float], Marks]:
    """The pixel of each value on an upright axis, and its ticks; what is no number stands in steps."""
    low, high = BOTTOM, TOP + 8
    if numeric(values):
        scale = _option_scale([float(value) for value in values], low, high, pad=0.06)
        return [scale(float(value)) for value in values], scale.marks(5)
    names = _ordered(values)
    pixels = {value: low - (low - high) / (len(names) + 1) * (i + 1) for i, value in enumerate(names)}
    return [pixels[value] for value in values], [(pixel, str(value)) for value, pixel in pixels.items()]


def _upright(x: float, label: str, marks: Marks) -> list[Markup]:
    parts = [tag("line", x1=x, x2=x, y1=TOP, y2=BOTTOM, class_="axis")]
    parts += [tag("text", text, x=x + 4, y=y + 3.5, class_="tick") for y, text in marks]
    parts.append(tag("text", label, x=x, y=HEIGHT - 18, text_anchor="middle", class_="label"))
    return parts
