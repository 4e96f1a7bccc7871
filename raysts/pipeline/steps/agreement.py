"""Texts embedded by models, and pairs of held-out texts with mean cosines in place of labels.

Shapes: N held-out texts, D dimensions.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from raysts.evaluation.agreement import SPLITS, judge, pairs_of
from raysts.evaluation.cost import ModelCost
from raysts.evaluation.dev import Dev
from raysts.evaluation.scores import RowScores
from raysts.evaluation.words import WordSets
from raysts.models.embedders import load_embedder
from raysts.models.layers import Layers
from raysts.models.prompts import Side, SideText, Text
from raysts.ops.ensemble import unit
from raysts.pipeline.inputs import Inputs
from raysts.pipeline.step import Context, Load, Step, new_step, select_members, step_id

if TYPE_CHECKING:
    from raysts.models.sentence_model import Representation

Unit = tuple[Path, str | None, str | None]
"""Folder of a model, its content id (None: of a run), and the pooling of its token vectors (None: its own)."""


class EmbeddedTexts(NamedTuple):
    """Vectors and row scores by choice of layers, and the cost of the vectors.

    Precomputed vectors that lack a text give nothing, and what embeds elsewhere has no cost.
    """

    vectors: dict[Layers, Representation]
    scores: dict[Layers, list[RowScores]]
    cost: ModelCost | None = None


@dataclass(frozen=True, slots=True)
class EmbedTexts:
    """Worker that embeds the same texts with each model."""

    device: str | None
    texts: Sequence[Text]
    layers: Sequence[Layers]  # choices of layers; none: the model's own choice
    prompt: str | None  # for a model that configures none
    tasks: Sequence[WordSets] = ()  # what each model itself is measured on, if raysts loads it

    def __call__(self, unit: Unit) -> EmbeddedTexts:
        folder, content, pooling = unit
        embedder = load_embedder(folder, content=content, pooling=pooling, prompt=self.prompt, device=self.device)
        if embedder.find_missing(self.texts) is not None:
            return EmbeddedTexts({}, {})
        scores: dict[Layers, list[RowScores]] = {}
        measured: Any = getattr(embedder, "model", None)
        for task in self.tasks if embedder.kind == "encoder" else ():
            for choice, row_scores in task.row_scores(measured, self.layers).items():
                scores.setdefault(choice, []).extend(row_scores)
        _, stored = embedder.stored_pooling or ("", 1)
        began, cpu_began = time.perf_counter(), time.process_time()
        vectors = embedder.represent_layers(self.texts, self.layers or (stored,))
        seconds = time.perf_counter() - began, time.process_time() - cpu_began
        cost = ModelCost.measure(measured, self.texts, *seconds) if measured and self.texts else None
        return EmbeddedTexts(vectors, scores, cost)


def teacher_vectors(
    inputs: Inputs, context: Context, models: Sequence[Step], texts: Sequence[Text]
) -> Iterator[np.ndarray | None]:
    """Yield the vectors [N, D] of texts by each model as it pools, behind the prompt of teachers.

    None: of precomputed vectors that lack a text.
    """
    units = [(model.output, inputs.contents.get(model.output), None) for model in models]
    for embedding in context.map(EmbedTexts, (texts, (), inputs.pipeline.teacher_prompt), units):
        yield next((values["vectors"] for values in embedding.vectors.values()), None)


@dataclass(frozen=True)
class Agreement:
    """The judge without labels, and the step that writes its pairs."""

    inputs: Inputs
    members: Sequence[Step]

    @cached_property
    def step(self) -> Step:
        """Return the step that writes the mean cosines of pairs of held-out texts."""
        inputs, top = self.inputs, self.inputs.pipeline.select_top
        side = {"side": self._side} if self._side else {}
        members, prompt = [member.id for member in self.members], inputs.pipeline.teacher_prompt
        step = step_id("agreement", members=members, top=top, texts=sorted(self.texts), prompt=prompt, **side)
        count, role = top or len(self.members), "teacher" if inputs.pipeline.teachers else "member"
        size, tokens = inputs.size_of([member.output for member in self.members]), inputs.tokens_of(self.texts)
        return new_step(
            inputs,
            "agreement",
            step,
            self.members,
            title=f"agreement of {count} {role}{'s' if count > 1 else ''} on {len(self.texts):,} held-out texts",
            work=self._embed,
            sentences=len(self.texts) * len(self.members),
            load=Load(size, tokens, inputs.pipeline.precision, units=len(self.members)),
            bytes=2 * sum(map(len, self.texts)),  # each in about four pairs, compressed
        )

    @property
    def texts(self) -> list[str]:
        """Return the held-out texts. The first half selects."""
        assert self.inputs.corpus.text is not None
        return self.inputs.corpus.text.held_out

    @property
    def _side(self) -> Side | None:
        """Return the side that the held-out texts are of, if there are queries beside them."""
        text = self.inputs.corpus.text
        return "document" if text and text.queries and self.inputs.pipeline.teacher_prompt is None else None

    @property
    def dev(self) -> Dev:
        """Return the half that selects."""
        return judge(self.step.output, self.step.id, SPLITS[0])

    @property
    def test(self) -> Dev:
        """Return the half that reports."""
        return judge(self.step.output, self.step.id, SPLITS[1])

    def _embed(self, context: Context) -> None:
        inputs, half = self.inputs, len(self.texts) // 2
        chosen = select_members(self.members, inputs.pipeline.select_top)
        texts = [SideText(text, self._side) for text in self.texts] if self._side else self.texts
        sums: list[Any] = [np.float32(0), np.float32(0)]
        for vectors_ND in teacher_vectors(inputs, context, chosen, texts):
            assert vectors_ND is not None, "the checks ask for all held-out texts"
            unit_ND = unit(vectors_ND)
            sums = [total + part @ part.T for total, part in zip(sums, np.split(unit_ND, [half]), strict=True)]
        halves = zip((self.texts[:half], self.texts[half:]), sums, SPLITS, strict=True)
        parts = [pairs_of(texts, total / np.float32(len(chosen)), split) for texts, total, split in halves]
        with context.store.put(self.step.output) as draft:
            pq.write_table(pa.concat_tables(parts), draft)
