"""Runs as other processes see them: at work, and after their driver was killed."""

from __future__ import annotations

import json
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


@pytest.mark.whole
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


@pytest.mark.whole
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


def test_the_name_of_a_run_is_that_of_now(s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another machine has run another system by this name, and then removed it."""

    def store(machine: str) -> Store:
        monkeypatch.setenv("RAYSTS_MIRROR", str(tmp_path / machine))
        return Store.open(s3)

    record = {"name": "mine", "pipeline": {"combine": None, "teachers": [], "recipes": {"ct": {}}}, "command": "c"}
    for machine, run in (("here", "a" * 16), ("there", "b" * 16)):
        with store(machine).put_dir(f"runs/{run}/model") as draft:
            (draft / "config.json").write_text("{}")
        store(machine).write_json("pipelines/mine.json", {**record, "members": [run]})
    assert locate("mine", store("here")).parent.name == "b" * 16
    store("there").delete("pipelines/mine.json")
    with pytest.raises(InputError, match="'mine' is not there"):
        locate("mine", store("here"))
