"""Heads that are exported with their module: flows and latent distributions of tokens.

Latte-Mix, section 2, defines how the mixtures of two texts compare.

Shapes: B texts, N tokens, H hidden dimensions, W numbers per token, D dimensions of a vector.
"""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar

import numpy as np
from torch import Tensor

from raysts.models.head import Head
from raysts.models.shipped import glow, latent
from raysts.ops.similarity import Similarity, cosine_of_vectors, jensen_shannon, l2_mixture, l2_of_vectors

M = TypeVar("M", bound=Any)
Arrays = Mapping[str, np.ndarray]


def jensen_shannon_of_vectors(classes: int, a: Arrays, b: Arrays) -> np.ndarray:
    """Return the negated Jensen-Shannon divergence of ``vectors``: distributions over ``classes``."""
    p, q = (side["vectors"].reshape(len(side["vectors"]), -1, classes) for side in (a, b))
    return jensen_shannon(p, q)


def l2_of_mixtures(a: Arrays, b: Arrays) -> np.ndarray:
    """Return the negated L2 distance of the mixtures of the tokens' Gaussians."""
    return l2_mixture(a["mu"], a["log_var"], b["mu"], b["log_var"])


class ShippedHead(Head, Generic[M]):
    """Head around a module that travels with an export.

    Class attributes:
        kind: the module's class.
    """

    kind: ClassVar[type]

    def __init__(self, shipped: M) -> None:
        super().__init__()
        self.shipped = shipped

    @property
    def dim(self) -> int:
        return self.shipped.dim

    def config(self) -> dict[str, Any]:
        return self.shipped.config()

    def save(self, folder: Path) -> None:
        self.shipped.save(folder)

    @classmethod
    def load(cls, folder: Path) -> Self:
        return cls(cls.kind.load(folder))  # type: ignore[attr-defined]


class FlowHead(ShippedHead[glow.Glow]):
    """Flow that maps pooled vectors to z: [B, D] -> [B, D]."""

    module = "raysts_glow.Glow"
    source = Path(glow.__file__)
    kind = glow.Glow

    def forward(self, x: Tensor) -> Tensor:
        return self.shipped.encode(x)


class LatentHead(ShippedHead[M]):
    """Latent module in front of the mean pooling: [N, H] -> [N, W]."""

    reads = "tokens"
    source = Path(latent.__file__)

    def forward(self, x: Tensor) -> Tensor:
        return self.shipped.embed(x)


class CategoricalHead(LatentHead[latent.Categorical]):
    """Latte-Mix: the mixture of the categorical distributions of a text's tokens."""

    module = "raysts_latent.Categorical"
    kind = latent.Categorical

    def similarities(self) -> dict[str, Similarity]:
        """Return ``cosine``, ``js`` (mean over the variables) and ``l2`` of the probabilities."""
        js = partial(jensen_shannon_of_vectors, self.shipped.classes)
        return {"cosine": cosine_of_vectors, "js": js, "l2": l2_of_vectors}


class NormalHead(LatentHead[latent.Normal]):
    """Normal-VAE baseline: the mixture of the Gaussians of a text's tokens.

    ``vectors`` is the mean of their mu.
    """

    module = "raysts_latent.Normal"
    kind = latent.Normal
    ragged = ("mu", "log_var")

    def represent(self, x: Tensor) -> dict[str, Tensor]:
        """Return ``vectors``, ``mu`` and ``log_var``, all [N, D]."""
        mu, log_var = self.shipped.gaussians(x)
        return {"vectors": mu, "mu": mu, "log_var": log_var}

    def similarities(self) -> dict[str, Similarity]:
        """Return ``l2_mixture`` of the mixtures and ``l2_mean`` of the means of mu."""
        return {"l2_mixture": l2_of_mixtures, "l2_mean": l2_of_vectors}


class PointHead(LatentHead[latent.Point]):
    """Autoencoder baseline: the mean of the codes of a text's tokens, compared by cosine."""

    module = "raysts_latent.Point"
    kind = latent.Point
