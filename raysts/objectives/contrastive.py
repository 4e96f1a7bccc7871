"""Contrastive objectives: their batches, negatives, and gradient caching.

Shapes: B examples, V views of an example (anchor, positive, hard negative), T tokens, R texts that are embedded at
once, F numbers of a text's embedding, K examples of all processes, N candidates.
"""

from abc import abstractmethod

import numpy as np
import torch
from torch import Tensor, nn

from raysts.models.tokens import LocalBatch
from raysts.objectives.objective import Batch, VectorObjective, token_columns
from raysts.ops import collective


class Contrastive(VectorObjective):
    """Loss of a whole batch, with the examples of all processes as negatives of each other.

    A batch has ``views`` [B, V, T] token ids, ``views_length`` [B, V] and ``there`` [B, V], False for a missing text (a
    pair has no hard negative). To mask false negatives it also has ``digests`` [B, V], a number for each text, and
    ``place`` [B], a number that no other example has (a row may be drawn twice). With several processes ``sizes`` is an
    array of the examples of each.

    Attributes:
        views: text columns of an example's views: the anchor, the positive, and a hard negative.
    """

    views: tuple[str, ...]

    def collate(self, local: LocalBatch) -> Batch:
        """Return the batch. A missing text becomes one token of padding."""
        first = [example[0] for example in local.examples]
        padded = [local.rows[name].take(first).pad(self.encoder.pad_id) for name in self.views]
        longest = max(ids.shape[1] for ids, _ in padded)
        ids = [nn.functional.pad(ids, (0, longest - ids.shape[1]), value=self.encoder.pad_id) for ids, _ in padded]
        lengths_BV = torch.stack([lengths for _, lengths in padded], 1)
        batch: Batch = {"views": torch.stack(ids, 1), "views_length": lengths_BV.clamp(min=1), "there": lengths_BV > 0}
        batch["weight"] = torch.from_numpy(local.weight)
        if (world := collective.world_size()) > 1:
            batch["sizes"] = np.array(collective.sizes(local.size, world))
        if self.settings.false_negatives == "masked":
            digests = [local.rows[name].take(first).digests() for name in self.views]
            batch["digests"] = torch.stack([torch.from_numpy(column) for column in digests], 1)
            batch["place"] = torch.from_numpy(local.seeds)
        return batch

    @abstractmethod
    def embed(self, ids_RT: Tensor, lengths_R: Tensor, host_lengths: np.ndarray | None = None) -> Tensor:
        """Return the numbers that the loss reads of each text -> [R, F]."""

    def vectors(self, batch: Batch) -> tuple[Tensor, ...]:
        """Return the embeddings of this process's examples -> [B, V, F]."""
        ids_BVT, lengths_BV, host_lengths = token_columns(batch, "views")
        host_lengths_R = None if host_lengths is None else host_lengths.reshape(*host_lengths.shape[:-2], -1)
        rows_RF = self.embed_in_chunks(
            self.embed, ids_BVT.flatten(0, 1), lengths_BV.flatten(), host_lengths_R, ids_BVT.shape[1]
        )
        return (rows_RF.unflatten(0, ids_BVT.shape[:2]),)
