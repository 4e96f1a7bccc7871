"""Axes of the charts: scales with round ticks, and the frame around the data."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from raysts.report.charts.svg import tag

WIDTH, HEIGHT = 560, 250
LEFT, RIGHT, TOP, BOTTOM = 56, WIDTH - 14, 12, HEIGHT - 42
"""Pixels of a chart, and the edges of the area inside its axes."""

Marks = Sequence[tuple[float, str]]
"""Pixel and label of an axis' ticks."""


@dataclass(frozen=True, slots=True)
class Scale:
    """A map from values in [low, high] to pixels from ``start`` to ``end``.

    On a log scale, ``low`` is positive.
    """

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high, value = (math.log(v) if self.log else v for v in (self.low, self.high, value))
        return self.start + (value - low) / (high - low) * (self.end - self.start)

    def ticks(self, count: int) -> list[float]:
        return _log_ticks(self.low, self.high, count) if self.log else _linear_ticks(self.low, self.high, count)

    def marks(self, count: int) -> Marks:
        return [(self(value), tick_text(value)) for value in self.ticks(count)]


def fitted(values: Sequence[float], start: float, end: float, pad: float = 0.06, log: bool = False) -> Scale:
    """Return a scale that shows all (finite) ``values`` with a margin.

    Constant values get a range around them, no values the range of 0 to 1.
    """
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    if log:
        room = max((high / low) ** pad, 1.05)
        return Scale(low / room, high * room, start, end, True)
    # A range far below the precision of the values would give equal tick labels.
    room = max(pad * (high - low), 1e-9 * max(abs(low), abs(high)))
    if high - low <= 1e-9 * max(abs(low), abs(high), 1e-300):
        room = max(abs(low) * 0.1, 0.5 if low == 0 else abs(low) * 0.1)
    return Scale(low - room, high + room, start, end)


def _linear_ticks(low: float, high: float, count: int) -> list[float]:
    rough = (high - low) / max(1, count)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(index * step, 12) for index in range(first, last + 1)]


def _log_ticks(low: float, high: float, count: int) -> list[float]:
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ((1.0, 2.0, 5.0), (1.0, 3.0), (1.0,)):
        ticks = [factor * 10.0**power for power in powers for factor in factors if low <= factor * 10.0**power <= high]
        if len(ticks) <= count + 2:
            return ticks
    return ticks[:: math.ceil(len(ticks) / count)]


def tick_text(value: float) -> str:
    """Return the label of a tick: short, never wrong."""
    if value != 0 and not 1e-3 <= abs(value) < 1e5:
        return f"{value:.0e}".replace("e-0", "e-").replace("e+0", "e")
    return f"{value:,.6g}"


def across(scale: Scale, top: float, low: float) -> list[Markup]:
    """Draw a horizontal axis at ``low``, and its grid lines up to ``top``."""
    parts = [tag("line", x1=scale.start, x2=scale.end, y1=low, y2=low, class_="axis")]
    for x, text in scale.marks(5):
        parts.append(tag("line", x1=x, x2=x, y1=top, y2=low, class_="grid"))
        parts.append(tag("text", text, x=x, y=low + 15, text_anchor="middle", class_="tick"))
    return parts


def frame(x: Marks, y: Marks, label: str) -> list[Markup]:
    """Draw both axes of a chart, its horizontal grid lines, and the label of the x axis."""
    parts = [tag("line", x1=LEFT, x2=RIGHT, y1=BOTTOM, y2=BOTTOM, class_="axis")]
    for pixel, text in y:
        parts.append(tag("line", x1=LEFT, x2=RIGHT, y1=pixel, y2=pixel, class_="grid"))
        parts.append(tag("text", text, x=LEFT - 6, y=pixel + 3.5, text_anchor="end", class_="tick"))
    for pixel, text in x:
        parts.append(tag("line", x1=pixel, x2=pixel, y1=BOTTOM, y2=BOTTOM + 4, class_="axis"))
        parts.append(tag("text", text, x=pixel, y=BOTTOM + 16, text_anchor="middle", class_="tick"))
    parts.append(tag("text", label, x=(LEFT + RIGHT) / 2, y=HEIGHT - 6, text_anchor="middle", class_="label"))
    return parts
