"""Runs as other processes see them: at work, and after their driver was killed."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import killed
import pytest
from run_commands import TINY, overrides, raysts, result

from raysts.commands import follow
from raysts.commands.models import locate
from raysts.errors import InputError
from raysts.storage.store import Store

DRIVER = """
import sys
from raysts.commands.run import run
run("nli", eval(sys.argv[1]), sys.argv[2], sys.argv[3], address="none", command="raysts run nli")
"""

PROCESS = """
import json, os, runpy, sys
*sys.argv, out, err, modules = sys.argv
for number, path in ((1, out), (2, err)):
    os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
try:
    runpy.run_module("raysts", run_name="__main__")
finally:
    with open(modules, "w") as file:
        json.dump([*sys.modules], file)
"""
"""``python -m raysts``. Its last arguments are files: for stdout, for stderr, and for the modules that were imported."""

FOREVER = {**TINY, "train.max_steps": 10**6, "train.epochs": 10**4, "train.checkpoint_every": 1}


def state(storage: Path) -> set[str]:
    """Return what all commands call the state of the only run."""
    (listed,) = result("list", "--storage", storage)["runs"]
    return {listed["status"], result("status", "--storage", storage)["state"]}


def test_a_run_is_running_while_its_driver_lives_and_stopped_once_it_was_killed(
    few_world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``watch`` follows it until then, and its page asks a browser no longer to read it again."""
    storage, page = tmp_path / "storage", tmp_path / "storage" / "reports" / "nli" / "index.html"
    driver = killed.start(DRIVER, repr(FOREVER), str(few_world), str(storage))
    while not list(storage.glob("runs/*/checkpoints/*.pt")):
        assert driver.is_alive()
        time.sleep(0.05)
    assert state(storage) == {"running"}

    def kill(seconds: float) -> None:
        assert 'http-equiv="refresh"' in page.read_text() and "1 running<" in page.read_text()
        driver.kill()
        driver.join()

    monkeypatch.setattr(follow.time, "sleep", kill)
    watched = follow.watch("nli", storage)
    assert watched["state"] == "stopped" and watched["command"] == "raysts run nli"
    text = page.read_text()
    assert 'http-equiv="refresh"' not in text and "The run was stopped" in text and " running<" not in text
    assert state(storage) == {"stopped"}
    said = raysts("status", "--storage", storage).out
    assert said.startswith("nli: stopped, 1 of") and said.rstrip().endswith("to go on: raysts run nli")


def test_nothing_but_the_result_gets_to_stdout(few_world: Path, tmp_path: Path) -> None:
    """Not even what libraries print at the level of the operating system. Training needs no Ray."""
    files = out, err, modules = [str(tmp_path / name) for name in ("out", "err", "modules")]
    few = overrides(TINY, {"members": 1, "train.max_steps": 1, "evaluation.tasks": "[stsb]", "evaluation.resamples": 4})
    where = ["--data", str(few_world), "--storage", str(tmp_path / "s"), "--address", "none"]
    assert killed.exit_code(PROCESS, "run", "nli", *where, *few, "--json", *files) == 0, Path(err).read_text()
    (line,) = Path(out).read_text().splitlines()
    assert json.loads(line)["status"] == "done"
    said = Path(err).read_text()
    assert "Traceback" not in said and "Warning" not in said
    assert "tokenise nli/train" in said and "member 0 nli" in said
    assert not {"ray", "sentence_transformers", "datasets", "matplotlib"} & {*json.loads(Path(modules).read_text())}


def test_a_search_that_nobody_drives_is_stopped(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    pipeline = {"backbone": "tiny", "teachers": []}
    record = {"name": "rates", "search": "s", "status": "running", "command": "c", "pipeline": pipeline}
    store.write_json("studies/rates/study.json", record)
    with store.lock("locks/study-rates.lock", "raysts tune rates"):
        (study,) = result("list", "--storage", tmp_path)["studies"]
    assert study["status"] == "running"
    (study,) = result("list", "--storage", tmp_path)["studies"]
    assert study["status"] == "stopped"


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
        ("something/else", "is not there: .*network$"),
    ):
        with pytest.raises(InputError, match=said):
            locate(name, store, fetch=False)
    for command in ("status", "watch"):
        said = refused(command, "rates")
        assert "'rates' is a study, not a run" in said and "raysts tune x" in said


def record_of(store: Store, name: str, member: str) -> None:
    """Write the record of a run of one member alone."""
    pipeline = {"combine": None, "teachers": [], "recipes": {"ct": {}}}
    store.write_json(
        f"pipelines/{name}.json", {"name": name, "pipeline": pipeline, "members": [member], "command": "c"}
    )


def test_the_name_of_a_run_is_not_the_beginning_of_a_run_id(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    for run in ("e5aaaaaaaaaaaaaa", "bbbbbbbbbbbbbbbb"):
        (tmp_path / "runs" / run / "model").mkdir(parents=True)
    assert locate("e5", store).parent.name == "e5aaaaaaaaaaaaaa"
    (tmp_path / "runs" / "e5aabbbbbbbbbbbb" / "model").mkdir(parents=True)
    with pytest.raises(InputError, match="'e5aa' is the beginning of 2 run ids"):
        locate("e5aa", store)
    record_of(store, "e5", "bbbbbbbbbbbbbbbb")
    assert locate("e5", store).parent.name == "bbbbbbbbbbbbbbbb"
    assert locate("e5aaa", store).parent.name == locate("e5aaaaaaaaaaaaaa", store).parent.name == "e5aaaaaaaaaaaaaa"


def test_the_name_of_a_run_is_that_of_now(s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another machine has run another system by this name, and then removed it."""

    def store(machine: str) -> Store:
        monkeypatch.setenv("RAYSTS_MIRROR", str(tmp_path / machine))
        return Store.open(s3)

    for machine, run in (("here", "a" * 16), ("there", "b" * 16)):
        with store(machine).put_dir(f"runs/{run}/model") as draft:
            (draft / "config.json").write_text("{}")
        record_of(store(machine), "mine", run)
    assert locate("mine", store("here")).parent.name == "b" * 16
    store("there").delete("pipelines/mine.json")
    with pytest.raises(InputError, match="'mine' is not there"):
        locate("mine", store("here"))


def test_a_page_leads_to_all_that_have_a_report(few_world: Path, tmp_path: Path) -> None:
    """With the sizes of runs and studies. A run whose recipe is unknown keeps no other from its report."""
    settings = overrides({"backbone": "tiny", "evaluation.resamples": 0, "evaluation.tasks": "[stsb]"})
    place = ["--data", few_world, "--storage", tmp_path, "--address", "none"]
    for _ in range(2):
        assert "replaces" not in raysts("run", "raw", *place, *settings).err
    store = Store.open(tmp_path)
    store.write_json("studies/rates/study.json", {
        "name": "rates", "search": "s", "status": "done", "command": "c", "shared": ["tokens/x"],
        "pipeline": {"backbone": "tiny", "teachers": []},
    })  # fmt: skip
    (tmp_path / "tokens" / "x").mkdir(parents=True)
    (tmp_path / "tokens" / "x" / "part").write_bytes(bytes(2_500_000))
    record = store.read_json("pipelines/raw.json")
    record["pipeline"]["recipes"] = {"x": {"objective": "gone", "settings": {}}}
    store.write_json("pipelines/odd.json", {**record, "name": "odd"})
    said = raysts("report", "--storage", tmp_path)
    assert said.code == 0 and "odd: has no new report. recipes.x.objective='gone'" in said.err
    assert said.out.split() == [str(tmp_path / "reports" / page) for page in ("raw/index.html", "index.html")]
    page = (tmp_path / "reports" / "index.html").read_text()
    for name, row in (("raw", r"\d+\.\d MB"), ("rates", r"2\.5 MB")):
        assert re.search(rf">{name}<.*<td>done</td><td class=\"number\">{row}</td>", page), name
    alone = raysts("report", "--storage", tmp_path, "--name", "odd")
    assert alone.code == 2 and "recipes.x.objective='gone'" in alone.err
    again = raysts("run", "raw", *place, *settings, "--set", "evaluation.poolings=[cls]")
    assert "raw: replaces an earlier run of this name" in again.err and "another --name keeps both" in again.err
