"""Changes of an encoder's weights and layers: fewer layers, random weights, averages, adapters.

Adapters are low-rank (LoRA, Hu et al. 2021) and stand beside the linear layers of a frozen backbone. They are multiplied into
the weights before a model is written.
"""

from __future__ import annotations

import copy
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from raysts.models.families import class_of, family_of, omit_pooler
from raysts.models.pretrained import load

if TYPE_CHECKING:
    from raysts.models.encoder import Encoder
    from raysts.models.sentence_model import SentenceModel

TABLE_VERSION = 1
"""Raise it when :func:`token_table` gives another table."""

FREQUENT = 1e-3
"""The share of all tokens above which a token counts as common (a of Arora et al. 2017)."""

SCALE = 2
"""Factor of the product of an adapter's two matrices, peft's alpha / r."""


def spaced_layers(count: int, depth: int) -> tuple[int, ...]:
    """Return the numbers of ``count`` layers of ``depth``, from the first, 0, to the last, evenly spaced."""
    return tuple(int(layer) for layer in np.round(np.linspace(0, depth - 1, count)))


def token_table(model: SentenceModel) -> SentenceModel:
    """Return a static model: a vector for each token, and for a text the mean of those of its tokens.

    The vector of a token is what the model gives for the token alone, without the mean over tokens, times a / (a + p)
    (Arora et al. 2017). The vocabulary is in order of frequency, so p is taken from the rank by Zipf's law. Special tokens,
    and the padding, have zeros.
    """
    import torch
    from tokenizers import Tokenizer

    from raysts.models.encoder import Encoder
    from raysts.models.sentence_model import SentenceModel, represent_tokens
    from raysts.models.shipped.words import Words
    from raysts.models.tokens import Tokens
    from raysts.models.word_vectors import WordVectors

    tokenizer = model.tokenizer
    around, alone = (tokenizer("a", add_special_tokens=special)["input_ids"] for special in (True, False))
    first = next(i for i in range(len(around)) if around[i : i + len(alone)] == alone)
    count = len(tokenizer)
    ids_VT = np.array([[*around[:first], token, *around[first + len(alone) :]] for token in range(count)])
    tokens = Tokens(ids_VT.ravel().astype(np.int32), np.arange(count + 1) * ids_VT.shape[1])
    (vectors,) = represent_tokens(model.encoder, tokens, (model.layers,), model.precision)
    weight_VD = vectors["vectors"] / np.linalg.norm(vectors["vectors"], axis=1, keepdims=True).clip(1e-12)
    share_V = 1 / np.arange(1, count + 1) / np.log(count)
    weight_VD = (weight_VD - weight_VD.mean(axis=0)) * (FREQUENT / (FREQUENT + share_V))[:, None]
    weight_VD[tokenizer.all_special_ids] = 0
    backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    backend.post_processor = None
    backend.no_padding()
    pad_id = int(tokenizer.pad_token_id)
    backbone = WordVectors(torch.from_numpy(weight_VD.astype(np.float32)), pad_id, trained=True)
    words = Words(tokenizer_object=backend, pad_token=tokenizer.pad_token)
    return SentenceModel(Encoder(backbone, pad_id), words, backbone.config.max_position_embeddings, model.normalize)


def keep_layers(model: SentenceModel, layers: Sequence[int]) -> None:
    """Keep only some transformer layers of a model in main memory, in place.

    ``layers``: their numbers, counted from 0, ascending.
    """
    from torch import nn

    backbone, depth = model.encoder.backbone, model.encoder.depth
    for module in backbone.modules():
        for name, child in module.named_children():
            if isinstance(child, nn.ModuleList) and len(child) == depth:
                _give_modules(child[0], child[layers[0]])
                setattr(module, name, nn.ModuleList(child[layer] for layer in layers))
    config = backbone.config
    for name, value in config.to_dict().items():  # some families describe each layer by an entry of a list
        if isinstance(value, list) and len(value) == depth:
            setattr(config, name, [value[layer] for layer in layers])
    setattr(config, family_of(config.model_type).depth, len(layers))


def _give_modules(first: Any, layer: Any) -> None:
    """Give a layer the modules that its family has in the first one alone (ModernBERT, T5).

    A model with the layer in the first place is loaded with these.
    """
    for path, module in [*first.named_modules()][1:]:
        parent, _, name = path.rpartition(".")
        owner = layer.get_submodule(parent)
        if type(getattr(owner, name, None)) is not type(module):
            setattr(owner, name, module)
            if hasattr(owner, f"has_{name}"):
                setattr(owner, f"has_{name}", True)


def randomise(encoder: Encoder, seed: int) -> None:
    """Give an encoder random weights as its family initialises them, drawn by the seed."""
    import torch

    config = copy.deepcopy(encoder.backbone.config)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        kind = class_of(config)
        fresh = kind._from_config(config, dtype=torch.float32, **omit_pooler(kind))
    encoder.backbone.load_state_dict(fresh.state_dict())


def average(folders: Sequence[Path], **options: Any) -> SentenceModel:
    """Return the weight average of the encoders in ``folders``, without heads.

    Wortsman et al. 2022, model soups. The sum is float64, one model after the other, and is rounded once to float32.
    Pooling and values that are not floating-point numbers are those of the first, loaded with ``options``.
    """
    model = load(folders[0], device="cpu", heads=False, **options)
    state = model.encoder.backbone.state_dict()
    sums = {name: value.double() for name, value in state.items() if value.is_floating_point()}
    for folder in folders[1:]:
        other = load(folder, device="cpu", heads=False).encoder.backbone.state_dict()
        for name, total in sums.items():
            total += other[name]
    mean = {name: (total / len(folders)).to(state[name].dtype) for name, total in sums.items()}
    model.encoder.backbone.load_state_dict(state | mean)
    return model


def adapters_problem() -> str | None:
    """Return how to install peft if it is missing, or None."""
    return None if importlib.util.find_spec("peft") else "needs peft: pip install 'raysts[lora]', on every node"


def add_adapters(encoder: Encoder, rank: int, seed: int) -> None:
    """Add adapters of this rank, drawn by the seed, to the backbone's layers, and freeze the rest.

    Adapters begin as zero, so the model is the same.
    """
    import torch
    from peft import LoraConfig, inject_adapter_in_model

    layers = {id(module) for layer in encoder.layer_list() for module in layer.modules()}
    modules = [(name, m) for name, m in encoder.backbone.named_modules() if isinstance(m, torch.nn.Linear)]
    names = [name for name, module in modules if id(module) in layers]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        inject_adapter_in_model(LoraConfig(r=rank, lora_alpha=SCALE * rank, target_modules=names), encoder.backbone)


def merge_adapters(encoder: Encoder) -> None:
    """Multiply the adapters into the weights and remove them, in place."""
    from peft.tuners.lora import LoraLayer

    for parent in list(encoder.backbone.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, LoraLayer):
                child.merge()
                setattr(parent, name, child.get_base_layer())
    del encoder.backbone.peft_config
