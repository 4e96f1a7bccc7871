"""Low-rank adapters (LoRA, Hu et al. 2021) beside the linear layers of a frozen backbone.

``peft`` makes them (``pip install 'raysts[lora]'``). They are multiplied into the weights before a model is written, so
the delivered model is an encoder like any other.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # what only asks whether it is installed needs no torch
    from raysts.models.encoder import Encoder

SCALE = 2
"""Factor of the product of the two matrices, peft's alpha / r."""


def missing() -> str | None:
    """Return how to install peft if it is missing, or None."""
    return None if importlib.util.find_spec("peft") else "needs peft: pip install 'raysts[lora]', on every node"


def adapt(encoder: Encoder, rank: int, seed: int) -> None:
    """Add adapters of this rank, drawn by the seed, to the linear layers of the backbone.

    The rest of the backbone is frozen. Adapters begin as zero, so the model is the same.
    """
    import torch
    from peft import LoraConfig, inject_adapter_in_model

    layers = {id(module) for layer in encoder.layer_list() for module in layer.modules()}
    names = [
        name
        for name, module in encoder.backbone.named_modules()
        if id(module) in layers and isinstance(module, torch.nn.Linear)
    ]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        inject_adapter_in_model(LoraConfig(r=rank, lora_alpha=SCALE * rank, target_modules=names), encoder.backbone)


def merge(encoder: Encoder) -> None:
    """Multiply the adapters into the weights and remove them, in place."""
    from peft.tuners.lora import LoraLayer

    for parent in list(encoder.backbone.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, LoraLayer):
                child.merge()
                setattr(parent, name, child.get_base_layer())
    del encoder.backbone.peft_config
