"""What ``export`` and ``embed`` say of smaller vectors."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from raysts.commands.context import corpus_of
from raysts.data.user import UserData
from raysts.evaluation.compression import Cost, Dtype, cost, judge
from raysts.models.sentence_model import SentenceModel


def measuring(
    model: SentenceModel,
    whole: int | None,
    dtype: Dtype,
    data: str | Path | None,
    dev: Mapping[str, str | Path] | None,
    say: Callable[[str], None],
) -> Callable[[np.ndarray | None], Cost | None]:
    """What says what the chosen dimensions and type cost on a development set, which is opened and checked here; it gives None,
    and says so, where none is given.

    Arguments as :func:`raysts.evaluation.compression.cost`; nothing is measured where nothing is made smaller.
    """
    if dtype == "float32" and model.truncate_dim == whole:
        return lambda _: None
    own = UserData.of(dev=dev)
    data = data or os.environ.get("RAYSTS_DATA") or None
    judged = judge(corpus_of(data, own=own)) if data or own else None

    def measured(ranges: np.ndarray | None) -> Cost | None:
        found = cost(model, whole, judged, dtype, ranges) if judged else None
        what = f"{model.dim} dimensions as {dtype}"
        say(
            f"{what}: {found.text}"
            if found
            else f"{what}: what that costs was not measured; name a development set with --data PATH or --dev NAME=FILE"
        )
        return found

    return measured


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
