"""Contrastive Tension (Carlsson et al. 2021; SED B.2): two encoders pulled together on identical sentences only."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor

from raysts import collective, losses
from raysts.models.encoder import Encoder
from raysts.objectives.objective import Batch, Objective, Settings, Share

PAIRS = 8
"""Pairs in a group: one identical, seven non-identical."""

ROWS = 1 + 2 * (PAIRS - 1)
"""Sentences that a group reads: one for the identical pair, two fresh ones for every other pair."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContrastiveTensionSettings(Settings):
    """Settings of ``ct`` (none so far)."""


class ContrastiveTension(Objective):
    """Binary cross-entropy of dot products between two encoders that start from one checkpoint, both trained.

    A batch of 16 pairs is two groups of one identical and seven non-identical pairs; in a non-identical pair both
    sentences are fresh draws, as in the official code.
    """

    settings_type = ContrastiveTensionSettings
    table = "wikipedia/sentences"
    texts = ("sentence",)
    sentences = 2
    keeps = ("second", "dev")
    stackable = True

    def __init__(self, settings: ContrastiveTensionSettings, encoder: Encoder) -> None:
        super().__init__(settings, encoder)
        self.first = copy.deepcopy(encoder)

    @classmethod
    def problem(cls, batch: int) -> str | None:
        """The batch must hold whole groups."""
        return None if batch % PAIRS == 0 else f"must be a multiple of {PAIRS} (1 identical and 7 non-identical pairs)"

    @classmethod
    def rows_per_batch(cls, batch: int) -> int:
        """15 sentences a group of 8 pairs."""
        return batch // PAIRS * ROWS

    @classmethod
    def examples(cls, rows: int) -> list[tuple[int, ...]]:
        """Per whole group: (i,) the identical pair, then seven pairs (a, b) of fresh sentences."""
        pairs: list[tuple[int, ...]] = []
        for first in range(0, rows - ROWS + 1, ROWS):
            pairs.append((first,))
            pairs += [(first + k, first + k + PAIRS - 1) for k in range(1, PAIRS)]
        return pairs

    def collate(self, share: Share) -> Batch:
        """Ids for the first and the second encoder, and which pairs are identical."""
        sentences, examples = share.rows["sentence"], share.examples
        return {
            **self.pad("a", sentences.take([example[0] for example in examples])),
            **self.pad("b", sentences.take([example[-1] for example in examples])),
            "identical": torch.tensor([float(len(example) == 1) for example in examples]),
            "weight": torch.from_numpy(share.weight),
        }

    def forward(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Binary cross-entropy; how well the sign of the logit tells identical pairs is not worth a scalar."""
        a_BD = self.first(batch["a"], batch["a_length"])
        b_BD = self.encoder(batch["b"], batch["b_length"])
        per_pair_B = losses.contrastive_tension(a_BD, b_BD, batch["identical"])
        return collective.mean(per_pair_B, batch["weight"]), {}

    def candidates(self) -> dict[str, Encoder]:
        """Encoder 2 (the default: on a tie it wins, as in the official code) and encoder 1."""
        return {"second": self.encoder, "first": self.first}
