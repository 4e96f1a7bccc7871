"""Mean cosines of the members on pairs of held-out texts, which replace missing labels.

The members' vectors of these texts are stored until the evaluation of the members, which reuses them.

Shapes: N held-out texts, D dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from raysts.evaluation.agreement import SPLITS, judge, pairs_of
from raysts.evaluation.dev import Dev
from raysts.models.embedders import EncoderModel, load_embedder
from raysts.models.layers import Layers
from raysts.ops.ensemble import unit
from raysts.pipeline.inputs import Inputs
from raysts.pipeline.local import Executor, Say
from raysts.pipeline.step import Model, Step, embedding_resources, selected, step_id
from raysts.storage.store import Store

OWN = "own"
"""What the vectors of a model are called that pools in one way alone."""


class EmbedHeldOut:
    """Worker that computes the cosines between held-out texts, at a model's own pooling.

    A unit holds the model folder, its content id (None: a model of a run) and the file for its vectors. The result is
    one float32 [N / 2, N / 2] for each half of the texts. Vectors are also stored at the choices ``layers``.
    """

    def __init__(self, device: str | None, texts: Sequence[str], layers: Sequence[Layers], prompt: str | None) -> None:
        self.device, self.texts, self.layers, self.prompt = device, texts, layers, prompt

    def __call__(self, work: tuple[Path, str | None, Path]) -> list[np.ndarray]:
        model, content, path = work
        teacher = load_embedder(model, prompt=self.prompt, device=self.device, content=content)
        arrays: dict[str, Any]
        if isinstance(teacher, EncoderModel):
            pooling, stored_layers = teacher.model.pooling, teacher.model.layers
            by_layers = teacher.model.represent_layers(self.texts, tuple(dict.fromkeys([stored_layers, *self.layers])))
            vectors_ND = by_layers[stored_layers]["vectors"]
            arrays = {
                f"{pooling} {choice}": values["vectors"]
                for choice, values in by_layers.items()
                if {*values} == {"vectors"}
            }
        else:
            vectors_ND = teacher.vectors(teacher.tokenize(self.texts))
            arrays = {OWN: vectors_ND}
        with Store.of(path).put(path) as draft, draft.open("wb") as file:
            np.savez(file, **arrays)
        halves = np.split(unit(vectors_ND), [len(self.texts) // 2])
        return [unit_ND @ unit_ND.T for unit_ND in halves]


def kept_vectors(path: Path, pooling: str, layers: Sequence[Layers]) -> dict[Layers, np.ndarray]:
    """Return the stored vectors of a model at a pooling, [N, D] by choice of layers.

    The result is empty unless the file has all choices.
    """
    file = Store.of(path).get(path)
    if file is None:
        return {}
    with np.load(file) as arrays:
        if OWN in arrays:
            return {layers[0]: arrays[OWN]}
        names = {choice: f"{pooling} {choice}" for choice in layers}
        return {choice: arrays[name] for choice, name in names.items()} if {*names.values()} <= {*arrays} else {}


@dataclass(frozen=True, kw_only=True)
class AgreementNode:
    """Step of the mean cosines of held-out pairs, written to ``agreements/<id>.parquet``."""

    id: str
    title: str
    needs: tuple[str, ...]
    sentences: int
    inputs: Inputs
    members: tuple[Model, ...]

    @classmethod
    def of(cls, inputs: Inputs, members: Sequence[Model]) -> AgreementNode:
        """Return the step for these members, on the held-out part of the user's text."""
        pipeline, text = inputs.pipeline, inputs.corpus.text
        assert text is not None and text.held
        role = "teachers" if pipeline.teachers else "members"
        return cls(
            id=step_id(
                "agreement",
                members=[member.id for member in members],
                top=pipeline.select_top,
                texts=sorted(text.held_out),
                prompt=pipeline.teacher_prompt,
            ),
            title=f"agreement of {pipeline.select_top or len(members)} {role} on {text.held:,} held-out texts",
            needs=tuple(member.id for member in members if isinstance(member, Step)),
            sentences=text.held * len(members),
            inputs=inputs,
            members=tuple(members),
        )

    @property
    def step(self) -> Step:
        return Step(
            kind="agreement",
            id=self.id,
            title=self.title,
            needs=self.needs,
            output=self.path,
            work=self.run,
            resources=embedding_resources(self.inputs.pipeline.resources),
            sentences=self.sentences,
        )

    @property
    def path(self) -> Path:
        return self.inputs.storage / "agreements" / f"{self.id}.parquet"

    @property
    def folder(self) -> Path:
        """Return the folder of the members' vectors, which exists until their evaluation."""
        return self.inputs.storage / "agreements" / self.id

    def kept(self, member: Model) -> Path:
        return self.folder / f"{member.id}.npz"

    @property
    def texts(self) -> list[str]:
        """Return the held-out texts. The first half selects."""
        assert self.inputs.corpus.text is not None
        return self.inputs.corpus.text.held_out

    @property
    def dev(self) -> Dev:
        return judge(self.path, self.id, SPLITS[0])

    @property
    def test(self) -> Dev:
        return judge(self.path, self.id, SPLITS[1])

    def run(self, executor: Executor, store: Store, say: Say) -> None:
        pipeline, half = self.inputs.pipeline, len(self.texts) // 2
        halves = self.texts[:half], self.texts[half:]
        units = [
            (member.model, self.inputs.contents.get(member.model), self.kept(member))
            for member in selected(self.members, pipeline.select_top)
        ]
        args = (self.texts, pipeline.measured, pipeline.teacher_prompt)
        sums: list[Any] = [np.float32(0), np.float32(0)]
        for cosine_halves in executor.map(EmbedHeldOut, args, units, pipeline.resources, say):
            sums = [total + cosines for total, cosines in zip(sums, cosine_halves, strict=True)]
        parts = [
            pairs_of(texts, total / np.float32(len(units)), split)
            for texts, total, split in zip(halves, sums, SPLITS, strict=True)
        ]
        with store.put(self.path) as draft:
            pq.write_table(pa.concat_tables(parts), draft)
