from __future__ import annotations

from typing import Any

from report_samples import exact

from raysts.evaluation.compare import Difference
from raysts.evaluation.standings import standings, views
from raysts.report.scores import headline


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
    assert _headline([]) == "There is no result on a test set yet."
    assert "[69.30, 73.30]" in _headline([row | {"ci_low": 0.693, "ci_high": 0.733} for row in exact("student", 0.713)])


def test_an_ensemble_of_one_is_its_teacher() -> None:
    rows = [*exact("member", 0.7, 0), *exact("ensemble", 0.7), *exact("student", 0.6)]
    tested = {"ensemble": Difference(-0.1, -0.2, -0.05), "member": Difference(-0.1, -0.2, -0.05)}
    said = _headline(rows, **tested)
    assert "ensemble" not in said and "below the member (70.00)" in said
