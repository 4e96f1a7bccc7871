"""The first table of a run: every system once, the user's sets first, and no line wider than the terminal."""

from __future__ import annotations

import re
from dataclasses import asdict, replace

import pytest
from report_samples import recorded, report_data, score_rows

from raysts.evaluation.standings import main_standings
from raysts.pipeline.verdict import Delivered
from raysts.report.run import render
from raysts.report.scores import as_text

RETRIEVAL = "retrieval:docs"


def rows_with_retrieval() -> list[dict[str, object]]:
    rows = [*report_data().rows]
    for role, value in {"backbone": 0.25, "student": 0.5}.items():
        row = {**score_rows(role)[0], "dataset": RETRIEVAL, "aggregation": None, "n": 40}
        rows += [{**row, "metric": metric, "value": value} for metric in ("map", "ndcg@10")]
    return rows + score_rows("student", datasets=("faq",)) + score_rows("backbone", datasets=("faq",))


@pytest.mark.parametrize("width", [80, 120])
def test_the_table_fits_and_holds_every_number(width: int) -> None:
    table = main_standings(rows_with_retrieval(), 1, ("mean", 1))
    assert table is not None
    title, *lines = as_text(table, width).splitlines()
    assert title.startswith("Spearman and nDCG@10") and max(map(len, lines)) <= width
    names = [line.split()[0] for line in lines if line.startswith("  ") and "." in line]
    assert set(names[:2]) == {RETRIEVAL, "faq"}, "the user's own stand first"
    for column in (RETRIEVAL, "faq", "stsb"):
        (text,) = {line for line in lines if line.split()[:1] == [column]}
        cells = text.split()[1 + (column == RETRIEVAL) :]
        assert cells == [
            word for line in table.plot_lines if column in line.mean
            for word in line.mean[column].spread_text.replace("± ", "±").split()
        ]  # fmt: skip


def test_many_systems_stand_in_several_blocks() -> None:
    rows = report_data().rows + [
        row | {"role": f"teacher {'name' * 4}-{number}"} for number in range(9) for row in score_rows("member")
    ]
    table = main_standings(rows, 1, ("mean", 1))
    assert table is not None
    text = as_text(table, 80)
    assert max(map(len, text.splitlines())) <= 80 and text.count("starting") > 1
    assert all(f"-{number}" in text for number in range(9))


def test_the_page_shows_verdict_model_scores_and_notes_in_this_order() -> None:
    data = report_data()
    delivered = Delivered(what="student", layers=1, by="the name")
    data = recorded(data, notes=["A NOTE"], delivered=asdict(delivered))
    page = render(replace(data, rows=rows_with_retrieval(), model="/storage/model"))
    open_part = re.sub(r"<details>.*?</details>", "", page, flags=re.DOTALL)
    places = [
        open_part.index(text) for text in (delivered.sentence, "/storage/model", RETRIEVAL, "A NOTE", "<h2>Training")
    ]
    assert places == sorted(places)
    assert "nDCG@10" in open_part and "MAP × 100" in page and "Ndcg" not in page
