"""Chart of a study of two options: a cell per point, its colour and its number the mean dev score."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from raysts.evaluation.run_metric import RunMetric, rank
from raysts.report.charts.axes import tick_text
from raysts.report.charts.markup import Markup, tag
from raysts.report.charts.study_charts import Shown, figure
from raysts.search.space import numeric

MOST = 12
"""Values of an option beyond which the cells would be too small to read."""

_LEFT, _TOP, _BOTTOM, _CELL, _WIDTH = 64, 12, 42, 30.0, 560


def fits_grid(options: Sequence[str], points: Sequence[Shown]) -> bool:
    """Whether the points are of two options with few values each."""
    return len(options) == 2 and all(2 <= len({point.values[key] for point in points}) <= MOST for key in options)


def grid_chart(name: str, options: Sequence[str], points: Sequence[Shown], metric: RunMetric) -> Markup:
    """The first option downwards, the second to the right; a point without a finished trial leaves its cell empty.

    Args:
        name: unique in the page.
        options: two keys of the points' values.
        points: what is shown.
        metric: what their scores are.
    """
    down, right = options
    rows, columns = _values(down, points), _values(right, points)
    wide, high = (_WIDTH - _LEFT - 8) / len(columns), _CELL
    ranks = [rank(point.mean, metric.mode) for point in points]
    low, top = min(ranks), max(ranks)
    parts: list[Markup] = []
    for point in points:
        x = _LEFT + wide * columns.index(point.values[right])
        y = _TOP + high * rows.index(point.values[down])
        share = (rank(point.mean, metric.mode) - low) / (top - low) if top > low else 1.0
        said = f"{down}={point.values[down]}, {right}={point.values[right]}: {metric.text(point.mean)}"
        said += f" ± {metric.text(point.std)} over {len(point.scores)}" if point.std is not None else ""
        cell = tag(
            "rect", tag("title", said), x=x + 1, y=y + 1, width=wide - 2, height=high - 2, rx=3,
            class_="cell", fill_opacity=f"{0.06 + 0.5 * share:.2f}",
        )  # fmt: skip
        kind = "strong" if point.chosen else "number"
        text = tag(
            "text", metric.text(point.mean), x=x + wide / 2, y=y + high / 2 + 4, text_anchor="middle", class_=kind
        )
        parts += [cell, text]
        if point.chosen:
            parts.append(tag("rect", x=x + 2, y=y + 2, width=wide - 4, height=high - 4, rx=3, class_="ring"))
    bottom = _TOP + high * len(rows)
    for i, value in enumerate(rows):
        y = _TOP + high * (i + 0.5) + 4
        parts.append(tag("text", _text(value), x=_LEFT - 8, y=y, text_anchor="end", class_="tick"))
    for i, value in enumerate(columns):
        x = _LEFT + wide * (i + 0.5)
        parts.append(tag("text", _text(value), x=x, y=bottom + 16, text_anchor="middle", class_="tick"))
    parts.append(tag("text", right, x=(_LEFT + _WIDTH) / 2, y=bottom + 36, text_anchor="middle", class_="label"))
    best = max(points, key=lambda point: rank(point.mean, metric.mode))
    described = f"{len(points)} points; best {metric.text(best.mean)} at {best.values}."
    title = f"{metric.title}, mean: {down} downwards, {right} to the right"
    return figure(name, title, described, parts, height=bottom + _BOTTOM)


def _values(option: str, points: Sequence[Shown]) -> list[Any]:
    found = {point.values[option] for point in points}
    return sorted(found) if numeric(list(found)) else sorted(found, key=str)


def _text(value: Any) -> str:
    return tick_text(value) if numeric([value]) else str(value)
