"""The record of a run, ``run.json``: what it is, where and how it was trained, how it ended."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from raysts.recipes.tree import to_plain
from raysts.storage.atomic import read_json, remove_drafts, write_json
from raysts.training.checkpoint import Progress
from raysts.training.runtime import Runtime, native_bf16

if TYPE_CHECKING:
    from raysts.training.loop import Job


def begin(job: Job, runtime: Runtime) -> dict[str, Any]:
    """Open the record; the layout of a run that has begun is kept, because bit-exact resume needs it."""
    record = read_json(job.folder / "run.json") or {}
    record.pop("reason", None)  # of an earlier failure
    precision = job.recipe.train.precision
    if precision == "auto":
        precision = "bf16" if native_bf16(runtime.device) else "fp32"
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
        write_json(job.folder / "recipe.json", to_plain(job.recipe))
        write_json(job.folder / "run.json", record)
    return record


def end(record: dict[str, Any], job: Job, progress: Progress, candidate: str, seconds: float) -> None:
    """Complete the record of a run that has come to its end.

    Args:
        record: what ``begin`` opened.
        job: the run.
        progress: where it stands.
        candidate: name of the encoder that is kept where dev does not choose.
        seconds: since this process began with it.
    """
    by_dev = job.recipe.train.by_dev
    scores = progress.best_scores if by_dev else progress.latest
    dev = {
        "kept": progress.best if by_dev else next(iter(scores.values()), None),
        "scores": scores,
        "best": progress.best,
        "best_step": progress.best_step,
    }
    record |= {
        "status": "done",
        "finished_at": _now(),
        "steps": progress.step,
        "kept": {"step": progress.best_step, "candidate": progress.best_candidate}
        if by_dev
        else {"step": progress.step, "candidate": candidate},
        "dev": None if progress.best is None else dev,
        "selected_by": job.dev.name if by_dev and job.dev is not None else None,
    }
    record["timings"] |= {"train_seconds": round(progress.seconds, 3), "last_start_seconds": round(seconds, 3)}


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
