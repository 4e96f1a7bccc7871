"""Training run as a value: inputs, folder and state."""

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
    """Training run: everything ``train`` needs, picklable.

    Attributes:
        content: content id of the starting model; None: the model of another run.
        prompt: prepended to every text, in training and by the trained model.
        teacher: folder of the teachers' vectors, for distillation.
        to_target: file of a matrix that maps these vectors to the target; None: they are the target.
        export_layers: layers that the written model pools (one with heads pools those it was trained on).
        max_length: tokens per text that the written model reads; None: as many as its parent.
        dev: the development set; required if it selects the encoder, else only reported.
        facts: further values of the run record (system, stage, member, parent ids, fingerprints ...).
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
    """Return the optimiser steps of a run."""
    train, steps = recipe.train, math.ceil(recipe.train.epochs * order.steps_per_epoch)
    if steps and train.min_steps and steps < train.min_steps:
        steps = math.ceil(train.min_steps / order.steps_per_epoch) * order.steps_per_epoch
    return min(steps, train.max_steps or steps)


def writing(job: Job) -> contextlib.AbstractContextManager[None]:
    """Return the lock of the run folder's writer, which gets the files to resume from."""
    return RunFolder(job.folder).lock(f"training of run {job.id}", ORPHAN_WAIT)


def finished(job: Job) -> dict[str, Any] | None:
    """Return the record of a finished run, or None."""
    return RunFolder(job.folder).finished()


def title(job: Job) -> str:
    """Return the name of a run for people."""
    member, stage = job.facts.get("member"), job.facts.get("stage")
    return str(stage) if member is None else f"{job.facts.get('role', 'member')} {member} {stage}"


def name_of(job: Job) -> str:
    """Return the name of a run in error messages."""
    return f"run {job.id} ({job.facts.get('stage')}, member {job.facts.get('member')})"
