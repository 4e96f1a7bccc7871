"""Vectors of the student's sentences by its teachers, computed once.

A process holds all teachers that fit, embeds a block of texts with one after the other and writes only their combination, a
shard. A block is a part of a window, or a window if there are many. It is complete or absent, so a killed pass continues.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from raysts.data.user import TEXT
from raysts.data.windows import WINDOW, StoreSpec, Windows, columns_of, shard_name, vectors_column
from raysts.errors import InputError
from raysts.evaluation.compare import difference
from raysts.evaluation.dev import Dev
from raysts.evaluation.scores import RowScores, scores_by_set
from raysts.evaluation.tasks import lookup
from raysts.ids import derive_seed
from raysts.log import say, screen
from raysts.models import pretrained
from raysts.models.embedders import Embedder, load_embedder, open_embedder
from raysts.models.layers import Layers
from raysts.models.modules import describe
from raysts.models.precision import Precision
from raysts.ops import ensemble
from raysts.ops.ensemble import Target
from raysts.ops.similarity import cosine_of_vectors
from raysts.pipeline.inputs import Inputs
from raysts.pipeline.outcome import STSB_DEV, members_dev
from raysts.pipeline.step import Context, Load, Step, new_step, select_members, step_id
from raysts.pipeline.steps.agreement import teacher_vectors
from raysts.recipes.catalog import AGREEMENT, BY_DEV, DistillationSettings
from raysts.recipes.recipe import Recipe, Resources
from raysts.storage.atomic import remove_drafts
from raysts.storage.store import Store

SAMPLE = 512
"""Sentences on which teachers are compared before anything is embedded."""
MOST_APART = 1.2
"""Ratio of mean norms above which the mean of vectors is that of the longer ones alone."""
FITTED_ON = 4
"""Windows that the map to the student's width and axes is fitted to, at most."""
TURNED_BY = 2_048
"""Sentences of each of these windows that the student is asked for, at most."""
BLOCK, MOST_SPLIT = 1_024, 64
"""Texts of a block, and the most windows that are split. A few windows would give few processes work, and lose much in a kill."""
OF_MEMORY = 0.5
"""Share of a process's memory that teachers' weights may take; the rest is for what they compute."""

WEIGHTS = "weights.json"
"""Beside the shards: the weights that were found by agreement."""
TITLES: Mapping[Target, str] = {
    "mean": "mean embeddings",
    "unit-mean": "mean unit embeddings",
    "concat": "concatenated unit embeddings",
    "similarity": "cosines",
    "gaussian": "Gaussians",
}
SINGLE: Mapping[Target, str] = {"mean": "embeddings", "unit-mean": "unit embeddings", "concat": "unit embeddings"}
"""Names of targets for people, and those that differ for a single teacher."""


@dataclass(frozen=True)
class Teachers:
    """The members that teach, their weights, and the steps that write their vectors."""

    inputs: Inputs
    members: Sequence[Step]

    @property
    def recipe(self) -> Recipe:
        assert self.inputs.pipeline.sed is not None
        return self.inputs.pipeline.sed

    @property
    def settings(self) -> DistillationSettings:
        assert self.inputs.distillation is not None
        return self.inputs.distillation

    @property
    def steps(self) -> list[Step]:
        return [self.vectors, self.target] if self.target else [self.vectors]

    @cached_property
    def vectors(self) -> Step:
        """Return the step that writes the combined vectors of the selected teachers."""
        inputs, recipe, top = self.inputs, self.recipe, self.inputs.pipeline.select_top
        spec, count, target = inputs.store_spec(recipe), top or len(self.members), self.settings.target
        chooser = {"weighted": inputs.corpus.fingerprint(members_dev(inputs.pipeline))} if self._uses_dev else {}
        step = step_id(
            "vectors", **chooser, members=[member.id for member in self.members], top=top, tokens=spec.id,
            pooling=recipe.pooling, layers=recipe.layers,
            dev=inputs.corpus.fingerprint(STSB_DEV) if top is not None else None,
            named=[_how_named_reads(inputs, recipe, member) for member in self.members], target=target,
            weights=self.settings.weights, precision=inputs.pipeline.precision,
        )  # fmt: skip
        role, rows = "teacher" if inputs.pipeline.teachers else "member", inputs.all_rows(recipe)
        size, tokens = inputs.size_of([member.output for member in self.members]), inputs.tokens(recipe)
        kind = TITLES[target] if count > 1 else SINGLE.get(target, TITLES[target])
        blocks = -(-rows // (BLOCK if rows <= MOST_SPLIT * WINDOW else WINDOW))
        return new_step(
            inputs,
            "vectors",
            step,
            [*self.members, spec.id, *(tokens.id for tokens in inputs.teacher_specs(recipe))],
            title=f"{kind} of {count} {role}{'s' if count > 1 else ''}",
            work=self._embed,
            sentences=rows * count,
            load=Load(
                size, tokens, inputs.pipeline.precision, units=blocks, most=WINDOW * count, grows=spec.table == TEXT
            ),
            bytes=rows * (8 + 4 * self.width),
        )

    @cached_property
    def width(self) -> int:
        widths = [open_embedder(folder).dim for folder in self.inputs.teacher_folders]
        widths = widths or [self.inputs.student_width] * len(self.members)
        return sum(widths) if self.settings.target in ("concat", "similarity") else max(widths)

    @cached_property
    def target(self) -> Step | None:
        """Return the step that fits the map of the vectors to the student's target, if it needs one."""
        if not self.settings.learns_map:
            return None
        width = self.inputs.student_width if self.settings.is_reduced else None
        start = self.inputs.backbone_id if self.settings.axes == "student" else None
        step = step_id("target", vectors=self.vectors.id, width=width, start=start)
        return new_step(
            self.inputs,
            "target",
            step,
            [self.vectors],
            title="map to the student's space",
            output=self.vectors.output / f"map-{step}.npy",
            work=self._fit,
            sentences=0 if start is None else min(FITTED_ON * TURNED_BY, self.inputs.all_rows(self.recipe)),
            load=Load(self.inputs.size, self.inputs.tokens(self.recipe), self.inputs.pipeline.precision),
            bytes=4 * self.width * self.inputs.student_width,
        )

    def weights(self, store: Store) -> list[float]:
        """Return the weights of the selected teachers. Weights by agreement exist once the vectors do."""
        weights = self.settings.weights
        if isinstance(weights, tuple):
            return list(weights)
        if weights in (AGREEMENT, BY_DEV):
            return list((store.read_json(self.vectors.output / WEIGHTS, fresh=True) or {})["weights"])
        return [1.0] * (self.inputs.pipeline.select_top or len(self.members))

    @property
    def _uses_dev(self) -> bool:
        return self.settings.weights == BY_DEV

    def weights_note(self) -> str | None:
        """Return how weights by the development set compare with equal ones, or None before they are found."""
        stored = self.inputs.store.read_json(self.vectors.output / WEIGHTS, fresh=True) if self._uses_dev else None
        return stored["note"] if stored else None

    def sources(self, chosen: Sequence[Step]) -> list[TeacherSource]:
        specs = dict(zip(self.inputs.teacher_folders, self.inputs.teacher_specs(self.recipe), strict=True))
        return [self._source(m.output, specs.get(m.output), as_trained=not foreign(m)) for m in chosen]

    def _source(self, model: Path, spec: StoreSpec | None = None, as_trained: bool = True) -> TeacherSource:
        """Return how a model reads (as the student, or its own tokens) and pools (as trained or not)."""
        inputs, spec = self.inputs, spec or self.inputs.store_spec(self.recipe)
        pooling, layers = (self.recipe.pooling, self.recipe.layers) if as_trained else (None, None)
        tokens, content = inputs.store_folder(spec), inputs.contents.get(model)
        return TeacherSource(model, tokens, pooling, layers, spec.prompt, inputs.pipeline.precision, content)

    def _embed(self, context: Context) -> None:
        chosen = select_members(self.members, self.inputs.pipeline.select_top)
        folder, sources = self.vectors.output, self.sources(chosen)
        self._compare(context, chosen, sources)
        facts = {"members": [member.id for member in chosen], "store": self.inputs.store_spec(self.recipe).id}
        write_targets(context, sources, folder, self.settings.target, self.weights(context.store), facts)

    def _fit(self, context: Context) -> None:
        assert self.target is not None
        tokens = self.inputs.store_folder(self.inputs.store_spec(self.recipe))
        start = self._source(self.inputs.start) if self.settings.axes == "student" else None
        args = (self.target.output, tokens, self.settings.is_reduced, start)
        list(context.map(FitTarget, args, [self.inputs.student_width]))

    def _compare(self, context: Context, chosen: Sequence[Step], sources: Sequence[TeacherSource]) -> None:
        """Refuse a mean of vectors of different lengths, and find weights by agreement, on a sample."""
        inputs, weights = self.inputs, self.vectors.output / WEIGHTS
        unweighted = not context.store.exists(weights)
        if self._uses_dev and unweighted:
            # The gain is cross-validated: weights that one half of the rows chose are measured on the other half.
            dev = inputs.dev(members_dev(inputs.pipeline))
            assert dev is not None, "the checks ask for it"
            vectors = [v for v in teacher_vectors(inputs, context, chosen, dev.texts) if v is not None]
            if len(vectors) < len(chosen):
                raise InputError("sed.weights=dev: a teacher has no vectors of the development set; embed it too")
            weighed = weigh(dev, vectors, self.settings.target, inputs.pipeline.evaluation.resamples)
            context.store.write_json(weights, weighed)
            say(weighed["note"])
        by_agreement = self.settings.weights == AGREEMENT and unweighted
        unlike = self.settings.target == "mean" and bool(inputs.pipeline.teachers) and len(sources) > 1
        if not (by_agreement or unlike):
            return
        sampled = list(context.map(SampleTeachers, (sources,), range(len(sources))))
        names = dict(zip(inputs.teacher_folders, inputs.pipeline.teachers, strict=True))
        if unlike and (problem := norms_problem([names[source.model] for source in sources], sampled)):
            raise InputError(problem)
        if by_agreement:
            agreement = ensemble.agreement(sampled)
            if not any(agreement):
                raise InputError(
                    "sed.weights=agreement: no two teachers agree on the text; name the weights, or remove it"
                )
            context.store.write_json(weights, {"weights": agreement})
            say(f"teachers: weights by agreement {', '.join(f'{weight:.2f}' for weight in agreement)}")


def weigh(dev: Dev, vectors: Sequence[np.ndarray], target: Target, resamples: int) -> dict[str, Any]:
    """Return ``weights`` of teachers by their vectors [N, D] of dev texts, and a ``note``."""

    @cache
    def rows(weights: tuple[float, ...]) -> list[RowScores]:
        total: np.ndarray | None = None
        for teacher_ND, weight in zip(vectors, weights, strict=True):
            total = ensemble.added(target, total, teacher_ND, weight)
        assert total is not None
        represent = lookup(dev.texts, {"vectors": ensemble.combine(target, total, weights)})
        return dev.row_scores(represent, {"cosine": cosine_of_vectors})

    draw, count = np.random.default_rng(derive_seed(0, "weights")), len(vectors)
    first = [draw.permutation(len(scores.values)) % 2 == 0 for scores in rows((1 / count,) * count)]

    def chosen(half: bool | None) -> tuple[float, ...]:
        def score(weights: tuple[float, ...]) -> float:
            scores = rows(weights)
            if half is not None:
                scores = [of_set.take(mask == half) for of_set, mask in zip(scores, first, strict=True)]
            return dev.values(scores)[dev.metrics[0]]

        return ensemble.best_weights(score, count)

    weights = chosen(None)
    crossed = [
        replace(in_first, values=np.where(mask, in_first.values, in_second.values), split="half")
        for in_first, in_second, mask in zip(rows(chosen(False)), rows(chosen(True)), first, strict=True)
    ]
    equal = [replace(of_set, split="half") for of_set in rows((1 / count,) * count)]
    sides = scores_by_set(crossed), scores_by_set(equal)
    gain = difference([sides[0]], [sides[1]], list(sides[0]), resamples)
    shown = ", ".join(f"{weight:.2f}" for weight in weights)
    note = (
        f"Weights of the teachers by {dev.name}: {shown}. Cross-validated over halves of its {dev.size:,} rows, the "
        f"ensemble with them is {gain.describe('that with equal weights')}."
    )
    return {"weights": list(weights), "gain": [gain.value, gain.low, gain.high], "note": note}


class TeacherSource(NamedTuple):
    """A teacher and how it reads the student's sentences."""

    model: Path
    tokens: Path  # token store of the sentences as it reads them, behind its prompt
    pooling: str | None  # of the token vectors; None: the model's own
    layers: Layers | None  # which are pooled; None: the model's own
    prompt: str
    precision: Precision = "fp32"
    content: str | None = None  # content id of a model from elsewhere

    @property
    def options(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("pooling", "layers", "prompt", "precision", "content")}

    def load(self, device: str | None) -> Embedder:
        return load_embedder(self.model, device=device, **self.options)


class Block(NamedTuple):
    """Rows ``first`` to ``end`` of a window, a shard."""

    window: int
    first: int
    end: int

    @property
    def file(self) -> str:
        return shard_name(self.window, self.first)


def blocks_of(windows: Windows) -> list[Block]:
    """Return the blocks of all rows, in order."""
    most = BLOCK if len(windows) <= MOST_SPLIT else WINDOW
    sizes = enumerate(map(int, windows.sizes))
    return [Block(window, i, min(i + most, size)) for window, size in sizes for i in range(0, size, most)]


class EmbedTeachers:
    """Worker that writes the teachers' vectors of a block, combined in their order.

    Teachers that do not fit in memory beside those before them are loaded for each block.
    """

    def __init__(
        self, device: str | None, sources: Sequence[TeacherSource], folder: Path, target: Target,
        weights: Sequence[float], resources: Resources,
    ) -> None:  # fmt: skip
        self.device, self.sources, self.folder, self.target, self.weights = device, sources, folder, target, weights
        self.windows = [Windows(source.tokens) for source in sources]
        size, room = 0, room_on(device, resources)
        self.held: dict[int, Embedder] = {}
        for number, source in enumerate(sources):
            size += open_embedder(source.model).weight_bytes
            if number == 0 or size <= room:
                self.held[number] = source.load(device)

    def __call__(self, block: Block) -> None:
        path, store = self.folder / block.file, Store.of(self.folder)
        if store.get(path):
            store.upload(path)  # a killed process may not have come to it
            return
        total: np.ndarray | None = None
        rows: Any = None
        for number, (source, windows) in enumerate(zip(self.sources, self.windows, strict=True)):
            table = windows.read(block.window).slice(block.first, block.end - block.first)
            assert rows is None or rows.equals(table.column("row")), "the teachers read other rows"
            rows, teacher = table.column("row"), self.held.get(number) or source.load(self.device)
            tokens = columns_of(table, ("sentence",), ())["sentence"]
            variance = {"variance": True} if self.target == "gaussian" else {}
            total = ensemble.added(self.target, total, teacher.vectors(tokens, **variance), self.weights[number])
        assert total is not None
        write_embeddings(path, rows, ensemble.combine(self.target, total, self.weights))


def room_on(device: str | None, resources: Resources) -> float:
    """Return the bytes that the weights of teachers may take in a process with these resources."""
    import torch

    if device != "cpu" and torch.cuda.is_available():
        return OF_MEMORY * torch.cuda.mem_get_info()[1] * min(1.0, resources.gpus or 1.0)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    share = 1e9 * resources.memory if resources.memory else memory * min(1.0, resources.cpus / (os.cpu_count() or 1))
    return OF_MEMORY * share


@dataclass(frozen=True, slots=True)
class SampleTeachers:
    """Embeds the same few sentences with each teacher. Units are numbers of teachers."""

    device: str | None
    sources: Sequence[TeacherSource]

    def __call__(self, number: int) -> np.ndarray:
        source = self.sources[number]
        windows = Windows(source.tokens)
        draw = np.random.default_rng(derive_seed(0, "teachers"))
        parts, remaining = [], SAMPLE
        for window in draw.permutation(len(windows))[:FITTED_ON]:
            rows = np.sort(draw.permutation(int(windows.sizes[window]))[:remaining])
            parts.append(columns_of(windows.read(int(window)), ("sentence",), ())["sentence"].take(rows))
            remaining -= len(rows)
        teacher = source.load(self.device)
        return np.concatenate([teacher.vectors(part) for part in parts if len(part)])


class FitTarget:
    """Fits the map of the vectors to the student's target, and writes it. The unit is its width.

    Args:
        reduced: whether the vectors are reduced to the student's width; otherwise they have it.
        start: the student before it learns; the target is turned to its axes. None: it is not turned.
    """

    def __init__(
        self, device: str | None, path: Path, tokens: Path, reduced: bool, start: TeacherSource | None
    ) -> None:
        self.device, self.path, self.is_reduced, self.start = device, path, reduced, start
        self.windows = Windows(tokens, path.parent)

    def __call__(self, width: int) -> None:
        fitted = np.unique(np.linspace(0, len(self.windows) - 1, FITTED_ON).astype(int)).tolist()
        parts = [columns_of(self.windows.read(window), (), ("teacher",))["teacher"] for window in fitted]
        map_DK = ensemble.reduction(parts, width) if self.is_reduced else np.eye(width, dtype=np.float32)
        if self.start is not None:
            from raysts.models.sentence_model import represent_tokens

            model = pretrained.load(self.start.model, device=self.device, heads=False, **self.start.options)
            targets, starts = [], []
            for window, part in zip(fitted, parts, strict=True):
                sample = np.arange(0, len(part), -(-len(part) // TURNED_BY))
                tokens = columns_of(self.windows.read(window), ("sentence",), ())["sentence"].take(sample)
                (represented,) = represent_tokens(model.encoder, tokens, (model.layers,), model.precision)
                targets.append(part[sample] @ map_DK)
                starts.append(represented["vectors"])
            map_DK = map_DK @ ensemble.turn(np.concatenate(targets), np.concatenate(starts))
        with Store.of(self.path).put(self.path) as draft, draft.open("wb") as file:
            np.save(file, map_DK)


def write_embeddings(path: Path, rows: Any, embeddings_ND: np.ndarray) -> None:
    """Write one Parquet file with columns ``row`` and ``embedding`` (fixed-size list of float32)."""
    with Store.of(path).put(path) as draft:
        # Floats do not compress: plain pages are written and read at memory speed.
        table = pa.table({"row": rows, "embedding": vectors_column(embeddings_ND)})
        pq.write_table(table, draft, compression="none", use_dictionary=False)


def write_targets(
    context: Context, sources: Sequence[TeacherSource], folder: Path, target: Target = "mean",
    weights: Sequence[float] = (), facts: Mapping[str, Any] = MappingProxyType({}),
) -> None:  # fmt: skip
    """Write the shards that are missing or damaged, then the manifest, with ``facts``.

    Arguments as of :class:`EmbedTeachers`, the weights by default equal.
    """
    windows, store = Windows(sources[0].tokens), Store.of(folder)
    remove_drafts(folder)
    intact = {path.name for path in store.list(folder) if store.is_whole(path, deep=True)}
    blocks = [block for block in blocks_of(windows) if block.file not in intact]
    args = (sources, folder, target, weights or [1.0] * len(sources), context.resources)
    total, done, tenths = windows.rows, windows.rows - sum(block.end - block.first for block in blocks), 0
    for block, _ in zip(blocks, context.map(EmbedTeachers, args, blocks), strict=True):
        done += block.end - block.first
        screen.within(done / total)
        if 10 * done // total > tenths:
            tenths = 10 * done // total
            say(f"teachers: {done:,} of {total:,} texts")
    remove_drafts(folder)  # of workers that were killed on the way
    parts: list[dict[str, Any]] = [{"file": block.file, "window": block.window} for block in blocks_of(windows)]
    parts += [{"file": WEIGHTS}] if store.exists(folder / WEIGHTS) else []
    store.write_json(folder / "manifest.json", {**facts, "rows": total, "parts": parts})


def norms_problem(names: Sequence[str], vectors: Sequence[np.ndarray]) -> str | None:
    """Return why vectors of these lengths have no common mean, or None."""
    norms = [float(np.linalg.norm(of_teacher, axis=1).mean()) for of_teacher in vectors]
    if max(norms) <= MOST_APART * min(norms):
        return None
    lengths = ", ".join(f"{name} {norm:.2f}" for name, norm in zip(names, norms, strict=True))
    return (
        f"sed.target=mean: the teachers' vectors are of different lengths (in the mean {lengths}), so that the longest would "
        f"count alone; take --set sed.target=unit-mean for models of one space, or --set sed.target=concat for any"
    )


def foreign(member: Step) -> bool:
    """Return True if a member was not trained here, and so pools as its directory says."""
    return member.kind == "named" and not member.record


def _how_named_reads(inputs: Inputs, recipe: Recipe, member: Step) -> list[Any] | None:
    """Return how a named model gives vectors, or None if it reads as members do."""
    if member.kind != "named":
        return None
    if open_embedder(member.output).kind == "vectors":
        return ["vectors"]
    described, as_student = describe(member.output), [recipe.pooling, recipe.layers]
    prompt, *query = inputs.sides(recipe, described.prompts, inputs.pipeline.teacher_prompt).values()
    pooled = [described.pooling, described.layers] if foreign(member) else as_student
    reads = [*pooled, prompt, described.prompts.pooled, described.normalize, described.truncate_dim]
    reads += [open_embedder(member.output).tokenizer_id, *query]
    return None if reads == [*as_student, inputs.prompt, True, False, None, inputs.tokenizer_id] else reads
