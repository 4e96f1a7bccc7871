"""The papers' tables, published and measured, as text for the terminal and as a page."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from raysts.evaluation.standings import AGGREGATIONS, METRICS, align_columns, describe_pooled
from raysts.evaluation.transfer import PROBES
from raysts.papers.match import Origin, PaperTable
from raysts.papers.measured import PaperData
from raysts.papers.published import Paper, PrintedRow, PrintedTable, PrintedValue
from raysts.report import html

MARK = "†"
"""What a value with a remark carries."""

_NAMED = 4  # rows that a line about empty ones names

_CONDITIONS = ("aggregation", "layers", "pooling", "similarity")


def write_report(data: PaperData, folder: Path) -> Path:
    """Write the page into ``folder`` and return its path."""
    return html.write_page(render(data), folder)


def render(data: PaperData) -> str:
    """Return the page as HTML."""
    functions = (caption, filling, notes, format_printed, measured_cells, system_label)
    count = sum(len(cell) for table in data.tables for cell in table.measured.values())
    values = {"paper": data.paper, "tables": data.tables, "measurements": count, "mark": MARK}
    made_at = datetime.now(UTC).isoformat(timespec="seconds")
    return html.render("papers/tables.html", **values, made_at=made_at, **{f.__name__: f for f in functions})


def format_paper(data: PaperData) -> str:
    """Return every table as aligned text, with measurements in separate columns."""
    paper = data.paper
    head = [f"{paper.short}: {paper.title}", *(f"- {note}" for note in paper.notes)]
    tables = ["\n".join(_table_lines(paper, table)) for table in data.tables]
    return "\n\n".join(["\n".join(head), *tables])


def _table_lines(paper: Paper, shown: PaperTable) -> list[str]:
    table, tags = shown.table, [chr(ord("a") + i) for i in range(len(shown.backbones))]
    lines = [f"{paper.short} Table {table.number}: {table.about} ({caption(table)})"]
    lines += [f"- {note}" for note in table.notes]
    lines += [f"{tag}: measured, {backbone}" for tag, backbone in zip(tags, shown.backbones, strict=True)]
    width = 1 + max(1, len(tags))  # columns of a published column
    top, below = ["", ""], ["", "system"]
    for column in table.columns:
        top += [column.name, *[""] * (width - 1)]
        below += ["paper", *(tags or ["measured"])]
    body: list[list[str] | str] = [top, below]
    group = None
    for i, row in enumerate(table.rows):
        if row.group != group:
            group = row.group
            body.append(group or "")
        cells = [row.name + (MARK if row.remark else ""), system_label(table, row)]
        for j, cell in enumerate(row.cells):
            cells += [format_printed(cell), *(measured_cells(shown, i, j) or [""])]
        body.append(cells)
    cells_left = iter(align_columns([line for line in body if not isinstance(line, str)], (0, 1)))
    aligned = [line if isinstance(line, str) else next(cells_left) for line in body]
    lines += [*aligned[:2], "-" * max(map(len, aligned)), *aligned[2:]]
    return [*lines, *filling(shown), *notes(shown)]


def format_printed(cell: Sequence[PrintedValue | None]) -> str:
    """Return a published cell: ``69.63 / 69.50``, ``42.70 ±0.74``, or a dash."""
    if all(value is None or value.value is None for value in cell):
        return ""
    texts = ["–" if value is None or value.value is None else _number(value.value, value.std) for value in cell]
    return " / ".join(texts) + (MARK if any(value is not None and value.remark for value in cell) else "")


def _number(value: float, std: float | None, factor: int = 1) -> str:
    return f"{factor * value:.2f}" + (f" ±{factor * std:.2f}" if std is not None else "")


def measured_cells(shown: PaperTable, row: int, column: int) -> list[str]:
    """Return the measurements of a cell per backbone, times 100, with their run's number."""
    cell = [shown.measured.get((row, column, k), {}) for k in range(len(shown.table.rows[row].cells[column]))]
    texts = []
    for backbone in shown.backbones:
        values = [by_backbone.get(backbone) for by_backbone in cell]
        runs = sorted({shown.sources.index(value.source) + 1 for value in values if value is not None})
        numbers = ["–" if value is None else _number(value.value, value.std, 100) for value in values]
        texts.append(f"{' / '.join(numbers)} [{', '.join(map(str, runs))}]" if runs else "")
    return texts


def notes(shown: PaperTable) -> list[str]:
    """Return the remarks on rows and cells of a table, then the runs of its measurements."""
    lines = []
    for row in shown.table.rows:
        lines += [f"{MARK} {row.title}: {row.remark}"] if row.remark else []
        for column, cell in zip(shown.table.columns, row.cells, strict=True):
            remarks = dict.fromkeys(value.remark for value in cell if value is not None and value.remark)
            lines += [f"{MARK} {row.title}, {column.name}: {remark}" for remark in remarks]
    return lines + [f"[{number}] {describe_source(source)}" for number, source in enumerate(shown.sources, 1)]


def filling(shown: PaperTable) -> list[str]:
    """Return how many cells of a table are filled, then the empty rows by reason."""
    by_reason: dict[str, list[str]] = {}
    for row, why in shown.empty:
        by_reason.setdefault(why, []).append(row.title)
    lines = [f"{len(shown.measured)} of {len(shown.table.values)} cells are filled"]
    for why, rows in by_reason.items():
        text = "; ".join(rows[:_NAMED]) + (f" and {len(rows) - _NAMED} more" if len(rows) > _NAMED else "")
        lines.append(f"empty: {'every row' if len(rows) == len(shown.table.rows) else text}: {why}")
    return lines


def describe_source(source: Origin) -> str:
    """Return a run as text: ``nli-ct-sed on bert-base-uncased: 10 members (ids)``."""
    ids = ", ".join(run[:8] for run in source.ids)
    plural = source.role in ("member", "student") and len(source.ids) > 1
    subject = f"{len(source.ids)} {source.role}s" if plural else source.role
    return "; ".join([f"{source.run} on {source.backbone}: {subject} ({ids})", *source.remarks])


def caption(table: PrintedTable) -> str:
    """Return the metrics and the conditions that most rows share."""
    metrics = dict.fromkeys(" / ".join(METRICS.get(name, name) for name in column.metrics) for column in table.columns)
    conditions = [_words(name, table.conditions[name]) for name in _CONDITIONS if name in table.conditions]
    return ", ".join([f"{', '.join(metrics)} × 100", *conditions])


def system_label(table: PrintedTable, row: PrintedRow) -> str:
    """Return the system's name and the conditions in which it differs from most rows."""
    differing = [name for name in _CONDITIONS if name in table.conditions and name in row.conditions]
    return ", ".join([row.system or "", *(_words(name, row.conditions[name]) for name in differing)])


def _words(condition: str, value: str) -> str:
    if condition == "layers":
        return describe_pooled(value)
    kind = "probe" if value in PROBES else condition
    return AGGREGATIONS[value] if condition == "aggregation" else f"{value} {kind}"
