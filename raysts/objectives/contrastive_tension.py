"""Contrastive Tension (Carlsson et al. 2021; SED B.2): two encoders pulled together on identical sentences only."""

import copy

import torch
from torch import Tensor

from raysts.models.encoder import Encoder
from raysts.objectives.kinds.contrastive_tension import (
    AnchoredContrastiveTensionKind,
    ContrastiveTensionKind,
    ContrastiveTensionSettings,
    TensionKind,
)
from raysts.objectives.objective import Batch, LocalBatch, VectorObjective, texts
from raysts.ops import collective, losses


class _Tension(TensionKind, VectorObjective):
    """Binary cross-entropy of dot products between two encoders that start from one checkpoint, both trained."""

    def __init__(self, settings: ContrastiveTensionSettings, encoder: Encoder) -> None:
        super().__init__(settings, encoder)
        assert isinstance(self, self.variant(settings)), "the settings ask for another class"
        self.first = copy.deepcopy(encoder)

    def collate(self, local: LocalBatch) -> Batch:
        """Ids for the first and the second encoder, and which pairs are identical."""
        sentences, examples = local.rows["sentence"], local.examples
        return {
            **self.pad("a", sentences.take([example[0] for example in examples])),
            **self.pad("b", sentences.take([example[-1] for example in examples])),
            "identical": torch.tensor([float(len(example) == 1) for example in examples]),
            "weight": torch.from_numpy(local.weight),
        }

    def vectors(self, batch: Batch) -> tuple[Tensor, ...]:
        return self.in_parts(self.first, *texts(batch, "a")), self.in_parts(self.encoder, *texts(batch, "b"))

    def loss_of(self, vectors: tuple[Tensor, ...], batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Binary cross-entropy; how well the sign of the logit tells identical pairs is not worth a scalar."""
        a_BD, b_BD = vectors
        per_pair_B = losses.contrastive_tension(a_BD, b_BD, batch["identical"])
        loss = collective.mean(per_pair_B, batch["weight"])
        if self.settings.reduction == "sum":
            loss = loss * collective.total(batch["weight"].sum())
        return loss, {}

    def candidates(self) -> dict[str, Encoder]:
        """Encoder 2 (the default: on a tie it wins, as in the official code) and encoder 1."""
        return {"second": self.encoder, "first": self.first}


class ContrastiveTension(ContrastiveTensionKind, _Tension):
    """A batch of 16 pairs is two groups of one identical and seven non-identical pairs of fresh sentences."""


class AnchoredContrastiveTension(AnchoredContrastiveTensionKind, _Tension):
    """A group's seven non-identical pairs share their first sentence with the identical one."""
