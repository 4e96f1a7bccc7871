"""Entry point of the room: put the faster layers into an encoder."""

from __future__ import annotations

from typing import Any

import torch

from raysts.cpu import fused, kernels


def accelerate(encoder: Any) -> None:
    """Put the faster layers into an ``Encoder``, as far as its family allows.

    Parameters and their names stay. The layers compute as torch's do on GPUs.
    """
    if encoder.family.kernels:
        kernels.install(encoder.backbone)
    if encoder.family.packed:
        fused.install(encoder.layer_list())


def needs_no_padding(encoder: Any, device: torch.device) -> bool:
    """Return True if ``raysts.cpu.fused`` computes every layer of an ``Encoder`` on this device."""
    if not (encoder.fused and encoder.family.packed and encoder.family.kernels and device.type == "cpu"):
        return False
    autocast = torch.is_autocast_enabled("cpu")
    dtype = torch.get_autocast_dtype("cpu") if autocast else next(encoder.backbone.parameters()).dtype
    return fused.can(encoder.layer_list(), dtype)
