"""What a run leaves to be read: ``run.json``, how and where it was trained and how it ended, and ``metrics.jsonl``."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from raysts.models.precision import resolve
from raysts.recipes.tree import to_plain
from raysts.storage.atomic import atomic_write, remove_drafts
from raysts.storage.checksums import checked_write, forget, intact, write_record
from raysts.storage.runs import RunFolder
from raysts.training.checkpoint import TrainState
from raysts.training.job import Job
from raysts.training.runtime import Runtime


def begin(job: Job, runtime: Runtime) -> dict[str, Any]:
    """Open the record; the layout of a run that has begun is kept, because bit-exact resume needs it."""
    record = RunFolder(job.folder).written()
    record.pop("reason", None)  # of an earlier failure
    precision = resolve(job.recipe.train.precision, runtime.device)
    layout: dict[str, Any] = {"world_size": runtime.world, "threads": torch.get_num_threads(), "precision": precision}
    known = record.get("layout", {})
    if known.get("world_size") == runtime.world:
        layout |= known
        if runtime.device.type == "cpu":
            torch.set_num_threads(layout["threads"])
    record |= {
        "run_id": job.id,
        "status": "running",
        "seed": job.seed,
        **job.facts,
        "layout": layout,
        "device": _device_name(runtime.device),
        "where": runtime.where,
        "started_at": record.get("started_at") or _now(),
        "versions": _versions(),
        "timings": record.get("timings", {}),
    }
    if runtime.rank == 0:
        job.folder.mkdir(parents=True, exist_ok=True)
        remove_drafts(job.folder)
        write_record(job.folder / "recipe.json", to_plain(job.recipe))
        RunFolder(job.folder).write(record)
    return record


def end(record: dict[str, Any], job: Job, state: TrainState, candidate: str, seconds: float) -> None:
    """Complete the record of a run that has come to its end.

    Args:
        record: what ``begin`` opened.
        job: the run.
        state: where it stands.
        candidate: name of the encoder that is kept where dev does not choose.
        seconds: since this process began with it.
    """
    by_dev = job.recipe.by_dev
    scores = state.best_scores if by_dev else state.latest
    dev = {
        "kept": state.best if by_dev else next(iter(scores.values()), None),
        "scores": scores,
        "best": state.best,
        "best_step": state.best_step,
    }
    record |= {
        "status": "done",
        "finished_at": _now(),
        "steps": state.step,
        "kept": {"step": state.best_step, "candidate": state.best_candidate}
        if by_dev
        else {"step": state.step, "candidate": candidate},
        "dev": None if state.best is None else dev,
        "selected_by": job.dev.name if by_dev and job.dev is not None else None,
    }
    record["timings"] |= {"train_seconds": round(state.seconds, 3), "last_start_seconds": round(seconds, 3)}


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    cpuinfo = Path("/proc/cpuinfo")
    names = [line for line in cpuinfo.read_text().splitlines() if "model name" in line] if cpuinfo.exists() else []
    return names[0].split(":")[1].strip() if names else "CPU"


def _versions() -> dict[str, str]:
    from importlib.metadata import PackageNotFoundError, version

    found = {}
    for name in ("raysts", "torch", "transformers", "ray", "numpy", "pyarrow"):
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


class MetricsLog:
    """``metrics.jsonl``: one JSON object a line; opened at a step, it forgets the lines of later steps."""

    def __init__(self, path: Path, step: int) -> None:
        self.path, text = path, metrics_until(path, step)
        with atomic_write(path) as draft:
            draft.write_bytes(text)
            forget(path)  # of the file as a bucket gave it
        self._checksum = hashlib.sha256(text)
        self._file = path.open("a", encoding="utf-8")

    def write(self, line: dict[str, Any]) -> None:
        """Append one line, visible at once."""
        text = json.dumps(line) + "\n"
        self._file.write(text)
        self._file.flush()
        self._checksum.update(text.encode())

    def sync(self) -> str:
        """Have the disk hold the lines, before a checkpoint that stands behind them; their checksum."""
        os.fsync(self._file.fileno())
        return self._checksum.hexdigest()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def seal(self) -> None:
        """Close the file: no line comes any more, and from now on its checksum stands beside it."""
        self.close()
        with checked_write(self.path) as draft:
            shutil.copyfile(self.path, draft)


def metrics_until(path: Path, step: int) -> bytes:
    """The lines of a metrics file up to a step, as they are written."""
    return b"".join(json.dumps(line).encode() + b"\n" for line in read_metrics(path) if line["step"] <= step)


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The complete lines of a metrics file; a line torn by a kill, or damaged, ends it."""
    if not intact(path):
        return []
    found = []
    for text in path.read_bytes().splitlines():
        if (line := _parsed(text)) is None:
            break
        found.append(line)
    return found


def _parsed(line: bytes) -> dict[str, Any] | None:
    """A metrics line; None where it is none."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    whole = isinstance(found, dict) and type(found.get("step")) is int
    return found if whole else None


def last_metrics(path: Path) -> dict[str, Any] | None:
    """The last complete line of a metrics file; reads only its end."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 4096))
            lines = file.read().split(b"\n")[:-1]
    except FileNotFoundError:
        return None
    return _parsed(lines[-1]) if lines else None
