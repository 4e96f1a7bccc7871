"""Sentence Ensemble Distillation (SED 4): a student learns the target of an ensemble.

The default target is the mean of the members' embeddings. Shapes: B examples of this process, K of all processes, D
dimensions.
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
    """Distance between the student's embedding and the cached target.

    By default it is the mean squared error from the mean of the members' embeddings (equations 1 and 2). With
    Matryoshka widths the first dimensions learn those of the target, and by ``similarity`` the cosines of the whole
    target.
    """

    def __init__(self, settings: DistillationSettings, encoder: Encoder) -> None:
        width, in_model = settings.projection, settings.keeps_projection
        if width is not None and in_model:
            encoder = encoder.followed_by(Dense(encoder.dim, width, "identity"))
        super().__init__(settings, encoder)
        self.projection = nn.Identity() if width is None or in_model else nn.Linear(encoder.dim, width)

    def vectors(self, batch: Batch) -> tuple[Tensor, ...]:
        return self.projection(self.embed_in_chunks(self.encoder, *token_columns(batch, "sentence"))), batch["teacher"]

    def loss(self, vectors: tuple[Tensor, ...], batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        (student_BD, teacher_BD), weight, loss = vectors, batch["weight"], self.settings.matched
        if loss == "mse":
            return collective.mean(losses.embedding_mse(student_BD, teacher_BD), weight), {}
        if loss == "cosine":
            return collective.mean(losses.embedding_cosine(student_BD, teacher_BD), weight), {}
        if loss == "similarity":
            teacher_BD = batch["teacher"]  # cosines need no common width
        # Every process works on the whole batch: it is small, and the gradients come back through the gather.
        student_KD, teacher_KD, weight = (collective.gather(x) for x in (student_BD, teacher_BD, weight))
        if loss == "similarity":
            return collective.mean(losses.similarity_mse(student_KD, teacher_KD, weight), weight), {}
        temperature = self.settings.temperature or TEMPERATURE
        logits_KK = losses.in_batch_logits(student_KD, teacher_KD, weight[None], temperature)
        positive_K = torch.arange(len(weight), device=logits_KK.device)
        return collective.mean(losses.softmax_cross_entropy(logits_KK, positive_K), weight), {}
