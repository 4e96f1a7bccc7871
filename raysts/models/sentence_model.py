"""A model as users and evaluation see it: sentences in, representations out, and its own similarity."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from raysts.models.encoder import Encoder
from raysts.models.head import Similarity, cosine_of_vectors
from raysts.models.layers import Layers, layer_indices
from raysts.models.static import WordVectors
from raysts.models.tokens import Tokens, tokenize

Representation = dict[str, np.ndarray]
"""Arrays whose first axis is the text; ``vectors`` [N, D] is always there. What differs in length from text to text (the
token Gaussians of a mixture) is an array of arrays."""

TOKEN_BUDGET = {"cpu": 4_096, "cuda": 65_536}
"""Tokens (padding included) that go through the encoder at once when embedding in bulk."""


class SentenceModel:
    """An encoder, its heads included, with its tokenizer.

    Args:
        encoder: the encoder.
        tokenizer: its Hugging Face tokenizer.
        max_length: texts are cut to this many tokens, special tokens included.
        normalize: give vectors of unit length (some sentence-transformers directories ask for it).
    """

    def __init__(self, encoder: Encoder, tokenizer: Any, max_length: int, normalize: bool = False) -> None:
        self.encoder = encoder
        self.tokenizer = tokenizer
        self.max_length = max_length
        self.normalize = normalize

    @property
    def pooling(self) -> str:
        return self.encoder.pooling

    @property
    def layers(self) -> Layers:
        return self.encoder.layers

    @property
    def depth(self) -> int:
        return self.encoder.depth

    @property
    def similarities(self) -> dict[str, Similarity]:
        """The similarities that compare its representations, by the name that results have for them; its own first."""
        heads = self.encoder.heads
        return heads[-1].similarities() if len(heads) else {"cosine": cosine_of_vectors}

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
        self, texts: Sequence[str], layers: Sequence[Layers], precision: str = "fp32"
    ) -> dict[Layers, Representation]:
        """Representations for several choices of layers, from one pass over ``texts``.

        A model with heads has one: that of the layers its heads were trained on.
        """
        if len(self.encoder.heads):
            layers = (self.layers,)
        for choice in layers:
            layer_indices(choice, self.encoder.depth)
        tokens = self.tokenize(texts)
        if isinstance(self.encoder.backbone, WordVectors):
            self.encoder.backbone.say_unknown(tokens)
        found = represent_tokens(self.encoder, tokens, layers, precision)
        if self.normalize:
            for representation in found:
                vectors = representation["vectors"]
                vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        return dict(zip(layers, found, strict=True))

    def similarity(self, a: Representation, b: Representation) -> np.ndarray:
        """The model's own similarity of corresponding rows -> float64 [N]."""
        return next(iter(self.similarities.values()))(a, b)


def represent_tokens(
    encoder: Encoder,
    tokens: Tokens,
    layers: Sequence[Layers],
    precision: str = "fp32",
    progress: Callable[[int], None] | None = None,
) -> list[Representation]:
    """The representation of ``tokens`` (float32) for each choice of layers, without gradients or dropout.

    Texts are sorted by length and go through the encoder in batches of equal token count; the rows come back in order.
    A row does not depend on what else is embedded in its batch beyond floating-point rounding.
    """
    if not len(tokens):
        return [{"vectors": np.empty((0, encoder.dim), np.float32)} for _ in layers]
    device = next(encoder.parameters()).device
    results: list[Representation] = [{} for _ in layers]
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
                parts = encoder.represent_layers(ids.to(device), part_lengths.to(device), layers)
                for result, part in zip(results, parts, strict=True):
                    for name, values in part.items():
                        if name not in result:
                            result[name] = _empty(len(tokens), values)
                        result[name][rows] = _arrays(values)
                first += len(rows)
                if progress is not None:
                    progress(len(rows))
    finally:
        encoder.train(training)
    return results


def _empty(rows: int, like: Tensor | list[Tensor]) -> np.ndarray:
    if isinstance(like, list):
        return np.empty(rows, dtype=object)
    return np.empty((rows, *like.shape[1:]), np.float32)


def _arrays(values: Tensor | list[Tensor]) -> np.ndarray:
    if isinstance(values, list):
        found = np.empty(len(values), dtype=object)
        for i, row in enumerate(values):
            found[i] = row.float().cpu().numpy()
        return found
    return values.float().cpu().numpy()


def autocast(device: torch.device, precision: str) -> torch.autocast:
    """The autocast context for ``fp32`` (none) or ``bf16``."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=precision == "bf16")
