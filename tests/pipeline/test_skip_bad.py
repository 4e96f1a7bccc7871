"""A multi-file table with a shard that cannot be read: refused with its name, or left out and listed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import damage
import pytest
from run_commands import EVALUATION, TINY, overrides, raysts, result

from raysts.commands.options import RunOptions
from raysts.commands.study import plan_study
from raysts.errors import InputError
from raysts.storage.foreign import read_json


@pytest.fixture
def world(few_world: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(few_world, tmp_path / "data"))


@pytest.mark.whole
def test_a_run_goes_on_without_it_and_says_so_everywhere(world: Path, tmp_path: Path) -> None:
    paths, storage = damage.shards(world, "nli/train"), tmp_path / "s"
    few = {"members": 1, "sed.data.sample": 64, "train.max_steps": 2, "evaluation.tasks": "[stsb]"}
    arguments = ["nli-sed", "--data", world, "--storage", storage, *overrides(TINY, EVALUATION, few)]
    whole = result("plan", *arguments)
    assert whole["skipped"] == []
    damage.flipped(paths[2])

    said = "left out of nli/train: nli/train/part-2.parquet ("
    assert said in raysts("plan", *arguments, "--skip-bad").out
    outcome = raysts("run", *arguments, "--skip-bad", "--address", "none", "--json")
    assert outcome.code == 0 and outcome.err.count(said) == 1, outcome.err
    found = json.loads(outcome.out)
    (left_out,) = found["skipped"]
    assert left_out["file"] == "nli/train/part-2.parquet" and left_out["rows"] > 0 and left_out["reason"]

    without = result("plan", *arguments, "--skip-bad")
    before, after = ({node["title"]: node["id"] for node in planned["nodes"]} for planned in (whole, without))
    touched = {"tokenise nli/train", "member 0: nli", "embeddings of 1 member", "sed", "evaluate members"}
    assert {title for title in before if before[title] != after[title]} >= touched
    assert before["tokenise wikipedia/sentences"] == after["tokenise wikipedia/sentences"]
    record = read_json(storage / "runs" / after["member 0: nli"] / "run.json")
    assert record["data"]["skipped"] == [left_out]
    (texts,) = (node["sentences"] for node in whole["nodes"] if node["title"] == "tokenise nli/train")
    assert record["data"]["rows"] == texts // 2 - left_out["rows"], "two texts each are tokenised"
    assert read_json(storage / "runs" / after["sed"] / "run.json")["data"]["skipped"] == []  # of its own table
    run = read_json(storage / "pipelines" / "nli-sed.json")
    assert run["skipped"] == [left_out] and run["skip_bad"]
    for page in (Path(found["report"]), Path(found["model"]) / "README.md"):
        assert "Training data is not whole" in page.read_text(encoding="utf-8"), page
    assert result("report", "--storage", storage)["reports"][0] == found["report"]
    text = raysts("run", *arguments, "--skip-bad")  # nothing is left to do, and it is said again
    assert text.code == 0 and said in text.out
    paths[2].unlink()  # the data that was used
    assert {node["status"] for node in result("plan", *arguments)["nodes"]} == {"done"}


def test_from_python(world: Path, tmp_path: Path) -> None:
    damage.truncated(damage.shards(world, "sts/stsb_train")[1])
    changes = {"backbone": "tiny", "seeds": 1}
    with pytest.raises(InputError, match="part-1.parquet"):
        plan_study("lower-bound", changes, RunOptions(data=world, storage=tmp_path))
    study = plan_study("lower-bound", changes, RunOptions(data=world, storage=tmp_path, skip_bad=True))
    assert [each["file"] for each in study.plan.skipped_files] == ["sts/stsb_train/part-1.parquet"]
