"""SimCSE (Gao et al. 2021): contrast of a sentence with the other sentences of the batch.

Shapes: B examples, V views of an example (anchor, positive, hard negative), T tokens, D embedding dimensions.
"""

from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from raysts.models.encoder import Encoder
from raysts.models.head import Dense
from raysts.objectives.contrastive import Contrastive
from raysts.objectives.objective import Batch
from raysts.ops import collective, losses
from raysts.recipes.catalog import SimCSESettings


class SimCSE(Contrastive):
    """InfoNCE over the examples of all processes.

    The negatives of an anchor are the positives and hard negatives of the other examples. ``head`` serves training alone.
    """

    def __init__(self, settings: SimCSESettings, encoder: Encoder, head: nn.Module | None = None) -> None:
        super().__init__(settings, encoder)
        self.head = head or nn.Identity()

    def embed(self, ids_BT: Tensor, lengths_B: Tensor, host_lengths: np.ndarray | None = None) -> Tensor:
        return self.head(self.encoder(ids_BT, lengths_B, host_lengths))

    def loss(self, vectors: tuple[Tensor, ...], batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return InfoNCE, and the share of positives that are nearest to their anchor."""
        gather = partial(collective.gather, sizes=batch.get("sizes"))
        (rows_BVF,) = vectors
        # Every process works on the whole batch: it is small, and the gradients come back through the gather.
        anchors_KD, *candidates = gather(rows_BVF).unbind(1)
        weight_K = gather(batch["weight"])
        counts_N = (weight_K[:, None] * gather(batch["there"])[:, 1:]).T.flatten()
        if "digests" in batch:
            anchor_K, *texts = gather(batch["digests"]).unbind(1)
            counts_N = counts_N * ~losses.false_negatives(anchor_K, anchor_K, texts[0], torch.cat(texts))
        logits_KN = losses.batch_logits(anchors_KD, torch.cat(candidates), counts_N, self.settings.temperature)
        positive_K = torch.arange(len(weight_K), device=logits_KN.device)
        loss = collective.mean(losses.softmax_cross_entropy(logits_KN, positive_K), weight_K)
        right_K = (logits_KN.detach().argmax(-1) == positive_K).float()
        return loss, {"accuracy": collective.mean(right_K, weight_K)}


class SupervisedSimCSE(SimCSE):
    """Anchor premise, positive entailment, hard negative contradiction.

    A dense head with tanh belongs to the model.
    """

    views = ("anchor", "positive", "negative")

    def __init__(self, settings: SimCSESettings, encoder: Encoder) -> None:
        if settings.head == "tanh":
            encoder = encoder.followed_by(Dense(encoder.dim, encoder.dim, "tanh"))
        super().__init__(settings, encoder)


class UnsupervisedSimCSE(SimCSE):
    """Two dropout passes of one sentence, with a dense head with tanh that serves training alone."""

    views = ("sentence", "sentence")

    def __init__(self, settings: SimCSESettings, encoder: Encoder) -> None:
        head = Dense(encoder.dim, encoder.dim, "tanh") if settings.head == "tanh" else None
        super().__init__(settings, encoder, head)
