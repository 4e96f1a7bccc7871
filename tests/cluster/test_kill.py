from __future__ import annotations

import os
import random
import signal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from processes import Command, finished_files, progress, trainer, wait_until

from raysts.commands.run import run as run_recipe
from raysts.commands.use import embed as embed_files
from raysts.storage.atomic import ASIDE
from raysts.storage.foreign import read_json

SHORT = {
    "members": 2, "train.max_steps": 40, "train.checkpoint_every": 10, "sed.data.sample": 600,
    "evaluation.tasks": ["stsb"], "evaluation.resamples": 20,
}  # fmt: skip


@pytest.mark.slow  # minutes on a busy machine; the next test kills a driver too
def test_quickstart_killed_at_any_moment_goes_on(small_world: Path, tmp_path: Path, commands: list[Command]) -> None:
    """Interrupted, its driver killed, its process group killed, a worker killed: it ends with the undisturbed bits."""
    calm, storage = tmp_path / "calm", tmp_path / "storage"
    expected = run_recipe("quickstart", SHORT, small_world, calm, address="none")
    total = progress(calm)
    dice = random.Random(20)

    def start() -> Command:
        sets = [part for key, value in SHORT.items() for part in ("--set", f"{key}={value}".replace("'", ""))]
        arguments = ["-m", "raysts", "run", "quickstart", *sets, "--data", small_world, "--storage", storage]
        log = tmp_path / f"{len(commands)}.log"
        commands.append(Command([str(a) for a in (*arguments, "--address", "local", "--json")], log))
        return commands[-1]

    kept: dict[Path, int] = {}
    for kind in ("interrupt", "driver", "group", "worker"):
        command = start()
        before = progress(storage)
        moment = dice.randint(before + 1, before + max(1, (total - before) // 3))
        wait_until(lambda command=command, moment=moment: progress(storage) >= moment or command.ended())
        if kind == "worker":
            wait_until(lambda command=command: trainer(storage) or command.ended())
        assert not command.ended(), command.stderr()
        if kind == "interrupt":
            os.killpg(command.pid, signal.SIGINT)
            assert command.process.wait(timeout=120) == 130
            said = [line for line in command.stderr().splitlines() if line.startswith("raysts:")]
            assert len(said) == 1 and "To go on: raysts run quickstart" in said[0] and "Traceback" not in said[0]
        elif kind == "driver":
            os.kill(command.pid, signal.SIGKILL)
        elif kind == "group":
            os.killpg(command.pid, signal.SIGKILL)
        else:
            worker = trainer(storage)
            assert worker is not None
            os.kill(worker, signal.SIGKILL)
        if kind != "worker":
            command.process.wait()
            assert {path: time for path, time in finished_files(storage).items() if path in kept} == kept
            kept = finished_files(storage)

    printed = command.stdout()
    assert command.process.returncode == 0, command.stderr()
    assert "Traceback" not in command.stderr()
    for command in commands:
        assert command.left_behind() == []
    assert {path: time for path, time in finished_files(storage).items() if path in kept} == kept  # not touched again

    student, other = Path(expected["model"]), storage / Path(expected["model"]).relative_to(calm)
    assert f'"model": "{other}"' in printed.splitlines()[-1]
    assert (other / "model.safetensors").read_bytes() == (student / "model.safetensors").read_bytes()
    for run in (calm / "runs").iterdir():
        weights = "model/model.safetensors"
        assert (storage / "runs" / run.name / weights).read_bytes() == (run / weights).read_bytes()
        assert read_json(storage / "runs" / run.name / "run.json")["status"] == "done"
        assert not (storage / "runs" / run.name / "checkpoints").exists()
    assert not [path for path in storage.rglob(f"{ASIDE}*") if "locks" not in path.parts]

    # Nothing is left to do: Ray, which would look for this cluster, is not started.
    again = run_recipe("quickstart", SHORT, small_world, storage, address="127.0.0.1:1")
    assert again["model"] == str(other)
    assert [row["value"] for row in again["results"]] == [row["value"] for row in expected["results"]]


@pytest.mark.slow
def test_bulk_embedding_ended_twice_goes_on_shard_by_shard(
    small_world: Path, tiny_backbone: Path, tmp_path: Path, commands: list[Command]
) -> None:
    """SIGTERM, then SIGKILL of the driver, then the end: the shards are those made in one go without Ray."""
    sentences = pq.read_table(small_world / "wikipedia/sentences.parquet", columns=["sentence"])["sentence"]
    (tmp_path / "texts").mkdir()
    for number in range(3):
        table = pa.table({"id": range(number * 1000, number * 1000 + 1000), "text": sentences.slice(0, 1000)})
        pq.write_table(table, tmp_path / "texts" / f"{number}.parquet", row_group_size=200)
    here, there = tmp_path / "here", tmp_path / "there"
    embed_files(tiny_backbone, tmp_path / "texts", "text", here, address="none")
    shards = sorted(path.name for path in here.glob("part-*"))
    assert len(shards) == 15

    def finished() -> dict[str, int]:
        return {path.name: path.stat().st_mtime_ns for path in there.glob("part-*")}

    kept: dict[str, int] = {}
    for kind, enough in (("terminate", 2), ("kill", 6), ("finish", 15)):
        arguments = ["-m", "raysts", "embed", tiny_backbone, "--input", tmp_path / "texts", "--column", "text"]
        arguments += ["--output", there, "--storage", tmp_path / "storage", "--address", "local", "--json"]
        command = Command([str(argument) for argument in arguments], tmp_path / f"{kind}.log")
        commands.append(command)
        if kind == "finish":
            break
        wait_until(lambda c=command, n=enough: len(finished()) >= n or c.ended(), pause=0.005)
        assert not command.ended(), command.stderr()
        if kind == "terminate":  # as `timeout` does, to its cluster too
            os.killpg(command.pid, signal.SIGTERM)
        else:
            command.signal_driver(signal.SIGKILL)
        code = command.process.wait(timeout=120)
        assert code == (130 if kind == "terminate" else -signal.SIGKILL), command.stderr()
        assert kept.items() <= finished().items()
        kept = finished()
        assert len(kept) < 15, "ended too late to say anything"
    printed = command.stdout()
    assert command.process.returncode == 0, command.stderr()
    assert '"rows": 3000' in printed and kept.items() <= finished().items()
    for command in commands:
        assert command.left_behind() == []
    for name in (*shards, "_manifest.json"):
        assert (here / name).read_bytes() == (there / name).read_bytes()
    assert sorted(path.name for path in there.iterdir()) == sorted(path.name for path in here.iterdir())
