"""A model as users and evaluation see it: sentences in, representations out, and its own similarity."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from raysts.models.encoder import Encoder
from raysts.models.tokens import Tokens, tokenize
from raysts.similarity import cosine

Representation = dict[str, np.ndarray]
"""Arrays whose first axis is the text; a plain encoder has one, ``vectors`` [N, D]."""

TOKEN_BUDGET = {"cpu": 4_096, "cuda": 65_536}
"""Tokens (padding included) that go through the encoder at once when embedding in bulk."""


class SentenceModel:
    """An encoder with its tokenizer.

    Args:
        encoder: the encoder.
        tokenizer: its Hugging Face tokenizer.
        max_length: texts are cut to this many tokens, special tokens included.
        normalize: give vectors of unit length (some sentence-transformers directories ask for it).
    """

    similarity_name = "cosine"

    def __init__(self, encoder: Encoder, tokenizer: Any, max_length: int, normalize: bool = False) -> None:
        self.encoder = encoder
        self.tokenizer = tokenizer
        self.max_length = max_length
        self.normalize = normalize

    @property
    def pooling(self) -> str:
        """Pooling mode over tokens."""
        return self.encoder.pooling

    @property
    def layers(self) -> int:
        """Number of last layers pooled."""
        return self.encoder.layers

    @property
    def dim(self) -> int:
        """D, the number of dimensions of a vector."""
        return self.encoder.dim

    def tokenize(self, texts: Sequence[str]) -> Tokens:
        """Token ids of ``texts`` as this model reads them."""
        return tokenize(self.tokenizer, texts, self.max_length)

    def encode(self, texts: Sequence[str], precision: str = "fp32") -> np.ndarray:
        """Vectors of ``texts`` -> float32 [N, D]."""
        return self.represent(texts, precision)["vectors"]

    def represent(self, texts: Sequence[str], precision: str = "fp32") -> Representation:
        """The representation that ``similarity`` compares."""
        return self.represent_layers(texts, (self.layers,), precision)[self.layers]

    def represent_layers(
        self, texts: Sequence[str], layers: Sequence[int], precision: str = "fp32"
    ) -> dict[int, Representation]:
        """Representations for several numbers of pooled last layers, from one pass over ``texts``."""
        too_deep = [k for k in layers if not 1 <= k <= self.encoder.depth]
        if too_deep:
            raise ValueError(f"layers {too_deep[0]}: the encoder has {self.encoder.depth} layers, pool 1 to that many")
        arrays = embed_tokens(self.encoder, self.tokenize(texts), layers, precision)
        if self.normalize:
            arrays = [a / np.maximum(np.linalg.norm(a, axis=1, keepdims=True), 1e-12) for a in arrays]
        return {k: {"vectors": array} for k, array in zip(layers, arrays, strict=True)}

    def similarity(self, a: Representation, b: Representation) -> np.ndarray:
        """Cosine of corresponding rows -> float64 [N]."""
        return cosine(a["vectors"], b["vectors"])


def embed_tokens(
    encoder: Encoder,
    tokens: Tokens,
    layers: Sequence[int],
    precision: str = "fp32",
    progress: Callable[[int], None] | None = None,
) -> list[np.ndarray]:
    """Embeddings [N, D] float32 of ``tokens`` for each number of pooled last layers, without gradients or dropout.

    Texts are sorted by length and go through the encoder in batches of equal token count; the rows come back in order.
    A row does not depend on what else is embedded in its batch beyond floating-point rounding.
    """
    device = next(encoder.parameters()).device
    results = [np.empty((len(tokens), encoder.dim), np.float32) for _ in layers]
    lengths = tokens.lengths
    order = np.argsort(-lengths, kind="stable")
    budget = TOKEN_BUDGET.get(device.type, 65_536)
    training, first = encoder.training, 0
    encoder.eval()
    try:
        with torch.inference_mode(), autocast(device, precision):
            while first < len(order):
                rows = order[first : first + max(1, budget // max(1, int(lengths[order[first]])))]
                ids, part_lengths = tokens.take(rows).pad(encoder.pad_id)
                for result, part in zip(
                    results, encoder.forward_layers(ids.to(device), part_lengths.to(device), layers), strict=True
                ):
                    result[rows] = part.float().cpu().numpy()
                first += len(rows)
                if progress is not None:
                    progress(len(rows))
    finally:
        encoder.train(training)
    return results


def autocast(device: torch.device, precision: str) -> torch.autocast:
    """The autocast context for ``fp32`` (none) or ``bf16``."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=precision == "bf16")
