"""Precision of an encoder: one setting for training, teachers and embedding.

Losses, reductions, weights and results are always float32. With TF32 the matrix products of a loss are TF32 too, because
its backward pass runs into that of the encoder.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

from raysts.errors import InputError, RunFailed, nearest

if TYPE_CHECKING:  # commands check the name before anything starts
    import numpy as np
    import torch

Precision = Literal["auto", "bf16", "fp16", "fp32", "tf32"]
"""``auto``: ``bf16`` where the hardware multiplies it natively (recent GPUs; CPUs with AVX512-BF16 or AMX), else ``fp32``.
``tf32``: float32 whose products keep ten bits of the mantissa, on GPUs that have it; elsewhere it is ``fp32``."""

PRECISIONS: tuple[str, ...] = get_args(Precision)

EMBEDS_ALONE = {"fp16": "gradients are too small for its exponents"}
"""Precisions that cannot train, and why."""


def resolve(precision: str, device: torch.device) -> str:
    """Return the precision on a device, ``auto`` resolved. Raise InputError if the name is unknown."""
    import torch

    if precision not in PRECISIONS:
        raise InputError(
            f"precision={precision!r}: must be one of {', '.join(PRECISIONS)}{nearest(str(precision), PRECISIONS)}"
        )
    if precision == "auto":
        return "bf16" if native_bf16(device) else "fp32"
    if precision == "tf32":
        has_tf32 = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)
        return "tf32" if has_tf32 else "fp32"
    return precision


def native_bf16(device: torch.device) -> bool:
    """Return True if the hardware multiplies bf16 natively (elsewhere bf16 is slower than fp32)."""
    import torch

    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    capabilities = torch.backends.cpu.get_cpu_capability()
    flags = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return capabilities.startswith("AVX512") and flags


def numbers(precision: str) -> torch.dtype:
    """Return the type of matrix products in a resolved precision."""
    import torch

    return {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision, torch.float32)


def autocast(device: torch.device, precision: str) -> torch.autocast:
    """Return the context in which an encoder computes in a resolved precision.

    TF32 on GPUs is a switch of the process: it is set here and stays for the backward pass.
    """
    import torch

    if device.type == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    lower = numbers(precision)
    if lower == torch.float32:
        return torch.autocast(device.type, enabled=False)
    return torch.autocast(device.type, dtype=lower)


def check_finite(vectors_ND: np.ndarray, model: str) -> np.ndarray:
    """Return ``vectors_ND``, or raise RunFailed if a value is NaN or infinite."""
    import numpy as np

    if bad := len(vectors_ND) - int(np.isfinite(vectors_ND).all(axis=1).sum()):
        raise RunFailed(
            f"{model} gives NaN or infinite vectors of {bad:,} of {len(vectors_ND):,} texts (training diverged?); use an "
            f"earlier checkpoint, another model or another precision"
        )
    return vectors_ND
