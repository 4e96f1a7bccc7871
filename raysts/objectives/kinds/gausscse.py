"""What is known of ``gausscse`` (:mod:`raysts.objectives.gausscse`)."""

from dataclasses import dataclass
from typing import Literal, get_args

from raysts.objectives.kinds.contrastive import ContrastiveKind, ContrastiveSettings

Loss = Literal["ent", "ent+con", "ent+rev", "ent+con+rev"]
LOSSES: tuple[Loss, ...] = get_args(Loss)
"""The four losses by the sets in their denominator: entailment, contradiction, reversed (the paper's tables write
``swap``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GaussCSESettings(ContrastiveSettings):
    """Settings of ``gausscse``.

    Attributes:
        loss: the sets of the denominator: ``ent``, ``ent+con``, ``ent+rev`` or ``ent+con+rev``.
        similarity: ``per_dimension``, the mean of 1 / (1 + KL_d) (official code), or ``paper``, 1 / (1 + sum KL_d).
        activation: of mu: ``tanh`` (official code) or ``identity`` (the paper's formula).
    """

    loss: Loss = "ent+con"
    similarity: Literal["per_dimension", "paper"] = "per_dimension"
    activation: Literal["tanh", "identity"] = "tanh"


class GaussCSEKind(ContrastiveKind):
    """What is known of a :class:`raysts.objectives.gausscse.GaussCSE`."""

    trained_by = "gausscse:GaussCSE"
    settings_type = GaussCSESettings
    table = "nli/triplets"
    texts = ("anchor", "positive", "negative")
    sentences = 3
    keeps = ("best", "last")
    dev = "nli/snli_dev"
    endings = {f"-{loss}": {"loss": loss} for loss in LOSSES}
    members = 5
    scales = {"small": {"train.max_steps": 1_000}}

    @classmethod
    def adds_head(cls, settings: GaussCSESettings) -> bool:
        return True

    @classmethod
    def undivided(cls, settings: GaussCSESettings) -> str | None:
        return "its similarity is of Gaussians in all their dimensions; leave it out"
