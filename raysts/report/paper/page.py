"""The page of one paper's tables: what was published, and what was measured beside it."""

from datetime import UTC, datetime
from pathlib import Path

from raysts.report import html
from raysts.report.paper.data import PaperData
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
        mark=MARK,
        caption=caption,
        notes=notes,
        printed=printed,
        measured_cells=measured_cells,
        system_label=system_label,
    )
