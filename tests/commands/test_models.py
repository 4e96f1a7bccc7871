"""What a name means where a MODEL or a system is taken, from records of runs in a storage."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from run_commands import raysts

from raysts.commands.models import System, locate, system_of
from raysts.errors import InputError
from raysts.ids import folder_id
from raysts.pipeline.outcome import Option
from raysts.storage.store import Store

A, B, C, D, E = (letter * 16 for letter in "abcde")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "storage")


def make(store: Store, *runs: str) -> None:
    for run in runs:
        store.path(f"runs/{run}/model").mkdir(parents=True)


def record(
    store: Store, run: str, combine: str | None = None, members: Iterable[str] = (), outcome: Any = None, **more: Any
) -> None:
    """Write the record of a run; ``more`` is of its pipeline."""
    pipeline = {"name": "ct", "combine": combine, "teachers": [], "recipes": {"ct": {}}, "backbone": "tiny"}
    pipeline |= {"backbone_layers": None, **more}
    about = {"name": run, "members": [*members], "outcome": outcome, "backbone_id": more.get("backbone_id", B)}
    store.write_json(f"pipelines/{run}.json", {**about, "pipeline": pipeline, "command": f"raysts run {run}"})


def found(name: str, store: Store) -> tuple[list[str], bool]:
    """The folders of a system in the storage, and whether their vectors are one system."""
    system = system_of(name, store)
    return [str(folder.relative_to(store.root)).removesuffix("/model") for folder in system.folders], system.ensemble


def test_a_role_names_the_models_that_the_outcome_has_for_it(store: Store) -> None:
    make(store, A, B, C, D, E)
    store.path(f"backbones/tiny-{B}").mkdir(parents=True)
    outcome = {"members": [A, B], "ensemble": [B]}
    record(store, "plain", members=[A, B])
    record(store, "mean", "ensemble", [A, B], outcome=outcome)
    record(store, "soup", "soup", [A, B], outcome={**outcome, "soups": {"soup": C, "greedy-soup": D}, "selected": C})
    record(store, "student", "sed", [A, B], outcome={**outcome, "students": [C, D], "selected": D})
    record(store, "raw", recipes={})
    for name, runs, ensemble in (
        ("plain", [A, B], False), ("mean", [B], True), ("mean:members", [A, B], False), ("soup", [C], False),
        ("soup:greedy-soup", [D], False), ("soup:ensemble", [B], True), ("student", [D], False),
        ("student:ensemble", [B], True), (A[:7], [A], False),
    ):  # fmt: skip
        assert found(name, store) == ([f"runs/{run}" for run in runs], ensemble), name
    assert found("raw", store) == ([f"backbones/tiny-{B}"], False)
    for name, said in (
        ("plain:ensemble", "run 'plain' has no ensemble; it has: members$"),
        ("mean:student", "run 'mean' has no student; it has: ensemble, members$"),
        ("student:soup", "run 'student' has no soup; it has: student, ensemble, members$"),
        ("plan:members",
         r"has no run and no system 'plan' \(did you mean 'plain'\?\); it has: mean, plain, raw, soup, s"),
        ("ct", r"several runs of this system are ensembles \(mean, plain, raw, soup, student\); name one of them"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=said):
            system_of(name, store)
    with pytest.raises(InputError, match=f"model 'plain': is 2 models; take one of {A}, {B}$"):
        locate("plain", store)
    with pytest.raises(InputError, match="no system 'plain'; it has: none"):
        system_of("plain:members", Store.open(store.root / "other"))


def test_the_runs_of_a_system_are_one_system_by_its_name(store: Store) -> None:
    make(store, A, B, C)
    record(store, "one", members=[A, B])
    record(store, "two", members=[B, C])
    record(store, "other", members=[A], name="nli")
    assert found("ct", store) == ([f"runs/{run}" for run in (A, B, C)], False)
    assert found("nli", store) == found("other", store) == ([f"runs/{A}"], False)


def test_a_run_that_delivers_the_best_is_that_at_its_pooling(store: Store) -> None:
    """Rewritten if it was pooled otherwise. A role still names its own."""
    make(store, A, B)
    backbone = f"backbones/tiny-{B}"
    store.path(backbone).mkdir(parents=True)
    other = Option(what="member", id=B, pooling="cls", layers=1, score=0.5)
    for what, model, plain, again in (
        ("member", A, f"runs/{A}", "runs/{}/model"),
        ("backbone", B, backbone, "backbones/pooled-{}"),
    ):
        best = Option(what=what, id=model, pooling="max", layers=2, score=0.8)
        outcome = {"members": [A, B], "ensemble": [A, B], "candidates": [asdict(other), asdict(best)]}
        record(store, "best", "ensemble", [A, B], outcome)
        assert found("best", store) == ([plain], False) and found("best:ensemble", store)[1]
        rewritten = again.format(best.pooled_id)
        store.path(rewritten).mkdir(parents=True)
        assert found("best", store) == ([rewritten.removesuffix("/model")], False)


def test_models_that_are_not_finished_are_no_system(store: Store) -> None:
    make(store, A)
    record(store, "half", members=[A, B])
    record(store, "mean", "ensemble", [A, B], outcome={"members": [A, B], "ensemble": [A]})
    record(store, "raw", recipes={})
    record(store, "none", "sed", [A])
    for name, role in (("half", "members"), ("mean", "ensemble"), ("raw", "members"), ("none", "student")):
        with pytest.raises(InputError, match=f"its {role} are not finished; finish it with: raysts run {name}$"):
            system_of(name, store)


def test_a_teacher_and_a_backbone_from_elsewhere_must_be_what_they_were(store: Store, tiny_backbone: Path) -> None:
    content, folder = folder_id(tiny_backbone), (tiny_backbone,)
    for backbone_id, members in ((content, [content]), ("0" * 16, ["0" * 16])):
        elsewhere = {"teachers": [str(tiny_backbone)], "backbone": str(tiny_backbone), "backbone_id": backbone_id}
        outcome = {"members": members, "ensemble": members}
        record(store, "mean", "ensemble", members, outcome=outcome, **elsewhere)
        record(store, "raw", recipes={}, **elsewhere)
        if backbone_id == content:
            assert system_of("mean", store) == System("mean", folder, ensemble=True)
            assert system_of("raw", store) == System("raw", folder)
            continue
        for name, what in (("mean", "teacher"), ("raw", "backbone")):
            said = f"its {what} '{tiny_backbone}' is not the model that it was.*or run again: raysts run {name}"
            with pytest.raises(InputError, match=said):
                system_of(name, store)


def test_a_folder_goes_before_a_run_by_name(store: Store, tiny_backbone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(store, A)
    monkeypatch.chdir(tiny_backbone.parent)
    name = tiny_backbone.name
    record(store, name, members=[A])
    assert locate(name, store) == tiny_backbone and system_of(name, store) == System(name, (tiny_backbone,))
    assert found(f"{name}:members", store) == ([f"runs/{A}"], False)
    monkeypatch.chdir(store.root)
    assert found(name, store) == ([f"runs/{A}"], False)


def test_a_system_in_words() -> None:
    two = (Path(f"runs/{A}/model"), Path("teachers/minilm"))
    one = System("x", two[:1])
    assert (one.text, one.model_names) == ("x", ["x"]) and System("x", two).text == "x (2 models, mean ± std)"
    assert System("x", two, ensemble=True).text == "x (mean of 2 models' vectors)"
    assert System("x", two).model_names == [A, "teachers/minilm"]


def test_a_name_that_is_no_run_names_what_may_be_meant(tmp_path: Path) -> None:
    def refused(*arguments: object) -> str:
        outcome = raysts(*arguments, "--storage", tmp_path)
        assert outcome.code == 2
        return outcome.err

    for command in ("status", "watch", "report"):
        assert refused(command).endswith("holds no run. 'raysts run quickstart' makes one\n")
    assert "no run '../x'" in refused("report", "--name", "../x")
    store = Store.open(tmp_path)
    store.write_json("pipelines/distilled.json", {"name": "distilled"})
    store.write_json("studies/rates/study.json", {"command": "raysts tune x --name rates"})
    for name, said in (
        ("distild", r"model 'distild' is not there: .*did you mean 'distilled'"),
        ("distilled:teacher", r"run 'distilled' has no 'teacher'; name one of student, .* behind the colon"),
        ("rates", "'rates' is a study, not a model.*'raysts distill --from-study rates'"),
        ("something/else", "is not there: .*network$"),
    ):
        with pytest.raises(InputError, match=said):
            locate(name, store, fetch=False)
    for command in ("status", "watch"):
        said = refused(command, "rates")
        assert "'rates' is a study, not a run" in said and "raysts tune x" in said
    assert "did you mean 'distilled'?); it holds: distilled" in refused("status", "distild")


def test_the_name_of_a_run_is_not_the_beginning_of_a_run_id(store: Store) -> None:
    make(store, "e5aaaaaaaaaaaaaa", B)
    assert locate("e5", store).parent.name == "e5aaaaaaaaaaaaaa"
    make(store, "e5aabbbbbbbbbbbb")
    with pytest.raises(InputError, match="'e5aa' is the beginning of 2 run ids"):
        locate("e5aa", store)
    record(store, "e5", members=[B])
    assert locate("e5", store).parent.name == B
    assert locate("e5aaa", store).parent.name == locate("e5aaaaaaaaaaaaaa", store).parent.name == "e5aaaaaaaaaaaaaa"
