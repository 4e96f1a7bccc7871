"""What the contrastive objectives share: their batches, what counts as a negative, and gradient caching.

Shapes: B examples, V views of an example (anchor, positive, hard negative), T tokens, R texts that are embedded at once, F
numbers of a text's embedding, K examples of all processes, N candidates.
"""

from abc import abstractmethod

import numpy as np
import torch
from torch import Tensor

from raysts.models.tokens import LocalBatch
from raysts.objectives.objective import Batch, VectorObjective, token_columns
from raysts.ops import collective


class Contrastive(VectorObjective):
    """A loss of the embeddings of a whole batch, in which the examples of all processes are each other's negatives.

    A batch is ``views`` [B, V, T] token ids, ``views_length`` [B, V], ``there`` [B, V], whether there is such a text (a
    pair has no hard negative), and where false negatives are masked ``digests`` [B, V], a number for each text, and
    ``place`` [B], one that no other example of the batch has (a row may be drawn twice); of several processes ``sizes``, an
    array of how many examples each has.

    Attributes:
        views: text columns of an example's views: the anchor, the positive, and a hard negative.
    """

    views: tuple[str, ...]

    def collate(self, local: LocalBatch) -> Batch:
        """See the class; a text that is not there is read as one token of padding."""
        batch = self.pad_together("views", local, self.views)
        batch["there"] = batch["views_length"] > 0
        batch["views_length"] = batch["views_length"].clamp(min=1)
        if (world := collective.world_size()) > 1:
            batch["sizes"] = np.array(collective.sizes(local.size, world))
        if self.settings.false_negatives == "masked":
            first = [example[0] for example in local.examples]
            digests = [local.rows[name].take(first).digests() for name in self.views]
            batch["digests"] = torch.stack([torch.from_numpy(column) for column in digests], 1)
            batch["place"] = torch.from_numpy(local.seeds)
        return batch

    @abstractmethod
    def embed(self, ids_RT: Tensor, lengths_R: Tensor, known: np.ndarray | None = None) -> Tensor:
        """What the loss knows of texts -> [R, F], each by itself."""

    def vectors(self, batch: Batch) -> tuple[Tensor, ...]:
        """The embeddings of this process's examples, [B, V, F]."""
        ids_BVT, lengths_BV, known = token_columns(batch, "views")
        known_R = None if known is None else known.reshape(*known.shape[:-2], -1)
        rows_RF = self.embed_in_chunks(
            self.embed, ids_BVT.flatten(0, 1), lengths_BV.flatten(), known_R, ids_BVT.shape[1]
        )
        return (rows_RF.unflatten(0, ids_BVT.shape[:2]),)
