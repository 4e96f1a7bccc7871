"""Head for diagonal Gaussians of sentences, and their comparison (GaussCSE, section 2.3).

Shapes: B texts, N pairs, H hidden, D dimensions.
"""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from raysts.models.head import Dense, Head
from raysts.ops.gaussian import KINDS, Gaussians, Kind
from raysts.ops.similarity import Similarity, cosine_of_vectors

LOG_VAR = "log_var.safetensors"
"""File with the weights of log_var, beside those of mu. Its metadata names the similarity."""

NAMES: dict[Kind, str] = {"per_dimension": "gauss", "paper": "gauss-paper"}
"""Names of the two similarities in the results table."""

_PAIRS = 1024  # pairs compared together: [1024, 768] float64 stays in the cache


class GaussianHead(Head):
    """Head with mu = activation(W_mu h + b_mu) as vector and log_var = W_v h + b_v.

    On disk it is sentence-transformers' Dense module for mu, which loads there alone, with the weights of log_var in a
    second file. ``activation`` of mu: ``tanh`` (official code) or ``identity`` (the paper's formula). ``kind``: the
    similarity of training and comparison.
    """

    module = Dense.module

    def __init__(
        self, in_features: int, out_features: int, activation: str = "tanh", kind: Kind = "per_dimension"
    ) -> None:
        super().__init__()
        if kind not in KINDS:
            raise ValueError(f"similarity={kind!r} must be one of {', '.join(KINDS)}")
        self.mu = Dense(in_features, out_features, activation)
        self.log_var = nn.Linear(in_features, out_features)
        self.kind = kind

    @property
    def dim(self) -> int:
        return self.mu.dim

    def forward(self, x: Tensor) -> Tensor:
        return self.mu(x)

    def gaussians(self, x: Tensor) -> Gaussians:
        """Return the Gaussians of [B, H] -> [B, D] float32."""
        return Gaussians(self.mu(x), self.log_var(x).float())

    def represent(self, x: Tensor) -> dict[str, Tensor]:
        """Return ``vectors``, which are mu, and ``log_var``."""
        return dict(zip(("vectors", "log_var"), self.gaussians(x), strict=True))

    def similarities(self) -> dict[str, Similarity]:
        """Return sim(a || b), which depends on the order, and the cosine of mu."""
        return {NAMES[self.kind]: partial(similarity, kind=self.kind), "cosine": cosine_of_vectors}

    def config(self) -> dict[str, Any]:
        return {
            "in_features": self.log_var.in_features,
            "out_features": self.dim,
            "activation": self.mu.activation,
            "kind": self.kind,
        }

    def save(self, folder: Path) -> None:
        self.mu.save(folder)
        state = {name: value.detach().cpu().contiguous() for name, value in self.log_var.state_dict().items()}
        save_file(state, folder / LOG_VAR, metadata={"similarity": self.kind})

    @classmethod
    def load(cls, folder: Path) -> Self:
        mu = Dense.load(folder)
        with safe_open(folder / LOG_VAR, "pt") as file:
            metadata: Any = file.metadata() or {}
        head = cls(mu.linear.in_features, mu.dim, mu.activation, metadata.get("similarity"))
        head.mu = mu
        head.log_var.load_state_dict(load_file(folder / LOG_VAR))
        return head


def similarity(a: Mapping[str, np.ndarray], b: Mapping[str, np.ndarray], kind: Kind) -> np.ndarray:
    """Return sim(a || b) of corresponding rows -> float64 [N] in (0, 1] (GaussCSE, equation 3).

    ``kind``: see ``raysts.ops.gaussian.Kind``.
    """
    similarity_N = np.empty(len(a["vectors"]))
    for first in range(0, len(similarity_N), _PAIRS):
        rows = slice(first, first + _PAIRS)
        (mu_a, log_var_a), (mu_b, log_var_b) = (
            (x["vectors"][rows].astype(np.float64), x["log_var"][rows].astype(np.float64)) for x in (a, b)
        )
        difference = log_var_a - log_var_b
        kl_ND = 0.5 * (np.expm1(difference) - difference + (mu_a - mu_b) ** 2 * np.exp(-log_var_b))
        similarity_N[rows] = (1 / (1 + kl_ND)).mean(1) if kind == "per_dimension" else 1 / (1 + kl_ND.sum(1))
    return similarity_N
