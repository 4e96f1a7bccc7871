"""The cost of a model: its size, and the texts a second that it embeds here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from raysts.models.prompts import Text

if TYPE_CHECKING:
    from raysts.models.sentence_model import SentenceModel

SAMPLE = 512
"""Texts whose tokens are counted."""


@dataclass(frozen=True, slots=True)
class ModelCost:
    """Size and speed of a model.

    Attributes:
        bytes: of its parameters, in the precision in which it computes.
        dims: of a vector.
        texts: number of the embedded texts.
        tokens: mean number of their tokens, as far as the model reads them; speeds are of texts of this length.
        texts_per_second: on this machine, beside its other work.
        texts_per_cpu_second: of this process, without the other work.
    """

    parameters: int
    bytes: int
    dims: int
    texts: int
    tokens: float
    texts_per_second: float
    texts_per_cpu_second: float

    @classmethod
    def measure(cls, model: SentenceModel, texts: Sequence[Text], seconds: float, cpu_seconds: float) -> ModelCost:
        """Return the cost of a model that embedded ``texts`` in these seconds."""
        weights = [*model.encoder.parameters()]
        sample = [str(text) for text in texts[:: max(1, len(texts) // SAMPLE)]]
        return cls(
            parameters=sum(weight.numel() for weight in weights),
            bytes=sum(weight.numel() * weight.element_size() for weight in weights),
            dims=model.dim,
            texts=len(texts),
            tokens=float(model.tokenize(sample).lengths.mean()) if sample else 0.0,
            texts_per_second=len(texts) / max(seconds, 1e-9),
            texts_per_cpu_second=len(texts) / max(cpu_seconds, 1e-9),
        )

    @property
    def text(self) -> str:
        """The cost in words."""
        return (
            f"{self.parameters / 1e6:.1f} M parameters, {self.bytes / 1e6:.0f} MB, {self.dims} dimensions, "
            f"{self.texts_per_second:.0f} texts of {self.tokens:.0f} tokens a second here "
            f"({self.texts_per_cpu_second:.0f} a CPU second)"
        )
