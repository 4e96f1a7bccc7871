"""GaussCSE (Yoda et al. 2024): sentences as Gaussians, contrasted by an asymmetric similarity.

Shapes: B examples, V views of an example, R texts, T tokens, D dimensions, K examples of all processes.
"""

from functools import partial

import numpy as np
import torch
from torch import Tensor

from raysts.models.encoder import Encoder
from raysts.models.head import GaussianHead
from raysts.objectives.contrastive import Contrastive
from raysts.objectives.objective import Batch
from raysts.ops import collective, losses
from raysts.ops.gaussian import Gaussians, Triplets, contrastive
from raysts.recipes.catalog import GaussCSESettings


class GaussCSE(Contrastive):
    """Equation 4 over NLI triplets, with the examples of all processes as candidates.

    One module serves all four losses.
    """

    def __init__(self, settings: GaussCSESettings, encoder: Encoder) -> None:
        head = GaussianHead(encoder.dim, encoder.dim, settings.activation, settings.similarity)
        super().__init__(settings, encoder.followed_by(head))
        # Read contradictions only if the loss uses them.
        self.views = ("anchor", "positive", "negative") if "con" in settings.loss else ("anchor", "positive")

    def embed(self, ids_RT: Tensor, lengths_R: Tensor, host_lengths: np.ndarray | None = None) -> Tensor:
        """Return mu and log_var side by side -> [R, 2D]."""
        gaussians = self.encoder.represent(ids_RT, lengths_R, host_lengths)
        return torch.cat([gaussians["vectors"], gaussians["log_var"]], -1)

    def loss(self, vectors: tuple[Tensor, ...], batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return equation 4, and the share of premises with the larger variance."""
        (rows_BVF,) = vectors
        local, settings = _triplets(rows_BVF), self.settings
        candidates = _triplets(collective.gather(rows_BVF, batch.get("sizes")))
        counts = self._counts(batch)
        per_row_B = contrastive(local, candidates, counts, settings.loss, settings.temperature, settings.similarity)
        wider_B = local.premise.log_var.detach().sum(-1) > local.hypothesis.log_var.detach().sum(-1)
        return collective.mean(per_row_B, batch["weight"]), {
            "wider_premise": collective.mean(wider_B.float(), batch["weight"])
        }

    def _counts(self, batch: Batch) -> dict[str, Tensor]:
        """Return the candidates of each set, [K], or for each row [B, K]."""
        gather = partial(collective.gather, sizes=batch.get("sizes"))
        present_KV = (gather(batch["weight"]) > 0)[:, None] & gather(batch["there"])
        counts = {"ent": present_KV[:, 1], "con": present_KV[:, -1], "rev": present_KV[:, 0]}
        if "digests" not in batch:
            return counts
        local_BV, all_KV = batch["digests"], gather(batch["digests"])
        same_BK = batch["place"][:, None] == gather(batch["place"])
        for name, view in (("ent", 1), ("con", -1)):
            false_BK = losses.false_negatives(local_BV[:, 0], all_KV[:, 0], all_KV[:, 1], all_KV[:, view])
            counts[name] = counts[name] & (~false_BK | same_BK if name == "ent" else ~false_BK)
        # Another premise of a hypothesis is wider than it too. Only the hypothesis as a premise is excluded.
        counts["rev"] = counts["rev"] & (local_BV[:, 1, None] != all_KV[:, 0])
        return counts


def _triplets(rows_BVF: Tensor) -> Triplets:
    """Return the Gaussians of the V columns of mu and log_var side by side [B, V, 2D]."""
    return Triplets(*(Gaussians(*column.chunk(2, -1)) for column in rows_BVF.unbind(1)))
