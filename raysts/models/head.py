"""Heads: maps of the pooled vectors, or of the token vectors before pooling.

Shapes: B texts, N tokens (of Gaussians: pairs), H hidden, D dimensions in, E dimensions out (D of a Gaussian), W numbers of a
token. Latte-Mix, section 2, defines how the mixtures of two texts compare.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from raysts.models.shipped import glow, latent
from raysts.ops.gaussian import KINDS, Gaussians, Kind
from raysts.ops.similarity import SIMILARITIES, Similarity, cosine_of_vectors, jensen_shannon, l2_mixture, l2_of_vectors
from raysts.storage.atomic import write_json
from raysts.storage.foreign import read_json


class Head(nn.Module, ABC):
    """Map behind the pooling (``reads = "pooled"``) or in front of it (``"tokens"``).

    Class attributes:
        reads: its input. Results of tokens are averaged over the tokens of a text.
        module: type in ``modules.json``.
        ragged: representations of tokens that are not averaged: one array per text.
    """

    reads: ClassVar[Literal["pooled", "tokens"]] = "pooled"
    module: ClassVar[str]
    ragged: ClassVar[tuple[str, ...]] = ()

    @property
    @abstractmethod
    def dim(self) -> int:
        """E, the number of dimensions of ``vectors``."""

    @abstractmethod
    def forward(self, x: Tensor) -> Tensor:
        """Map [B, D] -> [B, E], or [N, D] -> [N, E] of tokens, in float32."""

    def represent(self, x: Tensor) -> dict[str, Tensor]:
        """Return the arrays that ``similarities`` compare, ``vectors`` among them."""
        return {"vectors": self(x)}

    def similarities(self) -> dict[str, Similarity]:
        """Return the similarities by their name in the results table, the model's default first."""
        return {"cosine": cosine_of_vectors}

    @abstractmethod
    def config(self) -> dict[str, Any]:
        """Return the arguments of the constructor."""

    def save(self, folder: Path) -> None:
        write_json(folder / "config.json", self.config())
        save_file(host_state(self), folder / "model.safetensors")

    @classmethod
    @abstractmethod
    def load(cls, folder: Path) -> Self:
        """Return a saved head."""


def host_state(module: nn.Module) -> dict[str, Tensor]:
    """Return the state of a module as safetensors takes it."""
    return {name: value.detach().cpu().contiguous() for name, value in module.state_dict().items()}


def load_state(folder: Path) -> dict[str, Tensor]:
    """Return the state of a module from its folder. Older directories have it pickled, tensors alone."""
    path = folder / "model.safetensors"
    return load_file(path) if path.is_file() else torch.load(folder / "pytorch_model.bin", "cpu", weights_only=True)


def similarities_of(heads: Sequence[Head], described: str) -> dict[str, Similarity]:
    """Return the similarities of a model with these heads, its default first.

    ``described``: a name in ``SIMILARITIES`` from the model's directory. A last head that compares more than vectors
    ignores it.
    """
    by_name: dict[str, Similarity] = heads[-1].similarities() if len(heads) else {"cosine": cosine_of_vectors}
    if described == "cosine" or list(by_name) != ["cosine"]:
        return by_name
    name, function = SIMILARITIES[described]
    return {name: function, **by_name}


ACTIVATIONS = {"tanh": "torch.nn.modules.activation.Tanh", "identity": "torch.nn.modules.linear.Identity"}
"""Activations of the Dense modules that raysts trains, and their paths in torch."""


class Dense(Head):
    """activation(W x + b), sentence-transformers' module.

    With ``residual`` x is added, or R x if the widths differ.

    Args:
        activation: ``tanh``, ``identity``, or the path of another activation function of torch without arguments.
    """

    module = "sentence_transformers.models.Dense"

    def __init__(
        self, in_features: int, out_features: int, activation: str = "tanh", bias: bool = True, residual: bool = False
    ) -> None:
        super().__init__()
        path = ACTIVATIONS.get(activation, activation)
        kind = getattr(torch.nn, path.rsplit(".", 1)[-1], None) if path.startswith("torch.nn.") else None
        modules = {path.rpartition(".")[0] for path in ACTIVATIONS.values()}
        if not (isinstance(kind, type) and kind.__module__ in modules):  # the directory's word: no other code is run
            raise ValueError(f"activation_function {path} must be one of torch.nn")
        self.function: nn.Module = kind()
        self.linear = nn.Linear(in_features, out_features, bias=bias)
        if residual and in_features != out_features:
            self.residual = nn.Linear(in_features, out_features, bias=False)
        self.activation, self.has_residual = activation, residual

    @property
    def dim(self) -> int:
        return self.linear.out_features

    def forward(self, x: Tensor) -> Tensor:
        y = self.function(self.linear(x))
        if self.has_residual:
            y = y + (self.residual(x) if hasattr(self, "residual") else x)
        return y.float()

    def config(self) -> dict[str, Any]:
        kind, layer = type(self.function), self.linear
        sizes = {"in_features": layer.in_features, "out_features": layer.out_features, "bias": layer.bias is not None}
        residual = {"use_residual": True} if self.has_residual else {}
        return {**sizes, "activation_function": f"{kind.__module__}.{kind.__name__}", **residual}

    @classmethod
    def load(cls, folder: Path) -> Self:
        config = read_json(folder / "config.json") or {}
        if {config.get(key) for key in ("module_input_name", "module_output_name")} - {None, "sentence_embedding"}:
            raise ValueError(f"{folder / 'config.json'}: a Dense module is known behind the pooling alone")
        named = str(config.get("activation_function", ACTIVATIONS["tanh"]))
        short = next((name for name, path in ACTIVATIONS.items() if path == named), named)
        sizes = config["in_features"], config["out_features"]
        head = cls(*sizes, short, config.get("bias", True), config.get("use_residual", False))
        head.load_state_dict(load_state(folder))
        return head


LOG_VAR = "log_var.safetensors"
"""File with the weights of log_var, beside those of mu. Its metadata names the similarity."""

NAMES: dict[Kind, str] = {"per_dimension": "gauss", "paper": "gauss-paper"}
"""Names of the two similarities in the results table."""

_PAIRS = 1024  # pairs compared together: [1024, 768] float64 stays in the cache


class GaussianHead(Head):
    """Head with mu = activation(W_mu h + b_mu) as vector and log_var = W_v h + b_v.

    On disk it is sentence-transformers' Dense module for mu, with the weights of log_var in a second file. ``activation`` of
    mu: ``tanh`` (official code) or ``identity`` (the paper's formula). ``kind``: of the similarity.
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
        return {NAMES[self.kind]: partial(gaussian_similarity, kind=self.kind), "cosine": cosine_of_vectors}

    def config(self) -> dict[str, Any]:
        sizes = {"in_features": self.log_var.in_features, "out_features": self.dim}
        return {**sizes, "activation": self.mu.activation, "kind": self.kind}

    def save(self, folder: Path) -> None:
        self.mu.save(folder)
        save_file(host_state(self.log_var), folder / LOG_VAR, metadata={"similarity": self.kind})

    @classmethod
    def load(cls, folder: Path) -> Self:
        mu = Dense.load(folder)
        with safe_open(folder / LOG_VAR, "pt") as file:
            metadata: Any = file.metadata() or {}
        head = cls(mu.linear.in_features, mu.dim, mu.activation, metadata.get("similarity"))
        head.mu = mu
        head.log_var.load_state_dict(load_file(folder / LOG_VAR))
        return head


def gaussian_similarity(a: Mapping[str, np.ndarray], b: Mapping[str, np.ndarray], kind: Kind) -> np.ndarray:
    """Return sim(a || b) of corresponding rows -> float64 [N] in (0, 1] (GaussCSE, equation 3).

    ``kind``: see ``raysts.ops.gaussian.Kind``.
    """
    similarity_N = np.empty(len(a["vectors"]))
    for first in range(0, len(similarity_N), _PAIRS):
        rows = slice(first, first + _PAIRS)
        mu_a, mu_b = (x["vectors"][rows].astype(np.float64) for x in (a, b))
        log_var_a, log_var_b = (x["log_var"][rows].astype(np.float64) for x in (a, b))
        difference = log_var_a - log_var_b
        kl_ND = 0.5 * (np.expm1(difference) - difference + (mu_a - mu_b) ** 2 * np.exp(-log_var_b))
        similarity_N[rows] = (1 / (1 + kl_ND)).mean(1) if kind == "per_dimension" else 1 / (1 + kl_ND.sum(1))
    return similarity_N


class ShippedHead(Head):
    """Head around a module of ``raysts.models.shipped``. The module's file travels with an export."""

    kind: ClassVar[Any]

    def __init_subclass__(cls, kind: Any = None) -> None:
        if kind is not None:
            cls.kind, cls.module = kind, f"raysts_{kind.__module__.rpartition('.')[2]}.{kind.__name__}"

    def __init__(self, shipped: Any) -> None:
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
        return cls(cls.kind.load(folder))


class FlowHead(ShippedHead, kind=glow.Glow):
    """Flow that maps pooled vectors to z: [B, D] -> [B, D]."""

    def forward(self, x: Tensor) -> Tensor:
        return self.shipped.encode(x)


class LatentHead(ShippedHead):
    """Latent module in front of the mean pooling: [N, H] -> [N, W]."""

    reads = "tokens"

    def forward(self, x: Tensor) -> Tensor:
        return self.shipped.embed(x)


class CategoricalHead(LatentHead, kind=latent.Categorical):
    """Latte-Mix: the mixture of the categorical distributions of a text's tokens."""

    def similarities(self) -> dict[str, Similarity]:
        """Return ``cosine``, ``js`` (mean over the variables) and ``l2`` of the probabilities."""
        return {"cosine": cosine_of_vectors, "js": self._jensen_shannon, "l2": l2_of_vectors}

    def _jensen_shannon(self, a: Mapping[str, np.ndarray], b: Mapping[str, np.ndarray]) -> np.ndarray:
        p, q = (side["vectors"].reshape(len(side["vectors"]), -1, self.shipped.classes) for side in (a, b))
        return jensen_shannon(p, q)


class NormalHead(LatentHead, kind=latent.Normal):
    """Normal-VAE baseline: the mixture of the Gaussians of a text's tokens.

    ``vectors`` is the mean of their mu.
    """

    ragged = ("mu", "log_var")

    def represent(self, x: Tensor) -> dict[str, Tensor]:
        """Return ``vectors``, ``mu`` and ``log_var``, all [N, D]."""
        mu, log_var = self.shipped.gaussians(x)
        return {"vectors": mu, "mu": mu, "log_var": log_var}

    def similarities(self) -> dict[str, Similarity]:
        """Return ``l2_mixture`` of the mixtures and ``l2_mean`` of the means of mu."""
        return {"l2_mixture": self._l2_of_mixtures, "l2_mean": l2_of_vectors}

    @staticmethod
    def _l2_of_mixtures(a: Mapping[str, np.ndarray], b: Mapping[str, np.ndarray]) -> np.ndarray:
        return l2_mixture(a["mu"], a["log_var"], b["mu"], b["log_var"])


class PointHead(LatentHead, kind=latent.Point):
    """Autoencoder baseline: the mean of the codes of a text's tokens, compared by cosine."""
