"""The worker that embeds texts with a model: the held-out texts that judge, and the texts of the tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from raysts.models.embedders import load_embedder
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
    """

    device: str | None
    texts: Sequence[Text]
    layers: Sequence[Layers]
    prompt: str | None

    def __call__(self, unit: Unit) -> dict[Layers, Representation]:
        """Return the vectors by choice of layers, or nothing if precomputed vectors lack a text."""
        folder, content, pooling = unit
        options = {"pooling": pooling, "prompt": self.prompt, "device": self.device}
        embedder = load_embedder(folder, content=content, **options)
        if embedder.find_missing(self.texts) is not None:
            return {}
        _, stored = embedder.stored_pooling or ("", 1)
        return embedder.represent_layers(self.texts, self.layers or (stored,))
