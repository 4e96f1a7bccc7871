"""Sentence Ensemble Distillation (SED 4): a student learns the mean embedding of an ensemble."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from raysts import collective, losses
from raysts.objectives.objective import Batch, Objective, Settings, Share


@dataclass(frozen=True, slots=True, kw_only=True)
class DistillationSettings(Settings):
    """Settings of ``sed`` (none so far)."""


class Distillation(Objective):
    """MSE between the student's embedding and the cached mean of the members' embeddings (equations 1 and 2)."""

    settings_type = DistillationSettings
    table = "wikipedia/sentences"
    texts = ("sentence",)
    values = ("teacher",)
    stackable = True

    def collate(self, share: Share) -> Batch:
        """Ids and teacher means."""
        rows, index = share.rows, [example[0] for example in share.examples]
        return {
            **self.pad("sentence", rows["sentence"].take(index)),
            "teacher": torch.from_numpy(np.asarray(rows["teacher"])[index]),
            "weight": torch.from_numpy(share.weight),
        }

    def forward(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Mean squared error over dimensions."""
        student_BD = self.encoder(batch["sentence"], batch["sentence_length"])
        return collective.mean(losses.embedding_mse(student_BD, batch["teacher"]), batch["weight"]), {}
