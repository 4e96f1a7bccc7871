"""Contrastive Tension (Carlsson et al. 2021, SED B.2): two encoders that learn to agree.

They are pulled together on identical sentences only.
"""

import copy

import torch
from torch import Tensor

from raysts.models.encoder import Encoder
from raysts.models.tokens import LocalBatch
from raysts.objectives.objective import Batch, VectorObjective, token_columns
from raysts.ops import collective, losses
from raysts.recipes.catalog import ContrastiveTensionSettings


class ContrastiveTension(VectorObjective):
    """Binary cross-entropy of dot products of two trained encoders from one checkpoint."""

    def __init__(self, settings: ContrastiveTensionSettings, encoder: Encoder) -> None:
        super().__init__(settings, encoder)
        self.first = copy.deepcopy(encoder)

    def collate(self, local: LocalBatch) -> Batch:
        """Return the ids for the first and the second encoder, and a mark on identical pairs."""
        sentences, examples = local.rows["sentence"], local.examples
        return {
            **self.pad("a", sentences.take([example[0] for example in examples])),
            **self.pad("b", sentences.take([example[-1] for example in examples])),
            "identical": torch.tensor([float(len(example) == 1) for example in examples]),
            "weight": torch.from_numpy(local.weight),
        }

    def vectors(self, batch: Batch) -> tuple[Tensor, ...]:
        a_BD = self.embed_in_chunks(self.first, *token_columns(batch, "a"))
        return a_BD, self.embed_in_chunks(self.encoder, *token_columns(batch, "b"))

    def loss(self, vectors: tuple[Tensor, ...], batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the binary cross-entropy."""
        a_BD, b_BD = vectors
        per_pair_B = losses.contrastive_tension(a_BD, b_BD, batch["identical"])
        loss = collective.mean(per_pair_B, batch["weight"])
        if self.settings.reduction == "sum":
            loss = loss * collective.total(batch["weight"].sum())
        return loss, {}

    def candidates(self) -> dict[str, Encoder]:
        """Return encoder 2, which wins a tie as in the official code, and encoder 1."""
        return {"second": self.encoder, "first": self.first}
