"""The modules of a sentence-transformers directory, as far as raysts knows them: pooling, layers, heads, normalisation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from raysts.errors import InputError
from raysts.models import static
from raysts.models.encoder import PoolingMode
from raysts.models.gaussian_head import LOG_VAR, GaussianHead
from raysts.models.head import Dense, Head
from raysts.models.layers import Layers, layers_of
from raysts.models.shipped_heads import CategoricalHead, FlowHead, NormalHead, PointHead
from raysts.storage.atomic import read_json, write_json
from raysts.storage.store import Store

POOLING_KEYS: dict[PoolingMode, str] = {
    "cls": "pooling_mode_cls_token",
    "max": "pooling_mode_max_tokens",
    "mean": "pooling_mode_mean_tokens",
}

HEADS: dict[str, type[Head]] = {kind.module: kind for kind in (Dense, FlowHead, CategoricalHead, NormalHead, PointHead)}
"""The heads by their type in ``modules.json``. Adding one is a file here and a name in this line."""


def settings(folder: Path) -> dict[str, Any]:
    """Pooling, layers, heads, maximal length and normalisation that a directory asks for."""
    found: dict[str, Any] = {"pooling": "mean", "layers": 1, "max_length": None, "normalize": False, "heads": []}
    known = {kind.rsplit(".", 1)[-1] for kind in HEADS}
    for module in config_of((Store.of(folder).get_dir(folder) or folder) / "modules.json") or []:
        kind, path = module["type"].rsplit(".", 1)[-1], folder / module["path"]
        config = config_of(path / "config.json") or {}
        if kind == "Transformer":
            sizes = config_of(path / "sentence_bert_config.json") or {}
            found["max_length"] = sizes.get("max_seq_length")
        elif kind == "WordEmbeddings":
            found["max_length"] = (config_of(path / static.SETTINGS) or {}).get("max_seq_length")
        elif kind == "Pooling":
            modes = [mode for mode, key in POOLING_KEYS.items() if config.get(key)]
            modes = modes or [mode for mode in POOLING_KEYS if config.get("pooling_mode") == mode]
            if len(modes) != 1:
                raise InputError(f"{path / 'config.json'}: pooling must be one of {', '.join(POOLING_KEYS)}")
            found["pooling"] = modes[0]
        elif kind == "WeightedLayerPooling":
            found["layers"] = _load_layers(path, config)
        elif kind == "Normalize":
            found["normalize"] = True
        elif kind in known and not found["normalize"]:
            found["heads"].append((module["type"], path))
        else:
            raise InputError(
                f"{folder / 'modules.json'}: module '{module['type']}' is unknown here, or in this place; raysts loads "
                f"Transformer, WordEmbeddings, WeightedLayerPooling, Pooling, {', '.join(sorted(known))} modules, and "
                f"Normalize as the last"
            )
    return found


def pooled_by(folder: Path) -> tuple[PoolingMode, Layers]:
    """Pooling and layers of the model in a directory, as it is stored."""
    found = settings(folder)
    return found["pooling"], found["layers"]


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


def save_layers(folder: Path, width: int, indices: tuple[int, ...], depth: int) -> None:
    """A WeightedLayerPooling that averages the layers ``indices``."""
    start = min(indices)
    write_json(folder / "config.json", {"embedding_dimension": width, "layer_start": start, "num_hidden_layers": depth})
    weights = torch.tensor([float(i in indices) for i in range(start, depth + 1)])
    save_file({"layer_weights": weights}, folder / "model.safetensors")


def _load_layers(folder: Path, config: dict[str, Any]) -> Layers:
    start, depth = config["layer_start"], config["num_hidden_layers"]
    weights = [1.0] * (depth + 1 - start)
    if (folder / "model.safetensors").is_file():
        weights = load_file(folder / "model.safetensors")["layer_weights"].tolist()
    used = {weight for weight in weights if weight}
    try:
        if len(used) != 1:
            raise ValueError(f"layer weights {weights}: raysts pools the plain mean of layers")
        return layers_of(tuple(start + i for i, weight in enumerate(weights) if weight), depth)
    except ValueError as error:
        raise InputError(f"{folder}: {error}") from None


def config_of(path: Path) -> Any:
    """The JSON value of a file; None when it is not there."""
    try:
        return read_json(path)
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not JSON ({error}); get the model again") from None
