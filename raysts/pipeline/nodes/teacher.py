"""What the teachers give of the student's sentences, computed once and cached: one shard per window.

All teachers that fit stand in one process, which embeds a window with one after the other and writes what they are combined
to: nothing stands between. A shard is complete or absent, so a killed pass goes on where it was.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from raysts.data.windows import StoreSpec, Windows, columns_of, shard_name, vectors_column
from raysts.errors import InputError
from raysts.ids import content_id, derive_seed
from raysts.models import pretrained
from raysts.models.layers import Layers
from raysts.models.modules import describe
from raysts.models.precision import Precision
from raysts.ops import ensemble
from raysts.ops.ensemble import Target
from raysts.pipeline import teachers
from raysts.pipeline.inputs import Inputs
from raysts.pipeline.local import Executor, Say
from raysts.pipeline.nodes.model import Model, embedding_resources, selected
from raysts.pipeline.nodes.node import Node
from raysts.pipeline.outcome import STSB_DEV
from raysts.recipes.catalog import AGREEMENT, DistillationSettings
from raysts.recipes.recipe import Recipe, Resources
from raysts.storage.atomic import remove_drafts
from raysts.storage.store import Store

if TYPE_CHECKING:
    from raysts.models.sentence_model import SentenceModel

SAMPLE = 512
"""Sentences on which teachers are compared before anything is embedded."""
MOST_APART = 1.2
"""Ratio of mean norms above which the mean of vectors is that of the longer ones alone."""
FITTED_ON = 4
"""Windows that the map to the student's width and axes is fitted to, at most."""
TURNED_BY = 2_048
"""Sentences of each of these windows that the student is asked for, at most."""
OF_MEMORY = 0.5
"""Share of a process's memory that teachers' weights may take; the rest is for what they compute."""

WEIGHTS = "weights.json"
"""Beside the shards: the weights that were found by agreement."""
TITLES: Mapping[Target, str] = {
    "mean": "mean embeddings",
    "unit-mean": "mean unit embeddings",
    "concat": "concatenated unit embeddings",
    "similarity": "cosines",
}
"""What a target is called."""


class Source(NamedTuple):
    """A teacher and how it reads the student's sentences.

    Attributes:
        tokens: token store of the student's sentences as it reads them, behind its prompt.
        pooling: of the token vectors; None: the model's own.
        layers: which layers are pooled; None: the model's own.
        content: content id of a model from elsewhere.
    """

    model: Path
    tokens: Path
    pooling: str | None
    layers: Layers | None
    prompt: str
    precision: Precision = "fp32"
    content: str | None = None

    def load(self, device: str | None) -> teachers.Teacher:
        return teachers.load(self.model, device=device, **self._how)

    def untrained(self, device: str | None) -> SentenceModel:
        """The encoder as a student starts from it: without heads."""
        return pretrained.load(self.model, device=device, heads=False, **self._how)

    @property
    def _how(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("pooling", "layers", "prompt", "precision", "content")}


class EmbedTeachers:
    """Writes a shard: what the teachers of an ensemble give of a window, combined in their order.

    Units are windows. Teachers that do not fit beside those before them are loaded for each window.
    """

    def __init__(
        self,
        device: str | None,
        sources: Sequence[Source],
        folder: Path,
        target: Target,
        weights: Sequence[float],
        resources: Resources,
    ) -> None:
        self.device, self.sources, self.folder, self.target, self.weights = device, sources, folder, target, weights
        self.windows = [Windows(source.tokens) for source in sources]
        held, room = 0, room_on(device, resources)
        self.held: dict[int, teachers.Teacher] = {}
        for number, source in enumerate(sources):
            held += teachers.weight_bytes(source.model)
            if number == 0 or held <= room:
                self.held[number] = source.load(device)

    def __call__(self, window: int) -> None:
        shard, store = self.folder / shard_name(window), Store.of(self.folder)
        if store.get(shard):
            store.upload(shard)  # a killed process may not have come to it
            return
        total: np.ndarray | None = None
        rows: Any = None
        for number, (source, windows) in enumerate(zip(self.sources, self.windows, strict=True)):
            table = windows.read(window)
            assert rows is None or rows.equals(table.column("row")), "the teachers read other rows"
            rows, teacher = table.column("row"), self.held.get(number) or source.load(self.device)
            vectors_ND = teacher.vectors(columns_of(table, ("sentence",), ())["sentence"])
            total = ensemble.added(self.target, total, vectors_ND, self.weights[number])
        assert total is not None
        write_embeddings(shard, rows, ensemble.combined(self.target, total, self.weights))


def room_on(device: str | None, resources: Resources) -> float:
    """Bytes that the weights of teachers may take in a process with these resources, of its share of the device."""
    import torch

    if device != "cpu" and torch.cuda.is_available():
        return OF_MEMORY * torch.cuda.mem_get_info()[1] * min(1.0, resources.gpus or 1.0)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    share = 1e9 * resources.memory if resources.memory else memory * min(1.0, resources.cpus / (os.cpu_count() or 1))
    return OF_MEMORY * share


@dataclass(frozen=True, slots=True)
class SampleTeachers:
    """What teachers give of the same few sentences; units are numbers of teachers."""

    device: str | None
    sources: Sequence[Source]

    def __call__(self, number: int) -> np.ndarray:
        source = self.sources[number]
        windows = Windows(source.tokens)
        draw = np.random.default_rng(derive_seed(0, "teachers"))
        parts, left = [], SAMPLE
        for window in draw.permutation(len(windows))[:FITTED_ON]:
            rows = np.sort(draw.permutation(int(windows.sizes[window]))[:left])
            parts.append(columns_of(windows.read(int(window)), ("sentence",), ())["sentence"].take(rows))
            left -= len(rows)
        teacher = source.load(self.device)
        return np.concatenate([teacher.vectors(part) for part in parts if len(part)])


class FitTarget:
    """Writes the map of the shards' vectors to what the student learns, fitted to some of them; the unit is its width.

    Args:
        reduced: whether the vectors are reduced to the student's width; otherwise they have it.
        start: the student before it learns; the target is turned to its axes. None: it is not.
    """

    def __init__(self, device: str | None, path: Path, shards: int, reduced: bool, start: Source | None) -> None:
        self.device, self.path, self.shards, self.reduced, self.start = device, path, shards, reduced, start

    def __call__(self, width: int) -> None:
        store, parts = Store.of(self.path), []
        fitted = np.unique(np.linspace(0, self.shards - 1, FITTED_ON).astype(int)).tolist()
        for window in fitted:
            shard = store.get(self.path.parent / shard_name(window))
            assert shard is not None, f"shard {window} is gone"
            parts.append(columns_of(pq.read_table(shard), (), ("embedding",))["embedding"])
        found = ensemble.reduction(parts, width) if self.reduced else np.eye(width, dtype=np.float32)
        if self.start is not None:
            from raysts.models.sentence_model import represent_tokens

            windows, model = Windows(self.start.tokens), self.start.untrained(self.device)
            targets, starts = [], []
            for window, part in zip(fitted, parts, strict=True):
                some = np.arange(0, len(part), -(-len(part) // TURNED_BY))
                tokens = columns_of(windows.read(window), ("sentence",), ())["sentence"].take(some)
                (given,) = represent_tokens(model.encoder, tokens, (model.layers,), model.precision)
                targets.append(part[some] @ found)
                starts.append(given["vectors"])
            found = found @ ensemble.turn(np.concatenate(targets), np.concatenate(starts))
        with store.put(self.path) as draft, draft.open("wb") as file:
            np.save(file, found)


def write_embeddings(path: Path, rows: Any, embeddings_ND: np.ndarray) -> None:
    """One Parquet file with columns ``row`` and ``embedding`` (fixed-size list of float32)."""
    with Store.of(path).put(path) as draft:
        # Floats do not compress: plain pages are written and read at memory speed.
        table = pa.table({"row": rows, "embedding": vectors_column(embeddings_ND)})
        pq.write_table(table, draft, compression="none", use_dictionary=False)


def write_targets(
    executor: Executor,
    sources: Sequence[Source],
    folder: Path,
    resources: Resources,
    say: Say,
    target: Target = "mean",
    weights: Sequence[float] | None = None,
) -> None:
    """Write what is left of the shards; arguments as of :class:`EmbedTeachers`, the weights by default equal."""
    windows = Windows(sources[0].tokens)
    args = (sources, folder, target, weights or [1.0] * len(sources), resources)
    left = windows_left(windows, folder)
    for done, _ in enumerate(executor.map(EmbedTeachers, args, left, resources, say), 1):
        if done % max(1, len(left) // 10) == 0:
            say(f"teachers: {len(windows) - len(left) + done} of {len(windows)} shards")


def windows_left(windows: Windows, folder: Path) -> list[int]:
    """Windows of which there is no shard, or a damaged one."""
    store = Store.of(folder)
    there = {path.name for path in store.list(folder) if store.whole(path, deep=True)}
    return [window for window in range(len(windows)) if shard_name(window) not in there]


def finish(windows: Windows, folder: Path, member_ids: Sequence[str], facts: dict[str, Any]) -> None:
    """Write the manifest: the cache is complete."""
    remove_drafts(folder)
    manifest = {"members": list(member_ids), "rows": windows.rows, "shards": len(windows), **facts}
    Store.of(folder).write_json(folder / "manifest.json", manifest)


def norms_problem(names: Sequence[str], vectors: Sequence[np.ndarray]) -> str | None:
    """Why the mean of vectors of these lengths is no ensemble, or None."""
    norms = [float(np.linalg.norm(of_teacher, axis=1).mean()) for of_teacher in vectors]
    if max(norms) <= MOST_APART * min(norms):
        return None
    found = ", ".join(f"{name} {norm:.2f}" for name, norm in zip(names, norms, strict=True))
    return (
        f"sed.target=mean: the teachers' vectors are of different lengths (in the mean {found}), so that the longest would "
        f"count alone; take --set sed.target=unit-mean for models of one space, or --set sed.target=concat for any"
    )


@dataclass(frozen=True, kw_only=True)
class TeacherNode(Node):
    """Mean embeddings of the selected members on the student's sentences, complete when the manifest is there."""

    kind: ClassVar[str] = "teacher"
    inputs: Inputs
    recipe: Recipe
    members: tuple[Model, ...]

    @classmethod
    def of(cls, inputs: Inputs, recipe: Recipe, members: Sequence[Model]) -> TeacherNode:
        top, spec, settings = inputs.pipeline.select_top, inputs.store_spec(recipe), recipe.settings
        assert isinstance(settings, DistillationSettings)
        identity: list[Any] = [[member.id for member in members], top, spec.id, recipe.pooling, recipe.layers]
        if top is not None:
            identity.append(inputs.corpus.fingerprint(STSB_DEV))
        own = [read for member in members if (read := _reads(inputs, recipe, member))]
        identity += [own] if own else []
        if settings.target != "mean" or settings.weights:
            identity.append([settings.target, settings.weights])
        if inputs.pipeline.precision != "auto":
            identity.append(["precision", inputs.pipeline.precision])
        count, who = top or len(members), "teacher" if inputs.pipeline.teachers else "member"
        return cls(
            id=content_id(identity),
            title=f"{TITLES[settings.target]} of {count} {who}{'s' if count > 1 else ''}",
            needs=tuple(
                dict.fromkeys([*(m.id for m in members), spec.id, *(s.id for s in inputs.teacher_specs(recipe))])
            ),
            resources=embedding_resources(inputs.pipeline.resources),
            sentences=inputs.rows(recipe) * count,
            inputs=inputs,
            recipe=recipe,
            members=tuple(members),
        )

    @property
    def folder(self) -> Path:
        return self.inputs.storage / "embeddings" / self.id

    @property
    def to_target(self) -> Path | None:
        """Beside the shards: the map of what they hold to what the student learns. A student of another width, or of another
        start, has another map of the same shards."""
        if not self.settings.mapped:
            return None
        width = self.inputs.student_width if self.settings.reduced else None
        start = self.inputs.backbone_id if self.settings.axes == "student" else None
        return self.folder / f"map-{content_id([width, start])}.npy"

    @property
    def settings(self) -> DistillationSettings:
        assert isinstance(self.recipe.settings, DistillationSettings)
        return self.recipe.settings

    def _manifest(self, store: Store) -> dict[str, Any]:
        return store.read_json(self.folder / "manifest.json", fresh=True) or {}

    def weights(self, store: Store) -> list[float]:
        """Of the chosen teachers; those by agreement are known once :meth:`run` has found them."""
        given = self.settings.weights
        if isinstance(given, tuple):
            return list(given)
        if given == AGREEMENT:
            return list((store.read_json(self.folder / WEIGHTS, fresh=True) or {})["weights"])
        return [1.0] * (self.inputs.pipeline.select_top or len(self.members))

    def written(self, store: Store) -> list[Path]:
        shards = [self.folder / shard_name(window) for window in range(self._manifest(store).get("shards", 0))]
        return [*shards, self.to_target] if self.to_target else shards

    def is_done(self, store: Store) -> bool:
        return bool(self._manifest(store)) and self.is_sound(store)

    def sources(self, chosen: Sequence[Model]) -> list[Source]:
        specs = dict(zip(self.inputs.teacher_folders, self.inputs.teacher_specs(self.recipe), strict=True))
        return [
            self._source(member.model, specs.get(member.model), as_trained=not foreign(self.inputs, member))
            for member in chosen
        ]

    def _source(self, model: Path, spec: StoreSpec | None = None, as_trained: bool = True) -> Source:
        """A model that reads as the student does, or from another token store, and pools as the recipe says, or by itself."""
        inputs, spec = self.inputs, spec or self.inputs.store_spec(self.recipe)
        pooling, layers = (self.recipe.pooling, self.recipe.layers) if as_trained else (None, None)
        tokens, content = inputs.store_folder(spec), inputs.contents.get(model)
        return Source(model, tokens, pooling, layers, spec.prompt, inputs.pipeline.precision, content)

    def run(self, executor: Executor, store: Store, say: Say) -> None:
        inputs, settings, resources = self.inputs, self.settings, self.inputs.pipeline.resources
        chosen = selected(self.members, inputs.pipeline.select_top)
        remove_drafts(self.folder)
        sources = self.sources(chosen)
        self._compare(executor, store, sources, say)
        weights = self.weights(store)
        write_targets(executor, sources, self.folder, resources, say, settings.target, weights)
        windows = Windows(sources[0].tokens)
        if self.to_target and not store.whole(self.to_target, deep=True):
            start = self._source(inputs.start) if settings.axes == "student" else None
            args = (self.to_target, len(windows), settings.reduced, start)
            for _ in executor.map(FitTarget, args, [inputs.student_width], resources, say):
                pass
        facts = {"store": inputs.store_folder(inputs.store_spec(self.recipe)).name}
        finish(windows, self.folder, [member.id for member in chosen], facts)

    def _compare(self, executor: Executor, store: Store, sources: Sequence[Source], say: Say) -> None:
        """Refuse a mean of vectors of different lengths, and find weights by agreement, on a sample of the sentences."""
        settings, inputs = self.settings, self.inputs
        by_agreement = settings.weights == AGREEMENT and not store.exists(self.folder / WEIGHTS)
        unlike = settings.target == "mean" and bool(inputs.pipeline.teachers) and len(sources) > 1
        if not (by_agreement or unlike):
            return
        numbers = range(len(sources))
        found = list(executor.map(SampleTeachers, (sources,), numbers, inputs.pipeline.resources, say))
        called = dict(zip(inputs.teacher_folders, inputs.pipeline.teachers, strict=True))
        if unlike and (problem := norms_problem([called[source.model] for source in sources], found)):
            raise InputError(problem)
        if by_agreement:
            weights = ensemble.agreement(found)
            if not any(weights):
                raise InputError(
                    "sed.weights=agreement: no two teachers agree on the text; name the weights, or leave it out"
                )
            store.write_json(self.folder / WEIGHTS, {"weights": weights})
            say(f"teachers: weights by agreement {', '.join(f'{weight:.2f}' for weight in weights)}")


def foreign(inputs: Inputs, member: Model) -> bool:
    """Whether a member was not trained here, and so pools as its directory says."""
    return member.model in inputs.teacher_folders and not member.record


def _reads(inputs: Inputs, recipe: Recipe, member: Model) -> list[Any]:
    """What its directory says of how a model named as teacher gives vectors; empty where that is as members are read."""
    if member.model not in inputs.teacher_folders:
        return []
    if teachers.kind(member.model) == "vectors":
        return ["vectors"]
    said = describe(member.model)
    prompt = said.prompts.resolve(inputs.pipeline.teacher_prompt)
    given = [said.pooling, said.layers] if foreign(inputs, member) else [recipe.pooling, recipe.layers]
    found = [*given, prompt, said.prompts.pooled, said.normalize, said.truncate_dim]
    if teachers.tokenizer_id(member.model) != inputs.tokenizer_id:
        found.append("own tokens")
    return [] if found == [recipe.pooling, recipe.layers, inputs.prompt, True, False, None] else found
