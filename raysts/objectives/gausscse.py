"""GaussCSE (Yoda et al. 2024): sentences as Gaussians, contrasted by an asymmetric similarity.

Shapes: B examples, V sentences of an example, T tokens, D dimensions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from raysts.models.encoder import Encoder
from raysts.models.gaussian_head import GaussianHead
from raysts.models.head import ACTIVATIONS
from raysts.objectives.objective import Batch, LocalBatch, Objective, Settings
from raysts.ops import collective
from raysts.ops.gaussian import KINDS, Gaussians, Kind, Triplets, contrastive

LOSSES = ("ent", "ent+con", "ent+rev", "ent+con+rev")
"""The four losses by the sets in their denominator: entailment, contradiction, reversed (the paper's tables write
``swap``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GaussCSESettings(Settings):
    """Settings of ``gausscse``.

    Attributes:
        loss: the sets of the denominator: ``ent``, ``ent+con``, ``ent+rev`` or ``ent+con+rev``.
        similarity: ``per_dimension``, the mean of 1 / (1 + KL_d) (official code), or ``paper``, 1 / (1 + sum KL_d).
        activation: of mu: ``tanh`` (official code) or ``identity`` (the paper's formula).
        temperature: divides the similarities, above 0.
    """

    loss: Literal["ent", "ent+con", "ent+rev", "ent+con+rev"] = "ent+con"
    similarity: Kind = "per_dimension"
    activation: Literal["tanh", "identity"] = "tanh"
    temperature: float = 0.05

    def __post_init__(self) -> None:
        for name, allowed in (("loss", LOSSES), ("similarity", KINDS), ("activation", tuple(ACTIVATIONS))):
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name}={getattr(self, name)!r} must be one of {', '.join(allowed)}")
        if not self.temperature > 0:
            raise ValueError(f"temperature={self.temperature} divides the similarities and must be above 0")


class GaussCSE(Objective):
    """Equation 4 over NLI triplets, with the examples of all processes as candidates; one model for all four losses."""

    settings_type = GaussCSESettings
    table = "nli/triplets"
    texts = ("anchor", "positive", "negative")
    sentences = 3
    keeps = ("best", "last")
    dev = "nli/snli_dev"
    endings = {f"-{loss}": {"loss": loss} for loss in LOSSES}
    members = 5
    scales = {"small": {"train.max_steps": 1_000}}

    def __init__(self, settings: GaussCSESettings, encoder: Encoder) -> None:
        head = GaussianHead(encoder.dim, encoder.dim, settings.activation, settings.similarity)
        super().__init__(settings, encoder.followed_by(head))
        # Contradictions are read where the loss has a use for them.
        self.columns = self.texts if "con" in settings.loss else self.texts[:2]

    @classmethod
    def adds_head(cls, settings: GaussCSESettings) -> bool:
        """The Gaussian head."""
        return True

    def collate(self, local: LocalBatch) -> Batch:
        """``sentences`` [B, V, T] token ids, ``sentences_length`` [B, V]."""
        return self.pad_together("sentences", local, self.columns)

    def forward(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss, and how often the premise has the larger variance."""
        ids_BVT, settings = batch["sentences"], self.settings
        found = self.encoder.represent(ids_BVT.flatten(0, 1), batch["sentences_length"].flatten())
        own_BVF = torch.cat([found["vectors"], found["log_var"]], -1).unflatten(0, ids_BVT.shape[:2])
        own = _triplets(own_BVF)
        candidates = _triplets(collective.gather(own_BVF))
        counts_K = collective.gather(batch["weight"]) > 0
        per_row_B = contrastive(own, candidates, counts_K, settings.loss, settings.temperature, settings.similarity)
        wider_B = own.premise.log_var.detach().sum(-1) > own.hypothesis.log_var.detach().sum(-1)
        return collective.mean(per_row_B, batch["weight"]), {
            "wider_premise": collective.mean(wider_B.float(), batch["weight"])
        }


def _triplets(rows_BVF: Tensor) -> Triplets:
    """mu and log_var side by side [B, V, 2D] -> the Gaussians of the V columns."""
    return Triplets(*(Gaussians(*column.chunk(2, -1)) for column in rows_BVF.unbind(1)))
