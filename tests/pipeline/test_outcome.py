"""What came out of a run: every reader means the same models, and says what chose them."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from run_commands import EVALUATION, overrides, raysts, result

from raysts.data.corpora import Corpus
from raysts.evaluation.dev import dev_name, load_dev
from raysts.pipeline.outcome import Candidate, Option, Outcome, best, decide, outcome_of, system_of, top
from raysts.recipes.catalog import CATALOG

SMALL = {
    "backbone": "tiny", "train.max_steps": 4, "train.eval_every": 4, "train.max_length": 16, "evaluation.resamples": 0,
    "evaluation.tasks": "[stsb]", "evaluation.layers": "[1]", "evaluation.compare": 1, "student_pooling": 1,
}  # fmt: skip


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
    members: list[Candidate],
    students: list[Candidate],
    combine: str | None,
    select_top: int | None,
    ensemble: str,
    selected: str | None,
    selected_by: str | None,
) -> None:
    found = decide(members, students, combine=combine, select_top=select_top, dev="dev")
    assert found == Outcome(
        members=tuple(member.id for member in members),
        ensemble=tuple(ensemble.split()),
        students=tuple(student.id for student in students),
        selected=selected,
        selected_by=selected_by,
    )
    assert found.models_of("members") == found.members and found.models_of("ensemble") == found.ensemble
    assert found.models_of("student") == ((selected,) if students else ())


@pytest.mark.parametrize(
    ("combine", "selected", "selected_by"),
    [("soup", "u", None), ("greedy-soup", "g", "dev"), ("ensemble", None, None), ("sed", None, None)],
)
def test_a_weight_average_comes_out_where_members_are_combined_so(
    combine: str, selected: str | None, selected_by: str | None
) -> None:
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


# -- whole runs ----------------------------------------------------------------------------------------------------------


def _run(name: str, data: Path, storage: Path, **more: Any) -> dict[str, Any]:
    chosen = {**SMALL, **more}
    options = [part for key, value in chosen.items() for part in ("--set", f"{key}={value}")]
    return result("run", name, "--data", data, "--storage", storage, "--address", "none", *options)


@pytest.mark.whole
def test_a_member_that_a_dev_score_chose_is_said_to_be_so(few_world: Path, tmp_path: Path) -> None:
    found = _run("nli", few_world, tmp_path, members=2)
    model = Path(found["model"])
    runs = {row["run_id"] for row in found["results"] if row["role"] == "member"}
    records = {run: json.loads((tmp_path / "runs" / run / "run.json").read_text(encoding="utf-8")) for run in runs}
    scores = {run: record["dev"]["kept"] for run, record in records.items()}
    assert len(set(scores.values())) > 1 and model.parent.name == max(scores, key=lambda run: scores[run])
    card = (model / "README.md").read_text(encoding="utf-8")
    assert "Labels of stsb-dev chose" in card and "No labels of an evaluation set" not in card
    choice = f", with the highest score on stsb-dev ({model.parent.name})."
    assert choice in card and choice in Path(found["report"]).read_text(encoding="utf-8")
    by = {(row["run_id"], row["selected_by"]) for row in found["results"] if row["role"] == "member"}
    assert by == {(run, "stsb-dev" if run == model.parent.name else None) for run in runs}
    again = result("compare", "nli", "nli:members", "--storage", tmp_path, "--data", few_world, "--tasks", "stsb")
    assert {row["difference"] for row in again["comparison"]} == {0.0}, "all of them, not the one handed over"


FEW = {
    "members": 3, "train.max_steps": 2, "train.eval_every": 2, "train.max_length": 16, "sed.data.sample": 64,
    "sed.train.max_steps": 1, "evaluation.layers": "[1]", "evaluation.compare": 1, "student_pooling": 1,
}  # fmt: skip


@pytest.mark.whole
def test_an_ensemble_of_the_members_that_finished(few_world: Path, tiny_backbone: Path, tmp_path: Path) -> None:
    """One of three has a broken checkpoint: exit 3, until two are said to be enough; mended, the best two of all three teach."""
    data, storage = ("--data", few_world), tmp_path / "storage"

    def arguments(command: str, **more: Any) -> list[object]:
        address = [] if command == "plan" else ["--address", "none"]
        few = {"backbone": tiny_backbone, "evaluation.tasks": "[stsb]", "select_top": 2}
        chosen = overrides(FEW, EVALUATION, few, more)
        return [command, "nli-sed", *data, "--storage", storage, *address, *chosen]

    nodes = result(*arguments("plan"))["nodes"]
    members, (teacher,) = ([n["id"] for n in nodes if n["kind"] == kind] for kind in ("train", "vectors"))
    broken = storage / "runs" / members[1] / "checkpoints" / "step-0000001.pt"
    broken.parent.mkdir(parents=True)
    broken.write_bytes(b"torn")

    outcome = raysts(*arguments("run", min_members=3), "--json")
    assert outcome.code == 3 and outcome.out == "" and "member 1 nli" in outcome.err
    assert "2 of 3 finished, and min_members=3" in outcome.err and not (storage / "embeddings").exists()

    found = raysts(*arguments("run", min_members=2), "--json")
    assert found.code == 0 and "going on with 2 of 3 members" in found.err
    first = json.loads(found.out)
    (gone,) = first["left_out"]
    assert gone["member"] == 1 and gone["reason"]
    assert {row["member"] for row in first["results"] if row["role"] == "member"} == {0, 2}
    (manifest,) = storage.glob("embeddings/*/manifest.json")
    assert json.loads(manifest.read_text())["members"] == [members[0], members[2]] and manifest.parent.name != teacher
    page = Path(first["report"]).read_text()
    assert "Member 1 failed and is left out" in page and "the 2 of 3 members that finished" in page
    assert [path.name for path in (storage / "embeddings").iterdir()] == [manifest.parent.name]

    broken.unlink()
    second = result(*arguments("run", min_members=2))
    assert second["left_out"] == [] and second["model"] != first["model"]
    assert {row["member"] for row in second["results"] if row["role"] == "member"} == {0, 1, 2}
    records = {run: json.loads((storage / "runs" / run / "run.json").read_text()) for run in members}
    best = sorted(members, key=lambda run: -records[run]["dev"]["kept"])[:2]
    manifest = storage / "embeddings" / teacher / "manifest.json"  # the teacher of a run without failures
    assert {*json.loads(manifest.read_text())["members"]} == {*best}
    assert "left out" not in Path(second["report"]).read_text()
