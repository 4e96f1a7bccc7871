"""SimCSE (Gao et al. 2021): contrast of a sentence with the other sentences of the batch.

Shapes: B examples, V views of an example (anchor, positive, hard negative), T tokens, D embedding dimensions.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from raysts.ids import later
from raysts.models.encoder import Encoder
from raysts.models.head import Dense
from raysts.objectives.contrastive import Contrastive, ContrastiveSettings
from raysts.objectives.objective import Batch
from raysts.ops import collective, losses


@dataclass(frozen=True, slots=True, kw_only=True)
class SimCSESettings(ContrastiveSettings):
    """Settings of ``simcse-sup`` and ``simcse-unsup``.

    Attributes:
        head: what follows the pooling: a dense layer with ``tanh`` (the paper, on the first token), or ``none``.
    """

    head: Literal["tanh", "none"] = later("tanh")

    def __post_init__(self) -> None:
        ContrastiveSettings.__post_init__(self)
        if self.head not in ("tanh", "none"):
            raise ValueError(f"head={self.head!r} must be tanh or none")


_PAPER: dict[str, Any] = {
    "pooling": "cls",
    "settings.head": "tanh",
    "settings.false_negatives": "kept",
    "train.eval_first": False,
}


class SimCSE(Contrastive):
    """InfoNCE over the examples of all processes: an anchor, its positive, and everyone else's as negatives."""

    settings_type = SimCSESettings
    keeps = ("best", "last")
    stackable = True

    def loss_of(self, vectors: tuple[Tensor, ...], batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """InfoNCE, and how often the positive is the candidate nearest to its anchor."""
        gather = partial(collective.gather, sizes=batch.get("sizes"))
        (own_BVF,) = vectors
        # Every process works on the whole batch: it is small, and the gradients come back through the gather.
        anchors_KD, *others = gather(own_BVF).unbind(1)
        weight_K = gather(batch["weight"])
        counts_N = (weight_K[:, None] * gather(batch["there"])[:, 1:]).T.flatten()
        if "digests" in batch:
            anchor_K, *texts = gather(batch["digests"]).unbind(1)
            counts_N = counts_N * ~losses.false_negatives(anchor_K, anchor_K, texts[0], torch.cat(texts))
        logits_KN = losses.in_batch_logits(anchors_KD, torch.cat(others), counts_N, self.settings.temperature)
        positive_K = torch.arange(len(weight_K), device=logits_KN.device)
        loss = collective.mean(losses.softmax_cross_entropy(logits_KN, positive_K), weight_K)
        right_K = (logits_KN.detach().argmax(-1) == positive_K).float()
        return loss, {"accuracy": collective.mean(right_K, weight_K)}


class SupervisedSimCSE(SimCSE):
    """Anchor premise, positive entailment, hard negative contradiction; a dense head with tanh belongs to the model."""

    table = "nli/triplets"
    texts = ("anchor", "positive", "negative")
    views = texts
    sentences = 3
    scales = {"small": {"batch": 64, "train.max_steps": 500}, "paper": {**_PAPER, "data.table": None}}

    def __init__(self, settings: SimCSESettings, encoder: Encoder) -> None:
        if settings.head == "tanh":
            encoder = encoder.followed_by(Dense(encoder.dim, encoder.dim, "tanh"))
        super().__init__(settings, encoder)

    @classmethod
    def adds_head(cls, settings: SimCSESettings) -> bool:
        """The dense head, where it is kept."""
        return settings.head == "tanh"

    def embed(self, ids_BT: Tensor, lengths_B: Tensor, known: np.ndarray | None = None) -> Tensor:
        return self.encoder(ids_BT, lengths_B, known)


class UnsupervisedSimCSE(SimCSE):
    """Two dropout passes of one sentence; a dense head with tanh serves training alone."""

    table = "wikipedia/sentences"
    texts = ("sentence",)
    views = ("sentence", "sentence")
    sentences = 2
    scales = {"small": {"train.max_steps": 1_000}, "paper": _PAPER}

    def __init__(self, settings: SimCSESettings, encoder: Encoder) -> None:
        super().__init__(settings, encoder)
        self.head = Dense(encoder.dim, encoder.dim, "tanh") if settings.head == "tanh" else nn.Identity()

    @classmethod
    def problem(cls, batch: int) -> str | None:
        """Only other sentences are negatives."""
        return None if batch > 1 else "must be at least 2: a sentence's negatives are the others of its batch"

    @classmethod
    def undivided(cls, settings: SimCSESettings) -> str | None:
        if settings.head == "none":
            return None
        return "head=tanh reads all dimensions and is dropped after training; set head=none"

    def embed(self, ids_BT: Tensor, lengths_B: Tensor, known: np.ndarray | None = None) -> Tensor:
        return self.head(self.encoder(ids_BT, lengths_B, known))
