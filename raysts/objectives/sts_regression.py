"""Regression of similarity scores with a lower bound on the target (Sentence-BERT, SED 5.5)."""

from torch import Tensor

from raysts.objectives.objective import Batch, VectorObjective
from raysts.ops import collective, losses


class STSRegression(VectorObjective):
    """(cos(u, v) - (l + (1 - l) score / 5))^2."""

    def vectors(self, batch: Batch) -> tuple[Tensor, ...]:
        return self.embed_pair(batch, "sentence1", "sentence2")

    def loss(self, vectors: tuple[Tensor, ...], batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        u_BD, v_BD = vectors
        per_pair_B = losses.sts_regression(u_BD, v_BD, batch["score"], self.settings.lower_bound)
        return collective.mean(per_pair_B, batch["weight"]), {}
