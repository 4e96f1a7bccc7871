"""A run whose checkpoint, best weights or metrics are damaged begins anew, and ends as one that was never interrupted."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from damage import BYTES
from small_runs import Interrupted, Stage, Watched, interrupted_at, metrics

from raysts import ids
from raysts.training.job import Job
from raysts.training.loop import train

FILES = ("checkpoints/step-*.pt", "checkpoints/best-*.safetensors", "metrics.jsonl")
CASES = [(pattern, "flipped") for pattern in FILES] + [(pattern, "missing") for pattern in FILES[1:]]
CASES += [(FILES[0], "torn"), (FILES[2], "binary")]
# test_checksums has each kind
MORE = [pytest.param(FILES[0], how, marks=pytest.mark.slow) for how in ("empty", "zeros")]


def job_in(folder: Path, stage: Stage) -> Job:
    return stage.job("sts", folder, rows=48, epochs=2.0, eval_every=2, checkpoint_every=2, keep="best")


@pytest.fixture(scope="module")
def calm(stage: Stage, tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, list[dict[str, object]]]:
    folder = tmp_path_factory.mktemp("calm") / "run"
    train(job_in(folder, stage), Watched())
    return (folder / "model" / "model.safetensors").read_bytes(), metrics(folder)


@pytest.fixture(scope="module")
def stopped(stage: Stage, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stopped") / "run"
    with pytest.raises(Interrupted):
        train(job_in(folder, stage), Watched(read=interrupted_at(5)))
    return folder


@pytest.mark.parametrize(("pattern", "how"), [*CASES, *MORE])
def test_a_damaged_checkpoint(
    pattern: str, how: str, calm: tuple[bytes, object], stopped: Path, stage: Stage, tmp_path: Path
) -> None:
    job = job_in(Path(shutil.copytree(stopped, tmp_path / "run")), stage)
    (path,) = job.folder.glob(pattern)
    if how == "missing":
        path.unlink()
    else:
        path.write_bytes(b"\xff\0{" * 9 if how == "binary" else BYTES[how](path.read_bytes()))
    ids._digest.cache_clear()
    train(job, Watched())
    assert ((job.folder / "model" / "model.safetensors").read_bytes(), metrics(job.folder)) == calm
    assert not (job.folder / "checkpoints").exists()
