"""Lines of charts: training curves, and scores of a study against an option."""

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from raysts.report.charts.axes import Scale
from raysts.report.charts.svg import polyline, tag

_MANY = 24
"""Number of points beyond which dots would hide the line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dot:
    """Point of a line.

    Attributes:
        text: tooltip of the point.
        std: half the length of its error bar.
        singles: the values that ``y`` is the mean of, drawn faint.
        ring: the point is the chosen one, which gets a ring.
    """

    x: float
    y: float
    text: str
    std: float | None = None
    singles: Sequence[float] = ()
    ring: bool = False

    @property
    def ends(self) -> list[float]:
        """The values that a vertical axis must include."""
        return [self.y - (self.std or 0), self.y + (self.std or 0), *self.singles]


def line(dots: Sequence[Dot], x: Scale, y: Scale, joined: bool = True) -> list[Markup]:
    """Draw dots, and with ``joined`` the line through them.

    Dots are invisible until the pointer is on them when they are many.
    """
    parts = [polyline([(x(dot.x), y(dot.y)) for dot in dots], class_="line")] if joined else []
    dots_visible = len(dots) <= _MANY
    for dot in dots:
        across, down = x(dot.x), y(dot.y)
        if dot.std is not None:
            parts.append(
                tag("line", x1=across, x2=across, y1=y(dot.y + dot.std), y2=y(dot.y - dot.std), class_="error")
            )
        parts += [tag("circle", cx=across, cy=y(single), r=1.8, class_="faint") for single in dot.singles]
        tooltip = tag("title", dot.text)
        parts.append(
            tag(
                "circle",
                tooltip,
                cx=across,
                cy=down,
                r=3 if dots_visible else 4,
                class_="dot" if dots_visible else "touch",
            )
        )
        if dot.ring:
            parts.append(tag("circle", cx=across, cy=down, r=6, class_="ring"))
    return parts
