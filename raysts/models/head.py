"""What a model has beside its encoder and pooling: a map of the pooled vectors, or of the token vectors before pooling.

Shapes: B texts, N tokens, D dimensions in, E dimensions out.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from raysts.ops.similarity import SIMILARITIES, Similarity, cosine_of_vectors
from raysts.storage.atomic import write_json
from raysts.storage.foreign import read_json


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
        config = read_json(folder / "config.json") or {}
        head = cls(**config)
        head.load_state_dict(load_file(folder / "model.safetensors"))
        return head


def similarities_of(heads: Sequence[Head], described: str) -> dict[str, Similarity]:
    """The similarities of a model with these heads, its own first. ``heads``: a last one that compares more than vectors says
    by itself how. ``described``: what the model's directory says, a name in ``SIMILARITIES``."""
    found: dict[str, Similarity] = heads[-1].similarities() if len(heads) else {"cosine": cosine_of_vectors}
    if described == "cosine" or list(found) != ["cosine"]:
        return found
    name, function = SIMILARITIES[described]
    return {name: function, **found}


ACTIVATIONS = {"tanh": "torch.nn.modules.activation.Tanh", "identity": "torch.nn.modules.linear.Identity"}
"""What raysts trains Dense modules with, and where torch has it."""


def _activation(path: str) -> nn.Module:
    """The activation function that a Dense module names; torch's own alone, as no other code is run."""
    name = path.rsplit(".", 1)[-1]
    kind = getattr(torch.nn, name, None) if path.startswith("torch.nn.") else None
    if not (isinstance(kind, type) and kind.__module__ in {known.rpartition(".")[0] for known in ACTIVATIONS.values()}):
        raise ValueError(f"activation_function {path} must be one of torch.nn")
    return kind()  # type: ignore[no-any-return]


class Dense(Head):
    """activation(W x + b), and with ``residual`` x, or R x where the widths differ: sentence-transformers' own module.

    Args:
        activation: ``tanh``, ``identity``, or the path of another activation function of torch without arguments.
    """

    module = "sentence_transformers.models.Dense"

    def __init__(
        self, in_features: int, out_features: int, activation: str = "tanh", bias: bool = True, residual: bool = False
    ) -> None:
        super().__init__()
        self.function = _activation(ACTIVATIONS.get(activation, activation))
        self.linear = nn.Linear(in_features, out_features, bias=bias)
        if residual and in_features != out_features:
            self.residual = nn.Linear(in_features, out_features, bias=False)
        self.activation, self.has_residual = activation, residual

    @property
    def dim(self) -> int:
        return self.linear.out_features

    def forward(self, x: Tensor) -> Tensor:
        found = self.function(self.linear(x))
        if self.has_residual:
            found = found + (self.residual(x) if hasattr(self, "residual") else x)
        return found.float()

    def config(self) -> dict[str, Any]:
        kind = type(self.function)
        return {
            "in_features": self.linear.in_features,
            "out_features": self.linear.out_features,
            "bias": self.linear.bias is not None,
            "activation_function": f"{kind.__module__}.{kind.__name__}",
        } | ({"use_residual": True} if self.has_residual else {})

    @classmethod
    def load(cls, folder: Path) -> Self:
        config = read_json(folder / "config.json") or {}
        if {config.get(key) for key in ("module_input_name", "module_output_name")} - {None, "sentence_embedding"}:
            raise ValueError(f"{folder / 'config.json'}: a Dense module is known behind the pooling alone")
        named = str(config.get("activation_function", ACTIVATIONS["tanh"]))
        short = next((name for name, path in ACTIVATIONS.items() if path == named), named)
        sizes = config["in_features"], config["out_features"]
        head = cls(*sizes, short, config.get("bias", True), config.get("use_residual", False))
        path = folder / "model.safetensors"
        pickled = folder / "pytorch_model.bin"  # of tensors alone, as older directories have it
        head.load_state_dict(load_file(path) if path.is_file() else torch.load(pickled, "cpu", weights_only=True))
        return head
