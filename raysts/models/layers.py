"""Which layers' token vectors are pooled, and how."""

import math
from collections.abc import Sequence
from typing import Literal, get_args

Layers = int | str
"""``k``: the mean of the last k layers; ``first_last``: of layer 1 and the last (BERT-flow); ``only-3``: layer 3 alone;
``weights-0.0,0.2,1.3``: the mean of all with these weights, which another library has trained.

Layer 0 is the embedding layer.
"""

PoolingMode = Literal["mean", "cls", "max", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"]
"""As sentence-transformers names them."""

EVERY_LAYER = "only-all"
"""What stands for every layer alone where several choices can be made at once."""

RULE = "a number of last layers (2), 'first_last', or one layer alone ('only-3')"


def pooling_modes(pooling: str) -> tuple[str, ...]:
    """The modes that ``pooling`` names.

    Raises:
        ValueError: it names another.
    """
    modes, known = tuple(pooling.split("+")), get_args(PoolingMode)
    if not set(modes) <= set(known):
        raise ValueError(f"pooling={pooling!r} must be one of {', '.join(known)}, or several joined by '+'")
    return modes


def check_layers(layers: Layers) -> None:
    """Raise ValueError when ``layers`` has another form."""
    if isinstance(layers, str):
        head, _, number = layers.partition("-")
        good = layers == "first_last" or (head == "only" and number.isdecimal()) or layer_weights(layers) is not None
    else:
        good = layers >= 1
    if not good:
        raise ValueError(f"layers={layers!r} must be {RULE}")


def as_layers(text: str) -> Layers:
    """``layers`` as people write it: a number where it is one."""
    return int(text) if text.lstrip("-").isdecimal() else text


def in_words(layers: Layers) -> str:
    """What is pooled, as people say it."""
    if layers == "first_last":
        return "first and last layer"
    if layer_weights(layers):
        return "all layers, by trained weights"
    if isinstance(layers, str):
        return f"layer {layers.removeprefix('only-')}"
    return "last layer" if layers == 1 else f"last {layers} layers"


def layer_indices(layers: Layers, depth: int) -> tuple[int, ...]:
    """Indices into the hidden states 0 (embeddings) to ``depth`` whose mean is pooled.

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
    if isinstance(layers, str):
        found: tuple[int, ...] = (int(layers.removeprefix("only-")),)
    else:
        found = tuple(range(depth + 1 - min(layers, depth + 1), depth + 1))  # a billion is no reason to count to it
    if min(found) < (0 if isinstance(layers, str) else 1) or max(found) > depth:
        raise ValueError(f"layers={layers!r}: the encoder has {depth} layers")
    return found


def layer_weights(layers: Layers) -> tuple[float, ...] | None:
    """The weights of the embedding layer and of every layer above it, where ``layers`` names weights.

    Raises:
        ValueError: they are no numbers, or sum to zero.
    """
    if not isinstance(layers, str) or not layers.startswith("weights-"):
        return None
    weights = tuple(map(float, layers.removeprefix("weights-").split(",")))
    if not math.isfinite(sum(weights)) or sum(weights) == 0:
        raise ValueError(f"layers={layers!r}: the weights must be finite and not sum to zero")
    return weights


def single_layers(depth: int) -> tuple[Layers, ...]:
    """Every layer of an encoder of ``depth`` layers alone, from the first; the embedding layer is left out."""
    return tuple(f"only-{index}" for index in range(1, depth + 1))


def layers_of(weights: Sequence[float]) -> Layers:
    """The choice of layers whose mean has these weights, of the embedding layer and of every layer above it."""
    depth, indices = len(weights) - 1, tuple(i for i, weight in enumerate(weights) if weight)
    choices: list[Layers] = [*range(1, depth + 1), "first_last", *(f"only-{i}" for i in range(depth + 1))]
    for choice in choices if len({weights[i] for i in indices}) == 1 else ():
        if layer_indices(choice, depth) == indices:
            return choice
    named = f"weights-{','.join(map(repr, map(float, weights)))}"
    check_layers(named)
    return named
