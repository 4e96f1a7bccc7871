"""What is known of the contrastive objectives (:mod:`raysts.objectives.contrastive`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from raysts.ids import later
from raysts.objectives.kinds.kind import Settings, VectorKind


@dataclass(frozen=True, slots=True, kw_only=True)
class ContrastiveSettings(Settings):
    """Settings of every contrastive objective.

    Attributes:
        temperature: divides the similarities, above 0.
        false_negatives: texts of the batch that are no negatives of an anchor: ``kept`` as such all the same (the papers),
            or ``masked``, which leaves them out of its loss. They are the anchor's own text, and all positives that the
            batch has of that text (``raysts.ops.losses.false_negatives``). It changes no batch and no order, and sees the
            batch of all processes.
        grad_cache: embed so many examples at once, so that memory grows with them and not with the batch (GradCache, Gao
            et al. 2021): nothing but the embeddings is kept for backward, which embeds them again with the same dropout.
            Loss and gradients are those of the whole batch, for a third more work. None: all at once. A step of BERT-base
            on 512 NLI pairs (21,290 tokens, bf16 on CPU) peaks at 3.1 GiB in chunks of 32; on 128 at once it takes 3.8.
    """

    temperature: float = 0.05
    false_negatives: Literal["kept", "masked"] = later("kept")
    grad_cache: int | None = later(None)

    def __post_init__(self) -> None:
        if not self.temperature > 0:
            raise ValueError(f"temperature={self.temperature} divides the similarities and must be above 0")
        if self.false_negatives not in ("kept", "masked"):
            raise ValueError(f"false_negatives={self.false_negatives!r} must be kept or masked")
        if self.grad_cache is not None and self.grad_cache < 1:
            raise ValueError(f"grad_cache={self.grad_cache} must be the number of examples embedded at once, or none")

    @property
    def recomputes(self) -> bool:
        """Backward computes the embeddings again."""
        return self.grad_cache is not None


class ContrastiveKind(VectorKind):
    """What is known of a :class:`raysts.objectives.contrastive.Contrastive`."""

    around = {"paper": {"backbone": "bert-base-uncased"}}
