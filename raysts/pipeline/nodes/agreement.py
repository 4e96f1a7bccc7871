"""What the members of an ensemble say of pairs of held-out texts, where no labelled pairs are there to judge by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from raysts.evaluation.agreement import SPLITS, AgreementPairs, pairs_of
from raysts.ids import content_id
from raysts.ops.ensemble import unit
from raysts.pipeline import teachers
from raysts.pipeline.inputs import Inputs
from raysts.pipeline.local import Executor, Say
from raysts.pipeline.nodes.model import Model, embedding_resources, selected
from raysts.pipeline.nodes.node import Node
from raysts.storage.store import Store

VERSION = 1


class Cosines:
    """The cosines of texts with each other, as a model pools them; units are model folders.

    Gives one float32 [N, N] for each list of texts.
    """

    def __init__(self, device: str | None, texts: Sequence[Sequence[str]], prompt: str | None) -> None:
        self.device, self.texts, self.prompt = device, texts, prompt

    def __call__(self, model: Path) -> list[np.ndarray]:
        teacher = teachers.load(model, prompt=self.prompt, device=self.device)
        units = [unit(teacher.vectors(teacher.tokenize(texts))) for texts in self.texts]
        return [unit_ND @ unit_ND.T for unit_ND in units]


@dataclass(frozen=True, kw_only=True)
class AgreementNode(Node):
    """``agreements/<id>.parquet``: pairs of held-out texts with the mean of the cosines that the members give them."""

    kind: ClassVar[str] = "agreement"
    inputs: Inputs
    members: tuple[Model, ...]

    @classmethod
    def of(cls, inputs: Inputs, members: Sequence[Model]) -> AgreementNode:
        """That of the members of a pipeline, on the held-out part of the corpus's own text."""
        pipeline, text = inputs.pipeline, inputs.corpus.text
        assert text is not None and text.held
        asked = [prompt for prompt in [pipeline.teacher_prompt] if prompt is not None]
        return cls(
            id=content_id(
                ["agreement", VERSION, [m.id for m in members], pipeline.select_top, sorted(text.held_out), *asked]
            ),
            title=f"agreement of {pipeline.select_top or len(members)} members on {text.held:,} held-out texts",
            needs=tuple(member.id for member in members),
            resources=embedding_resources(pipeline.resources),
            sentences=text.held * len(members),
            inputs=inputs,
            members=tuple(members),
        )

    @property
    def path(self) -> Path:
        """The file."""
        return self.inputs.storage / "agreements" / f"{self.id}.parquet"

    @property
    def texts(self) -> list[str]:
        """The held-out texts, those that select first."""
        assert self.inputs.corpus.text is not None
        return self.inputs.corpus.text.held_out

    @property
    def dev(self) -> AgreementPairs:
        """The half that selects."""
        return AgreementPairs(self.path, self.id, SPLITS[0])

    @property
    def test(self) -> AgreementPairs:
        """The half that is reported on."""
        return AgreementPairs(self.path, self.id, SPLITS[1])

    def is_done(self, store: Store) -> bool:
        return store.get(self.path) is not None

    def written(self, store: Store) -> list[Path]:
        return [self.path]

    def run(self, executor: Executor, store: Store, say: Say) -> None:
        pipeline, half = self.inputs.pipeline, len(self.texts) // 2
        halves = self.texts[:half], self.texts[half:]
        folders = [member.model for member in selected(self.members, pipeline.select_top)]
        sums: list[Any] = [np.float32(0), np.float32(0)]
        for found in executor.map(Cosines, (halves, pipeline.teacher_prompt), folders, pipeline.resources, say):
            sums = [total + cosines for total, cosines in zip(sums, found, strict=True)]
        parts = [
            pairs_of(texts, total / np.float32(len(folders)), split)
            for texts, total, split in zip(halves, sums, SPLITS, strict=True)
        ]
        with store.put(self.path) as draft:
            pq.write_table(pa.concat_tables(parts), draft)
