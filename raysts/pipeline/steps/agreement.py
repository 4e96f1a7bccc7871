"""Pairs of held-out texts with the mean cosine of the members, which replace missing labels.

Shapes: N held-out texts, D dimensions.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from raysts.evaluation.agreement import SPLITS, judge, pairs_of
from raysts.evaluation.dev import Dev
from raysts.ops.ensemble import unit
from raysts.pipeline.inputs import Inputs
from raysts.pipeline.local import Executor, Say
from raysts.pipeline.step import Model, Step, new_step, selected, step_id
from raysts.pipeline.steps.embed import EmbedTexts
from raysts.storage.store import Store


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """The judge without labels, and the step that writes its pairs."""

    inputs: Inputs
    members: tuple[Model, ...]

    @cached_property
    def step(self) -> Step:
        """Return the step that writes the mean cosines of pairs of held-out texts."""
        inputs, top = self.inputs, self.inputs.pipeline.select_top
        step = step_id(
            "agreement",
            members=[member.id for member in self.members],
            top=top,
            texts=sorted(self.texts),
            prompt=inputs.pipeline.teacher_prompt,
        )
        count, role = top or len(self.members), "teacher" if inputs.pipeline.teachers else "member"
        return new_step(
            inputs,
            "agreement",
            step,
            self.members,
            title=f"agreement of {count} {role}{'s' if count > 1 else ''} on {len(self.texts):,} held-out texts",
            work=self._embed,
            sentences=len(self.texts) * len(self.members),
        )

    @property
    def texts(self) -> list[str]:
        """Return the held-out texts. The first half selects."""
        assert self.inputs.corpus.text is not None
        return self.inputs.corpus.text.held_out

    @property
    def dev(self) -> Dev:
        """Return the half that selects."""
        return judge(self.step.output, self.step.id, SPLITS[0])

    @property
    def test(self) -> Dev:
        """Return the half that reports."""
        return judge(self.step.output, self.step.id, SPLITS[1])

    def _embed(self, executor: Executor, store: Store, say: Say) -> None:
        inputs, half = self.inputs, len(self.texts) // 2
        chosen = selected(self.members, inputs.pipeline.select_top)
        units = [(member.model, inputs.contents.get(member.model), None) for member in chosen]
        args = (self.texts, (), inputs.pipeline.teacher_prompt)
        sums: list[Any] = [np.float32(0), np.float32(0)]
        for vectors, _ in executor.map(EmbedTexts, args, units, inputs.pipeline.resources, say):
            (representation,) = vectors.values()
            unit_ND = unit(representation["vectors"])
            sums = [total + part @ part.T for total, part in zip(sums, np.split(unit_ND, [half]), strict=True)]
        halves = self.texts[:half], self.texts[half:]
        parts = [
            pairs_of(texts, total / np.float32(len(units)), split)
            for texts, total, split in zip(halves, sums, SPLITS, strict=True)
        ]
        with store.put(self.step.output) as draft:
            pq.write_table(pa.concat_tables(parts), draft)
