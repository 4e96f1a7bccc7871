"""Charts as SVG and their markup: elements, axes, lines, forest plots."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from markupsafe import Markup


def tag(name: str, /, *children: Markup | str | None, **attributes: object) -> Markup:
    """Return one element.

    The attribute ``class_`` becomes ``class``, other underscores become hyphens. Attributes and children that are None
    are omitted.
    """
    markup = Markup().join(
        Markup(' {}="{}"').format(key.rstrip("_").replace("_", "-"), _plain(value))
        for key, value in attributes.items()
        if value is not None
    )
    if not children:
        return Markup(f"<{name}{markup}/>")
    return Markup(f"<{name}{markup}>{Markup().join(child for child in children if child is not None)}</{name}>")


def _plain(value: object) -> object:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else value


def drawing(name: str, title: str, description: str, parts: list[Markup], width: float, height: float) -> Markup:
    """Return a drawing of ``width`` by ``height`` pixels, with title and description as text.

    ``name`` is unique in the page.
    """
    return tag(
        "svg",
        tag("title", title, id=f"{name}-t"),
        tag("desc", description, id=f"{name}-d"),
        *parts,
        viewBox=f"0 0 {width:g} {height:g}",
        width=f"{width:g}",
        height=f"{height:g}",
        role="img",
        aria_labelledby=f"{name}-t {name}-d",
        class_="chart",
    )


def figure(caption: str, content: Markup) -> Markup:
    """Return a drawing, or a table, with its caption."""
    return tag("figure", tag("figcaption", caption), content)


def polyline(points: list[tuple[float, float]], class_: str | None = None) -> Markup:
    """Draw a line through pixels."""
    return tag("polyline", points=" ".join(f"{x:.1f},{y:.1f}" for x, y in points), class_=class_)


# -- axes ----------------------------------------------------------------------------------------------------------------

WIDTH, HEIGHT = 560, 250
LEFT, RIGHT, TOP, BOTTOM = 56, WIDTH - 14, 12, HEIGHT - 42
"""Pixels of a chart, and the edges of the area inside its axes."""
X, Y = (LEFT, RIGHT), (BOTTOM, TOP)
"""Pixels from start to end of its axes."""

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

    def marks(self, count: int, integers: bool = False) -> Marks:
        """Return about ``count`` ticks with their texts, of a count of things at whole numbers."""
        ticks = self.ticks(count)
        if integers:
            inside = range(math.ceil(self.low), math.floor(self.high) + 1)
            ticks = [x for x in ticks if x == round(x)] if len(inside) > count else [*map(float, inside)]
        return [(self(x), tick_text(x)) for x in ticks]


def fit_scale(values: Sequence[float], start: float, end: float, pad: float = 0.06, log: bool = False) -> Scale:
    """Return a scale that shows all (finite) ``values`` with a margin.

    Constant values get a range around them, no values the range of 0 to 1.
    """
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    if log:
        room = max((high / low) ** pad, 1.05)
        return Scale(low / room, high * room, start, end, True)
    room = pad * (high - low)
    if high - low <= 1e-9 * max(abs(low), abs(high)):  # a range below the precision of the values would be noise
        room = 0.1 * abs(low) or 0.5
    return Scale(low - room, high + room, start, end)


def _linear_ticks(low: float, high: float, count: int) -> list[float]:
    rough = (high - low) / count
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
        digits, _, power = f"{value:.5e}".partition("e")
        return f"{float(digits):g}e{int(power)}"
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


def plot(name: str, title: str, text: str, parts: Sequence[Markup], caption: str | None = None) -> Markup:
    """Return a chart of parts in the first colour, with its caption. ``name`` is unique in the page."""
    return figure(caption or title, drawing(name, title, text, [tag("g", *parts, class_="s0")], WIDTH, HEIGHT))


_WIDEST, _HIGH = 9.0, 14.0
"""Pixels of a letter, and of a line, on a phone's page, which draws the largest text."""


def place_labels(points: Sequence[tuple[float, float, str]]) -> list[Markup]:
    """Write the name of each point (x, y, name) near it, not upon another name or beyond an edge."""
    parts, taken = list[Markup](), list[tuple[float, float, float]]()
    for x, y, name in sorted(points):
        width = _WIDEST * len(name)
        sides = [(x + 6, None), (x - 6 - width, "end")]
        places = [(left, y + down, anchor) for down in (-6, 20, -24, 38, -42, 56) for left, anchor in sides]
        left, down, anchor = next(
            (
                (left, down, anchor)
                for left, down, anchor in places
                if left >= 0 and left + width <= WIDTH and _HIGH <= down <= BOTTOM
                if all(left >= end or left + width <= start or abs(down - line) >= _HIGH for start, end, line in taken)
            ),
            places[0],
        )
        taken.append((left, left + width, down))
        parts.append(tag("text", name, x=left + width if anchor else left, y=down, text_anchor=anchor, class_="label"))
    return parts


# -- lines ---------------------------------------------------------------------------------------------------------------

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


def draw_line(dots: Sequence[Dot], x: Scale, y: Scale, joined: bool = True) -> list[Markup]:
    """Draw dots, and with ``joined`` the line through them.

    Dots are invisible until the pointer is on them when they are many.
    """
    parts = [polyline([(x(dot.x), y(dot.y)) for dot in dots], class_="line")] if joined else []
    radius, class_ = (3, "dot") if len(dots) <= _MANY else (4, "touch")
    for dot in dots:
        across, down = x(dot.x), y(dot.y)
        if dot.std is not None:
            top, low = y(dot.y + dot.std), y(dot.y - dot.std)
            parts.append(tag("line", x1=across, x2=across, y1=top, y2=low, class_="error"))
        parts += [tag("circle", cx=across, cy=y(single), r=1.8, class_="faint") for single in dot.singles]
        parts.append(tag("circle", tag("title", dot.text), cx=across, cy=down, r=radius, class_=class_))
        if dot.ring:
            parts.append(tag("circle", cx=across, cy=down, r=6, class_="ring"))
    return parts


# -- forest plots --------------------------------------------------------------------------------------------------------

_AXIS, _ROW, _TOP, _BOTTOM, _LETTER = 218.0, 20.0, 8.0, 24.0, 6.4


class Estimate(NamedTuple):
    """A difference with its label, its interval and its conclusion."""

    label: str
    value: float
    low: float
    high: float
    verdict: str


def forest_plot(name: str, title: str, estimates: Sequence[Estimate]) -> Markup:
    """Draw the estimates, a row each, first on top. ``name`` is unique in the page."""
    ends = [0.0, *(end for estimate in estimates for end in (estimate.value, estimate.low, estimate.high))]
    first = 16 + _LETTER * max(len(estimate.label) for estimate in estimates)
    scale = fit_scale(ends, first, first + _AXIS)
    low = _TOP + _ROW * len(estimates)
    parts = across(scale, _TOP, low)
    parts.append(tag("line", x1=scale(0.0), x2=scale(0.0), y1=_TOP, y2=low, class_="axis"))
    for index, estimate in enumerate(estimates):
        y = _TOP + _ROW * (index + 0.5)
        parts.append(
            tag(
                "g",
                tag("title", f"{estimate.label}: {_words(estimate)}"),
                tag("text", estimate.label, x=first - 10, y=y + 4, text_anchor="end", class_="label"),
                tag("line", x1=scale(estimate.low), x2=scale(estimate.high), y1=y, y2=y, class_="interval"),
                tag("circle", cx=scale(estimate.value), cy=y, r=4, class_="mark"),
                tag("text", estimate.verdict, x=scale.end + 12, y=y + 4, class_="number"),
                class_="role-student",
            )
        )
    text = "; ".join(f"{estimate.label}: {_words(estimate)}" for estimate in estimates)
    last = 24 + _LETTER * max(len(estimate.verdict) for estimate in estimates)
    return drawing(name, title, text, parts, first + _AXIS + last, low + _BOTTOM)


def _words(estimate: Estimate) -> str:
    return f"{estimate.value:+z.2f} [{estimate.low:+z.2f}, {estimate.high:+z.2f}], {estimate.verdict}"
