"""Charts of the papers' figures as static SVG: lines or bars over labelled places."""

from __future__ import annotations

from collections.abc import Mapping

from raysts.report.charts.axes import Scale, fitted, tick_text
from raysts.report.charts.markup import Markup, tag
from raysts.report.paper.figures import Chart, Figure, Line

WIDTH, HEIGHT = 560, 250
_LEFT, _RIGHT, _TOP, _BOTTOM = 48, 14, 12, 42

STYLE = """
.published polyline { stroke-dasharray: 5 4; } .published .dot { fill: var(--paper); stroke: var(--series); }
.bar { fill: var(--series); } .error { stroke: var(--series); stroke-width: 1.4; opacity: .6; }
.legend .published::before { background: repeating-linear-gradient(90deg, var(--series) 0 5px, transparent 5px 8px); }
"""
"""What these charts need beyond the common style sheet."""


def figure_section(figure: Figure) -> Markup:
    """A figure with its legend and charts, or a line that says what would measure it."""
    title = tag("h2", f"Figure {figure.number}. {figure.about[0].upper()}{figure.about[1:]}")
    if not figure.charts:
        return tag(
            "section", title, tag("p", f"Nothing of it was measured in this storage: {figure.how}", class_="hint")
        )
    lines = {line.name: line for chart in figure.charts for line in chart.lines}
    styles = {name: number for number, name in enumerate(lines)}
    legend = tag(
        "ul",
        *(
            tag("li", name, class_=f"s{styles[name] % 10}{' published' if line.published else ''}")
            for name, line in lines.items()
        ),
        class_="legend",
    )
    drawn = [draw(f"figure-{figure.number}-{i}", chart, styles) for i, chart in enumerate(figure.charts)]
    return tag("section", title, legend, tag("div", *drawn, class_="charts"))


def draw(name: str, chart: Chart, styles: Mapping[str, int]) -> Markup:
    """One chart.

    Args:
        name: unique in the page; the SVG's title and description are referred to by it.
        chart: what is shown.
        styles: number of the colour of each line.
    """
    ends = [end for line in chart.lines for _, y, std in line.points for end in (y - (std or 0), y + (std or 0))]
    y = (
        Scale(0.0, 1.05 * max([*ends, 1e-9]), HEIGHT - _BOTTOM, _TOP)
        if chart.bars
        else fitted(ends, HEIGHT - _BOTTOM, _TOP)
    )
    band = (WIDTH - _LEFT - _RIGHT) / len(chart.places)
    parts = _axes(chart, y, band)
    for number, line in enumerate(chart.lines):
        marks = _bars(chart, line, number, y, band) if chart.bars else _line(chart, line, y, band)
        classes = f"s{styles[line.name] % 10}{' published' if line.published else ''}"
        parts.append(tag("g", *marks, class_=classes))
    said = "; ".join(
        f"{line.name}: {', '.join(f'{chart.places[place]} {value:.4g}' for place, value, _ in line.points)}"
        for line in chart.lines
    )
    drawing = tag(
        "svg",
        tag("title", f"{chart.title}: {chart.quantity} by {chart.across}", id=f"{name}-t"),
        tag("desc", said, id=f"{name}-d"),
        *parts,
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        width=WIDTH,
        height=HEIGHT,
        role="img",
        aria_labelledby=f"{name}-t {name}-d",
        class_="chart",
    )
    return tag("figure", tag("figcaption", tag("b", chart.title), f", {chart.quantity}"), drawing)


def _axes(chart: Chart, y: Scale, band: float) -> list[Markup]:
    low, right = HEIGHT - _BOTTOM, WIDTH - _RIGHT
    parts = []
    for value in y.ticks(7):
        parts.append(tag("line", x1=_LEFT, x2=right, y1=y(value), y2=y(value), class_="grid"))
        parts.append(tag("text", tick_text(value), x=_LEFT - 6, y=y(value) + 3.5, text_anchor="end", class_="tick"))
    parts.append(tag("line", x1=_LEFT, x2=right, y1=low, y2=low, class_="axis"))
    for place, label in enumerate(chart.places):
        x = _LEFT + band * (place + 0.5)
        parts.append(tag("line", x1=x, x2=x, y1=low, y2=low + 4, class_="axis"))
        parts.append(tag("text", label, x=x, y=low + 16, text_anchor="middle", class_="tick"))
    parts.append(tag("text", chart.across, x=(_LEFT + right) / 2, y=HEIGHT - 6, text_anchor="middle", class_="label"))
    return parts


def _said(chart: Chart, line: Line, place: int, value: float, std: float | None) -> Markup:
    spread = "" if std is None else f" ± {std:.2f}"
    number = f"{value:,.0f}" if chart.bars else f"{value:.2f}{spread}"
    return tag("title", f"{line.name}, {chart.places[place]}: {number}")


def _line(chart: Chart, line: Line, y: Scale, band: float) -> list[Markup]:
    spots = [(_LEFT + band * (place + 0.5), y(value)) for place, value, _ in line.points]
    parts = [tag("polyline", points=" ".join(f"{a:.1f},{b:.1f}" for a, b in spots), class_="line")]
    for (place, value, std), (a, b) in zip(line.points, spots, strict=True):
        if std is not None:
            parts.append(tag("line", x1=a, x2=a, y1=y(value + std), y2=y(value - std), class_="error"))
        parts.append(tag("circle", _said(chart, line, place, value, std), cx=a, cy=b, r=3, class_="dot"))
    return parts


def _bars(chart: Chart, line: Line, number: int, y: Scale, band: float) -> list[Markup]:
    width = 0.8 * band / len(chart.lines)
    parts = []
    for place, value, std in line.points:
        left = _LEFT + band * (place + 0.1) + width * number
        label = _said(chart, line, place, value, std)
        height = y(0.0) - y(value)
        parts.append(tag("rect", label, x=left, y=y(value), width=width - 1, height=height, class_="bar"))
    return parts
