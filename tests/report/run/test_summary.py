"""The headline and the first table of a run: every system once, the user's sets first, no line wider than the terminal."""

import re
from dataclasses import asdict, replace
from typing import Any

from report_samples import DATASETS, exact, recorded, report_data, score_rows

from raysts.evaluation.compare import Difference
from raysts.evaluation.standings import main_standings, standings, views
from raysts.pipeline.verdict import Delivered
from raysts.report import run
from raysts.report.run import render
from raysts.report.scores import as_text, headline

RETRIEVAL = "retrieval:docs"


def rows_with_retrieval() -> list[dict[str, object]]:
    rows = [*report_data().rows]
    for role, value in {"backbone": 0.25, "student": 0.5}.items():
        row = {**score_rows(role)[0], "dataset": RETRIEVAL, "aggregation": None, "n": 40}
        rows += [{**row, "metric": metric, "value": value} for metric in ("map", "ndcg@10")]
    return rows + score_rows("student", datasets=("faq",)) + score_rows("backbone", datasets=("faq",))


def test_the_table_fits_and_holds_every_number() -> None:
    table = main_standings(rows_with_retrieval(), 1, ("mean", 1))
    assert table is not None
    title, *lines = as_text(table, 80).splitlines()
    assert title.startswith("Spearman and nDCG@10") and max(map(len, lines)) <= 80
    names = [line.split("  ")[1] for line in lines if "." in line]
    assert set(names[:2]) == {f"{RETRIEVAL} nDCG@10", "faq"}, "the user's own stand first"
    assert names[2:] == [*DATASETS, "mean of 3"]
    for column in (RETRIEVAL, "faq", "stsb"):
        (text,) = {line for line in lines if line.split()[:1] == [column]}
        cells = text.split()[1 + (column == RETRIEVAL) :]
        assert cells == [
            word for line in table.plot_lines if column in line.mean
            for word in line.mean[column].spread_text.replace("± ", "±").split()
        ]  # fmt: skip


def test_many_systems_stand_in_several_blocks() -> None:
    teachers = [f"teacher {'name' * 4}-{number}" for number in range(9)]
    rows = report_data().rows + [row | {"role": teacher} for teacher in teachers for row in score_rows("member")]
    table = main_standings(rows, 1, ("mean", 1))
    assert table is not None
    text = as_text(table, 80)
    assert max(map(len, text.splitlines())) <= 80 and text.count("starting") > 1
    assert all(f"-{number}" in text for number in range(9))
    few = main_standings(report_data().rows, 1, ("mean", 1))
    assert few is not None and as_text(few, 34).count("starting") == 3, "there is another in every block"


def test_a_line_names_its_system_where_there_are_several() -> None:
    rows = report_data().rows
    more = rows + [row | {"system": "another"} for row in rows if row["role"] == "student"]
    for given, named in ((rows, False), (more, True)):
        table = main_standings(given, 1, ("mean", 1))
        assert table is not None
        notes = {row.note.partition(";")[0] for row in run.score_rows(table)}
        assert ({line.system for line in table.lines} <= notes) == named and ("another" in notes) == named
    dot = [row | {"similarity": "dot"} for row in exact("student", 0.7)]
    table = main_standings([*exact("student", 0.7), *dot, *exact("soup", 0.5)], 1, ("mean", 1))
    assert table is not None
    assert [row.note for row in run.score_rows(table)] == ["", "similarity cosine", "similarity dot"]


def test_the_page_shows_verdict_model_scores_and_notes_in_this_order() -> None:
    data = report_data()
    delivered = Delivered(what="student", layers=1, by="the name")
    data = recorded(data, notes=["A NOTE"], delivered=asdict(delivered))
    page = render(replace(data, rows=rows_with_retrieval(), model="/storage/model"))
    open_part = re.sub(r"<details>.*?</details>", "", page, flags=re.DOTALL)
    texts = (delivered.sentence, "/storage/model", RETRIEVAL, "A NOTE", "<h2>Training")
    places = [open_part.index(text) for text in texts]
    assert places == sorted(places)
    assert "nDCG@10" in open_part and "MAP × 100" in page and "Ndcg" not in page


def _headline(*groups: list[dict[str, Any]], **differences: Difference) -> str:
    """The first sentence about rows, with tested differences on STS-B by role."""
    rows = [row for group in groups for row in group]
    found = views(rows, 1)
    against = {role: {"stsb": tested} for role, tested in differences.items()}
    return " | ".join(headline(standings(rows, found[0]) if found else None, against)[0])


def test_the_headline_says_what_was_measured_and_nothing_else() -> None:
    members = [*exact("member", 0.68, 0), *exact("member", 0.70, 1)]
    how = "on stsb test (all, Spearman, last layer pooled)"
    every = (members, exact("student", 0.713), exact("ensemble", 0.716), exact("backbone", 0.5))
    tested = {
        "member": Difference(0.023, 0.01, 0.04), "ensemble": Difference(-0.003, -0.01, 0.002),
        "backbone": Difference(0.213, 0.2, 0.22),
    }  # fmt: skip
    assert _headline(*every, **tested) == (
        f"The student scores 71.30 {how}. | 2.30 [1.00, 4.00] above the members' mean 69.00 ± 1.41 (n=2) | not shown to "
        "differ from the ensemble (71.60) (-0.30 [-1.00, 0.20]) | 21.30 [20.00, 22.00] above the starting model (50.00)"
    )
    assert _headline(members, exact("student", 0.6), member=Difference(-0.09, -0.1, -0.08)) == (
        f"The student scores 60.00 {how}. | 9.00 [8.00, 10.00] below the members' mean 69.00 ± 1.41 (n=2)"
    )
    assert _headline(members, exact("student", 0.6)) == (
        f"The student scores 60.00 {how}. | beside the members' mean 69.00 ± 1.41 (n=2), not compared row by row"
    )
    assert _headline(members) == f"The 2 members score 69.00 ± 1.41 on average {how}."
    assert _headline(exact("backbone", 0.5)) == f"The starting model scores 50.00 {how}."
    agreement = _headline([row | {"dataset": "agreement"} for row in exact("student", 0.5)])
    alone = "Agreement of the student with the ensemble: 50.00 (× 100)."
    assert agreement == f"There are no scored pairs to test on. {alone}"
    assert _headline([]) == _headline(exact("teacher a", 0.5)) == "There is no result on a test set yet."
    assert "[69.30, 73.30]" in _headline([row | {"ci_low": 0.693, "ci_high": 0.733} for row in exact("student", 0.713)])
    # An ensemble of one is its teacher.
    rows = [*exact("member", 0.7, 0), *exact("ensemble", 0.7), *exact("student", 0.6)]
    said = _headline(rows, **dict.fromkeys(("ensemble", "member"), Difference(-0.1, -0.2, -0.05)))
    assert "ensemble" not in said and "below the member (70.00)" in said
    # The best teacher with a name is compared on the sets that it has.
    rows = [*exact("student", 0.7), *exact("teacher a", 0.6)]
    rows += [row | {"dataset": "sts12"} for row in exact("teacher b", 0.9)]
    assert "beside the teacher a (60.00)" in _headline(rows)
    assert "beside the best teacher, c (65.00)" in _headline([*rows, *exact("teacher c", 0.65)])
