"""The run record ``run.json``: how and where a run was trained, and its result."""

import contextlib
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from typing import Any

import torch

from raysts.cpu import native
from raysts.errors import RunFailed
from raysts.ids import cpu_name
from raysts.models.precision import resolve
from raysts.recipes.tree import to_plain
from raysts.storage.atomic import remove_drafts
from raysts.storage.checksums import write_record
from raysts.storage.runs import RunFolder, State
from raysts.training.checkpoint import TrainState
from raysts.training.job import Job
from raysts.training.runtime import Runtime


def begin(job: Job, runtime: Runtime) -> dict[str, Any]:
    """Open the record. A resumed run keeps its layout, because bit-exact resume needs it."""
    record, device = RunFolder(job.folder).written(), runtime.device
    record.pop("reason", None)  # of an earlier failure
    precision = resolve(job.recipe.train.precision, device)
    layout: dict[str, Any] = {"world_size": runtime.world, "threads": torch.get_num_threads(), "precision": precision}
    if device.type == "cpu":
        layout["fused_layers"] = native.library() is not None
    stored = record.get("layout", {})
    if stored.get("world_size") == runtime.world:
        layout |= stored
        if device.type == "cpu" and layout.get("fused_layers") and native.library() is None:
            raise RunFailed(
                f"run {job.id} began with compiled layers, which this machine lacks: it would end as another model. "
                f"{native.REMEDY}, and run the same command again; or remove {job.folder} to begin it anew"
            )
        if device.type == "cpu":
            torch.set_num_threads(layout["threads"])
    record |= {
        "run_id": job.id, "status": State.RUNNING, "seed": job.seed, **job.facts, "layout": layout,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else cpu_name(), "where": runtime.where,
        "started_at": record.get("started_at") or _utc_now(), "versions": _versions(),
        "timings": record.get("timings", {}),
    }  # fmt: skip
    if runtime.rank == 0:
        job.folder.mkdir(parents=True, exist_ok=True)
        remove_drafts(job.folder)
        write_record(job.folder / "recipe.json", to_plain(job.recipe))
        RunFolder(job.folder).write(record)
    return record


def end(record: dict[str, Any], job: Job, state: TrainState, candidate: str, seconds: float) -> None:
    """Complete the record of a finished run.

    ``candidate``: name of the encoder that is kept if dev does not select.
    """
    choice: dict[str, Any] = {"step": state.step, "candidate": candidate}
    score, scores, selected_by = next(iter(state.latest.values()), None), state.latest, None
    if job.recipe.uses_dev_labels and job.dev is not None:
        choice = {"step": state.best_step, "candidate": state.best_candidate}
        score, scores, selected_by = state.best, state.best_scores, job.dev.name
    dev = {"kept": score, "scores": scores, "best": state.best, "best_step": state.best_step}
    record |= {"status": State.DONE, "finished_at": _utc_now(), "steps": state.step, "kept": choice}
    record |= {"dev": None if state.best is None else dev, "selected_by": selected_by}
    record["timings"] |= {"train_seconds": round(state.seconds, 3), "last_start_seconds": round(seconds, 3)}


def _utc_now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


@cache
def _versions() -> dict[str, str]:
    versions = {}
    for name in ("raysts", "torch", "transformers", "ray", "numpy", "pyarrow"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions
