"""Training: each stage of a member or student is a run in a separate folder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from raysts.data.derive import TARGETS
from raysts.models.layers import Layers
from raysts.pipeline.inputs import Inputs
from raysts.pipeline.local import Executor, Say
from raysts.pipeline.step import Model, Step, new_step, step_id
from raysts.pipeline.steps.agreement import Agreement
from raysts.pipeline.steps.vectors import Teachers
from raysts.recipes.recipe import Recipe, Resources
from raysts.storage.store import Store
from raysts.training.job import Job


def train_step(
    inputs: Inputs,
    stage: str,
    recipe: Recipe,
    seed: int,
    parent: Model,
    *,
    member: int | None,
    role: str = "member",
    teachers: Teachers | None = None,
    agreement: Agreement | None = None,
    layers: Layers | None = None,
) -> Step:
    """Return the step that trains a recipe from the model ``parent``.

    ``member`` is the number of the member or student, None of a single one. A distillation learns from ``teachers``.
    ``agreement`` selects if the corpus lacks the objective's development set. The written model pools ``layers``, by
    default those of its training.
    """
    layers = recipe.layers if layers is None else layers
    max_length = inputs.pipeline.max_seq_length
    if max_length is None and recipe.train.max_length == "auto":  # it reads what it was taught to read
        max_length = inputs.reading_length(recipe).tokens
    recipe = inputs.resolved(recipe)
    spec, corpus = inputs.store_spec(recipe), inputs.corpus
    dev, judge = inputs.dev(recipe.spec.dev), None
    if dev is None and agreement is not None:
        dev, judge = agreement.dev, agreement.step.id
    selected_by = None
    if recipe.by_dev or recipe.train.patience is not None:
        selected_by = judge or corpus.fingerprint(recipe.spec.dev)
    run = step_id(
        "train",
        recipe=recipe.identity,
        version=recipe.spec.version,
        seed=seed,
        parent=parent.id,
        tokens=spec.id,
        vectors=teachers.vectors.id if teachers else None,
        layers=layers,
        dev=selected_by,
        max_length=max_length,
    )
    parents = [parent.id, teachers.vectors.id] if teachers else [parent.id]
    data = {
        "table": spec.table,
        "sha256": spec.fingerprint,
        "rows": inputs.rows(recipe),
        "skipped": corpus.skipped([spec.table]),
    }
    if name := inputs.own_title(spec.table):
        data["name"] = name
    resources, folder = inputs.pipeline.resources, inputs.storage / "runs" / run
    return new_step(
        inputs,
        "train",
        run,
        [parent, *(teachers.steps if teachers else ()), *([judge] if judge else ()), spec.id],
        title=stage if member is None else f"{role} {member}: {stage}",
        resources={
            "workers": resources.workers,
            "cpus": resources.cpus,
            "gpus": resources.gpus,
            "memory": resources.memory or inputs.worker_gigabytes,
        },
        sentences=inputs.optimiser_steps(recipe) * recipe.batch * recipe.spec.sentences,
        scratch=(folder / "checkpoints",),
        job=Job(
            id=run,
            recipe=recipe,
            seed=seed,
            folder=folder,
            parent=parent.model,
            content=inputs.contents.get(parent.model),
            store=inputs.store_folder(spec),
            prompt=spec.prompt,
            teacher=teachers.vectors.output if teachers else None,
            to_target=teachers.target.output if teachers and teachers.target else None,
            export_layers=layers,
            max_length=max_length,
            dev=dev,
            facts={
                **inputs.facts(stage, role, member, parents),
                "data": data,
                "transductive": recipe.table == TARGETS,
            },
        ),
    )


def train_all(steps: Sequence[Step], resources: Resources, executor: Executor, say: Say) -> list[str]:
    """Train runs, some of which start from each other's models, and return their failures."""
    chains: dict[str, list[Any]] = {}  # by the id of their last run
    for step in steps:
        checkpoints = Store.of(step.training.folder).list(step.training.folder / "checkpoints")
        if checkpoint := max((int(path.stem[5:]) for path in checkpoints if path.match("step-*.pt")), default=0):
            say(f"{step.title}: goes on from the checkpoint at step {checkpoint:,}")
        chain = next((chains.pop(need) for need in step.needs if need in chains), [])
        chains[step.id] = [*chain, step.job]
    return [reason for reason in executor.train(list(chains.values()), resources, say) if reason is not None]
