"""Which layers' token vectors are pooled."""

from __future__ import annotations

Layers = int | str
"""``k``: the mean of the last k layers; ``first_last``: of layer 1 and the last (BERT-flow); ``only-3``: layer 3 alone.

Layer 0 is the embedding layer.
"""

EVERY_LAYER = "only-all"
"""What stands for every layer alone where several choices can be made at once."""

RULE = "a number of last layers (2), 'first_last', or one layer alone ('only-3')"


def check_layers(layers: Layers) -> None:
    """Raise ValueError when ``layers`` has another form."""
    if isinstance(layers, str):
        head, _, number = layers.partition("-")
        good = layers == "first_last" or (head == "only" and number.isdecimal())
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
    if isinstance(layers, str):
        found: tuple[int, ...] = (int(layers.removeprefix("only-")),)
    else:
        found = tuple(range(depth + 1 - layers, depth + 1))
    if min(found) < (0 if isinstance(layers, str) else 1) or max(found) > depth:
        raise ValueError(f"layers={layers!r}: the encoder has {depth} layers")
    return found


def single_layers(depth: int) -> tuple[Layers, ...]:
    """Every layer of an encoder of ``depth`` layers alone, from the first; the embedding layer is left out."""
    return tuple(f"only-{index}" for index in range(1, depth + 1))


def layers_of(indices: tuple[int, ...], depth: int) -> Layers:
    """The inverse of :func:`layer_indices`.

    Raises:
        ValueError: no choice of layers has these indices.
    """
    choices: list[Layers] = [*range(1, depth + 1), "first_last", *(f"only-{i}" for i in range(depth + 1))]
    for choice in choices:
        if layer_indices(choice, depth) == indices:
            return choice
    raise ValueError(f"the mean of layers {indices} of {depth}: raysts pools {RULE}")
