"""Runs that are removed: what nothing else needs goes, and nothing that another run's record names. By hand: test_storage.py."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from run_commands import EVALUATION, TINY, overrides, raysts, result

pytestmark = pytest.mark.whole
SETTINGS = overrides(TINY, EVALUATION, {"evaluation.tasks": "[stsb]"})
STUDENT = overrides({"sed.data.sample": 60, "sed.batch": 8, "train.max_steps": 3}, EVALUATION)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, few_world: Path) -> Path:
    """Members alone, and a student of theirs on a text of the user's, which another run has distilled."""
    storage = tmp_path_factory.mktemp("made") / "storage"
    place = ["--data", few_world, "--storage", storage, "--address", "none"]
    result("run", "nli", "--name", "members", *place, *SETTINGS)
    texts = pq.read_table(few_world / "wikipedia" / "sentences.parquet").slice(0, 300)
    pq.write_table(texts, storage.with_name("mine.parquet"))
    text = ["--text", storage.with_name("mine.parquet"), "--column", "sentence"]
    result("distill", "--from-run", "members", "--name", "student", *text, *place, *STUDENT)
    return storage


@pytest.fixture
def storage(made: Path, tmp_path: Path) -> Path:
    """A copy of its own."""
    return Path(shutil.copytree(made, tmp_path / "storage"))


def files(storage: Path) -> set[str]:
    return {str(path.relative_to(storage)) for path in storage.rglob("*") if path.is_file()}


def left(storage: Path) -> set[str]:
    """Folders with files, but for what is known of the machine."""
    return {path.partition("/")[0] for path in files(storage)} - {"rates"}


def state(storage: Path, name: str) -> dict[str, Any]:
    return result("status", name, "--storage", storage)


def test_what_another_run_needs_stays(storage: Path) -> None:
    sizes = {run["name"]: run for run in result("list", "--storage", storage)["runs"]}
    assert 0 < sizes["members"]["removable_bytes"] < sizes["members"]["bytes"]
    before = state(storage, "student")
    members = json.loads((storage / "pipelines" / "members.json").read_text())["members"]
    done = result("remove", "members", "--storage", storage, "--yes")
    assert done["bytes"] == sizes["members"]["removable_bytes"] and done["removed"]
    gone = [*done["removed"], "pipelines/members.json", "reports/members"]
    assert not any((storage / path).exists() for path in gone)
    assert state(storage, "student") == before and {step["status"] for step in before["steps"]} == {"done"}
    kept = json.loads((storage / "pipelines" / "student.json").read_text())["caches"]
    assert {path.partition("/")[0] for path in kept} == {"contamination", "row_scores", "tables"}
    assert all((storage / path).is_file() for path in kept)
    assert all((storage / "runs" / member / "model" / "config.json").is_file() for member in members), "its teachers"
    last = result("list", "--storage", storage)["runs"][0]
    assert last["removable_bytes"] == last["bytes"], "its teachers go with it: their run is gone"
    done = result("remove", "student", "--storage", storage, "--yes")
    assert done["bytes"] == last["bytes"] and {f"runs/{member}" for member in members} < {*done["removed"]}
    assert result("list", "--storage", storage)["runs"] == [] and not left(storage)


def test_teachers_by_path_stay(storage: Path, tmp_path: Path, few_world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However it and the storage are written. The other member goes."""
    result("remove", "student", "--storage", storage, "--yes")
    teacher, other = json.loads((storage / "pipelines" / "members.json").read_text())["members"]
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    place = ["--data", few_world, "--storage", "../storage", "--address", "none"]
    made = result("distill", f"../here/../storage/runs/{teacher}/model", "--name", "b", *place, *STUDENT)["model"]
    assert Path(made).is_relative_to(storage), "without '..'"
    result("remove", "members", "--storage", storage, "--yes")
    assert (storage / "runs" / teacher / "model").is_dir() and not (storage / "runs" / other).exists()


def test_a_study_goes_with_its_trials_and_what_they_share(tmp_path: Path, few_world: Path) -> None:
    """Of two stages, with the runs between."""
    storage = tmp_path / "storage"
    place = ["--data", few_world, "--storage", storage, "--address", "none"]
    tiny = {key: value for key, value in TINY.items() if key != "members"}
    result("tune", "nli-ct", "--name", "search", *place, *overrides(tiny, {"space.nli.optim.lr": "1e-5,1e-4"}))
    result("distill", "--from-study", "search", "--top", "1", "--name", "student", *place, *STUDENT)
    (study,) = result("list", "--storage", storage)["studies"]
    trials = {f"runs/{path.stem}" for path in (storage / "studies" / "search" / "trials").glob("*.json")}
    done = result("remove", "search", "--storage", storage, "--yes")
    assert done["kind"] == "study" and 0 < done["bytes"] == study["removable_bytes"] < study["bytes"]
    assert len(trials) == 2 and len(trials & {*done["removed"]}) == 1, "the student learnt from the other one"
    assert len([path for path in done["removed"] if path.startswith("runs/")]) == 2, "with what it descends from"
    assert len([*(storage / "runs").iterdir()]) == 3
    assert not any(list((storage / folder).glob("*search*")) for folder in ("studies", "reports", "logs"))
    assert {step["status"] for step in state(storage, "student")["steps"]} == {"done"}
    result("remove", "student", "--storage", storage, "--yes")
    assert not left(storage)
    assert "no run 'search'" in raysts("remove", "search", "--storage", storage, "--yes").err
