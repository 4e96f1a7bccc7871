"""What came out of a run: every reader means the same models, and says what chose them."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from raysts.data.corpora import Corpus
from raysts.evaluation.dev import dev_name, load_dev
from raysts.pipeline.outcome import Candidate, Option, Outcome, best, decide, outcome_of, system_of, top
from raysts.recipes.catalog import CATALOG


@pytest.mark.parametrize(
    ("scores", "count", "expected"),
    [
        ([0.1, 0.3, 0.2], None, [0, 1, 2]),
        ([0.1, 0.3, 0.2], 2, [1, 2]),
        ([0.2, 0.2, 0.2], 2, [0, 1]),
        ([None, 0.1, None], 2, [0, 1]),
        ([0.1, 0.3, 0.2], 1, [1]),
        ([0.2, 0.2], 1, [0]),
        ([None, -0.4], 1, [1]),
    ],
)
def test_the_top(scores: list[float | None], count: int | None, expected: list[int]) -> None:
    assert top(scores, count) == expected and (count != 1 or [best(scores)] == expected)


def _models(letter: str, *scores: float | None, selected_by: str | None = None) -> list[Candidate]:
    return [Candidate(f"{letter}{number}", score, selected_by) for number, score in enumerate(scores)]


MEMBERS, CHOSEN = _models("m", 0.1, 0.3, 0.2), _models("m", 0.1, 0.3, 0.2, selected_by="snli-dev")


@pytest.mark.parametrize(
    ("members", "students", "combine", "select_top", "ensemble", "selected", "selected_by"),
    [
        (MEMBERS[:1], [], None, None, "", "m0", None),
        (MEMBERS, [], None, None, "", "m1", "dev"),
        (CHOSEN, [], None, None, "", "m1", "dev, snli-dev"),
        (MEMBERS, [], "ensemble", None, "m0 m1 m2", None, None),
        (MEMBERS, [], "ensemble", 2, "m1 m2", None, "dev"),
        (MEMBERS, [], "sed", None, "m0 m1 m2", None, None),
        (MEMBERS, _models("s", 0.1, 0.4), "sed", None, "m0 m1 m2", "s0", None),
        (MEMBERS, _models("s", 0.1, 0.4, selected_by="dev"), "sed", None, "m0 m1 m2", "s1", "dev"),
        (MEMBERS, _models("s", None), "sed", 1, "m1", "s0", "dev"),
        (CHOSEN, _models("s", 0.1), "sed", None, "m0 m1 m2", "s0", "snli-dev"),
    ],
)
def test_what_comes_out(
    members: list[Candidate], students: list[Candidate], combine: str | None, select_top: int | None, ensemble: str,
    selected: str | None, selected_by: str | None,
) -> None:  # fmt: skip
    found = decide(members, students, combine=combine, select_top=select_top, dev="dev")
    assert found == Outcome(
        members=tuple(member.id for member in members), ensemble=tuple(ensemble.split()),
        students=tuple(student.id for student in students), selected=selected, selected_by=selected_by,
    )  # fmt: skip
    assert found.models_of("members") == found.members and found.models_of("ensemble") == found.ensemble
    assert found.models_of("student") == ((selected,) if students else ())


@pytest.mark.parametrize(
    ("combine", "selected", "selected_by"),
    [("soup", "u", None), ("greedy-soup", "g", "dev"), ("ensemble", None, None), ("sed", None, None)],
)
def test_a_weight_average_that_comes_out(combine: str, selected: str | None, selected_by: str | None) -> None:
    soups = {"soup": Candidate("u", 0.5), "greedy-soup": Candidate("g", 0.6, "dev")}
    found = decide(MEMBERS, [], soups=soups, combine=combine, select_top=None, dev="dev")
    assert (found.selected, found.selected_by, found.choice) == (selected, selected_by, None)
    assert found.models_of("soup") == ("u",) and found.models_of("greedy-soup") == ("g",)
    assert decide(MEMBERS, [], combine="ensemble", select_top=None, dev="dev").models_of("soup") == ()


def test_how_a_choice_is_said() -> None:
    members, students = ("a", "b"), ("c", "d")
    found = Outcome(members=members, selected="b", selected_by="stsb-dev")
    assert found.choice == "Of 2 members, member 1 is delivered, with the highest score on stsb-dev (b)."
    found = Outcome(members=members, ensemble=members, students=students, selected="c", selected_by="stsb-dev")
    assert found.choice == "Of 2 students, student 0 is delivered (c)."
    assert Outcome(members=members, ensemble=members).choice is None
    assert Outcome(members=("a",), selected="a", selected_by="stsb-dev").choice is None


def test_a_development_set_has_the_name_that_results_give_it(few_world: Path) -> None:
    for table in {spec.dev for spec in CATALOG.values()}:
        assert dev_name(table) == load_dev(Corpus(few_world), table).name


def test_the_systems_of_a_run() -> None:
    named = {role: system_of("nli-ct-sed", role) for role in ("backbone", "member", "ensemble", "student", "baseline")}
    assert named == {
        "backbone": "raw", "member": "nli-ct", "ensemble": "nli-ct-ensemble", "student": "nli-ct-sed", "baseline": None,
    }  # fmt: skip
    assert system_of("ct-soup", "soup") == "ct-soup" and system_of("ct-sed", "greedy-soup") == "ct-greedy-soup"
    assert system_of("ct-boom", "soup") == "ct-boom" and system_of("ct-boom", "member") is None
    assert system_of("my own", "member") is None and system_of("my own", "backbone") == "raw"


def test_an_outcome_is_read_from_its_record() -> None:
    record = {"members": ["m0", "m1"]}
    assert outcome_of(record) == Outcome(members=("m0", "m1")), "not done"
    option = Option(what="member", id="m1", pooling="mean", layers=2, score=0.3)
    found = Outcome(
        members=("m0", "m1"), ensemble=("m1",), soups={"soup": "x"}, students=("f0",), selected="f0",
        selected_by="stsb-dev", candidates=(option,),
    )  # fmt: skip
    assert outcome_of(json.loads(json.dumps({**record, "outcome": asdict(found)}))) == found
