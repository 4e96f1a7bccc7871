"""What the members of an ensemble say of pairs of held-out texts, where no labelled pairs are there to judge by.

Their vectors of these texts are kept until the members are evaluated, which measures them on the same texts: none is embedded
twice.

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
from raysts.models.layers import Layers
from raysts.ops.ensemble import unit
from raysts.pipeline import teachers
from raysts.pipeline.inputs import Inputs
from raysts.pipeline.local import Executor, Say
from raysts.pipeline.step import Model, Step, embedding_resources, selected, step_id
from raysts.storage.store import Store

OWN = "own"
"""What the vectors of a model are called that pools in one way alone."""


class EmbedHeldOut:
    """The cosines of held-out texts with each other, as a model pools them; units are model folders, their content ids (None: of
    a model of a run) and where vectors are kept.

    Gives one float32 [N / 2, N / 2] for each half of the texts. ``layers``: other choices of layers at which vectors are kept.
    """

    def __init__(self, device: str | None, texts: Sequence[str], layers: Sequence[Layers], prompt: str | None) -> None:
        self.device, self.texts, self.layers, self.prompt = device, texts, layers, prompt

    def __call__(self, work: tuple[Path, str | None, Path]) -> list[np.ndarray]:
        model, content, kept = work
        teacher = teachers.load(model, prompt=self.prompt, device=self.device, content=content)
        keep: dict[str, Any]
        if isinstance(teacher, teachers.EncoderTeacher):
            pooling, own = teacher.model.pooling, teacher.model.layers
            found = teacher.model.represent_layers(self.texts, tuple(dict.fromkeys([own, *self.layers])))
            vectors_ND = found[own]["vectors"]
            keep = {f"{pooling} {at}": values["vectors"] for at, values in found.items() if {*values} == {"vectors"}}
        else:
            vectors_ND = teacher.vectors(teacher.tokenize(self.texts))
            keep = {OWN: vectors_ND}
        with Store.of(kept).put(kept) as draft, draft.open("wb") as file:
            np.savez(file, **keep)
        halves = np.split(unit(vectors_ND), [len(self.texts) // 2])
        return [unit_ND @ unit_ND.T for unit_ND in halves]


def kept_vectors(path: Path, pooling: str, layers: Sequence[Layers]) -> dict[Layers, np.ndarray]:
    """What :class:`EmbedHeldOut` kept of a model at a pooling, [N, D] at each choice of layers; empty unless at all of them."""
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
    """``agreements/<id>.parquet``: pairs of held-out texts with the mean of the cosines that the members give them."""

    id: str
    title: str
    needs: tuple[str, ...]
    sentences: int
    inputs: Inputs
    members: tuple[Model, ...]

    @classmethod
    def of(cls, inputs: Inputs, members: Sequence[Model]) -> AgreementNode:
        """That of the members of a pipeline, on the held-out part of the corpus's own text."""
        pipeline, text = inputs.pipeline, inputs.corpus.text
        assert text is not None and text.held
        who = "teachers" if pipeline.teachers else "members"
        return cls(
            id=step_id(
                "agreement",
                members=[member.id for member in members],
                top=pipeline.select_top,
                texts=sorted(text.held_out),
                prompt=pipeline.teacher_prompt,
            ),
            title=f"agreement of {pipeline.select_top or len(members)} {who} on {text.held:,} held-out texts",
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
        """Of what is kept of the members until they are evaluated."""
        return self.inputs.storage / "agreements" / self.id

    def kept(self, member: Model) -> Path:
        return self.folder / f"{member.id}.npz"

    @property
    def texts(self) -> list[str]:
        """The held-out texts, those that select first."""
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
        for found in executor.map(EmbedHeldOut, args, units, pipeline.resources, say):
            sums = [total + cosines for total, cosines in zip(sums, found, strict=True)]
        parts = [
            pairs_of(texts, total / np.float32(len(units)), split)
            for texts, total, split in zip(halves, sums, SPLITS, strict=True)
        ]
        with store.put(self.path) as draft:
            pq.write_table(pa.concat_tables(parts), draft)
