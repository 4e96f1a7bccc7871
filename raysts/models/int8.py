"""Linear layers whose products are of bytes, for inference on CPUs that multiply them (AVX512-VNNI, AMX)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from raysts.models import native

STEPS = 127
"""Of a byte to either side of zero."""


class Linear(nn.Module):
    """x W^T + b with a scale for each output of W and one for each row of x: what is computed of a text depends on no other.

    Args:
        weight: [N, K] int8, in steps of ``scales``.
        scales: [N] float32.
        bias: [N] float32, or none.
    """

    def __init__(self, weight: Tensor, scales: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        # No buffers: they stay float32 where the rest of a model becomes bf16.
        self.weight, self.scales, self.bias = weight, scales, bias
        self.out_features, self.in_features = weight.shape
        self._packed: Tensor | None = None

    @classmethod
    def of(cls, linear: nn.Linear) -> Linear:
        """``linear`` to the nearest steps."""
        weight, bias = linear.weight.detach().float(), linear.bias
        scales = weight.abs().amax(1) / STEPS
        return cls(_steps(weight, scales).to(torch.int8), scales, None if bias is None else bias.detach().float())

    @classmethod
    def joined(cls, parts: Sequence[Linear]) -> Linear:
        """Layers with biases, of one x, as one layer."""
        names = ("weight", "scales", "bias")
        return cls(*(torch.cat([getattr(part, name) for part in parts]) for name in names))

    def forward(self, x: Tensor) -> Tensor:
        """x [..., K] -> [..., N] of its type."""
        bytes_MK, scales_M = in_bytes(x.reshape(-1, x.shape[-1]))
        return self.finished(self.product(bytes_MK, x.dtype), scales_M).unflatten(0, x.shape[:-1])

    def product(self, bytes_MK: Tensor, dtype: torch.dtype) -> Tensor:
        """[M, N] of this type, without the scales of the rows and the bias."""
        if self._packed is None:
            self._packed = torch.ops.onednn.qlinear_prepack(self.weight, None)
        none = torch.zeros(self.out_features, dtype=torch.int64)
        # Of signed bytes oneDNN's products need AMX to be fast, of unsigned ones, of which 128 is zero, VNNI alone.
        return torch.ops.onednn.qlinear_pointwise(
            bytes_MK, 1.0, STEPS + 1, self._packed, self.scales, none, None, 1.0, 0, dtype, "none", [], ""
        )

    def finished(self, y_MN: Tensor, scales_M: Tensor) -> Tensor:
        """A product with the scales of its rows and the bias, in the same memory."""
        if native.can(y_MN):
            native.call("scaled", y_MN.dtype, y_MN, scales_M, self.bias, *y_MN.shape)
            return y_MN
        y_MN.mul_(scales_M[:, None])
        return y_MN if self.bias is None else y_MN.add_(self.bias)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_packed": None}  # it is of this processor


def install(layers: Iterable[nn.Module]) -> bool:
    """Put these in the place of all linear layers within ``layers``; False: there are none."""
    found = False
    for parent in [module for layer in layers for module in layer.modules()]:
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.Linear):
                setattr(parent, name, Linear.of(child))
                found = True
    return found


def in_bytes(x_MK: Tensor) -> tuple[Tensor, Tensor]:
    """Rows in steps around 128, [M, K] uint8, and what a step of each is, [M] float32."""
    if not native.can(x_MK):
        scales_M = x_MK.abs().amax(1).float() / STEPS
        return _steps(x_MK.float(), scales_M).add_(STEPS + 1).to(torch.uint8), scales_M
    bytes_MK, scales_M = torch.empty(x_MK.shape, dtype=torch.uint8), torch.empty(len(x_MK))
    native.call("in_bytes", x_MK.dtype, bytes_MK, scales_M, x_MK.contiguous(), *x_MK.shape)
    return bytes_MK, scales_M


def _steps(x_MK: Tensor, scales_M: Tensor) -> Tensor:
    return (x_MK / scales_M.where(scales_M > 0, 1.0)[:, None]).round_()
