"""Families of encoders: one entry for each, read wherever model types differ."""

import gc
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from raysts.models.static import MODEL_TYPE


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Hugging Face model type. The defaults are safe for types without an entry.

    Attributes:
        packed: positions come from ``position_ids``, and only transformers' attention function connects tokens. Otherwise
            texts are padded and masked.
        kernels: the layers of ``raysts.cpu.kernels`` may replace torch's: nothing changes their results in place.
        positions: ``absolute``: counted from 0; ``after-padding``: RoBERTa's, counted from the padding index, 1, on.
        width: key of config.json for the dimensions of a token vector.
        depth: its key for the number of layers.
        longest: its key for the number of positions.
        alone: transformers' class of the encoder, if the type's own class has a decoder too.
    """

    packed: bool = False
    kernels: bool = False
    positions: Literal["absolute", "after-padding"] = "absolute"
    width: str = "hidden_size"
    depth: str = "num_hidden_layers"
    longest: str = "max_position_embeddings"
    alone: str | None = None

    def most_tokens(self, config: Mapping[str, Any]) -> int:
        """Return the tokens per text that an encoder of this configuration has positions for."""
        limit = int(config.get(self.longest) or 0)
        limit = limit if limit > 0 else 512
        return limit - 2 if self.positions == "after-padding" else limit


ROBERTA = Family(packed=True, kernels=True, positions="after-padding")
T5 = Family(width="d_model", depth="num_layers", longest="n_positions")

FAMILIES: dict[str, Family] = {
    "bert": Family(packed=True, kernels=True),
    "distilbert": Family(packed=True, kernels=True, width="dim", depth="n_layers"),
    **dict.fromkeys(("roberta", "xlm-roberta", "camembert"), ROBERTA),
    "mpnet": Family(kernels=True, positions="after-padding"),
    "modernbert": Family(kernels=True),
    "t5": replace(T5, alone="T5EncoderModel"),
    "mt5": replace(T5, alone="MT5EncoderModel"),
}
"""By ``model_type``. Before an entry says ``packed``, test_encoder.py must find its packed texts equal to masked ones."""

WORD_VECTORS = Family(packed=True)


def family_of(model_type: object) -> Family:
    """Return the family of a ``model_type``. A type that only transformers knows is padded."""
    if model_type == MODEL_TYPE:
        return WORD_VECTORS
    if model_type in FAMILIES:
        return FAMILIES[str(model_type)]
    if isinstance(model_type, str) and (config := _text_config(model_type)) is not None:
        plain = Family()
        names = (config.attribute_map.get(name, name) for name in (plain.width, plain.depth, plain.longest))
        return Family(**dict(zip(("width", "depth", "longest"), names, strict=True)))
    raise ValueError(
        f"is of type '{model_type}': it must be an encoder of one of the families {', '.join(FAMILIES)}, or of another that "
        f"transformers has as a masked or causal language model"
    )


def _text_config(model_type: str) -> Any | None:
    """Return the configuration class of a language model that reads tokens and a mask alone, or None."""
    from transformers import CONFIG_MAPPING, MODEL_MAPPING
    from transformers.models.auto import modeling_auto as auto

    trained = {*auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES, *auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES}
    if model_type not in trained or model_type not in CONFIG_MAPPING:
        return None
    config = CONFIG_MAPPING[model_type]
    model = MODEL_MAPPING.get(config, None)
    if not isinstance(model, type):
        return None
    reads = set(inspect.signature(model.forward).parameters)
    text_only = {"input_ids", "attention_mask"} <= reads and not {"decoder_input_ids", "pixel_values"} & reads
    return config if text_only else None


def class_of(config: Any) -> Any:
    """Return transformers' class of the encoder, or decoder, of a configuration."""
    import transformers

    alone, collects = family_of(config.model_type).alone, gc.isenabled()
    gc.disable()  # imported objects stay, and collecting takes a quarter of the time
    try:
        return getattr(transformers, alone) if alone else transformers.MODEL_MAPPING[type(config)]
    finally:
        if collects:
            gc.enable()


def omit_pooler(model: Any) -> dict[str, bool]:
    """Return the arguments that make a transformers class omit the layer behind the first token."""
    kind = model if isinstance(model, type) else type(model)
    return {"add_pooling_layer": False} if "add_pooling_layer" in inspect.signature(kind).parameters else {}
