"""What ``export`` and ``embed`` say of smaller vectors."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from raysts.commands.context import corpus_of
from raysts.data.own import Own
from raysts.evaluation.compression import Cost, Dtype, cost
from raysts.models.sentence_model import SentenceModel


def measured_cost(
    model: SentenceModel,
    whole: int | None,
    dtype: Dtype,
    ranges: np.ndarray | None,
    data: str | Path | None,
    dev: Mapping[str, str | Path] | None,
    say: Callable[[str], None],
) -> Cost | None:
    """Say what the chosen dimensions and type cost on a development set; None, and said, where none is given.

    Arguments as :func:`raysts.evaluation.compression.cost`; nothing is measured where nothing is made smaller.
    """
    if dtype == "float32" and model.truncate_dim == whole:
        return None
    own = Own.of(dev=dev)
    data = data or os.environ.get("RAYSTS_DATA") or None
    found = cost(model, whole, corpus_of(data, own=own), dtype, ranges) if data or own else None
    what = f"{model.dim} dimensions as {dtype}"
    say(
        f"{what}: {found.text}"
        if found
        else f"{what}: what that costs was not measured; name a development set with --data PATH or --dev NAME=FILE"
    )
    return found


def section(model: SentenceModel, dtype: Dtype, cost: Cost | None) -> str:
    """What the card of an exported directory says of smaller vectors: its own part, and its reader's."""
    lines = (
        [f"The model gives the first {model.dim} of its {model.encoder.dim} dimensions."] if model.truncate_dim else []
    )
    if dtype != "float32":
        lines.append(
            f"A directory cannot say what its vectors are stored as: ask for {dtype} where they are made, by "
            f'`model.encode(texts, precision="{dtype}")`.'
        )
    if dtype == "int8":
        lines.append(
            "Vectors that are compared must be on one scale: give the ranges of one draw of your texts to all of them "
            '(`quantize_embeddings(vectors, "int8", ranges=...)` of `sentence_transformers.util.quantization`; `raysts embed '
            "--dtype int8` does, and keeps them in its manifest)."
        )
    if cost:
        lines.append(f"What that costs: {cost.text}.")
    return "\n## Smaller vectors\n\n" + "\n".join(lines) + "\n"
