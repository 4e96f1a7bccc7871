"""Sentence Ensemble Distillation (SED 4): a student learns what an ensemble gives, by default the mean of its embeddings.

Shapes: B examples of this process, K of all processes, D dimensions.
"""

import torch
from torch import Tensor, nn

from raysts.models.encoder import Encoder
from raysts.models.head import Dense
from raysts.objectives.objective import Batch, VectorObjective, token_columns
from raysts.ops import collective, losses
from raysts.recipes.catalog import DistillationSettings

TEMPERATURE = 0.05


class Distillation(VectorObjective):
    """The distance between the student's embedding and the cached target; with the defaults the mean squared error from the
    mean of the members' embeddings (equations 1 and 2).

    The first dimensions learn those of the target, by ``similarity`` the cosines of the whole of it.
    """

    def __init__(self, settings: DistillationSettings, encoder: Encoder) -> None:
        width, kept = settings.projection, settings.keeps_projection
        if width is not None and kept:
            encoder = encoder.followed_by(Dense(encoder.dim, width, "identity"))
        super().__init__(settings, encoder)
        self.projection = nn.Identity() if width is None or kept else nn.Linear(encoder.dim, width)

    def vectors(self, batch: Batch) -> tuple[Tensor, ...]:
        return self.projection(self.embed_in_chunks(self.encoder, *token_columns(batch, "sentence"))), batch["teacher"]

    def loss(self, vectors: tuple[Tensor, ...], batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        (student_BD, teacher_BD), weight, loss = vectors, batch["weight"], self.settings.matched
        if loss == "mse":
            return collective.mean(losses.embedding_mse(student_BD, teacher_BD), weight), {}
        if loss == "cosine":
            return collective.mean(losses.embedding_cosine(student_BD, teacher_BD), weight), {}
        if loss == "similarity":
            teacher_BD = batch["teacher"]  # whose cosines need no common width
        # Every process works on the whole batch: it is small, and the gradients come back through the gather.
        student_KD, teacher_KD, weight = (collective.gather(x) for x in (student_BD, teacher_BD, weight))
        if loss == "similarity":
            return collective.mean(losses.similarity_mse(student_KD, teacher_KD, weight), weight), {}
        temperature = self.settings.temperature or TEMPERATURE
        logits_KK = losses.in_batch_logits(student_KD, teacher_KD, weight[None], temperature)
        own_K = torch.arange(len(weight), device=logits_KK.device)
        return collective.mean(losses.softmax_cross_entropy(logits_KK, own_K), weight), {}
