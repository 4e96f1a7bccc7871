"""Forest plot: differences with their intervals, and the line of no difference."""

from collections.abc import Sequence
from typing import NamedTuple

from markupsafe import Markup

from raysts.report.charts.axes import across, fitted
from raysts.report.charts.svg import drawing, tag

_WIDTH, _LEFT, _RIGHT, _ROW, _TOP, _BOTTOM = 760, 400.0, 618.0, 20.0, 8.0, 24.0


class Estimate(NamedTuple):
    """A difference with its label, its interval and its conclusion."""

    label: str
    value: float
    low: float
    high: float
    said: str


def forest_plot(name: str, title: str, estimates: Sequence[Estimate]) -> Markup:
    """Draw the estimates, a row each, first on top. ``name`` is unique in the page."""
    ends = [0.0, *(end for estimate in estimates for end in (estimate.value, estimate.low, estimate.high))]
    scale = fitted(ends, _LEFT, _RIGHT)
    low = _TOP + _ROW * len(estimates)
    parts = across(scale, _TOP, low)
    parts.append(tag("line", x1=scale(0.0), x2=scale(0.0), y1=_TOP, y2=low, class_="axis"))
    for index, estimate in enumerate(estimates):
        y = _TOP + _ROW * (index + 0.5)
        parts.append(
            tag(
                "g",
                tag("title", f"{estimate.label}: {_words(estimate)}"),
                tag("text", estimate.label, x=_LEFT - 10, y=y + 4, text_anchor="end", class_="label"),
                tag("line", x1=scale(estimate.low), x2=scale(estimate.high), y1=y, y2=y, class_="interval"),
                tag("circle", cx=scale(estimate.value), cy=y, r=4, class_="mark"),
                tag("text", estimate.said, x=_RIGHT + 12, y=y + 4, class_="number"),
                class_="role-student",
            )
        )
    text = "; ".join(f"{estimate.label}: {_words(estimate)}" for estimate in estimates)
    return drawing(name, title, text, parts, _WIDTH, low + _BOTTOM)


def _words(estimate: Estimate) -> str:
    return f"{estimate.value:+.2f} [{estimate.low:+.2f}, {estimate.high:+.2f}], {estimate.said}"
