from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from typing import Any

import pytest

from raysts import papers
from raysts.evaluation.statistics import METRICS
from raysts.evaluation.sts import STS_TASKS
from raysts.papers.published import BACKBONES, PAPERS, PrintedRow, PrintedTable, PrintedValue, load
from raysts.recipes import names
from raysts.recipes.names import RECIPES, pipeline
from raysts.recipes.tree import has_path, read_data, to_plain

SHAPES = {
    "sed": [(14, 6), (8, 6), (12, 3), (12, 1), (12, 6), (12, 6), (8, 12), (12, 3)],
    "gausscse": [(9, 4), (8, 4), (10, 3)],
    "latte-mix": [(11, 2), (10, 2), (10, 2), (51, 7), (34, 7), (24, 7), (24, 7), (12, 9), (48, 7), (24, 9)],
}
"""Rows and columns of every table, counted in the papers. Five rows of SED's Table 1 are not in the paper."""


def table(paper: str, number: int) -> PrintedTable:
    return load(paper).tables[number - 1]


def cells(paper: str, number: int, name: str) -> list[tuple[float | None, ...]]:
    row = next(row for row in table(paper, number).rows if row.name == name)
    return [tuple(value.value if value else None for value in cell) for cell in row.cells]


def printed(paper: str) -> Iterator[tuple[PrintedTable, PrintedRow, str, str, PrintedValue]]:
    for found in load(paper).tables:
        for row in found.rows:
            for column, cell in zip(found.columns, row.cells, strict=True):
                for metric, value in zip(column.metrics, cell, strict=True):
                    if value is not None and value.value is not None:
                        yield found, row, column.name, metric, value


ABSENT = {"sed": 2 * 6 + 6 + 4 * 2 + 1 + 5 * 6, "gausscse": 0, "latte-mix": 0}
"""Numbers that a paper replaces by a dash (SED, Tables 1 to 4), or has no row for (Table 1)."""
PAIRS = {"sed": 9 * 6 + 8 * 6 + 12 + 12 * 6 + 12 * 6, "gausscse": 0, "latte-mix": 0}
"""Cells with a second number: SED, Tables 1, 2, 4, 5, 6."""
DEVIATIONS = {"sed": 0, "gausscse": 0, "latte-mix": 7 * (51 + 18 + 12 + 12 + 24) - 1}
"""Those of the latent models in Latte-Mix, Tables 4 to 7 and 9; one is misprinted."""


@pytest.mark.parametrize("paper", PAPERS)
def test_every_table_is_there_with_its_rows_columns_and_numbers(paper: str) -> None:
    tables = load(paper).tables
    assert [found.number for found in tables] == list(range(1, len(SHAPES[paper]) + 1))
    assert [(len(found.rows), len(found.columns)) for found in tables] == SHAPES[paper]
    assert all(any(value for cell in row.cells for value in cell) for found in tables for row in found.rows)
    for found, plain in zip(tables, read_data(papers.__file__, PAPERS[paper])["tables"], strict=True):
        headings = [row for row in plain["rows"] if isinstance(row, str)]
        assert [*dict.fromkeys(row.group for row in found.rows if row.group)] == headings, "each stands above a row"
    found = [value for *_, value in printed(paper)]
    assert all(value.value is not None and 0 <= value.value < 100 for value in found)
    stds = [value.std for value in found if value.std is not None]
    assert all(0 < std < 6 for std in stds)
    numbers = sum(rows * columns for rows, columns in SHAPES[paper]) + PAIRS[paper] - ABSENT[paper]
    assert (len(found), len(stds)) == (numbers, DEVIATIONS[paper])


def test_values_read_off_the_papers() -> None:
    assert cells("sed", 1, "BERT-L-CT-SED-Flow")[-1] == (77.75, 77.15)
    assert cells("sed", 1, "Skip-Thoughts *")[0] == (41.0, None)
    assert cells("sed", 4, "BERT-L-CT-SED-Flow") == [(80.98, 79.55)]
    assert cells("sed", 8, "BERT-L-NLI-CT-SED-Flow") == [(77.94,), (78.05,), (78.27,)]
    assert cells("gausscse", 2, "ent+con+swap") == [(97.09,), (97.21,), (69.22,), (70.13,)]
    assert cells("gausscse", 3, "Batch Size 16") == [(64.39,), (66.02,), (67.0,)]
    assert cells("latte-mix", 5, "GloVe + Max + Cosine")[-1] == (58.32,)
    best = next(row for row in table("latte-mix", 4).rows if row.name == "Latte-Mix (64-dim) + Cosine").cells[-1][0]
    assert best and (best.value, best.std) == (57.41, 0.11)


def test_averages_are_those_of_their_rows_unless_a_remark_says_otherwise() -> None:
    checked = 0
    for number, last in ((1, 5), (2, 5), (5, 5), (6, 5), (7, 11)):
        for row in table("sed", number).rows:
            for metric, average in enumerate(row.cells[last]):
                parts = [cell[metric] for cell in row.cells[:last]]
                if average is None or average.value is None or None in parts:
                    continue
                if (average.remark or "").startswith("the eleven"):
                    continue
                mean = sum(part.value for part in parts if part and part.value) / last
                assert abs(mean - average.value) < 0.0061, (number, row.name)
                checked += 1
    assert checked == 2 * 38 + 6 + 1 + 2  # SED's pairs without a dash, the transfer rows without a remark


def test_a_row_that_stands_in_two_tables_is_the_same() -> None:
    for first, second in ((1, 5), (2, 6)):
        both = {row.name for row in table("sed", first).rows} & {row.name for row in table("sed", second).rows}
        assert len(both) == 4
        assert all(cells("sed", first, name) == cells("sed", second, name) for name in both)
    for number, small, large in ((7, "BERT-Base", 12), (9, "BERT-Large", 24)):
        layer = cells("latte-mix", number, f"{small}, Layer {large} + Mean + Cosine")
        assert layer == cells("latte-mix", 5, f"{small} + Mean + Cosine")
    for first, second in ((1, 5), (3, 6)):
        for row in table("latte-mix", first).rows:
            twin = next(other for other in table("latte-mix", second).rows if other.name == row.name)
            for (here,), (there,) in zip(row.cells, twin.cells[-2:], strict=True):
                assert here and there and (here.value == there.value or (here.remark and there.remark)), row.name


@functools.cache
def stages_of(system: str) -> dict[str, Any]:
    return {stage: to_plain(recipe) for stage, recipe in pipeline(system).recipes.items()}


@pytest.mark.parametrize("paper", PAPERS)
def test_systems_are_in_the_grammar_and_what_they_need_exists(paper: str) -> None:
    tasks = {"pearson", "spearman", "accuracy", "auc_pr", "purity"}
    systems = set()
    for found, row, column, metric, value in printed(paper):
        if row.system is None:
            assert not value.measures and row.name.endswith("*")
            continue
        systems.add(row.system)
        assert row.system == "raw" or names.parse(row.system)
        assert row.backbone in BACKBONES
        assert value.measures and {measure.metric for measure in value.measures} <= tasks, (found.number, column)
        for measure in value.measures:
            if measure.dataset in STS_TASKS:
                assert measure.metric == metric and metric in METRICS
                assert measure.split and measure.aggregation and measure.layers
                assert measure.similarity and measure.pooling
        assert all(has_path(stages_of(row.system), path) for path in value.settings), (row.system, value.settings)
    assert systems <= set(RECIPES), "raysts recipes lists every system of the papers"


@pytest.mark.parametrize("name", [name for name in RECIPES if name not in ("quickstart", "best", "simcse-unsup")])
def test_the_catalogue_quotes_the_papers(name: str) -> None:
    """Every number that a recipe should show is printed for that system; the others are in none of the three papers."""
    known = {value.value for paper in PAPERS for _, row, _, _, value in printed(paper) if row.system == name}
    numbers = re.findall(r"\d+\.\d+", RECIPES[name].shows)
    assert numbers and {float(number) for number in numbers} <= known


def test_misprints_are_marked() -> None:
    every = ((paper, *cell) for paper in PAPERS for cell in printed(paper))
    marked = {(paper, found.number, row.name, column) for paper, found, row, column, _, value in every if value.remark}
    assert marked > {
        ("latte-mix", 1, "GloVe + Max + Cosine", "STSb"),
        ("latte-mix", 5, "GloVe + Max + Cosine", "STSb"),
        ("latte-mix", 6, "SBERT-Large + Latte-Mix + Cosine", "STS14"),
        ("sed", 8, "BERT-L-NLI-CT-SED-Flow", "2"),
    }
    assert {number for paper, number, name, _ in marked if "Latte-Mix" in name} >= {1, 2, 4, 5}
