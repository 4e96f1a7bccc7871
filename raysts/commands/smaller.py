"""Smaller vectors of ``export`` and ``embed``: their cost, and the card's section on them."""

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
    """Return a function that measures the cost of fewer dimensions or a smaller type.

    The development set is opened and checked here. The function reports the cost with ``say`` and returns it. Without a
    development set it reports that and returns None. It returns None at once if the vectors stay as they are. For the
    arguments see :func:`raysts.evaluation.compression.cost`.
    """
    if dtype == "float32" and model.truncate_dim == whole:
        return lambda _: None
    user_data = UserData.of(dev=dev)
    data = data or os.environ.get("RAYSTS_DATA") or None
    judged = judge(corpus_of(data, own=user_data)) if data or user_data else None

    def measure_cost(ranges: np.ndarray | None) -> Cost | None:
        result = cost(model, whole, judged, dtype, ranges) if judged else None
        vectors = f"{model.dim} dimensions as {dtype}"
        say(
            f"{vectors}: {result.text}"
            if result
            else f"{vectors}: what that costs was not measured; name a development set with --data PATH or --dev NAME=FILE"
        )
        return result

    return measure_cost


def section(model: SentenceModel, dtype: Dtype, cost: Cost | None) -> str:
    """Return the section on smaller vectors of the card of an exported directory."""
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
