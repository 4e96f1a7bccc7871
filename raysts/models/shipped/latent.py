"""Latent distributions of token vectors, as modules of sentence-transformers (Latte-Mix, section 2.3).

They stand between a transformer and its mean pooling. This file is copied beside a saved model as ``raysts_latent.py``,
where sentence-transformers runs it: it imports nothing of raysts.

Shapes: N tokens (any leading axes in ``encode`` and ``embed``), H hidden dimensions, V latent variables, K classes, D
latent dimensions, W numbers per token that the pooling averages.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn


def mlp(sizes: list[int]) -> nn.Sequential:
    """Return linear layers of these sizes with ReLU between them."""
    parts: list[nn.Module] = []
    for wide, narrow in zip(sizes, sizes[1:]):  # noqa: B905 (one shorter on purpose)
        parts += [nn.ReLU(), nn.Linear(wide, narrow)] if parts else [nn.Linear(wide, narrow)]
    return nn.Sequential(*parts)


class Latent(nn.Module, ABC):
    """MLP from token vectors to the parameters of a latent distribution, so many per token."""

    def __init__(self, in_features: int, parameters: int, layers: int, hidden: int) -> None:
        super().__init__()
        self.in_features, self.layers, self.hidden = in_features, layers, hidden
        self.encoder = mlp([in_features, *[hidden] * (layers - 1), parameters])

    @property
    @abstractmethod
    def dim(self) -> int:
        """W."""

    @abstractmethod
    def embed(self, u_NH: Tensor) -> Tensor:
        """Map token vectors to what the pooling averages [N, W], without noise."""

    @abstractmethod
    def config(self) -> dict[str, Any]:
        """Arguments of the constructor."""

    def encode(self, u_NH: Tensor) -> Tensor:
        """Return the parameters [N, ...] in float32 or better: a small temperature magnifies rounding."""
        first = self.encoder[0]
        assert isinstance(first, nn.Linear)
        with torch.autocast(u_NH.device.type, enabled=False):
            parameters = self.encoder(u_NH.to(first.weight.dtype))
        return parameters if parameters.dtype == torch.float64 else parameters.float()

    def forward(self, features: dict[str, Any]) -> dict[str, Any]:
        """Replace ``token_embeddings`` [B, T, H] by [B, T, W], as a module of sentence-transformers does."""
        features["token_embeddings"] = self.embed(features["token_embeddings"])
        return features

    def get_embedding_dimension(self) -> int:
        return self.dim

    def save(self, folder: str | Path, safe_serialization: bool = True) -> None:
        """Write ``config.json`` and ``model.safetensors`` into ``folder``, and this file beside it."""
        assert safe_serialization, "weights are written as safetensors alone"
        place = Path(folder)
        (place / "config.json").write_text(json.dumps(self.config(), indent=2) + "\n", encoding="utf-8")
        state = {name: value.detach().cpu().contiguous() for name, value in self.state_dict().items()}
        save_file(state, place / "model.safetensors")
        # sentence-transformers copies the code into folder, and looks for it in the folder above.
        (place.parent / "raysts_latent.py").write_bytes(Path(__file__).read_bytes())

    @classmethod
    def load(cls, folder: str | Path) -> Latent:
        place = Path(folder)
        module = cls(**json.loads((place / "config.json").read_text(encoding="utf-8")))
        module.load_state_dict(load_file(place / "model.safetensors"))
        return module


class Categorical(Latent):
    """q(z | u): V independent variables of K classes each. Pooled, it is a mixture (equation 2).

    ``tau``: temperature of the softmax of ``embed``.
    """

    def __init__(
        self, in_features: int, variables: int, classes: int, tau: float, layers: int = 1, hidden: int = 768
    ) -> None:
        super().__init__(in_features, variables * classes, layers, hidden)
        self.variables, self.classes, self.tau = variables, classes, tau

    @property
    def dim(self) -> int:
        """V K."""
        return self.variables * self.classes

    def logits(self, u_NH: Tensor) -> Tensor:
        """Return unnormalised log probabilities [N, V, K]."""
        return self.encode(u_NH).unflatten(-1, (self.variables, self.classes))

    def embed(self, u_NH: Tensor) -> Tensor:
        """Return softmax(logits / tau) of every variable, flattened [N, V K]."""
        return torch.softmax(self.logits(u_NH) / self.tau, dim=-1).flatten(-2)

    def config(self) -> dict[str, Any]:
        names = ("in_features", "variables", "classes", "tau", "layers", "hidden")
        return {name: getattr(self, name) for name in names}


class Dimensions(Latent):
    """Latent distribution with the same parameters for each of D dimensions."""

    per_dimension = 1

    def __init__(self, in_features: int, dims: int, layers: int = 1, hidden: int = 768) -> None:
        super().__init__(in_features, self.per_dimension * dims, layers, hidden)
        self.dims = dims

    @property
    def dim(self) -> int:
        return self.dims

    def embed(self, u_NH: Tensor) -> Tensor:
        """Return the code, or mu [N, D]."""
        return self.encode(u_NH)[..., : self.dims]

    def config(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("in_features", "dims", "layers", "hidden")}


class Normal(Dimensions):
    """q(z | u): a diagonal Gaussian in D dimensions."""

    per_dimension = 2

    def gaussians(self, u_NH: Tensor) -> tuple[Tensor, Tensor]:
        """Return mu and the log of the variance, both [N, D]."""
        mu, log_var = self.encode(u_NH).chunk(2, dim=-1)
        return mu, log_var


class Point(Dimensions):
    """The code of an autoencoder: D numbers, no distribution."""
