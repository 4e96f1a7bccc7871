"""Training runs, a folder each, and the token shards that they read, a file per Parquet row group."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from raysts.data.derive import TARGETS
from raysts.data.user import TEXT
from raysts.data.windows import GroupPart, StoreSpec, finish_store, tokenize_group
from raysts.ids import guard_content
from raysts.log import say
from raysts.models.embedders import open_embedder
from raysts.models.layers import Layers
from raysts.pipeline.inputs import MEASURED, SMALLEST, Inputs
from raysts.pipeline.step import Context, Load, Step, new_step, step_id
from raysts.pipeline.steps.agreement import Agreement
from raysts.pipeline.steps.vectors import Teachers
from raysts.recipes.recipe import Recipe, Resources
from raysts.storage.atomic import remove_drafts
from raysts.storage.store import Store
from raysts.training.job import Job


def tokens_step(inputs: Inputs, spec: StoreSpec) -> Step:
    """Return the step that writes a token store."""
    recipes = [recipe for recipe in inputs.recipes.values() if inputs.resolve_recipe(recipe).table == spec.table]
    tokens, groups = inputs.tokens(recipes[0]) if recipes else 1.0, inputs.groups(spec)
    sentences = sum(group.size for group in groups) * len(spec.texts)
    return new_step(
        inputs,
        "tokens",
        spec.id,
        (),
        title=f"tokenise {inputs.store_title(spec)}",
        work=partial(_tokenize, inputs, spec),
        resources={"workers": 1, "cpus": 1, "gpus": 0},
        sentences=sentences,
        load=Load(SMALLEST, tokens, units=len(groups), grows=spec.table == TEXT),
        bytes=round(sentences * (8 + 4 * tokens)),
    )


class TokenizeGroup:
    """Writes a file of a token store. Units are (number of the file, row group).

    ``content``: content id of the tokenizer; None: of a model that raysts trains.
    """

    def __init__(self, device: str | None, spec: StoreSpec, tokenizer: Path, content: str | None, folder: Path) -> None:
        with guard_content(tokenizer, content, lambda path: open_embedder(path).tokenizer_id):
            self.tokenizer = open_embedder(tokenizer).tokenizer
        self.spec, self.folder = spec, folder

    def __call__(self, unit: tuple[int, GroupPart]) -> dict[str, Any]:
        number, group = unit
        return tokenize_group(group, self.spec, self.tokenizer, self.folder, number)


def _tokenize(inputs: Inputs, spec: StoreSpec, context: Context) -> None:
    folder = inputs.store_folder(spec)
    remove_drafts(folder)
    inputs.corpus.table_with_spans(spec.table, spec.data).write()
    tokenizer = inputs.tokenizer_of(spec)
    args = (spec, tokenizer, spec.tokenizer if tokenizer in inputs.contents else None, folder)
    units = list(enumerate(inputs.groups(spec)))
    parts = list(context.map(TokenizeGroup, args, units, Resources(cpus=1, gpus=0)))
    inputs.corpus.check_unchanged([spec.table])
    finish_store(folder, spec, parts)


def train_step(
    inputs: Inputs, stage: str, recipe: Recipe, seed: int, parent: Step, *, member: int | None, role: str = "member",
    teachers: Teachers | None = None, agreement: Agreement | None = None, layers: Layers | None = None,
) -> Step:  # fmt: skip
    """Return the step that trains a recipe from the model ``parent``.

    ``member`` is the number of the member or student, None of a single one. A distillation learns from ``teachers``.
    ``agreement`` selects if the corpus lacks the objective's development set. The written model pools ``layers``, by
    default those of its training.
    """
    layers = recipe.layers if layers is None else layers
    max_length = inputs.pipeline.max_seq_length
    if max_length is None and recipe.train.max_length == "auto":  # it reads what it was taught to read
        max_length = inputs.reading_length(recipe).tokens
    recipe = inputs.resolve_recipe(recipe)
    spec, corpus, dev = inputs.store_spec(recipe), inputs.corpus, inputs.dev(recipe.spec.dev)
    judge = agreement if dev is None else None
    dev, selected_by = judge.dev if judge else dev, None
    if recipe.uses_dev_labels or recipe.train.patience is not None:
        selected_by = judge.step.id if judge else corpus.fingerprint(recipe.spec.dev)
    vectors = teachers.vectors.id if teachers else None
    run = step_id(
        "train", recipe=recipe.identity, version=recipe.spec.version, seed=seed, parent=parent.id, tokens=spec.id,
        vectors=vectors, layers=layers, dev=selected_by, max_length=max_length,
    )  # fmt: skip
    data = {"table": spec.table, "sha256": spec.fingerprint, "rows": inputs.rows(recipe)}
    data |= {"skipped": corpus.find_skipped([spec.table])}
    named = {"name": inputs.own_title(spec.table), "queries": inputs.queries(recipe)}
    data |= {key: value for key, value in named.items() if value}
    resources, folder = inputs.pipeline.resources, inputs.storage / "runs" / run
    facts = inputs.facts(stage, role, member, [parent.id, vectors] if vectors else [parent.id])
    steps = inputs.optimiser_steps(recipe)
    scored, times = 0.0, 0
    if dev is not None:
        texts, interval = judge.texts[::2] if judge else [str(text) for text in dev.texts], recipe.train.eval_every
        times = min(steps, 10 if recipe.uses_dev_labels else 4)
        times = (steps // interval if interval else times) + recipe.train.eval_first
        scored = times * len(texts) * inputs.tokens_of(texts[:MEASURED])
    grows = spec.table == TEXT and recipe.train.max_steps is None
    return new_step(
        inputs,
        "train",
        run,
        [parent, *(teachers.steps if teachers else ()), judge.step if judge else None, spec.id],
        title=stage if member is None else f"{role} {member}: {stage}",
        resources={
            "workers": resources.workers, "cpus": resources.cpus, "gpus": resources.gpus,
            "memory": resources.memory or inputs.worker_gigabytes,
        },
        sentences=steps * recipe.batch * recipe.spec.sentences,
        load=Load(inputs.size, inputs.tokens(recipe), recipe.train.precision, scored, grows=grows),
        bytes=inputs.model_bytes,
        job=Job(
            id=run, recipe=recipe, seed=seed, folder=folder, parent=parent.output, content=inputs.contents.get(parent.output),
            store=inputs.store_folder(spec), prompt=spec.prompt, teacher=teachers.vectors.output if teachers else None,
            to_target=teachers.target.output if teachers and teachers.target else None, export_layers=layers,
            max_length=max_length, dev=dev, facts={**facts, "data": data, "transductive": recipe.table == TARGETS},
        ),
    )  # fmt: skip


def train_all(steps: Sequence[Step], context: Context) -> list[str]:
    """Train runs, which may start from each other's models, and return their failures."""
    chains: dict[str, list[Any]] = {}  # by the id of their last run
    for step in steps:
        checkpoints = Store.of(step.training.folder).list(step.training.folder / "checkpoints")
        if checkpoint := max((int(path.stem[5:]) for path in checkpoints if path.match("step-*.pt")), default=0):
            say(f"{step.title}: goes on from the checkpoint at step {checkpoint:,}")
        chain = next((chains.pop(need) for need in step.needs if need in chains), [])
        chains[step.id] = [*chain, step.job]
    reasons = context.executor.train(list(chains.values()), context.resources)
    return [reason for reason in reasons if reason is not None]
