"""The page of one paper's tables: published values, and what was measured beside them, in one self-contained file."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from raysts.report.charts import figure_charts
from raysts.report.charts.figure_charts import figure_section
from raysts.report.charts.markup import Markup, join, tag
from raysts.report.charts.style import STYLE
from raysts.report.paper.figures import Figure
from raysts.report.paper.match import PaperTable
from raysts.report.paper.published import Paper
from raysts.report.paper.text import MARK, caption, describe_source, measured, printed, remarks, system_label
from raysts.storage.store import aside

_STYLE = (
    STYLE
    + figure_charts.STYLE
    + ".measured { background: var(--panel); } tbody .group th { color: var(--soft); font-weight: 650; }\n"
)


def write_paper_page(paper: Paper, tables: Sequence[PaperTable], drawn: Sequence[Figure], folder: Path) -> Path:
    """Write the page as ``folder/index.html``, aside then renamed, and return that path."""
    path = folder / "index.html"
    with aside(path) as draft:
        draft.write_text(render_paper(paper, tables, drawn), encoding="utf-8")
    return path


def render_paper(paper: Paper, tables: Sequence[PaperTable], drawn: Sequence[Figure] = ()) -> str:
    """The page as HTML; everything is escaped, nothing is loaded from anywhere."""
    made = datetime.now(UTC).isoformat(timespec="seconds")
    measurements = sum(map(len, (cell for table in tables for cell in table.found.values())))
    header = tag(
        "header",
        tag("h1", paper.title),
        tag("p", "raysts report, made ", tag("time", made.replace("T", " ").replace("+00:00", " UTC"), datetime=made),
            class_="meta"),
        tag("p", f"{len(tables)} tables of {paper.short} as published; {measurements:,} measurements of this storage beside "
            f"them, each in the column of its own backbone. An empty cell: nothing was measured."),
        tag("ul", *(tag("li", note) for note in paper.notes), class_="hint"),
    )  # fmt: skip
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("link", rel="icon", href="data:,"),
        tag("title", f"{paper.short}: published and measured · raysts report"),
        tag("style", Markup(_STYLE)),
    )
    body = tag("body", tag("main", header, *(section(paper, table) for table in tables), *map(figure_section, drawn)))
    return f"<!DOCTYPE html>\n{tag('html', head, body, lang='en')}\n"


def section(paper: Paper, shown: PaperTable) -> Markup:
    """One table, with its notes, its remarks and the runs behind its measurements."""
    table = shown.table
    about = table.about[0].upper() + table.about[1:]
    content = tag("table", tag("caption", caption(table)), tag("thead", *_head(shown)), tag("tbody", *_body(shown)))
    notes = [
        *table.notes,
        *(f"{MARK} {where}: {text}" for where, text in remarks(table)),
        *(f"[{number}] {describe_source(source)}" for number, source in enumerate(shown.sources, 1)),
    ]
    return tag(
        "section",
        tag("h2", f"Table {table.number}. {about}"),
        tag("div", content, class_="scroll", tabindex="0", role="region", aria_label=f"Table {table.number}"),
        *(tag("p", note, class_="hint") for note in notes),
    )


def _head(shown: PaperTable) -> list[Markup]:
    beside = shown.backbones or ("measured",)
    names = [tag("th", column.name, scope="colgroup", colspan=1 + len(beside)) for column in shown.table.columns]
    kinds = [
        tag("th", text, scope="col", class_="number" if text == "paper" else "number measured")
        for _ in shown.table.columns
        for text in ("paper", *beside)
    ]
    return [tag("tr", tag("td", ""), *names), tag("tr", tag("th", "System", scope="col"), *kinds)]


def _body(shown: PaperTable) -> list[Markup]:
    rows: list[Markup] = []
    group, width = None, 1 + len(shown.table.columns) * (1 + max(1, len(shown.backbones)))
    for i, row in enumerate(shown.table.rows):
        if row.group != group:
            group = row.group
            rows.append(tag("tr", tag("th", group, scope="rowgroup", colspan=width), class_="group"))
        cells = []
        for j, cell in enumerate(row.cells):
            cells.append(tag("td", printed(cell), class_="number"))
            found = [shown.found.get((i, j, k), {}) for k in range(len(cell))]
            texts = [measured([each.get(backbone) for each in found], shown.sources) for backbone in shown.backbones]
            cells += [tag("td", text, class_="number measured") for text in texts or [""]]
        label = system_label(shown.table, row)
        name = join(row.name, MARK if row.remark else None, tag("small", label) if label else None)
        rows.append(tag("tr", tag("th", name, scope="row"), *cells))
    return rows
