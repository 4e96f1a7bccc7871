"""The one training loop."""

from __future__ import annotations

import contextlib
import math
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import nn

from raysts import collective
from raysts.data.batches import Order
from raysts.data.windows import Windows
from raysts.errors import RunFailed
from raysts.evaluation.dev import Dev
from raysts.evaluation.statistics import UndefinedCorrelationError
from raysts.files import lock, read_json, remove_drafts, write_json
from raysts.models import kernels
from raysts.models.encoder import Encoder
from raysts.models.layers import Layers
from raysts.models.sentence_model import SentenceModel, autocast
from raysts.models.store import load, save
from raysts.objectives import OBJECTIVES
from raysts.recipe import Recipe
from raysts.seeds import derive_seed
from raysts.training import checkpoint, optim
from raysts.training.runtime import Runtime, native_bf16
from raysts.tree import to_plain

ORPHAN_WAIT = 60.0
"""Seconds to wait for a run folder whose writer is about to die with its killed driver."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One training run: everything ``train`` needs, picklable.

    Attributes:
        id: run id.
        recipe: the recipe.
        seed: seed of this run.
        folder: run folder.
        parent: model folder to start from.
        store: token store of the training rows.
        teacher: folder of teacher means, for distillation.
        export_layers: layers that the written model pools (one with heads pools those it was trained on).
        dev: the dev set; needed when the recipe keeps the best encoder, else only reported.
        facts: what else the run record says (system, stage, member, parent ids, fingerprints ...).
    """

    id: str
    recipe: Recipe
    seed: int
    folder: Path
    parent: Path
    store: Path
    teacher: Path | None = None
    export_layers: Layers = 1
    dev: Dev | None = None
    facts: dict[str, Any]


def total_steps(recipe: Recipe, order: Order) -> int:
    """Optimiser steps of a run."""
    steps = math.ceil(recipe.train.epochs * order.steps_per_epoch)
    return min(steps, recipe.train.max_steps or steps)


def train(job: Job, runtime: Runtime) -> dict[str, Any]:
    """Train one run to its end, from its last checkpoint if it has one, and return its record.

    Args:
        job: the run.
        runtime: where it happens.

    Raises:
        RunFailed: the loss is not finite, or there is no batch to train on.
    """
    guard = lock(job.folder / "writer.lock", f"training of run {job.id}", ORPHAN_WAIT)
    with guard if runtime.rank == 0 else contextlib.nullcontext():
        runtime.barrier()  # nobody reads anything before the folder is ours: its last writer may just have finished
        done = read_json(job.folder / "run.json")
        return done if done and done["status"] == "done" else _train(job, runtime)


def _train(job: Job, runtime: Runtime) -> dict[str, Any]:
    recipe, began = job.recipe, time.monotonic()
    device = runtime.device
    record = _open_record(job, runtime)
    precision = record["layout"]["precision"]

    if device.type == "cpu":
        kernels.keep_memory()
    kind = OBJECTIVES[recipe.objective]
    model = load(
        job.parent,
        pooling=recipe.pooling,
        layers=recipe.layers,
        max_length=recipe.train.max_length,
        device=device,
        heads=kind.post,
    )
    model.normalize = False
    torch.manual_seed(derive_seed(job.seed, "init"))
    objective = kind(recipe.settings, model.encoder).to(device)
    wrapped = runtime.wrap(objective)
    optimizer = optim.build(recipe.optim, objective)
    windows = Windows(job.store, job.teacher)
    order = Order(windows.sizes, kind, recipe.batch, derive_seed(job.seed, "order"), recipe.train.drop_last)
    steps = total_steps(recipe, order)
    if steps == 0:
        raise RunFailed(f"run {job.id}: {windows.rows} rows are too few for one batch of {recipe.batch} examples")
    progress = checkpoint.restore(job.folder / "checkpoints", objective, optimizer)
    log = checkpoint.MetricsLog(job.folder / "metrics.jsonl", progress.step) if runtime.rank == 0 else None

    eval_every = recipe.train.eval_every or max(1, steps // (10 if recipe.train.by_dev else 4))
    save_every = recipe.train.checkpoint_every or max(50, steps // 20)
    log_every = max(1, min(50, steps // 100))
    if progress.step == 0 and recipe.train.eval_first and job.dev is not None and progress.best is None:
        _evaluate(job, runtime, objective.candidates(), model, progress)
    start, before, examples_since = progress.step, progress.seconds, 0
    resumed = last_log = time.monotonic()

    shares = runtime.read(windows, order, start, steps if not progress.stopped else start, runtime.rank, runtime.world)
    for share in shares:
        step = progress.step
        if step == start:  # the first batch has come: what was before is start-up
            resumed = last_log = time.monotonic()
            record["timings"]["startup_seconds"] = round(resumed - began, 3)
        batch = {
            name: value.to(device, non_blocking=True)
            for name, value in objective.collate(share._replace(progress=step / steps)).items()
        }
        # Every step has its own seed: dropout depends on (seed, step, rank), so a resumed run needs no generator state.
        torch.manual_seed(derive_seed(job.seed, "step", step, runtime.rank))
        wrapped.train(recipe.train.dropout)
        with autocast(device, precision):
            loss, scalars = wrapped(batch)
        if loss.requires_grad:  # what is fitted in closed form has no gradient
            loss.backward()
        if recipe.optim.clip is not None:
            torch.nn.utils.clip_grad_norm_(objective.parameters(), recipe.optim.clip)
        rate = optim.learning_rate(recipe.optim, step, steps)
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        progress.step += 1
        progress.loss_sum = loss.detach() + progress.loss_sum
        progress.loss_count += 1
        examples_since += share.size

        last = progress.step == steps
        due_eval = job.dev is not None and (progress.step % eval_every == 0 or last)
        if not (last or due_eval or progress.step % log_every == 0 or progress.step % save_every == 0):
            continue
        mean_loss = float(progress.loss_sum) / progress.loss_count
        # The loss is that of the weights before the step; whatever is scored or saved next are the weights after it.
        wrong = f"the loss is {mean_loss}" if not math.isfinite(mean_loss) else "weights are not finite"
        if not math.isfinite(mean_loss) or not _finite(objective):
            raise RunFailed(
                f"run {job.id} ({job.facts.get('stage')}, member {job.facts.get('member')}): {wrong} "
                f"between steps {progress.step - progress.loss_count + 1} and {progress.step}; lower "
                f"{recipe.objective}.optim.lr ({recipe.optim.lr:g}) or set {recipe.objective}.train.precision=fp32"
            )
        now = time.monotonic()
        progress.seconds = before + now - resumed
        line: dict[str, Any] = {
            "step": progress.step,
            "steps": steps,
            "epoch": round(progress.step / order.steps_per_epoch, 4),
            "loss": mean_loss,
            "lr": rate,
            **{name: float(value) for name, value in scalars.items()},
            "examples_per_second": examples_since / max(1e-9, now - last_log),
            "seconds": round(progress.seconds, 3),
        }
        progress.loss_sum, progress.loss_count = 0.0, 0
        if due_eval:
            line["dev"] = _evaluate(job, runtime, objective.candidates(), model, progress)
            patience = recipe.train.patience
            progress.stopped = patience is not None and progress.since_best >= patience
        if log is not None:
            log.write(line)
        last = last or progress.stopped
        if progress.step % save_every == 0 or last:
            if runtime.rank == 0:
                checkpoint.save(job.folder / "checkpoints", objective, optimizer, progress)
            runtime.barrier()
        if due_eval or last:
            runtime.report(line)
        if last:
            break
        last_log, examples_since = time.monotonic(), 0
    if hasattr(shares, "close"):
        shares.close()
    return _finish(job, runtime, objective.candidates(), model, progress, record, log, began)


def _finite(module: nn.Module) -> bool:
    """Whether every weight is a finite number."""
    sums = torch.stack([parameter.detach().sum() for parameter in module.parameters()])
    return bool(torch.isfinite(sums).all())


def _evaluate(
    job: Job, runtime: Runtime, candidates: dict[str, Encoder], model: SentenceModel, progress: checkpoint.Progress
) -> float:
    """Score the candidates on dev (rank 0 does, all learn the result) and take note of the best; the best of now."""
    assert job.dev is not None
    scores = torch.zeros(len(candidates), dtype=torch.float64)
    if not job.recipe.train.by_dev:
        candidates = dict(list(candidates.items())[:1])
    if runtime.rank == 0:
        for i, encoder in enumerate(candidates.values()):
            try:
                scores[i] = job.dev.score(SentenceModel(encoder, model.tokenizer, model.max_length))
            except UndefinedCorrelationError:
                scores[i] = math.nan  # every process learns it, and ends
    scores = collective.total(scores.to(runtime.device)).cpu()
    if not torch.isfinite(scores).all():
        raise RunFailed(
            f"run {job.id} ({job.facts.get('stage')}, member {job.facts.get('member')}): after {progress.step} steps the "
            f"model gives the same or no finite similarity for every dev pair; lower {job.recipe.objective}.optim.lr "
            f"({job.recipe.optim.lr:g})"
        )
    found = dict(zip(candidates, scores.tolist(), strict=False))
    name = max(found, key=lambda candidate: found[candidate])  # the first of equals: the default candidate
    progress.latest = found[name]
    if progress.best is None or found[name] > progress.best:
        progress.best, progress.best_step, progress.best_candidate = found[name], progress.step, name
        progress.since_best = 0
        if job.recipe.train.by_dev and runtime.rank == 0:
            (job.folder / "checkpoints").mkdir(parents=True, exist_ok=True)
            checkpoint.save_best(job.folder / "checkpoints", progress, candidates[name])
    else:
        progress.since_best += 1
    return found[name]


def _open_record(job: Job, runtime: Runtime) -> dict[str, Any]:
    """The run record; the layout of a run that has begun is kept, because bit-exact resume needs it."""
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


def _finish(
    job: Job,
    runtime: Runtime,
    candidates: dict[str, Encoder],
    model: SentenceModel,
    progress: checkpoint.Progress,
    record: dict[str, Any],
    log: checkpoint.MetricsLog | None,
    began: float,
) -> dict[str, Any]:
    """Write the kept model, then the record that says so."""
    encoder = next(iter(candidates.values()))
    if job.recipe.train.by_dev:
        checkpoint.load_best(job.folder / "checkpoints", progress, encoder)
    record |= {
        "status": "done",
        "finished_at": _now(),
        "steps": progress.step,
        "kept": {"step": progress.best_step, "candidate": progress.best_candidate}
        if job.recipe.train.by_dev
        else {"step": progress.step, "candidate": next(iter(candidates))},
        "dev": None
        if progress.best is None
        else {
            "kept": progress.best if job.recipe.train.by_dev else progress.latest,
            "best": progress.best,
            "best_step": progress.best_step,
        },
        "selected_by": job.dev.name if job.recipe.train.by_dev and job.dev is not None else None,
    }
    record["timings"] |= {
        "train_seconds": round(progress.seconds, 3),
        "last_start_seconds": round(time.monotonic() - began, 3),
    }
    if runtime.rank == 0:
        if not len(encoder.heads):
            encoder.layers = job.export_layers
        save(SentenceModel(encoder, model.tokenizer, model.max_length), job.folder / "model")
        write_json(job.folder / "run.json", record)
        checkpoint.clear(job.folder / "checkpoints")
        assert log is not None
        log.close()
    runtime.barrier()
    return record


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
