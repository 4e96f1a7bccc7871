"""Training curves: one line per run, drawn as static SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from raysts.report.charts.axes import Scale, fitted, tick_text
from raysts.report.charts.markup import Markup, join, tag

WIDTH, HEIGHT = 560, 230
_LEFT, _RIGHT, _TOP, _BOTTOM = 44, 12, 12, 40
_LOG_ABOVE = 40.0
"""A positive quantity whose largest value is this many times its smallest is drawn on a log scale."""

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Series:
    """One line: ``style`` is the number of its colour; ``kept`` marks the step whose model was kept."""

    name: str
    style: int
    points: Sequence[Point]
    kept: float | None = None


def line_chart(name: str, title: str, quantity: str, series: Sequence[Series], log: bool = True) -> Markup:
    """A figure with the chart of ``quantity`` by step; points that are not finite are left out.

    Args:
        name: unique in the page; the SVG's title and description are referred to by it.
        title: what the chart shows.
        quantity: what the vertical axis is.
        series: lines.
        log: whether a log scale may be chosen.
    """
    shown = [Series(s.name, s.style, [p for p in s.points if all(map(math.isfinite, p))], s.kept) for s in series]
    xs = [x for s in shown for x, _ in s.points]
    ys = [y for s in shown for _, y in s.points]
    if not ys:
        return tag("figure", tag("figcaption", quantity), tag("p", "No values were logged.", class_="empty"))
    use_log = log and min(ys) > 0 and max(ys) > _LOG_ABOVE * min(ys)
    x_scale = fitted([0.0, *xs], _LEFT, WIDTH - _RIGHT, pad=0.0)
    y_scale = fitted(ys, HEIGHT - _BOTTOM, _TOP, log=use_log)
    last = ", ".join(f"{s.name} {s.points[-1][1]:.4g}" for s in shown if s.points)
    drawing = tag(
        "svg",
        tag("title", title, id=f"{name}-t"),
        tag("desc", f"{quantity} from {min(ys):.4g} to {max(ys):.4g}; at the last step: {last}.", id=f"{name}-d"),
        *_grid(x_scale, y_scale),
        *(_line(s, x_scale, y_scale) for s in shown if s.points),
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        width=WIDTH,
        height=HEIGHT,
        role="img",
        aria_labelledby=f"{name}-t {name}-d",
        class_="chart",
    )
    return tag("figure", tag("figcaption", quantity, " (log scale)" if use_log else None), drawing)


def _grid(x_scale: Scale, y_scale: Scale) -> list[Markup]:
    low, right = HEIGHT - _BOTTOM, WIDTH - _RIGHT
    parts = [tag("line", x1=_LEFT, x2=right, y1=low, y2=low, class_="axis")]
    for value in y_scale.ticks(5):
        y = y_scale(value)
        parts.append(tag("line", x1=_LEFT, x2=right, y1=y, y2=y, class_="grid"))
        parts.append(tag("text", tick_text(value), x=_LEFT - 6, y=y + 3.5, text_anchor="end", class_="tick"))
    for value in x_scale.ticks(5):
        x = x_scale(value)
        parts.append(tag("line", x1=x, x2=x, y1=low, y2=low + 4, class_="axis"))
        parts.append(tag("text", tick_text(value), x=x, y=low + 16, text_anchor="middle", class_="tick"))
    parts.append(tag("text", "step", x=(_LEFT + right) / 2, y=HEIGHT - 6, text_anchor="middle", class_="label"))
    return parts


def _line(series: Series, x_scale: Scale, y_scale: Scale) -> Markup:
    places = [(x_scale(x), y_scale(y)) for x, y in series.points]
    drawn = tag("polyline", points=" ".join(f"{x:.1f},{y:.1f}" for x, y in places), class_="line")
    dots: list[Markup] = []
    few = len(places) <= 24
    for (step, value), (x, y) in zip(series.points, places, strict=True):
        kept = step == series.kept
        label = tag("title", f"{series.name}, step {step:g}: {value:.4g}{' (kept)' if kept else ''}")
        # Invisible where dots would hide the line: they still answer the pointer.
        dots.append(tag("circle", label, cx=x, cy=y, r=2.4 if few else 4, class_="dot" if few else "touch"))
        if kept:
            dots.append(tag("circle", cx=x, cy=y, r=5.5, class_="ring"))
    return tag("g", tag("title", series.name), drawn, join(*dots), class_=f"s{series.style % 10}")
