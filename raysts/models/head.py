"""What a model has beside its encoder and pooling: a map of the pooled vectors, or of the token vectors before pooling.

Shapes: B texts, N tokens, D dimensions in, E dimensions out.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from raysts.ops.similarity import cosine, l2
from raysts.storage.atomic import read_json, write_json

Similarity = Callable[[Mapping[str, np.ndarray], Mapping[str, np.ndarray]], np.ndarray]
"""Representations whose rows correspond -> one number per pair [N] float64, larger for more similar."""


def cosine_of_vectors(a: Mapping[str, np.ndarray], b: Mapping[str, np.ndarray]) -> np.ndarray:
    """Cosine of ``vectors``."""
    return cosine(a["vectors"], b["vectors"])


def l2_of_vectors(a: Mapping[str, np.ndarray], b: Mapping[str, np.ndarray]) -> np.ndarray:
    """Negated Euclidean distance of ``vectors``."""
    return l2(a["vectors"], b["vectors"])


class Head(nn.Module, ABC):
    """A map behind the pooling (``reads = "pooled"``), or between the token vectors and the pooling (``"tokens"``).

    Class attributes:
        reads: what it maps; what it makes of tokens is averaged over the tokens of a text.
        module: type in ``modules.json``.
        source: the file that is copied beside ``modules.json``, where sentence-transformers has no such module.
        ragged: representations of tokens that are not averaged: one array per text.
    """

    reads: ClassVar[Literal["pooled", "tokens"]] = "pooled"
    module: ClassVar[str]
    source: ClassVar[Path | None] = None
    ragged: ClassVar[tuple[str, ...]] = ()

    @property
    @abstractmethod
    def dim(self) -> int:
        """E, the number of dimensions of ``vectors``."""

    @abstractmethod
    def forward(self, x: Tensor) -> Tensor:
        """[B, D] -> [B, E], or [N, D] -> [N, E] of tokens; float32."""

    def represent(self, x: Tensor) -> dict[str, Tensor]:
        """What ``similarities`` compare; ``vectors`` is among it."""
        return {"vectors": self(x)}

    def similarities(self) -> dict[str, Similarity]:
        """By the name that the results table has for it; the first is the model's own."""
        return {"cosine": cosine_of_vectors}

    @abstractmethod
    def config(self) -> dict[str, Any]:
        """Arguments of the constructor, as JSON can hold them."""

    def save(self, folder: Path) -> None:
        """Write ``config.json`` and ``model.safetensors`` into ``folder``."""
        write_json(folder / "config.json", self.config())
        state = {name: value.detach().cpu().contiguous() for name, value in self.state_dict().items()}
        save_file(state, folder / "model.safetensors")

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read what ``save`` wrote."""
        config = read_json(folder / "config.json") or {}
        head = cls(**config)
        head.load_state_dict(load_file(folder / "model.safetensors"))
        return head


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"tanh": torch.tanh, "identity": lambda x: x}

_ST_ACTIVATIONS = {
    "tanh": "torch.nn.modules.activation.Tanh",
    "identity": "torch.nn.modules.linear.Identity",
}


class Dense(Head):
    """activation(W x + b): sentence-transformers' own Dense module.

    Args:
        in_features: D.
        out_features: E.
        activation: ``tanh`` or ``identity``.
        bias: add b.
    """

    module = "sentence_transformers.models.Dense"

    def __init__(self, in_features: int, out_features: int, activation: str = "tanh", bias: bool = True) -> None:
        super().__init__()
        if activation not in ACTIVATIONS:
            raise ValueError(f"activation={activation!r} must be one of {', '.join(ACTIVATIONS)}")
        self.linear = nn.Linear(in_features, out_features, bias=bias)
        self.activation = activation

    @property
    def dim(self) -> int:
        return self.linear.out_features

    def forward(self, x: Tensor) -> Tensor:
        return ACTIVATIONS[self.activation](self.linear(x)).float()

    def config(self) -> dict[str, Any]:
        return {
            "in_features": self.linear.in_features,
            "out_features": self.linear.out_features,
            "bias": self.linear.bias is not None,
            "activation_function": _ST_ACTIVATIONS[self.activation],
        }

    @classmethod
    def load(cls, folder: Path) -> Self:
        config = read_json(folder / "config.json") or {}
        named = str(config.get("activation_function", _ST_ACTIVATIONS["tanh"]))
        known = [name for name, path in _ST_ACTIVATIONS.items() if path.rsplit(".", 1)[-1] == named.rsplit(".", 1)[-1]]
        if not known:
            raise ValueError(f"{folder / 'config.json'}: activation_function {named} must be Tanh or Identity")
        head = cls(config["in_features"], config["out_features"], known[0], config.get("bias", True))
        head.load_state_dict(load_file(folder / "model.safetensors"))
        return head
