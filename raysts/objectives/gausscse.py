"""GaussCSE (Yoda et al. 2024): sentences as Gaussians, contrasted by an asymmetric similarity.

Shapes: B examples, V views of an example, R texts, T tokens, D dimensions, K examples of all processes.
"""

from functools import partial

import numpy as np
import torch
from torch import Tensor

from raysts.models.encoder import Encoder
from raysts.models.gaussian_head import GaussianHead
from raysts.objectives.contrastive import Contrastive
from raysts.objectives.objective import Batch
from raysts.ops import collective, losses
from raysts.ops.gaussian import Gaussians, Triplets, contrastive
from raysts.recipes.catalog import GaussCSESettings


class GaussCSE(Contrastive):
    """Equation 4 over NLI triplets, with the examples of all processes as candidates; one model for all four losses."""

    def __init__(self, settings: GaussCSESettings, encoder: Encoder) -> None:
        head = GaussianHead(encoder.dim, encoder.dim, settings.activation, settings.similarity)
        super().__init__(settings, encoder.followed_by(head))
        # Contradictions are read where the loss has a use for them.
        self.views = ("anchor", "positive", "negative") if "con" in settings.loss else ("anchor", "positive")

    def embed(self, ids_RT: Tensor, lengths_R: Tensor, known: np.ndarray | None = None) -> Tensor:
        """mu and log_var side by side, [R, 2D]."""
        found = self.encoder.represent(ids_RT, lengths_R, known)
        return torch.cat([found["vectors"], found["log_var"]], -1)

    def loss(self, vectors: tuple[Tensor, ...], batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Equation 4, and how often the premise has the larger variance."""
        (own_BVF,) = vectors
        own, settings = _triplets(own_BVF), self.settings
        candidates = _triplets(collective.gather(own_BVF, batch.get("sizes")))
        counts = self._counts(batch)
        per_row_B = contrastive(own, candidates, counts, settings.loss, settings.temperature, settings.similarity)
        wider_B = own.premise.log_var.detach().sum(-1) > own.hypothesis.log_var.detach().sum(-1)
        return collective.mean(per_row_B, batch["weight"]), {
            "wider_premise": collective.mean(wider_B.float(), batch["weight"])
        }

    def _counts(self, batch: Batch) -> dict[str, Tensor]:
        """Which candidates each set has, [K], or for each row [B, K]."""
        gather = partial(collective.gather, sizes=batch.get("sizes"))
        there_KV = (gather(batch["weight"]) > 0)[:, None] & gather(batch["there"])
        counts = {"ent": there_KV[:, 1], "con": there_KV[:, -1], "rev": there_KV[:, 0]}
        if "digests" not in batch:
            return counts
        own_BV, all_KV = batch["digests"], gather(batch["digests"])
        own_BK = batch["place"][:, None] == gather(batch["place"])
        for name, view in (("ent", 1), ("con", -1)):
            false_BK = losses.false_negatives(own_BV[:, 0], all_KV[:, 0], all_KV[:, 1], all_KV[:, view])
            counts[name] = counts[name] & (~false_BK | own_BK if name == "ent" else ~false_BK)
        # What else entails a hypothesis is wider than it as its own premise is: only the hypothesis itself is not.
        counts["rev"] = counts["rev"] & (own_BV[:, 1, None] != all_KV[:, 0])
        return counts


def _triplets(rows_BVF: Tensor) -> Triplets:
    """mu and log_var side by side [B, V, 2D] -> the Gaussians of the V columns."""
    return Triplets(*(Gaussians(*column.chunk(2, -1)) for column in rows_BVF.unbind(1)))
