"""Whitening (Su et al. 2021): (x - mean) W, which makes the covariance of embeddings I.

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
    """Return W = U S^(-1/2) of the covariance U S U^T -> [D, E] (Su et al. 2021).

    A direction with a variance below float32's eps of the largest holds rounding error alone and becomes 0. One exists
    if a single layer is pooled, since a layer norm confines its output to a hyperplane, and more exist with fewer
    sentences than dimensions. ``dimensions``: E, the directions of largest variance.
    """
    variance_D, directions_DD = (values.flip(-1) for values in torch.linalg.eigh(covariance_DD))
    variance_E = variance_D[:dimensions]
    nonzero_E = variance_E > torch.finfo(torch.float32).eps * variance_D[0].clamp(min=0)
    return directions_DD[:, :dimensions] * torch.where(nonzero_E, variance_E, torch.inf).rsqrt()


class _Moments(Objective):
    """Sums for mean and covariance from one pass over the sentences, without training.

    The reported loss is the variance per dimension of the sentences so far.
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
        """Add the batch to the sums of all processes. The loss has no gradient."""
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
    def matrix(covariance_DD: Tensor, dimensions: int) -> Tensor:
        """Return the matrix that multiplies centred vectors [D, E], float64."""

    @torch.no_grad()
    def candidates(self) -> dict[str, Encoder]:
        """Return the model with the whitening behind it.

        The head is the identity before the second sentence.
        """
        dim = len(self.sum_D)
        dimensions = self.settings.dimensions or dim
        head = Dense(dim, dimensions, "identity").requires_grad_(False).to(self.sum_D.device)
        mean_D, matrix_DE = torch.zeros_like(self.sum_D), torch.eye(dim, dimensions).to(self.sum_D)
        if self.count > 1:
            mean_D = self.sum_D / self.count
            matrix_DE = self.matrix((self.products_DD - torch.outer(mean_D, self.sum_D)) / (self.count - 1), dimensions)
        head.linear.weight.copy_(matrix_DE.T)
        head.linear.bias.copy_(-mean_D @ matrix_DE)
        return {"encoder": self.encoder.followed_by(head)}


class Whiten(_Moments):
    """Whitening to mean 0 and covariance I (Su et al. 2021)."""

    @staticmethod
    def matrix(covariance_DD: Tensor, dimensions: int) -> Tensor:
        return whitening_matrix(covariance_DD, dimensions)


class Centre(_Moments):
    """Subtraction of the mean of the sentences, the baseline of whitening and flows."""

    @staticmethod
    def matrix(covariance_DD: Tensor, dimensions: int) -> Tensor:
        return torch.eye(dimensions).to(covariance_DD)
