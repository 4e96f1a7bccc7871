"""One training run as a value: what it is made of, where it is kept, whether it is done."""

import contextlib
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raysts.data.batches import BatchOrder
from raysts.evaluation.dev import Dev
from raysts.models.layers import Layers
from raysts.recipes.recipe import Recipe
from raysts.storage.runs import RunFolder

ORPHAN_WAIT = 60.0
"""Seconds to wait for a run folder whose writer is about to die with its killed driver."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One training run: everything ``train`` needs, picklable.

    Attributes:
        content: content id of what it starts from; None: the model of another run.
        prompt: what stands before every text there, and before every text that the trained model reads.
        teacher: folder of teacher means, for distillation.
        to_target: the map of them to what is learnt, as :class:`raysts.data.windows.Windows` takes it.
        export_layers: layers that the written model pools (one with heads pools those it was trained on).
        max_length: tokens per text that the written model reads; None: as many as its parent.
        dev: the dev set; needed when the recipe keeps the best encoder, else only reported.
        facts: what else the run record says (system, stage, member, parent ids, fingerprints ...).
    """

    id: str
    recipe: Recipe
    seed: int
    folder: Path
    parent: Path
    content: str | None = None
    store: Path
    prompt: str = ""
    teacher: Path | None = None
    to_target: Path | None = None
    export_layers: Layers = 1
    max_length: int | None = None
    dev: Dev | None = None
    facts: dict[str, Any]


def total_steps(recipe: Recipe, order: BatchOrder) -> int:
    """Optimiser steps of a run."""
    steps = math.ceil(recipe.train.epochs * order.steps_per_epoch)
    return min(steps, recipe.train.max_steps or steps)


def writing(job: Job) -> contextlib.AbstractContextManager[None]:
    """The lock of whoever writes into the run folder, which holds then what the run goes on from."""
    return RunFolder(job.folder).lock(f"training of run {job.id}", ORPHAN_WAIT)


def finished(job: Job) -> dict[str, Any] | None:
    """The record of a run that is done."""
    return RunFolder(job.folder).finished()


def title(job: Job) -> str:
    """What people call a run."""
    member, stage = job.facts.get("member"), job.facts.get("stage")
    return str(stage) if member is None else f"{job.facts.get('role', 'member')} {member} {stage}"


def name_of(job: Job) -> str:
    """The run as failures name it."""
    return f"run {job.id} ({job.facts.get('stage')}, member {job.facts.get('member')})"
