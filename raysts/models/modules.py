"""What a sentence-transformers directory says of its model beside the weights: its modules and its prompts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from raysts.errors import InputError
from raysts.models import static
from raysts.models.encoder import PoolingMode, pooling_modes
from raysts.models.gaussian_head import LOG_VAR, GaussianHead
from raysts.models.head import SIMILARITIES, Dense, Head
from raysts.models.layers import Layers, layer_indices, layer_weights, layers_of
from raysts.models.prompts import Prompts
from raysts.models.shipped_heads import CategoricalHead, FlowHead, NormalHead, PointHead
from raysts.storage.atomic import read_json, write_json
from raysts.storage.store import Store

POOLING_KEYS: dict[PoolingMode, str] = {
    "cls": "pooling_mode_cls_token",
    "max": "pooling_mode_max_tokens",
    "mean": "pooling_mode_mean_tokens",
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}
"""In the order in which sentence-transformers puts their vectors where it names them by these keys."""

HEADS: dict[str, type[Head]] = {kind.module: kind for kind in (Dense, FlowHead, CategoricalHead, NormalHead, PointHead)}
"""The heads by their type in ``modules.json``. Adding one is a file here and a name in this line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """What a directory says of its model.

    Attributes:
        pooling: see :class:`raysts.models.encoder.Encoder`.
        layers: which layers are pooled.
        heads: type and folder of the modules that are heads.
        max_length: tokens per text.
        normalize: give vectors of unit length.
        lower_case: texts are written in small letters before they are tokenised.
        prompts: what stands in front of a text.
        truncate_dim: so many of the dimensions are given.
        similarity: a name in ``SIMILARITIES``.
    """

    pooling: str = "mean"
    layers: Layers = 1
    heads: tuple[tuple[str, Path], ...] = ()
    max_length: int | None = None
    normalize: bool = False
    lower_case: bool = False
    prompts: Prompts = Prompts()
    truncate_dim: int | None = None
    similarity: str = "cosine"


def describe(folder: Path) -> Description:
    """What the directory ``folder`` says of its model.

    Raises:
        InputError: it says what raysts does not know.
    """
    found: dict[str, Any] = {}
    heads: list[tuple[str, Path]] = []
    known = {kind.rsplit(".", 1)[-1] for kind in HEADS}
    pooled = True
    modules = config_of((Store.of(folder).get_dir(folder) or folder) / "modules.json")
    if modules is None and _is_decoder(config_of(folder / "config.json") or {}):
        found["pooling"] = "lasttoken"  # as sentence-transformers pools one that comes without modules
    for module in modules or []:
        kind, path = module["type"].rsplit(".", 1)[-1], folder / module["path"]
        config = config_of(path / "config.json") or {}
        if kind == "Transformer":
            sizes = transformer_settings(path)
            found |= {"max_length": sizes.get("max_seq_length"), "lower_case": bool(sizes.get("do_lower_case"))}
        elif kind == "WordEmbeddings":
            found["max_length"] = (config_of(path / static.SETTINGS) or {}).get("max_seq_length")
        elif kind == "Pooling":
            found["pooling"], pooled = _pooling(path, config), bool(config.get("include_prompt", True))
        elif kind == "WeightedLayerPooling":
            found["layers"] = _load_layers(path, config)
        elif kind == "Normalize":
            found["normalize"] = True
        elif kind in known and not found.get("normalize"):
            heads.append((module["type"], path))
        else:
            raise InputError(
                f"{folder / 'modules.json'}: module '{module['type']}' is unknown here, or in this place; raysts loads "
                f"Transformer, WordEmbeddings, WeightedLayerPooling, Pooling, {', '.join(sorted(known))} modules, and "
                f"Normalize as the last"
            )
    return Description(
        heads=tuple(heads), **found, **_of_the_model(folder / "config_sentence_transformers.json", pooled)
    )


def _is_decoder(config: dict[str, Any]) -> bool:
    """Whether a configuration is of a language model whose tokens see those before them alone."""
    architecture = (config.get("architectures") or [""])[0]
    return str(architecture).endswith("ForCausalLM") and bool(config.get("is_causal", True))


def transformer_settings(folder: Path) -> dict[str, Any]:
    """What sentence-transformers keeps beside a Transformer module: ``max_seq_length``, ``do_lower_case``."""
    for path in (folder / "sentence_bert_config.json", *sorted(folder.glob("sentence_*_config.json"))):
        if found := config_of(path):
            return dict(found)
    return {}


def _pooling(folder: Path, config: dict[str, Any]) -> str:
    named = config.get("pooling_mode") or [mode for mode, key in POOLING_KEYS.items() if config.get(key)]
    try:
        return "+".join(pooling_modes(named if isinstance(named, str) else "+".join(named)))
    except ValueError:
        raise InputError(
            f"{folder / 'config.json'}: pooling must be one of {', '.join(POOLING_KEYS)}, or several"
        ) from None


def _of_the_model(path: Path, pooled: bool) -> dict[str, Any]:
    """What ``config_sentence_transformers.json`` says."""
    config = config_of(path) or {}
    texts = {str(name): text or "" for name, text in (config.get("prompts") or {}).items()}
    default, dim = config.get("default_prompt_name"), config.get("truncate_dim")
    similarity = config.get("similarity_fn_name") or "cosine"
    if default is not None and default not in texts:
        raise InputError(
            f"{path}: default_prompt_name '{default}' is none of its prompts, {', '.join(texts) or 'none'}"
        )
    if dim is not None and not (isinstance(dim, int) and dim > 0):
        raise InputError(f"{path}: truncate_dim {dim!r} must be a positive number")
    if similarity not in SIMILARITIES:
        raise InputError(f"{path}: similarity_fn_name '{similarity}' must be one of {', '.join(SIMILARITIES)}")
    prompts = Prompts(texts=texts, default=default, pooled=pooled)
    return {"prompts": prompts, "truncate_dim": dim, "similarity": similarity}


def pooling_config(width: int, pooling: str, prompts: Prompts) -> dict[str, Any]:
    """``config.json`` of a Pooling module over token vectors of ``width``."""
    modes = pooling.split("+")
    config = {"word_embedding_dimension": width} | {key: mode in modes for mode, key in POOLING_KEYS.items()}
    several = {"pooling_mode": modes} if len(modes) > 1 else {}  # their order; the keys have but one
    return config | several | ({} if prompts.pooled else {"include_prompt": False})


def pooled_by(folder: Path) -> tuple[str, Layers]:
    """Pooling and layers of the model in a directory, as it is stored."""
    found = describe(folder)
    return found.pooling, found.layers


def head_of(kind: str, folder: Path) -> Head:
    """The head of type ``kind`` that the folder of its module holds.

    Raises:
        InputError: it cannot be read.
    """
    name = kind.rsplit(".", 1)[-1]  # sentence-transformers has moved its modules between packages
    try:
        if name == "Dense" and (folder / LOG_VAR).is_file():
            return GaussianHead.load(folder)
        return {module.rsplit(".", 1)[-1]: head for module, head in HEADS.items()}[name].load(folder)
    except (KeyError, ValueError, TypeError, OSError, RuntimeError, SafetensorError) as error:
        raise InputError(f"{folder}: not a readable {kind} module ({error}); get the model again") from None


def save_layers(folder: Path, width: int, layers: Layers, depth: int) -> None:
    """A WeightedLayerPooling that pools ``layers``."""
    indices = layer_indices(layers, depth)
    weights = layer_weights(layers) or [float(i in indices) for i in range(depth + 1)]
    start = min(indices)
    write_json(folder / "config.json", {"embedding_dimension": width, "layer_start": start, "num_hidden_layers": depth})
    save_file({"layer_weights": torch.tensor(weights[start:])}, folder / "model.safetensors")


def _load_layers(folder: Path, config: dict[str, Any]) -> Layers:
    start, depth = config["layer_start"], config["num_hidden_layers"]
    weights: Sequence[float] = [1.0] * (depth + 1 - start)
    for path in (folder / "model.safetensors", folder / "pytorch_model.bin"):
        if path.is_file():
            held = load_file(path) if path.suffix == ".safetensors" else torch.load(path, "cpu", weights_only=True)
            weights = held["layer_weights"].tolist()
            break
    try:
        if len(weights) != depth + 1 - start:
            raise ValueError(f"{len(weights)} layer weights for {depth + 1 - start} layers")
        return layers_of([0.0] * start + list(weights))
    except ValueError as error:
        raise InputError(f"{folder}: {error}") from None


def config_of(path: Path) -> Any:
    """The JSON value of a file; None when it is not there."""
    try:
        return read_json(path)
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not JSON ({error}); get the model again") from None
