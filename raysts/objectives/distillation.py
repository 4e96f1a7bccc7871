"""Sentence Ensemble Distillation (SED 4): a student learns the mean embedding of an ensemble."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from raysts.models.encoder import Encoder
from raysts.models.head import Dense
from raysts.objectives.objective import Batch, Objective, Settings, texts
from raysts.ops import collective, losses


@dataclass(frozen=True, slots=True, kw_only=True)
class DistillationSettings(Settings):
    """Settings of ``sed``.

    Attributes:
        projection: dimensions of the members' embeddings, where they are not the student's: a linear layer behind the
            student's pooling, which the student keeps; none: members and student are of one width.
    """

    projection: int | None = None

    def __post_init__(self) -> None:
        if self.projection is not None and self.projection < 1:
            raise ValueError(f"projection={self.projection} must be the number of dimensions of the members, or none")


class Distillation(Objective):
    """MSE between the student's embedding and the cached mean of the members' embeddings (equations 1 and 2)."""

    settings_type = DistillationSettings
    table = "wikipedia/sentences"
    texts = ("sentence",)
    values = ("teacher",)
    stackable = True
    scales = {"paper": {"data.sample": 100_000, "train.eval_first": False}, "small": {"data.sample": 20_000}}

    def __init__(self, settings: DistillationSettings, encoder: Encoder) -> None:
        if settings.projection is not None:
            encoder = encoder.followed_by(Dense(encoder.dim, settings.projection, "identity"))
        super().__init__(settings, encoder)

    def forward(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        student_BD = self.encoder(*texts(batch, "sentence"))
        return collective.mean(losses.embedding_mse(student_BD, batch["teacher"]), batch["weight"]), {}
