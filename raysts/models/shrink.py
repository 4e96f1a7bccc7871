"""A smaller model of some of the layers of another, which a student starts from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from raysts.models.families import family_of

if TYPE_CHECKING:
    from raysts.models.sentence_model import SentenceModel


def spaced_layers(count: int, depth: int) -> tuple[int, ...]:
    """Return the numbers of ``count`` of ``depth`` layers, evenly spaced from the first to the last, counted from 0."""
    return tuple(int(layer) for layer in np.round(np.linspace(0, depth - 1, count)))


def keep_layers(model: SentenceModel, layers: Sequence[int]) -> None:
    """Keep only some transformer layers of a model, in place, with their embeddings, pooling and heads.

    Args:
        model: a transformer in main memory.
        layers: numbers of the layers, counted from 0, ascending.
    """
    from torch import nn  # a plan needs the numbers of layers alone

    backbone = model.encoder.backbone
    depth, kept = model.encoder.depth, list(layers)
    for module in backbone.modules():
        for name, child in module.named_children():
            if isinstance(child, nn.ModuleList) and len(child) == depth:
                setattr(module, name, nn.ModuleList(child[layer] for layer in kept))
    config = backbone.config
    for name, value in config.to_dict().items():  # some families describe each layer by an entry of a list
        if isinstance(value, list) and len(value) == depth:
            setattr(config, name, [value[layer] for layer in kept])
    setattr(config, family_of(config.model_type).depth, len(kept))
