"""What is known of the contrastive objectives (:mod:`raysts.objectives.contrastive`)."""

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
    """

    temperature: float = 0.05
    false_negatives: Literal["kept", "masked"] = later("kept")

    def __post_init__(self) -> None:
        if not self.temperature > 0:
            raise ValueError(f"temperature={self.temperature} divides the similarities and must be above 0")


class ContrastiveKind(VectorKind):
    """What is known of a :class:`raysts.objectives.contrastive.Contrastive`."""

    around = {"paper": {"backbone": "bert-base-uncased"}}
