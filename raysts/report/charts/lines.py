"""Lines of charts: training curves, a study's scores against an option."""

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from raysts.report.charts.axes import Scale
from raysts.report.charts.svg import polyline, tag

_MANY = 24
"""Points beyond which their dots would hide the line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dot:
    """One point of a line.

    Attributes:
        text: said where it is pointed at.
        std: a bar of so much to both sides.
        singles: what ``y`` is the mean of, drawn faint.
        ring: it was chosen.
    """

    x: float
    y: float
    text: str
    std: float | None = None
    singles: Sequence[float] = ()
    ring: bool = False

    @property
    def ends(self) -> list[float]:
        """What a vertical axis must show."""
        return [self.y - (self.std or 0), self.y + (self.std or 0), *self.singles]


def line(dots: Sequence[Dot], x: Scale, y: Scale, joined: bool = True) -> list[Markup]:
    """Dots, and unless they are not ``joined`` the line through them; where dots are many they show when pointed at."""
    parts = [polyline([(x(dot.x), y(dot.y)) for dot in dots], class_="line")] if joined else []
    few = len(dots) <= _MANY
    for dot in dots:
        across, down = x(dot.x), y(dot.y)
        if dot.std is not None:
            parts.append(
                tag("line", x1=across, x2=across, y1=y(dot.y + dot.std), y2=y(dot.y - dot.std), class_="error")
            )
        parts += [tag("circle", cx=across, cy=y(single), r=1.8, class_="faint") for single in dot.singles]
        said = tag("title", dot.text)
        parts.append(tag("circle", said, cx=across, cy=down, r=3 if few else 4, class_="dot" if few else "touch"))
        if dot.ring:
            parts.append(tag("circle", cx=across, cy=down, r=6, class_="ring"))
    return parts
