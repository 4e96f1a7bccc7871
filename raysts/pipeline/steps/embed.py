"""The worker that embeds texts with a model, and measures what asks for more of it than vectors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from raysts.evaluation.scores import RowScores
from raysts.evaluation.words import WordSets
from raysts.models.embedders import EncoderModel, load_embedder
from raysts.models.layers import Layers
from raysts.models.prompts import Text

if TYPE_CHECKING:
    from raysts.models.sentence_model import Representation

Unit = tuple[Path, str | None, str | None]
"""Folder of a model, its content id (None: of a run), and the pooling of its token vectors (None: its own)."""


@dataclass(frozen=True, slots=True)
class EmbedTexts:
    """Worker that embeds the same texts with each model.

    Attributes:
        layers: choices of layers; none: the model's own choice.
        prompt: for a model that configures none.
        tasks: what each model itself is measured on, if raysts loads it.
    """

    device: str | None
    texts: Sequence[Text]
    layers: Sequence[Layers]
    prompt: str | None
    tasks: Sequence[WordSets] = ()

    def __call__(self, unit: Unit) -> tuple[dict[Layers, Representation], dict[Layers, list[RowScores]]]:
        """Return vectors and row scores by choice of layers, no vectors if precomputed ones lack a text."""
        folder, content, pooling = unit
        options = {"pooling": pooling, "prompt": self.prompt, "device": self.device}
        embedder = load_embedder(folder, content=content, **options)
        if embedder.find_missing(self.texts) is not None:
            return {}, {}
        scores: dict[Layers, list[RowScores]] = {}
        if isinstance(embedder, EncoderModel):
            for task in self.tasks:
                for choice, row_scores in task.row_scores(embedder.model, self.layers).items():
                    scores.setdefault(choice, []).extend(row_scores)
        _, stored = embedder.stored_pooling or ("", 1)
        return embedder.represent_layers(self.texts, self.layers or (stored,)), scores
