"""``raysts report --paper``: read a storage, fill a paper's tables, write the page, and give it all as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from raysts.errors import InputError, nearest
from raysts.report.paper import published
from raysts.report.paper.figures import figures
from raysts.report.paper.match import PaperTable, paper_tables
from raysts.report.paper.measured import measured
from raysts.report.paper.page import write_report
from raysts.report.paper.text import format_papers
from raysts.storage.store import fetch

RECORDS = ("run.json", "recipe.json")
"""What the tables need of the runs in a storage."""


def report_paper(paper: str, storage: Path) -> dict[str, Any]:
    """Write ``reports/paper-<paper>/index.html`` into the storage.

    Returns:
        reports (paths), tables (as :func:`as_plain`), figures (fields of :class:`Figure`; values times
        100), text (for the terminal).

    Raises:
        InputError: no such paper, or results that cannot be read.
    """
    if paper not in published.PAPERS:
        known = ", ".join(published.PAPERS)
        raise InputError(f"--paper '{paper}'{nearest(paper, published.PAPERS)}: must be one of {known}")
    source = published.load(paper)
    for folder in ("pipelines", "studies", "runs"):
        fetch(storage / folder, named=RECORDS if folder == "runs" else ())
    tables = paper_tables(paper, measured(storage))
    drawn = figures(paper, tables, measured(storage, subsets=True))
    path = write_report(source, tables, drawn, storage / "reports" / f"paper-{paper}")
    about = [
        f"{source.short} Figure {each.number}: {each.about}: "
        + (f"{len(each.charts)} charts in the report" if each.charts else f"not measured; {each.how}")
        for each in drawn
    ]
    text = "\n".join([format_papers(source, tables), "", *about, *([""] if about else []), f"report: {path}"])
    plain = [asdict(each) for each in drawn]
    return {"reports": [str(path)], "tables": as_plain(tables), "figures": plain, "text": text}


def report_tables(paper: str, numbers: Sequence[int], storage: Path, folder: Path) -> Path:
    """Write the page of some tables of a paper into ``folder``; its path."""
    source = published.load(paper)
    tables = [shown for shown in paper_tables(paper, measured(storage)) if shown.table.number in numbers]
    return write_report(source, tables, [], folder)


def as_plain(tables: Sequence[PaperTable]) -> list[dict[str, Any]]:
    """Per table ``number``, ``about`` and ``cells``; a cell: row, group, system, backbone, column, metric, published and
    std (times 100), remark, measured (backbone, value and std not times 100, n, run, run_ids, remarks).
    """
    return [{"number": shown.table.number, "about": shown.table.about, "cells": _cells(shown)} for shown in tables]


def _cells(shown: PaperTable) -> list[dict[str, Any]]:
    return [
        {
            "row": row.name,
            "group": row.group,
            "system": row.system,
            "backbone": row.backbone,
            "column": column.name,
            "metric": column.metrics[k],
            "published": value.value,
            "std": value.std,
            "remark": value.remark or row.remark,
            "measured": [
                {
                    "backbone": backbone,
                    "value": found.value,
                    "std": found.std,
                    "n": found.n,
                    "run": found.source.run,
                    "run_ids": list(found.source.ids),
                    "remarks": list(found.source.remarks),
                }
                for backbone, found in shown.found.get((i, j, k), {}).items()
            ],
        }
        for i, row in enumerate(shown.table.rows)
        for j, (column, cell) in enumerate(zip(shown.table.columns, row.cells, strict=True))
        for k, value in enumerate(cell)
        if value is not None
    ]
