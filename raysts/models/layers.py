"""Choices of pooled layers, and pooling modes."""

import math
from collections.abc import Sequence
from typing import Literal, get_args

Layers = int | str
"""``k``: the mean of the last k layers; ``first_last``: of layer 1 and the last (BERT-flow); ``only-3``: layer 3 alone;
``weights-0.0,0.2,1.3``: the mean of all with these weights, which another library has trained.

Layer 0 is the embedding layer.
"""

PoolingMode = Literal["mean", "cls", "max", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"]
"""Names of sentence-transformers."""

EVERY_LAYER = "only-all"
"""Stands for every layer alone, where an option takes several choices."""

RULE = "a number of last layers (2), 'first_last', or one layer alone ('only-3')"


def pooling_modes(pooling: str) -> tuple[str, ...]:
    """Return the modes that ``pooling`` names. Raise ValueError if it names another."""
    modes, names = tuple(pooling.split("+")), get_args(PoolingMode)
    if not set(modes) <= set(names):
        raise ValueError(f"pooling={pooling!r} must be one of {', '.join(names)}, or several joined by '+'")
    return modes


def check_layers(layers: Layers) -> None:
    """Raise ValueError if ``layers`` has another form."""
    good = isinstance(layers, int) and layers >= 1
    if isinstance(layers, str):
        head, _, number = layers.partition("-")
        good = layers == "first_last" or (head == "only" and number.isdecimal()) or layer_weights(layers) is not None
    if not good:
        raise ValueError(f"layers={layers!r} must be {RULE}")


def as_layers(text: str) -> Layers:
    """Return ``layers`` from its text: a number if it is one."""
    return int(text) if text.lstrip("-").isdecimal() else text


def layers_text(layers: Layers) -> str:
    """Return ``layers`` as text for people."""
    if layers == "first_last":
        return "first and last layer"
    if layer_weights(layers):
        return "all layers, by trained weights"
    if isinstance(layers, str):
        return f"layer {layers.removeprefix('only-')}"
    return "last layer" if layers == 1 else f"last {layers} layers"


def layer_indices(layers: Layers, depth: int) -> tuple[int, ...]:
    """Return the indices of the pooled hidden states, from 0 (embeddings) to ``depth``.

    Raises:
        ValueError: another form, or an encoder of ``depth`` layers has no such layer.
    """
    check_layers(layers)
    if layers == "first_last":
        return (1, depth) if depth > 1 else (1,)
    if weights := layer_weights(layers):
        if len(weights) != depth + 1:
            raise ValueError(f"layers={layers!r}: the encoder has {depth} layers and the embedding layer")
        return tuple(range(depth + 1))
    number = layers if isinstance(layers, int) else int(layers.removeprefix("only-"))
    if number > depth:
        raise ValueError(f"layers={layers!r}: the encoder has {depth} layers")
    return (number,) if isinstance(layers, str) else tuple(range(depth + 1 - number, depth + 1))


def layer_weights(layers: Layers) -> tuple[float, ...] | None:
    """Return the weights of the embedding layer and all layers above it, or None.

    Raises:
        ValueError: a weight is not a number, or the sum is zero.
    """
    if not isinstance(layers, str) or not layers.startswith("weights-"):
        return None
    weights = tuple(map(float, layers.removeprefix("weights-").split(",")))
    if not math.isfinite(sum(weights)) or sum(weights) == 0:
        raise ValueError(f"layers={layers!r}: the weights must be finite and not sum to zero")
    return weights


def single_layers(depth: int) -> tuple[Layers, ...]:
    """Return each layer alone of ``depth`` layers, from the first, without the embedding layer."""
    return tuple(f"only-{index}" for index in range(1, depth + 1))


def layers_of(weights: Sequence[float]) -> Layers:
    """Return the choice of layers for these weights of a mean, the embedding layer's first."""
    depth, indices = len(weights) - 1, tuple(i for i, weight in enumerate(weights) if weight)
    choices: list[Layers] = [*range(1, depth + 1), "first_last", *(f"only-{i}" for i in range(depth + 1))]
    for choice in choices if len({weights[i] for i in indices}) == 1 else ():
        if layer_indices(choice, depth) == indices:
            return choice
    weighted = f"weights-{','.join(map(repr, map(float, weights)))}"
    check_layers(weighted)
    return weighted
