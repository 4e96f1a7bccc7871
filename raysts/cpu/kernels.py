"""Linear layers and dropout that are faster on CPUs than torch's, and retained memory.

Parameters and mathematics are those of torch.
"""

from __future__ import annotations

import ctypes
import os
import sys
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_LANES = 4
"""16-bit random numbers in one 64-bit draw."""


_GLIBC_VARIABLES = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_")
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_MEBIBYTE = 2**20


class Linear(nn.Linear):
    """``nn.Linear`` with float32 products by oneDNN on CPUs.

    Torch uses MKL, which has AVX-512 on processors of Intel alone and is 2.2 times slower on others.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Return x W^T + b."""
        plain = x.device.type != "cpu" or x.dtype != torch.float32 or torch.is_autocast_enabled("cpu") or not x.numel()
        if plain or torch.compiler.is_compiling() or not _has_onednn():
            return super().forward(x)
        return _Product.apply(x, self.weight, self.bias)


class Dropout(nn.Dropout):
    """``nn.Dropout`` by ``dropout``."""

    def forward(self, x: Tensor) -> Tensor:
        return dropout(x, self.p) if self.training else x


def dropout(x: Tensor, p: float) -> Tensor:
    """Zero a fraction ``p`` of ``x`` and scale the rest to keep the expectation.

    On CPUs ``p`` is rounded to the next 1 / 65,536. On most CPUs torch draws one 32-bit number after the other in one
    thread. A 64-bit draw serves four elements here. Compiled code calls torch's dropout.
    """
    kept_draws = round((1.0 - p) * 65_536)
    if torch.compiler.is_compiling() or x.device.type != "cpu" or kept_draws == 0:
        return F.dropout(x, p)
    if kept_draws == 65_536:
        return x
    draws = torch.empty(-(-x.numel() // _LANES), dtype=torch.int64).random_(-(2**63), None)
    stays = draws.view(torch.int16)[: x.numel()].view(x.shape) < kept_draws - 32_768
    return x * stays.to(x.dtype).mul_(65_536 / kept_draws)


def install(backbone: nn.Module) -> None:
    """Replace torch's layers with these. Parameters and their names stay."""
    for parent in list(backbone.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear:
                faster: nn.Module = Linear(child.in_features, child.out_features, child.bias is not None, device="meta")
                faster.weight, faster.bias = child.weight, child.bias
            elif type(child) is nn.Dropout:
                faster = Dropout(child.p)
            else:
                continue
            setattr(parent, name, faster.train(child.training))


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:  # type: ignore[override]
        return product(x, weight, bias)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor | None], output: Tensor) -> None:  # type: ignore[override]
        ctx.save_for_backward(*inputs[:2])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:  # type: ignore[override]
        x, weight = ctx.saved_tensors
        rows = grad.reshape(-1, grad.shape[-1])
        need_x, need_weight, need_bias = ctx.needs_input_grad
        return (
            product(grad, weight.t()) if need_x else None,
            product(rows.t(), x.reshape(-1, x.shape[-1]).t()) if need_weight else None,
            rows.sum(0) if need_bias else None,
        )


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x weight^T + bias, by oneDNN if that is faster."""
    if not _has_onednn():
        return F.linear(x, weight, bias)
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


@cache
def keep_memory() -> None:
    """Keep freed blocks of up to 256 MiB in this process, 512 MiB in all.

    glibc keeps 32 MiB at most. The gradient of a word embedding table is larger, and the system takes as long as a
    layer to allocate and clear its pages at every training step. Embedding in bf16 takes a fifth less time with kept
    blocks. Other C libraries stay as they are, and so do values that the user has set in glibc's variables.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None and not any(name in os.environ for name in _GLIBC_VARIABLES):
        mallopt(_M_MMAP_THRESHOLD, 256 * _MEBIBYTE)
        mallopt(_M_TRIM_THRESHOLD, 512 * _MEBIBYTE)


@cache
def _has_onednn() -> bool:
    """Return True if torch has oneDNN and the processor AVX-512.

    With AVX2 alone oneDNN is slower than MKL, and it raises for bf16.
    """
    avx512 = torch.backends.cpu.get_cpu_capability().startswith("AVX512")
    return torch.backends.mkldnn.is_available() and avx512 and hasattr(torch.ops.mkldnn, "_linear_pointwise")
