"""The first table of a run: one score of each system on each test set."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence

from raysts.evaluation.results import ResultRow
from raysts.evaluation.standings import AGREEMENT, AVERAGE, TEACHER, Standing, Standings, Value, main_standings
from raysts.models.layers import Layers
from raysts.pipeline.verdict import ROLE_NAMES, TITLES

RETRIEVAL, RETRIEVAL_METRIC = "retrieval:", "ndcg@10"
"""Beginning of the names of retrieval sets, and their metric in the first table."""


def summary(rows: Sequence[ResultRow], compare_layers: Layers, distributed: tuple[str, Layers]) -> Standings | None:
    """Return the first table, or None without a test set.

    It has rank correlations, of retrieval sets nDCG@10. The arguments are those of
    :func:`raysts.evaluation.standings.main_standings`.
    """
    as_correlation = {"metric": "spearman", "aggregation": "all"}
    shown = [
        {**row, **as_correlation} if row["dataset"].startswith(RETRIEVAL) and row["metric"] == RETRIEVAL_METRIC else row
        for row in rows
    ]
    return main_standings(shown, compare_layers, distributed)


def metric_of(table: Standings, column: str) -> str:
    """Return the name of the metric of a column."""
    return "nDCG@10" if column.startswith(RETRIEVAL) else table.view.metric.capitalize()


def caption(table: Standings) -> str:
    """Return the caption of the table."""
    metrics = dict.fromkeys(metric_of(table, column) for column in table.columns if column != AVERAGE)
    return table.view.described.replace(table.view.metric.capitalize(), " and ".join(metrics), 1)


def label(line: Standing) -> str:
    """Return the name of a system: ``student``, ``members (4)``, ``teacher minilm``."""
    role = str(line.role)
    if role.startswith(TEACHER):
        return role
    return f"{ROLE_NAMES.get(role, role)}s ({line.n})" if line.n > 1 else ROLE_NAMES.get(role, role)


def as_text(table: Standings, width: int) -> str:
    """Return the table as text of at most ``width`` characters: a row for each set, the user's first.

    Systems that do not fit stand in another block below.
    """
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    names = sorted(table.columns, key=lambda name: (name in (*TITLES, AGREEMENT, AVERAGE), name == AVERAGE))
    heads = [f"{name} nDCG@10" if name.startswith(RETRIEVAL) else name for name in names]
    heads = [f"mean of {len(table.averaged)}" if head == AVERAGE else head for head in heads]
    systems = [
        [label(line).replace(" ", "\n"), *(_cell(line.mean.get(name)) for name in names)] for line in table.plotted
    ]
    console = Console(file=io.StringIO(), width=width, highlight=False, color_system=None)
    console.print(caption(table))
    for block in _blocks(systems, width - 3 - max(map(len, heads))):
        grid = Table(box=SIMPLE_HEAD)
        for name, *_ in [["set"], *block]:
            is_set = name == "set"
            grid.add_column(name, justify="left" if is_set else "right", no_wrap=not is_set, overflow="fold")
        for head, *values in zip(heads, *(values for _, *values in block), strict=True):
            grid.add_row(head, *values)
        console.print(grid)
    assert isinstance(console.file, io.StringIO)
    lines = [line.rstrip() for line in console.file.getvalue().splitlines()]
    return "\n".join(line for line in lines if line)


def _cell(value: Value | None) -> str:
    return value.with_spread.replace("± ", "±") if value else ""


def _blocks(systems: Sequence[list[str]], room: int) -> Iterator[list[list[str]]]:
    """Yield the columns that fit into ``room`` characters together, the first in every block."""
    block = [systems[0]]
    for column in systems[1:]:
        widths = [2 + max(len(line) for cell in cells for line in cell.split("\n")) for cells in [*block, column]]
        if len(block) > 1 and sum(widths) > room:
            yield block
            block = [systems[0]]
        block.append(column)
    yield block
