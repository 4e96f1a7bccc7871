"""Training run as a value: inputs, folder and state."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raysts.data.batches import BatchOrder
from raysts.evaluation.dev import Dev
from raysts.models.layers import Layers
from raysts.recipes.recipe import Recipe

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
        dev: the development set.
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

    @property
    def title(self) -> str:
        """Name of the run for people."""
        member, stage = self.facts.get("member"), self.facts.get("stage")
        return str(stage) if member is None else f"{self.facts.get('role', 'member')} {member} {stage}"


def total_steps(recipe: Recipe, order: BatchOrder) -> int:
    """Return the optimiser steps of a run."""
    train = recipe.train
    steps = math.ceil(train.epochs * order.steps_per_epoch * (1 - 1e-12))  # 1.1 * 100 is 110.00000000000001
    if steps and train.min_steps and steps < train.min_steps:
        steps = math.ceil(train.min_steps / order.steps_per_epoch) * order.steps_per_epoch
    return min(steps, train.max_steps or steps)
