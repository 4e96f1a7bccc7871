"""The head of a model whose embeddings go through a flow.

Shapes: B texts, D dimensions.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

from torch import Tensor

from raysts.models.head import Head
from raysts.models.shipped import glow


class FlowHead(Head):
    """z of the pooled vectors; the arguments are those of :class:`raysts.models.shipped.glow.Glow`."""

    module = "raysts_glow.Glow"
    source = Path(glow.__file__)

    def __init__(self, dim: int, levels: int = 2, depth: int = 3, width: int = 32) -> None:
        super().__init__()
        self.glow = glow.Glow(dim, levels, depth, width)

    @property
    def dim(self) -> int:
        """D."""
        return self.glow.dim

    def forward(self, x: Tensor) -> Tensor:
        """[B, D] -> [B, D]."""
        return self.glow.encode(x)

    def config(self) -> dict[str, Any]:
        """Arguments of the constructor."""
        return self.glow.config()

    def save(self, folder: Path) -> None:
        """As :class:`~raysts.models.shipped.glow.Glow` is saved."""
        self.glow.save(folder)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read what ``save``, or sentence-transformers, wrote."""
        found = glow.Glow.load(folder)
        head = cls(**found.config())
        head.glow = found
        return head
