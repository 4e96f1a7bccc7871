"""Descriptions of sentence-transformers directories: their modules and prompts."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError

from raysts.errors import InputError
from raysts.models import static
from raysts.models.layers import Layers, PoolingMode, layer_indices, layer_weights, layers_of, pooling_modes
from raysts.models.prompts import Prompts
from raysts.ops.similarity import SIMILARITIES
from raysts.storage.atomic import write_json
from raysts.storage.bucket import is_inside
from raysts.storage.foreign import check_ordinary, read_json
from raysts.storage.store import Store

if TYPE_CHECKING:  # commands describe a model before anything starts, and importing torch takes a second
    from raysts.models.head import Head

POOLING_KEYS: dict[PoolingMode, str] = {
    "cls": "pooling_mode_cls_token",
    "max": "pooling_mode_max_tokens",
    "mean": "pooling_mode_mean_tokens",
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}
"""In the order of their vectors in sentence-transformers."""

MOST_LAYERS = 1_000
"""More than any encoder has. A larger model would take hours to build."""


def _heads() -> dict[str, type[Head]]:
    """Return the heads by the last part of their type in ``modules.json``."""
    from raysts.models.head import CategoricalHead, Dense, FlowHead, NormalHead, PointHead

    kinds = (Dense, FlowHead, CategoricalHead, NormalHead, PointHead)
    return {kind.module.rsplit(".", 1)[-1]: kind for kind in kinds}


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """Settings that a directory has for its model. ``heads``: type and folder of each."""

    pooling: str = "mean"
    layers: Layers = 1
    heads: tuple[tuple[str, Path], ...] = ()
    max_length: int | None = None
    normalize: bool = False
    prompts: Prompts = Prompts()
    truncate_dim: int | None = None
    similarity: str = "cosine"

    @property
    def stored_pooling(self) -> tuple[str, Layers]:
        return self.pooling, self.layers


def describe(folder: Path) -> Description:
    """Return the description of the model in a directory, and refuse unknown modules and settings."""
    file = (Store.of(folder).get_dir(folder) or folder) / "modules.json"
    settings = _model_settings(folder / "config_sentence_transformers.json")
    heads: list[tuple[str, Path]] = []
    modules = read_json(file, list)
    config = (read_json(folder / "config.json") or {}) if modules is None else {}
    architectures = config.get("architectures")
    architecture = architectures[0] if isinstance(architectures, list) and architectures else ""
    if str(architecture).endswith("ForCausalLM") and config.get("is_causal", True):
        settings["pooling"] = "lasttoken"  # as sentence-transformers pools a decoder without modules
    if modules == []:
        raise InputError(f"{file}: lists no module; get the model again, or remove the file from a bare encoder")
    for module, path in _modules(file, modules or []):
        kind = module.rsplit(".", 1)[-1]
        config = read_json(path / "config.json") or {}
        if kind == "Transformer":
            sizes = transformer_settings(path)
            settings["max_length"] = whole_number(path / "sentence_bert_config.json", sizes, "max_seq_length")
        elif kind == "WordEmbeddings":
            sizes = read_json(path / static.SETTINGS) or {}
            settings["max_length"] = whole_number(path / static.SETTINGS, sizes, "max_seq_length")
        elif kind == "StaticEmbedding" and static.is_table(folder):
            settings["max_length"] = None  # it pools the mean of all tokens
        elif kind == "Pooling":
            named = config.get("pooling_mode") or [mode for mode, key in POOLING_KEYS.items() if config.get(key)]
            try:
                modes = pooling_modes(named if isinstance(named, str) else "+".join(named))
            except (ValueError, TypeError):
                rule = f"pooling must be one of {', '.join(POOLING_KEYS)}, or several"
                raise InputError(f"{path / 'config.json'}: {rule}") from None
            settings["pooling"] = "+".join(modes)
            settings["prompts"] = replace(settings["prompts"], pooled=bool(config.get("include_prompt", True)))
        elif kind == "WeightedLayerPooling":
            settings["layers"] = _load_layers(path, config)
        elif kind == "Normalize":
            settings["normalize"] = True
        elif kind in _heads() and not settings.get("normalize"):
            heads.append((module, path))
        else:
            raise InputError(
                f"{folder / 'modules.json'}: module '{module}' is unknown here, or in this place; raysts loads "
                f"Transformer, WordEmbeddings, StaticEmbedding, WeightedLayerPooling, Pooling, {', '.join(sorted(_heads()))} "
                f"modules, and Normalize as the last"
            )
    return Description(heads=tuple(heads), **settings)


def transformer_settings(folder: Path) -> dict[str, Any]:
    """Return the settings of a Transformer module: ``max_seq_length``, ``do_lower_case``."""
    for path in (folder / "sentence_bert_config.json", *sorted(folder.glob("sentence_*_config.json"))):
        if settings := read_json(path):
            return dict(settings)
    return {}


def whole_number(
    path: Path, config: Mapping[str, Any], key: str, most: int | None = None, least: int = 1
) -> int | None:
    """Return the whole number at a key of the configuration file ``path``, or None without one."""
    value = config.get(key)
    if value is None or (type(value) is int and least <= value <= (value if most is None else most)):
        return value
    limits = f"of at least {least}" if most is None else f"from {least} to {most:,}"
    raise InputError(f"{path}: {key}={value!r:.40}; it must be a whole number {limits}: get the model again")


def _model_settings(path: Path) -> dict[str, Any]:
    config = read_json(path) or {}
    if not isinstance(config.get("prompts") or {}, dict):
        raise InputError(f"{path}: prompts={config['prompts']!r:.40}; it must be an object of texts by their names")
    texts = {str(name): text or "" for name, text in (config.get("prompts") or {}).items()}
    similarity, default = config.get("similarity_fn_name") or "cosine", config.get("default_prompt_name")
    chosen = (("similarity_fn_name", similarity, SIMILARITIES), ("default_prompt_name", default, texts))
    for key, value, names in chosen:
        if value is not None and value not in [*names]:
            raise InputError(f"{path}: {key}={value!r:.40}; it must be one of {', '.join(names) or 'no prompts'}")
    truncate_dim = whole_number(path, config, "truncate_dim")
    return {"prompts": Prompts(texts=texts, default=default), "truncate_dim": truncate_dim, "similarity": similarity}


def pooling_config(width: int, pooling: str, prompts: Prompts) -> dict[str, Any]:
    """Return ``config.json`` of a Pooling module over token vectors of ``width``."""
    modes = pooling.split("+")
    config = {"word_embedding_dimension": width} | {key: mode in modes for mode, key in POOLING_KEYS.items()}
    order = {"pooling_mode": modes} if len(modes) > 1 else {}  # the keys alone have one fixed order
    return config | order | ({} if prompts.pooled else {"include_prompt": False})


def head_of(kind: str, folder: Path) -> Head:
    """Return the head of type ``kind`` from the folder of its module."""
    from raysts.models.head import LOG_VAR, GaussianHead

    name = kind.rsplit(".", 1)[-1]  # sentence-transformers has moved its modules between packages
    for path in [*folder.glob("*.safetensors"), *folder.glob("*.bin")]:
        check_ordinary(path)
    try:
        if name == "Dense" and (folder / LOG_VAR).is_file():
            return GaussianHead.load(folder)
        return _heads()[name].load(folder)
    except (KeyError, ValueError, TypeError, AttributeError, OSError, RuntimeError, SafetensorError) as error:
        raise InputError(f"{folder}: not a readable {kind} module ({error}); get the model again") from None


def save_layers(folder: Path, width: int, layers: Layers, depth: int) -> None:
    """Write a WeightedLayerPooling that pools ``layers``."""
    import torch
    from safetensors.torch import save_file

    indices = layer_indices(layers, depth)
    weights = layer_weights(layers) or [float(i in indices) for i in range(depth + 1)]
    start = min(indices)
    write_json(folder / "config.json", {"embedding_dimension": width, "layer_start": start, "num_hidden_layers": depth})
    save_file({"layer_weights": torch.tensor(weights[start:])}, folder / "model.safetensors")


def _load_layers(folder: Path, config: dict[str, Any]) -> Layers:
    from raysts.models.head import load_state

    start, depth = config.get("layer_start"), config.get("num_hidden_layers")
    try:
        if type(start) is not int or type(depth) is not int or not 0 <= start <= depth <= MOST_LAYERS:
            raise ValueError(f"layer_start={start!r:.40}, num_hidden_layers={depth!r:.40}: no layers of an encoder")
        weights: Sequence[float] = [1.0] * (depth + 1 - start)
        with contextlib.suppress(FileNotFoundError):
            weights = load_state(folder)["layer_weights"].tolist()
        if len(weights) != depth + 1 - start:
            raise ValueError(f"{len(weights)} layer weights for {depth + 1 - start} layers")
        return layers_of([0.0] * start + list(weights))
    except Exception as error:  # files from other sources
        raise InputError(f"{folder}: {error}") from None


def _modules(path: Path, modules: list[Any]) -> Iterator[tuple[str, Path]]:
    """Yield type and folder, inside the model's, of the ``modules`` that the file ``path`` lists."""
    for module in modules:
        kind, place = (module.get(key) for key in ("type", "path")) if isinstance(module, dict) else (None, None)
        if not isinstance(kind, str) or not isinstance(place, str):
            raise InputError(f"{path}: holds {module!r:.60}; a module needs a text 'type' and a text 'path'")
        if place and not is_inside(place):
            raise InputError(f"{path}: the path {place!r:.60} of a module must lie in the model's folder")
        yield kind, path.parent / place
