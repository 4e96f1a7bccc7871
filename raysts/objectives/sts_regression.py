"""Regression of similarity scores with a lower bound on the target (Sentence-BERT; SED 5.5)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from raysts.objectives.objective import Batch, Settings, VectorObjective, embed_pair
from raysts.ops import collective, losses


@dataclass(frozen=True, slots=True, kw_only=True)
class STSRegressionSettings(Settings):
    """Settings of ``sts``.

    Attributes:
        lower_bound: cosine that a pair of score 0 is trained towards, in [0, 1); a pair of score 5 has 1.
    """

    lower_bound: float = 0.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.lower_bound < 1.0:
            raise ValueError(f"lower_bound {self.lower_bound} must be in [0, 1)")


class STSRegression(VectorObjective):
    """(cos(u, v) - (l + (1 - l) score / 5))^2."""

    settings_type = STSRegressionSettings
    table = "sts/stsb_train"
    texts = ("sentence1", "sentence2")
    values = ("score",)
    sentences = 2
    keeps = ("best", "last")
    stackable = True
    scales = {"paper": {"train.eval_first": False, "layers": 2}}

    def vectors(self, batch: Batch) -> tuple[Tensor, ...]:
        return embed_pair(self.encoder, batch, "sentence1", "sentence2")

    def loss_of(self, vectors: tuple[Tensor, ...], batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        u_BD, v_BD = vectors
        per_pair_B = losses.sts_regression(u_BD, v_BD, batch["score"], self.settings.lower_bound)
        return collective.mean(per_pair_B, batch["weight"]), {}
