"""``list``, ``status``, ``watch`` and ``remove`` on a storage whose records say everything: nothing is trained here."""

from __future__ import annotations

import contextlib
import html
import io
import json
import re
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from run_commands import raysts, result

from raysts.commands import follow
from raysts.commands.parser import COMMANDS
from raysts.pipeline.verdict import Delivered
from raysts.recipes.names import pipeline
from raysts.recipes.tree import to_plain
from raysts.search.record import Record
from raysts.storage.store import Store

A, B, C, D = (letter * 16 for letter in "abcd")
METRICS = {
    A: [{"step": 4, "steps": 4, "loss": 1.5, "dev": 0.75}],
    B: [{"step": 1000, "steps": 4000, "loss": 2.0, "dev": 0.5}, {"step": 2000, "loss": 1.25}],
}
"""Lines of the runs that have begun. The second has no score at its last step."""


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "storage")


def write(store: Store, key: str, size: int = 1) -> str:
    with store.put(key) as draft:
        draft.write_bytes(bytes(size))
    return key


def write_run(store: Store, run: str, status: str = "done", parents: tuple[str, ...] = (), size: int = 1) -> str:
    write(store, f"runs/{run}/model/weights", size)
    record = {"run_id": run, "status": status, "stage": "nli", "role": "member", "steps": 4000, "parents": parents}
    store.write_json(f"runs/{run}/run.json", record)
    lines = "".join(f"{json.dumps(line)}\n" for line in METRICS.get(run, ()))
    store.path(f"runs/{run}/metrics.jsonl").write_text(lines)
    return f"runs/{run}/model"


def step(output: str, kind: str = "train", **more: Any) -> dict[str, Any]:
    name = output.split("/")[1].split(".")[0]
    return {"id": name, "kind": kind, "title": f"{kind} {name[:4]}", "sentences": 1, "output": output, **more}


def record(store: Store, name: str, *steps: dict[str, Any], status: str = "done", **more: Any) -> None:
    fields = {
        "name": name, "status": status, "command": f"raysts run {name}", "model": "", "steps": steps, "members": [],
        "pipeline": to_plain(pipeline("nli", {"backbone": "tiny"})), "seconds": {}, "teachers": {}, "sources": "world",
        "distributed": ["mean", 1], "notes": [],
    }  # fmt: skip
    store.write_json(f"pipelines/{name}.json", {**fields, **more})


def study(
    store: Store, name: str, *trials: str, status: str = "done", earlier: tuple[str, ...] = (), **more: Any
) -> None:
    pipeline = {"backbone": "tiny", "teachers": []}
    about = {"name": name, "search": "lower-bound", "status": status, "command": f"raysts tune {name}"}
    store.write_json(f"studies/{name}/study.json", {**about, "pipeline": pipeline, **more})
    for trial in trials:
        ended = Record(id=trial, point={}, seed=0, status="finished", earlier=earlier, finished_at="2026-01-01")
        store.write_json(f"studies/{name}/trials/{trial}.json", {**ended.__dict__})


@pytest.fixture
def half(store: Store) -> Store:
    """A run with a finished member, one in training, one that has not begun, and one whose steps alone are known."""
    steps = [step(write(store, "agreements/sums.parquet"), "agreement")]
    for member, (run, status) in enumerate(((A, "done"), (B, "running"), (C, "running"))):
        steps.append(step(write_run(store, run, status), member=member))
    seconds = {"sums": 75.0}
    record(store, "half", *steps, step(f"runs/{D}/model", member=3), status="running", seconds=seconds)
    return store


def test_the_state_of_a_run_in_words(half: Store) -> None:
    """Of one that has ended, what makes the rest; while it is running, what is in training."""
    stopped = raysts("status", "--storage", half.root).out
    assert stopped.splitlines() == [
        "half: stopped, 2 of 5 steps are done",
        "  trained  member 1: nli  step 2,000 of 4,000  loss 1.25  dev 50.00",
        "  trained  member 2: nli  step 0 of 4,000",
        "  done     agreement sums, 1 min 15 s", "  done     train aaaa",
        "  waiting  train bbbb", "  waiting  train cccc", "  waiting  train dddd",
        "to go on: raysts run half",
    ]  # fmt: skip
    with half.lock("locks/half.lock", "raysts run half"):
        running = raysts("status", "half", "--storage", half.root).out.splitlines()
    assert running[:2] == [
        "half: running, 2 of 5 steps are done",
        stopped.splitlines()[1].replace("trained ", "training"),
    ]
    assert running[3:] == [line.replace("waiting  train b", "running  train b").replace("waiting  train c", "running  train c")
                           for line in stopped.splitlines()[3:-1]]  # fmt: skip


def test_a_run_that_is_done_names_its_model_and_nothing_to_go_on_with(store: Store) -> None:
    model = write_run(store, A)
    record(store, "nli", step(model, member=0), model=model)
    lines = raysts("status", "--storage", store.root).out.splitlines()
    assert lines == ["nli: done, 1 of 1 steps are done", "  done     train aaaa", f"model:   {store.path(model)}"]
    store.delete(model)
    said = raysts("report", "--storage", store.root)
    assert "nli: is without what is gone or damaged: train aaaa; to make it again: raysts run nli" in said.err
    record(store, "two")
    said = raysts("status", "--storage", store.root)
    assert said.code == 2 and "holds 2 runs (nli, two); give the NAME of one of them" in said.err


def test_watch_says_what_changes_and_ends_with_the_run(half: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = iter([lambda: None, lambda: write_run(half, B), lambda: half.delete("locks/half.lock")])
    monkeypatch.setattr(follow.time, "sleep", lambda seconds: next(looks)())
    monkeypatch.setattr(Store, "is_locked", lambda store, key: store.exists(key))
    half.write_json("locks/half.lock", {})
    outcome = raysts("watch", "--seconds", 1, "--storage", half.root)
    page = half.path("reports/half/index.html")
    assert [line for line in outcome.err.splitlines() if not line.startswith("  ")] == [
        f"page: {page.as_uri()}", "half: running, 2 of 5 steps are done", "half: running, 3 of 5 steps are done",
        "half: stopped, 3 of 5 steps are done",
    ]  # fmt: skip
    assert outcome.code == 0 and outcome.out.startswith("half: stopped, 3 of 5") and "refresh" not in page.read_text()
    refused = raysts("watch", "--seconds", 0, "--storage", half.root)
    assert refused.code == 2 and "--seconds 0: must be at least 1 second" in refused.err


@pytest.fixture
def shared(store: Store) -> Store:
    """Two runs that share tokens, of which the second has a student of the first's member, and a study."""
    write(store, "tokens/t/part", 1_000_000), write(store, "embeddings/e/part", 500_000)
    record(store, "members", step("tokens/t", "tokens"), step(write_run(store, A, size=2_000_000), member=0))
    student = write_run(store, B, parents=(A, "9" * 16), size=3_000_000)
    reads = {"0": f"runs/{A}/model", "1": "/elsewhere"}
    extra = {"maps": {"student": write(store, "maps/m.npy")}, "caches": [write(store, "row_scores/s.parquet")]}
    steps = [step("tokens/t", "tokens"), step("embeddings/e", "vectors"), step(student, member=0)]
    record(store, "student", *steps, reads=reads, model=student, **extra)
    write_run(store, C, size=4_000_000), write(store, "tokens/s/part"), write(store, f"runs/{D}/model/weights")
    study(store, "search", C, shared=["tokens/s"], earlier=(f"runs/{D}",))
    return store


def test_a_list_of_runs_and_studies(shared: Store) -> None:
    listed = raysts("list", "--storage", shared.root).out.splitlines()
    assert [line.split() for line in listed] == [
        ["name", "system", "status", "size", "removable", "model"],
        ["run", "members", "nli", "done", "3.0", "MB", "0.0", "MB"],
        ["run", "student", "nli", "done", "4.5", "MB", "3.5", "MB", str(shared.path(f"runs/{B}/model"))],
        ["study", "search", "lower-bound", "done", "4.0", "MB", "4.0", "MB"],
    ]
    empty = shared.root.with_name("empty")
    assert raysts("list", "--storage", empty).out == f"{empty} holds no run. 'raysts run quickstart' makes one\n"


def test_a_page_leads_to_all_that_have_a_report(shared: Store) -> None:
    """With sizes, and what was delivered. A run whose recipe is unknown keeps no other from its report."""
    odd = shared.read_json("pipelines/members.json")
    odd["pipeline"]["recipes"] = {"x": {"objective": "gone", "settings": {}}}
    shared.write_json("pipelines/odd.json", {**odd, "name": "odd"})
    delivered, student = Delivered(what="student", layers=1, by="system"), shared.read_json("pipelines/student.json")
    shared.write_json("pipelines/student.json", {**student, "maps": {}, "delivered": asdict(delivered)})
    said = raysts("report", "--storage", shared.root)
    assert said.code == 0 and "odd: has no new report. recipes.x.objective='gone'" in said.err
    pages = [shared.path(f"reports/{page}index.html") for page in ("members/", "student/", "")]
    assert said.out.split() == [str(page) for page in pages]
    text = pages[-1].read_text()
    for name, size in (("members", "3.0 MB"), ("student", "4.5 MB"), ("search", "4.0 MB")):
        assert re.search(rf">{name}<.*<td>done</td><td class=\"number\">{size}</td>", text), name
    assert '<a href="members/index.html">members</a>' in text and "study-search/index.html" not in text
    assert delivered.sentence in html.unescape(text)
    alone = raysts("report", "--storage", shared.root, "--name", "odd")
    assert alone.code == 2 and "recipes.x.objective='gone'" in alone.err
    assert raysts("report", "--storage", shared.root, "--name", "members").out.split() == [str(pages[0])]
    both = raysts("report", "--storage", shared.root, "--name", "odd", "--paper", "sed")
    assert both.code == 2 and "--name and --paper: give one of them" in both.err


def removed(store: Store, name: str) -> set[str]:
    """Remove a run or a study. Return what the command says that went, and check that it did."""
    told = COMMANDS["remove"].function(name, store.root, yes=True)
    assert not any(store.path(path).exists() for path in told["removed"])
    assert not [path for path in store.root.rglob("*") if name in path.relative_to(store.root).parts[0:2]]
    return {*told["removed"]}


def test_what_no_other_run_needs_goes(shared: Store) -> None:
    """The student's parent stays while it has it; what a removed run had made goes with the last that needs it."""
    assert removed(shared, "members") == set()
    assert removed(shared, "search") == {f"runs/{C}", f"runs/{D}", "tokens/s"}
    told = COMMANDS["remove"].function("student", shared.root, yes=True)
    assert {*told["removed"]} == {
        f"runs/{B}", f"runs/{A}", "tokens/t", "embeddings/e", "maps/m.npy", "row_scores/s.parquet",
    }  # fmt: skip
    assert told["removed"].index(f"runs/{A}") < told["removed"].index(f"runs/{B}"), "before what descends from it"
    assert (told["kind"], told["bytes"] > 6_500_000) == ("run", True)
    assert COMMANDS["remove"].text(told).startswith("run 'student' is removed; 6.5 MB are free")
    assert follow.removable({}, ("run", "student")) == []


def test_a_search_that_goes_on_may_read_any_tokens(shared: Store) -> None:
    """Its record names them at its end. A backbone that was made goes with what needs it; other reads stay."""
    study(shared, "search", C, status="running", shared=["tokens/s"])
    write(shared, "backbones/tiny-x/weights"), write(shared, "tables/x.parquet")
    reads = {"a": "backbones/tiny-x", "b": "embeddings/f"}
    record(shared, "members", *(step(f"{path}", "tokens") for path in ("tokens/u", "tables/x.parquet")), reads=reads)
    assert removed(shared, "members") == {"backbones/tiny-x"}


@pytest.mark.parametrize("name", ["student", "search"])
def test_a_killed_removal_goes_on(name: str, shared: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """After each artifact that is gone the record still names the rest, until it goes itself, before its lock."""
    record = {"student": "pipelines/student.json", "search": "studies/search/study.json"}[name]
    delete = Store.delete
    for most in range(50):
        left = iter(range(most))

        def killed(store: Store, key: Any, left: Iterator[int] = left) -> None:
            if next(left, None) is None:
                raise KeyboardInterrupt
            delete(store, key)

        monkeypatch.setattr(Store, "delete", killed)
        with contextlib.suppress(KeyboardInterrupt):
            follow.remove(name, shared.root, yes=True)
        if not shared.exists(record):
            break
    monkeypatch.undo()
    left_over = [path for path in shared.root.rglob(f"*{name}*") if path.is_file() or [*path.glob("*")]]
    assert left_over == [path for path in shared.root.rglob("*.lock") if name in path.name], "the lock alone"
    told = result("list", "--storage", shared.root)
    assert "members" in [run["name"] for run in told["runs"]] and name not in str([told["runs"], told["studies"]])
    assert shared.exists(f"runs/{A}/model") and shared.exists(f"runs/{B}") is (name == "search")


@pytest.mark.parametrize(("answer", "goes"), [("y", True), (" YES ", True), ("n", False), ("", False)])
def test_a_terminal_is_asked(answer: str, goes: bool, shared: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = raysts("remove", "student", "--storage", shared.root)
    assert refused.code == 2 and "6 artifacts" not in refused.err and "Give --yes to remove them" in refused.err
    terminal = io.StringIO(f"{answer}\n")
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr("sys.stdin", terminal)
    outcome = raysts("remove", "student", "--storage", shared.root)
    assert "embeddings/e" in outcome.err and f"MB from {shared.root}? [y/N]" in outcome.err
    assert shared.exists("pipelines/student.json") is not goes and outcome.code == (0 if goes else 2)


def test_a_record_that_names_what_is_outside_is_refused(store: Store, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    record(store, "odd", step("../elsewhere/x"))
    refused = raysts("remove", "odd", "--storage", store.root, "--yes")
    assert refused.code == 2 and "must stay in its folder" in refused.err and (tmp_path / "elsewhere").is_dir()


def test_a_search_that_nobody_drives_is_stopped(store: Store) -> None:
    study(store, "rates", status="running")
    with store.lock("locks/study-rates.lock", "raysts tune rates"):
        (listed,) = result("list", "--storage", store.root)["studies"]
    assert listed["status"] == "running"
    (listed,) = result("list", "--storage", store.root)["studies"]
    assert listed["status"] == "stopped"


def test_a_list_while_a_run_is_removed(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run goes after its name was read, and the others are listed."""
    monkeypatch.setattr(Store, "get_all", lambda store, folder, pattern: [store.path(f"{folder}/gone.json")])
    assert result("list", "--storage", store.root)["runs"] == []
