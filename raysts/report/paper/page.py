"""The page of one paper's tables and figures: what was published, and what was measured beside it."""

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from markupsafe import Markup

from raysts.report import html
from raysts.report.charts.axes import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Scale, fitted, frame
from raysts.report.charts.lines import Dot, bars, line
from raysts.report.charts.svg import drawing, tag
from raysts.report.paper.data import PaperData
from raysts.report.paper.figures import Chart, Figure, Line
from raysts.report.paper.text import MARK, caption, measured_cells, notes, printed, system_label


def write_report(data: PaperData, folder: Path) -> Path:
    """Write the page into ``folder``; its path."""
    return html.write_page(render(data), folder)


def render(data: PaperData) -> str:
    """The page as HTML."""
    return html.render(
        "paper/page.html",
        paper=data.paper,
        tables=data.tables,
        made_at=datetime.now(UTC).isoformat(timespec="seconds"),
        measurements=sum(len(cell) for table in data.tables for cell in table.measured.values()),
        figures=[(figure, _styles(figure)) for figure in data.figures],
        mark=MARK,
        caption=caption,
        notes=notes,
        printed=printed,
        measured_cells=measured_cells,
        system_label=system_label,
        draw=draw,
    )


def _styles(figure: Figure) -> dict[str, str]:
    """Classes of each line of a figure, the same in all of its charts."""
    lines = {line.name: line for chart in figure.charts for line in chart.lines}
    return {
        name: f"s{number % 10}{' published' if line.published else ''}"
        for number, (name, line) in enumerate(lines.items())
    }


def draw(name: str, chart: Chart, styles: Mapping[str, str]) -> Markup:
    """One chart; ``name`` is unique in the page, ``styles`` are the classes of each line."""
    lines = [[_dot(chart, shown, *point) for point in shown.points] for shown in chart.lines]
    ends = [end for dots in lines for dot in dots for end in dot.ends]
    y = Scale(0.0, 1.05 * max([*ends, 1e-9]), BOTTOM, TOP) if chart.bars else fitted(ends, BOTTOM, TOP)
    x = Scale(-0.5, len(chart.places) - 0.5, LEFT, RIGHT)
    parts = frame([(x(place), label) for place, label in enumerate(chart.places)], y.marks(7), chart.across)
    width = 0.8 * (RIGHT - LEFT) / len(chart.places) / len(chart.lines)
    for number, (shown, dots) in enumerate(zip(chart.lines, lines, strict=True)):
        shift = width * (number - len(lines) / 2)
        marks = bars(dots, x, y, width - 1, shift) if chart.bars else line(dots, x, y)
        parts.append(tag("g", *marks, class_=styles[shown.name]))
    said = "; ".join(
        f"{shown.name}: {', '.join(f'{chart.places[place]} {value:.4g}' for place, value, _ in shown.points)}"
        for shown in chart.lines
    )
    return drawing(name, f"{chart.title}: {chart.quantity} by {chart.across}", said, parts, WIDTH, HEIGHT)


def _dot(chart: Chart, shown: Line, place: int, value: float, std: float | None) -> Dot:
    number = f"{value:,.0f}" if chart.bars else f"{value:.2f}" + ("" if std is None else f" ± {std:.2f}")
    return Dot(x=place, y=value, std=std, text=f"{shown.name}, {chart.places[place]}: {number}")
