from __future__ import annotations

from typing import Any

import pytest
from evaluation_fakes import row
from report_samples import score_rows

from raysts.evaluation.standings import View, format_results, format_standings, named_teachers, standings, views

ALL = View(None)
"""Rank correlations on test sets, whatever layers are pooled."""


def example() -> list[dict[str, Any]]:
    rows = []
    for layers, shift in (("2", 0.0), ("1", -0.1)):
        for member, value in enumerate((0.70, 0.72, 0.77)):
            own = {"member": member, "run_id": f"m{member}", "layers": layers}
            rows += [row("nli-sed", "member", "sts12", value + shift, **own)]
            rows += [row("nli-sed", "member", "stsb", value + shift + 0.1, **own)]
        rows += [row("nli-sed", "student", name, 0.8 + shift, layers=layers) for name in ("sickr-all", "stsb", "sts12")]
        rows += [row("nli-sed", "backbone", "sts12", 0.3, layers=layers)]
    # What the table must not show.
    rows += [
        row("nli-sed", "student", "sts12", 0.0, split="dev"),
        row("nli-sed", "student", "sts12", 0.0, rows="clean"),
    ]
    rows += [row("nli-sed", "student", "sts12", 0.0, metric="pearson")]
    rows += [row("nli-sed", "student", "sts12", 0.0, aggregation=None, subset="x")]
    rows += [row("nli-sed", "member", "sts12", float("nan"), run_id="another")]
    # A value measured earlier for the same run.
    rows += [row("nli-sed", "student", "sts12", 0.1, created_at="2025-12-31T00:00:00+00:00")]
    return rows


def test_one_teacher_is_no_ensemble() -> None:
    rows = [row("d", "member", "stsb", 0.8, run_id="m"), row("d", "ensemble", "stsb", 0.8, parent_run_ids=["m"])]
    assert [each["role"] for each in named_teachers(rows, {"m": "minilm"})] == ["teacher minilm"]
    rows[1]["parent_run_ids"] = ["m", "n"]
    assert [each["role"] for each in named_teachers(rows, {})] == ["member", "ensemble"]


def test_systems_trials_and_layers_are_kept_apart_and_in_order() -> None:
    rows = [row("a", "member", "sts12", 0.5, layers=layers) for layers in ("12", "2")]
    rows += [row("b", "member", "sts12", 0.5, study="s", trial=trial) for trial in "12"]
    lines = [(line.system, line.trial, line.layers, line.mean["sts12"].n) for line in standings(rows, ALL).lines]
    assert lines == [("a", None, "2", 1), ("b", "1", "2", 1), ("b", "2", "2", 1), ("a", None, "12", 1)]


def test_formatted_table() -> None:
    text = format_standings(standings([r for r in example() if r["layers"] == "2"], ALL))
    assert text.splitlines() == [
        "spearman, all, x100",
        "system   role        pooling  layers  similarity        sts12         stsb  sickr-all          avg",
        "-" * 98,
        "nli-sed  backbone    mean     2       cosine            30.00",
        "nli-sed  member (3)  mean     2       cosine      73.00 ±3.61  83.00 ±3.61             78.00 ±3.61",
        "nli-sed  student     mean     2       cosine            80.00        80.00      80.00        80.00",
    ]


def test_metrics_without_aggregation_have_tables_of_their_own() -> None:
    accuracy = {"metric": "accuracy", "aggregation": None, "similarity": None}
    rows = [row("a", "member", "sts12", 0.7), row("a", "member", "mr", 0.8, split="cv", **accuracy)]
    rows += [row("a", "member", "trec", 0.9, **accuracy), row("a", "member", "trec", 0.1, subset="x", **accuracy)]
    assert format_results(rows[:1]) == format_standings(standings(rows, ALL))
    first, second = format_results(rows).split("\n\n")
    assert first == format_standings(standings(rows, ALL))
    assert second.splitlines() == [
        "accuracy, x100",
        "system  role    pooling  layers  similarity     mr   trec",
        "-" * 57,
        "a       member  mean     2       -           80.00  90.00",
    ]
    assert format_results([]) == format_standings(standings([], ALL))


def test_the_average_leaves_out_the_set_that_overlaps_another_and_needs_all_the_others() -> None:
    rows = score_rows("student", datasets=("stsb", "sickr", "sickr-all")) + score_rows("ensemble", datasets=("stsb",))
    table = standings(rows, views(rows, 1)[0])
    assert table.columns == ("stsb", "sickr", "sickr-all", "avg") and table.averaged == ("stsb", "sickr")
    ensemble, student = table.lines
    assert "avg" not in ensemble.mean
    assert student.mean["avg"].value == pytest.approx((student.mean["stsb"].value + student.mean["sickr"].value) / 2)
