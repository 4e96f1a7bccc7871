"""A cluster that grows and shrinks: Ray's own autoscaler, whose nodes are processes of this machine."""

from __future__ import annotations

import json
import os
import re
import signal
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from heads import Head, running_head
from processes import Command, describe, standing_still, wait_until, writer_of

from raysts.commands.run import run as run_recipe
from raysts.storage.foreign import read_json

SMALL = {"resources": {"CPU": 1, "object_store_memory": 80_000_000}, "node_config": {}, "min_workers": 0}
GROWING = {
    "max_workers": 4, "idle_timeout_minutes": 0.2,
    "available_node_types": {"ray.head.default": {"resources": {"CPU": 0}, "node_config": {}, "min_workers": 0, "max_workers": 0},
        "small": {**SMALL, "max_workers": 4}},
}  # fmt: skip
EVERY = 4
ENSEMBLE: dict[str, Any] = {
    "backbone": "tiny", "members": 4, "batch": 4, "train.max_steps": 100, "train.checkpoint_every": EVERY,
    "evaluation.tasks": "[stsb]", "evaluation.resamples": 5,
}  # fmt: skip


@pytest.fixture(scope="module")
def growing(own_nodes: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Head]:
    """A head without room for work, and an autoscaler."""
    with running_head(tmp_path_factory.mktemp("growing"), 0, autoscaling=GROWING) as head:
        yield head


def run(head: Head, log: Path, data: Path, storage: Path, overrides: dict[str, Any]) -> Command:
    """``raysts run nli`` as a driver on the head."""
    sets = [part for key, value in overrides.items() for part in ("--set", f"{key}={value}")]
    arguments = ["-m", "raysts", "run", "nli", *sets, "--data", data, "--storage", storage, "--address", head.gcs]
    return Command([*map(str, arguments), "--json"], log, head.environment)


def raylets(head: Head) -> list[int]:
    """Processes of the cluster's nodes, that of the head first."""
    pids = [pid for pid in head.command.family() if "raylet/raylet " in describe(pid)]
    return sorted(pids, key=lambda pid: psutil.Process(pid).create_time())  # ids begin anew at some point


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[1])


def lines(folder: Path) -> dict[int, bytes]:
    """The metrics lines of a run by their step, as written, with the times they hold."""
    text = (folder / "metrics.jsonl").read_bytes().splitlines() if (folder / "metrics.jsonl").exists() else []
    return {json.loads(line)["step"]: line for line in text if line.endswith(b"}")}


def is_training(folder: Path) -> bool:
    """Whether a run has begun and not come to its end."""
    return (read_json(folder / "run.json") or {}).get("status") == "running"


@pytest.mark.slow  # five nodes on one machine; test_capacity shows what can be shown without them
def test_an_ensemble_gets_nodes_loses_one_and_lets_them_go(growing: Head, small_world: Path, tmp_path: Path) -> None:
    calm, storage = tmp_path / "calm", tmp_path / "storage"
    overrides = {**ENSEMBLE, "evaluation.tasks": ["stsb"]}
    expected = run_recipe("nli", overrides, small_world, calm, address="none")
    assert len(raylets(growing)) == 1

    command = run(growing, tmp_path / "run.log", small_world, storage, ENSEMBLE)
    writers: dict[str, set[int]] = defaultdict(set)
    most, killed, kept = 0, "", {}

    def watch() -> bool:
        nonlocal most, killed, kept
        most = max(most, len(raylets(growing)) - 1)
        for folder in (storage / "runs").glob("*"):
            pid = writer_of(folder)
            if pid:
                writers[folder.name].add(pid)
            step = max([int(path.stem[5:]) for path in (folder / "checkpoints").glob("step-*.pt")], default=0)
            if pid and not killed and step >= 2 * EVERY and is_training(folder):
                # By itself a worker outlives its node's raylet by seconds, in which it might come to its end.
                with standing_still(pid):
                    if is_training(folder):
                        node = parent(pid)
                        assert node in raylets(growing)[1:]
                        for process in (node, pid):
                            os.kill(process, signal.SIGKILL)
                        killed = folder.name
                        kept = {number: line for number, line in lines(folder).items() if number <= step}
        return command.ended()

    try:
        wait_until(watch, 900, pause=0.02)
        printed = command.stdout()
        assert command.process.returncode == 0, command.stderr()
    finally:
        command.sweep()
    said = command.stderr()
    # How many wait depends on how many nodes the stages before have asked for already.
    assert re.search(
        r"waiting for the cluster to have room for \d training runs?: needs 1 CPU, 0 GPUs, \d\.\d GB of memory each",
        said,
    ), said
    assert "no node with 1 CPU, 0 GPUs is there yet; the cluster's nodes have: 0 CPUs" in said, said
    assert "Traceback" not in said and most >= 2

    # The member on the dead node lost what came after its last checkpoint; those of other runs noticed nothing.
    assert killed and kept and len(writers[killed]) == 2 and min(map(len, writers.values())) == 1
    assert kept.items() <= lines(storage / "runs" / killed).items()
    rows = json.loads(printed.splitlines()[-1])["results"]
    assert [row["value"] for row in rows] == [row["value"] for row in expected["results"]]
    names = {folder.name for folder in (calm / "runs").iterdir()}
    assert len(names) == 4 and names == set(writers)
    for name in names:
        weights = "model/model.safetensors"
        assert (storage / "runs" / name / weights).read_bytes() == (calm / "runs" / name / weights).read_bytes()

    # Nobody needs the nodes any more.
    wait_until(lambda: len(raylets(growing)) == 1, 120, pause=0.5)
