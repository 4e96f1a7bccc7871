"""Whitening (Su et al. 2021): (x - mean) W, which makes the covariance of a finished model's embeddings the identity.

Shapes: B texts, D dimensions, E dimensions kept.
"""

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor

from raysts.models.encoder import Encoder
from raysts.models.head import Dense
from raysts.objectives.objective import Batch, Objective, token_columns
from raysts.ops import collective


def whitening_matrix(covariance_DD: Tensor, dimensions: int) -> Tensor:
    """W = U S^(-1/2) of the covariance's singular value decomposition U S U^T -> [D, E] (Su et al. 2021).

    A direction whose variance is less than float32's eps of the largest holds rounding error alone and becomes 0. There is one
    where a single layer is pooled, since a layer norm confines its output to a hyperplane, and there are more with fewer
    sentences than dimensions. ``dimensions``: E, the directions of largest variance.
    """
    variance_D, directions_DD = (found.flip(-1) for found in torch.linalg.eigh(covariance_DD))
    variance_E = variance_D[:dimensions]
    known_E = variance_E > torch.finfo(torch.float32).eps * variance_D[0].clamp(min=0)
    return directions_DD[:, :dimensions] * torch.where(known_E, variance_E, torch.inf).rsqrt()


class _Moments(Objective):
    """One pass over the sentences sums what mean and covariance need; nothing is trained.

    The loss it reports is the variance per dimension of the sentences so far.
    """

    count: Tensor
    sum_D: Tensor
    products_DD: Tensor

    def __init__(self, settings: Any, encoder: Encoder) -> None:
        super().__init__(settings, encoder.requires_grad_(False))
        dim = encoder.dim
        if settings.dimensions is not None and settings.dimensions > dim:
            raise ValueError(f"dimensions={settings.dimensions} must be at most those of the model, {dim}")
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        self.register_buffer("sum_D", torch.zeros(dim, dtype=torch.float64))
        self.register_buffer("products_DD", torch.zeros(dim, dim, dtype=torch.float64))

    @torch.no_grad()
    def forward(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Add the batch to the sums of all processes; the loss has no gradient."""
        x_BD = self.encoder(*token_columns(batch, "sentence")).double()
        weight_B = batch["weight"].double()
        weighted_BD = x_BD * weight_B[:, None]
        self.count += collective.total(weight_B.sum())
        self.sum_D += collective.total(weighted_BD.sum(0))
        self.products_DD += collective.total(x_BD.T @ weighted_BD)
        mean_D = self.sum_D / self.count
        variance_D = self.products_DD.diagonal() / self.count - mean_D.square()
        return variance_D.mean().float(), {}

    @staticmethod
    @abstractmethod
    def matrix(covariance_DD: Tensor, kept: int) -> Tensor:
        """What vectors without their mean are multiplied by [D, E], float64."""

    @torch.no_grad()
    def candidates(self) -> dict[str, Encoder]:
        """The model with the whitening behind it; before two sentences are known it leaves vectors as they are."""
        dim = len(self.sum_D)
        kept = self.settings.dimensions or dim
        head = Dense(dim, kept, "identity").requires_grad_(False).to(self.sum_D.device)
        mean_D, matrix_DE = torch.zeros_like(self.sum_D), torch.eye(dim, kept).to(self.sum_D)
        if self.count > 1:
            mean_D = self.sum_D / self.count
            matrix_DE = self.matrix((self.products_DD - torch.outer(mean_D, self.sum_D)) / (self.count - 1), kept)
        head.linear.weight.copy_(matrix_DE.T)
        head.linear.bias.copy_(-mean_D @ matrix_DE)
        return {"encoder": self.encoder.followed_by(head)}


class Whiten(_Moments):
    """Embeddings get mean 0 and covariance I (Su et al. 2021)."""

    @staticmethod
    def matrix(covariance_DD: Tensor, kept: int) -> Tensor:
        return whitening_matrix(covariance_DD, kept)


class Centre(_Moments):
    """The mean of the sentences is taken away, and no more: the least that whitening and flows must be better than."""

    @staticmethod
    def matrix(covariance_DD: Tensor, kept: int) -> Tensor:
        return torch.eye(kept).to(covariance_DD)
