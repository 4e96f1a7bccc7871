"""SimCSE (Gao et al. 2021): contrast of a sentence with the other sentences of the batch.

Shapes: B examples, V views of an example (anchor, positive, hard negative), T tokens, D embedding dimensions.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from raysts.models.encoder import Encoder
from raysts.models.head import Dense
from raysts.objectives.objective import Batch, LocalBatch, Objective, Settings
from raysts.ops import collective, losses


@dataclass(frozen=True, slots=True, kw_only=True)
class SimCSESettings(Settings):
    """Settings of ``simcse-sup`` and ``simcse-unsup``.

    Attributes:
        temperature: divides the cosines, above 0.
    """

    temperature: float = 0.05

    def __post_init__(self) -> None:
        if not self.temperature > 0:
            raise ValueError(f"temperature={self.temperature} divides the cosines and must be above 0")


class SimCSE(Objective):
    """InfoNCE over the examples of all processes: an anchor, its positive, and everyone else's as negatives.

    Class attributes:
        views: text columns of an example's views: the anchor, the positive, and hard negatives.
    """

    settings_type = SimCSESettings
    keeps = ("best", "last")
    stackable = True
    views: ClassVar[tuple[str, ...]]

    def collate(self, local: LocalBatch) -> Batch:
        """``views`` [B, V, T] token ids and ``views_length`` [B, V]."""
        return self.pad_together("views", local, self.views)

    @abstractmethod
    def embed(self, ids_BT: Tensor, lengths_B: Tensor) -> Tensor:
        """The embeddings [B, D] that are contrasted."""

    def forward(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """InfoNCE, and how often the positive is the candidate nearest to its anchor."""
        ids_BVT = batch["views"]
        rows_D = self.embed(ids_BVT.flatten(0, 1), batch["views_length"].flatten())
        # Every process works on the whole batch: it is small, and the gradients come back through the gather.
        views_BVD = collective.gather(rows_D.unflatten(0, ids_BVT.shape[:2]))
        weight_B = collective.gather(batch["weight"])
        anchors_BD, *others = views_BVD.unbind(1)
        logits_BN = losses.in_batch_logits(
            anchors_BD, torch.cat(others), weight_B.repeat(len(others)), self.settings.temperature
        )
        positive_B = torch.arange(len(weight_B), device=logits_BN.device)
        loss = collective.mean(losses.softmax_cross_entropy(logits_BN, positive_B), weight_B)
        right_B = (logits_BN.detach().argmax(-1) == positive_B).float()
        return loss, {"accuracy": collective.mean(right_B, weight_B)}


class SupervisedSimCSE(SimCSE):
    """Anchor premise, positive entailment, hard negative contradiction; the dense head with tanh belongs to the model."""

    table = "nli/triplets"
    texts = ("anchor", "positive", "negative")
    views = texts
    sentences = 3
    scales = {"small": {"batch": 64, "train.max_steps": 500}}

    def __init__(self, settings: SimCSESettings, encoder: Encoder) -> None:
        super().__init__(settings, encoder.followed_by(Dense(encoder.dim, encoder.dim, "tanh")))

    @classmethod
    def adds_head(cls, settings: SimCSESettings) -> bool:
        """The dense head."""
        return True

    def embed(self, ids_BT: Tensor, lengths_B: Tensor) -> Tensor:
        return self.encoder(ids_BT, lengths_B)


class UnsupervisedSimCSE(SimCSE):
    """Two dropout passes of one sentence; the dense head with tanh serves training alone."""

    table = "wikipedia/sentences"
    texts = ("sentence",)
    views = ("sentence", "sentence")
    sentences = 2
    scales = {"small": {"train.max_steps": 1_000}}

    def __init__(self, settings: SimCSESettings, encoder: Encoder) -> None:
        super().__init__(settings, encoder)
        self.head = Dense(encoder.dim, encoder.dim, "tanh")

    @classmethod
    def problem(cls, batch: int) -> str | None:
        """Only other sentences are negatives."""
        return None if batch > 1 else "must be at least 2: a sentence's negatives are the others of its batch"

    def embed(self, ids_BT: Tensor, lengths_B: Tensor) -> Tensor:
        return self.head(self.encoder(ids_BT, lengths_B))
