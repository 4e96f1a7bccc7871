"""Forest plot: differences with their intervals beside each other, and the line where there is none."""

from collections.abc import Sequence
from typing import NamedTuple

from markupsafe import Markup

from raysts.report.charts.axes import across, fitted
from raysts.report.charts.svg import drawing, tag

_WIDTH, _LEFT, _RIGHT, _ROW, _TOP, _BOTTOM = 760, 400.0, 618.0, 20.0, 8.0, 24.0


class Estimate(NamedTuple):
    """A difference, its interval, what it is of, and what is concluded."""

    label: str
    value: float
    low: float
    high: float
    said: str


def forest_plot(name: str, title: str, estimates: Sequence[Estimate]) -> Markup:
    """The estimates, a row each, from above; ``name`` is unique in the page."""
    ends = [0.0, *(end for each in estimates for end in (each.value, each.low, each.high))]
    scale = fitted(ends, _LEFT, _RIGHT)
    low = _TOP + _ROW * len(estimates)
    parts = across(scale, _TOP, low)
    parts.append(tag("line", x1=scale(0.0), x2=scale(0.0), y1=_TOP, y2=low, class_="axis"))
    for index, each in enumerate(estimates):
        y = _TOP + _ROW * (index + 0.5)
        parts.append(
            tag(
                "g",
                tag("title", f"{each.label}: {_words(each)}"),
                tag("text", each.label, x=_LEFT - 10, y=y + 4, text_anchor="end", class_="label"),
                tag("line", x1=scale(each.low), x2=scale(each.high), y1=y, y2=y, class_="interval"),
                tag("circle", cx=scale(each.value), cy=y, r=4, class_="mark"),
                tag("text", each.said, x=_RIGHT + 12, y=y + 4, class_="number"),
                class_="role-student",
            )
        )
    said = "; ".join(f"{each.label}: {_words(each)}" for each in estimates)
    return drawing(name, title, said, parts, _WIDTH, low + _BOTTOM)


def _words(each: Estimate) -> str:
    return f"{each.value:+.2f} [{each.low:+.2f}, {each.high:+.2f}], {each.said}"
