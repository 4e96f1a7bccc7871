"""Mean embeddings of an ensemble, computed once and cached: one pass per member, one shard per window.

While members pass, the running sums stand in ``sum-<members so far>/``; the last pass divides and writes the shards of
the finished cache. A shard is complete or absent, so a killed pass goes on where it was.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from raysts.data.windows import Windows, columns_of, shard_name
from raysts.ids import content_id
from raysts.models.layers import Layers
from raysts.models.modules import describe
from raysts.models.pretrained import load
from raysts.models.sentence_model import represent_tokens
from raysts.pipeline.inputs import Inputs
from raysts.pipeline.local import Executor, Say
from raysts.pipeline.nodes.model import Model, embedding_resources, selected
from raysts.pipeline.nodes.node import Node
from raysts.pipeline.outcome import STSB_DEV
from raysts.recipes.recipe import Recipe, Resources
from raysts.storage.atomic import remove_drafts
from raysts.storage.store import Store


def sum_folder(folder: Path, members: int) -> Path:
    """Where the sums over the first ``members`` members stand."""
    return folder / f"sum-{members:03d}"


class AddMember:
    """Writes a shard: the sum so far plus a member's embeddings, in float32; the mean after the last member.

    Units are windows. Members are summed in their order, so sums are reproducible.

    Args:
        device: where the member runs.
        model: member number ``member`` (0-based) of ``members``.
        tokens: token store of the student's sentences, behind the member's prompt.
        folder: the cache.
        member: see above.
        members: size of the ensemble.
        pooling: of the token vectors; None: the model's own.
        layers: which layers are pooled; None: the model's own.
        prompt: what the token store has before every text.
    """

    def __init__(
        self,
        device: str | None,
        model: Path,
        tokens: Path,
        folder: Path,
        member: int,
        members: int,
        pooling: str | None,
        layers: Layers | None,
        prompt: str,
    ) -> None:
        self.model = load(model, pooling=pooling, layers=layers, prompt=prompt, device=device)
        self.windows = Windows(tokens)
        self.last, self.members = member + 1 == members, members
        self.sums = sum_folder(folder, member) if member else None
        self.target = folder if self.last else sum_folder(folder, member + 1)

    def __call__(self, window: int) -> None:
        shard, store = self.target / shard_name(window), Store.of(self.target)
        if store.get(shard):
            store.upload(shard)  # a killed process may not have come to it
            return
        table = self.windows.read(window)
        tokens = columns_of(table, ("sentence",), ())["sentence"]
        (found,) = represent_tokens(self.model.encoder, tokens, (self.model.layers,))
        total_ND = self.model.finished(found)["vectors"]
        if self.sums is not None:
            before = store.get(self.sums / shard_name(window))
            assert before is not None, f"the sums of window {window} are gone"
            total_ND = columns_of(pq.read_table(before), (), ("embedding",))["embedding"] + total_ND
        if self.last:
            total_ND = total_ND / np.float32(self.members)
        write_embeddings(shard, table.column("row"), total_ND)


def write_embeddings(path: Path, rows: Any, embeddings_ND: np.ndarray) -> None:
    """One Parquet file with columns ``row`` and ``embedding`` (fixed-size list of float32)."""
    values = pa.array(np.ascontiguousarray(embeddings_ND, dtype=np.float32).reshape(-1))
    lists = pa.FixedSizeListArray.from_arrays(values, embeddings_ND.shape[1])
    with Store.of(path).put(path) as draft:
        # Floats do not compress: plain pages are written and read at memory speed.
        pq.write_table(pa.table({"row": rows, "embedding": lists}), draft, compression="none", use_dictionary=False)


class Source(NamedTuple):
    """A member and how it reads the student's sentences; see :class:`AddMember`."""

    model: Path
    tokens: Path
    pooling: str | None
    layers: Layers | None
    prompt: str


def write_means(
    executor: Executor,
    models: Sequence[Source],
    folder: Path,
    resources: Resources,
    say: Say,
) -> None:
    """Write what is left of the shards: one pass per member over the windows that it has not done."""
    windows, members = Windows(models[0].tokens), len(models)
    for member in range(first_pass(windows, folder, members), members):
        source = models[member]
        args = (source.model, source.tokens, folder, member, members, source.pooling, source.layers, source.prompt)
        for _ in executor.map(AddMember, args, windows_left(windows, folder, member, members), resources, say):
            pass
        end_pass(folder, member)
        say(f"teacher: member {member + 1} of {members} embedded {windows.rows:,} sentences")


def windows_left(windows: Windows, folder: Path, member: int, members: int) -> list[int]:
    """Windows that this member's pass has still to do: of those that the mean lacks."""
    left = _lacking(folder, range(len(windows)))
    return left if member + 1 == members else _lacking(sum_folder(folder, member + 1), left)


def _lacking(folder: Path, windows: Iterable[int]) -> list[int]:
    """Those of the windows of which a folder has no shard, or a damaged one."""
    store = Store.of(folder)
    there = {path.name for path in store.list(folder) if store.whole(path, deep=True)}
    return [window for window in windows if shard_name(window) not in there]


def first_pass(windows: Windows, folder: Path, members: int) -> int:
    """The first member whose pass is not complete (earlier sums may be gone already)."""
    for member in reversed(range(members)):
        if not windows_left(windows, folder, member, members):
            return member + 1
    return 0


def end_pass(folder: Path, member: int) -> None:
    """Forget the sums that the finished pass of ``member`` was built on."""
    Store.of(folder).delete(sum_folder(folder, member))


def finish(windows: Windows, folder: Path, member_ids: Sequence[str], facts: dict[str, Any]) -> None:
    """Write the manifest: the cache is complete."""
    store = Store.of(folder)
    for member in range(1, len(member_ids)):
        store.delete(sum_folder(folder, member))
    remove_drafts(folder)
    manifest = {"members": list(member_ids), "rows": windows.rows, "shards": len(windows), **facts}
    store.write_json(folder / "manifest.json", manifest)


@dataclass(frozen=True, kw_only=True)
class TeacherNode(Node):
    """Mean embeddings of the selected members on the student's sentences, complete when the manifest is there."""

    kind: ClassVar[str] = "teacher"
    inputs: Inputs
    recipe: Recipe
    members: tuple[Model, ...]

    @classmethod
    def of(cls, inputs: Inputs, recipe: Recipe, members: Sequence[Model]) -> TeacherNode:
        """The teacher of a distillation by ``recipe``."""
        top, spec = inputs.pipeline.select_top, inputs.store_spec(recipe)
        identity: list[Any] = [[member.id for member in members], top, spec.id, recipe.pooling, recipe.layers]
        if top is not None:
            identity.append(inputs.corpus.fingerprint(STSB_DEV))
        own = [read for member in members if (read := _reads(inputs, recipe, member))]
        identity += [own] if own else []
        count = top or len(members)
        return cls(
            id=content_id(identity),
            title=f"mean embeddings of {count} members",
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
        """Folder of the shards."""
        return self.inputs.storage / "embeddings" / self.id

    def _manifest(self, store: Store) -> dict[str, Any]:
        return store.read_json(self.folder / "manifest.json", fresh=True) or {}

    def written(self, store: Store) -> list[Path]:
        return [self.folder / shard_name(window) for window in range(self._manifest(store).get("shards", 0))]

    def is_done(self, store: Store) -> bool:
        return bool(self._manifest(store)) and self.is_sound(store)

    def leftovers(self) -> list[Path]:
        return [sum_folder(self.folder, member) for member in range(1, len(self.members))]

    def run(self, executor: Executor, store: Store, say: Say) -> None:
        recipe, inputs = self.recipe, self.inputs
        spec = inputs.store_spec(recipe)
        tokens = inputs.store_folder(spec)
        chosen = selected(self.members, inputs.pipeline.select_top)
        remove_drafts(self.folder)
        specs = dict(zip(inputs.teacher_folders, inputs.teacher_specs(recipe), strict=True))
        sources = []
        for member in chosen:
            read = specs.get(member.model, spec)
            tokens_read, foreign = inputs.store_folder(read), _foreign(inputs, member)
            pooling, layers = (None, None) if foreign else (recipe.pooling, recipe.layers)
            sources.append(Source(member.model, tokens_read, pooling, layers, read.prompt))
        write_means(executor, sources, self.folder, inputs.pipeline.resources, say)
        finish(Windows(tokens), self.folder, [member.id for member in chosen], {"store": tokens.name})


def _foreign(inputs: Inputs, member: Model) -> bool:
    """Whether a member was not trained here, and so pools as its directory says."""
    return member.model in inputs.teacher_folders and not member.record


def _reads(inputs: Inputs, recipe: Recipe, member: Model) -> list[Any]:
    """What its directory says of how a model named as teacher gives vectors; empty where that is as members are read."""
    if member.model not in inputs.teacher_folders:
        return []
    said = describe(member.model)
    prompt = said.prompts.resolve(inputs.pipeline.teacher_prompt)
    given = [said.pooling, said.layers] if _foreign(inputs, member) else [recipe.pooling, recipe.layers]
    found = [*given, prompt, said.prompts.pooled, said.normalize, said.truncate_dim]
    return [] if found == [recipe.pooling, recipe.layers, inputs.prompt, True, False, None] else found
