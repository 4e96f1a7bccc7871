"""Post-norm layers (BERT, RoBERTa, DistilBERT) on CPUs as one autograd step without padding.

Torch multiplies the matrices. ``native.cpp`` computes the rest: attention with its dropout, dropout with residual and
norm, GELU, and the sums of biases in their backward passes. The layer of transformers runs without a compiler, on GPUs,
in float64 and where a module has another form.

Shapes: N tokens of all texts, H hidden dimensions, A heads, E values a head, F values of the feed-forward part, B
texts.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from functools import cache
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from raysts.cpu import kernels, native


def accelerate(encoder: Any) -> None:
    """Put the faster layers of this room into an ``Encoder``, as far as its family allows.

    Parameters and their names stay. The layers compute as torch's do on GPUs.
    """
    if encoder.family.kernels:
        kernels.install(encoder.backbone)
    if encoder.family.packed:
        install(encoder.layer_list())


def install(layers: Iterable[Any]) -> None:
    """Let layers of this form compute as one step. Parameters and their names stay."""
    for layer in layers:
        if not isinstance(layer, _FusedLayer):  # a backbone may be given to a second encoder
            layer.__class__ = _class_of(type(layer))  # type: ignore[arg-type]


@cache
def _class_of(kind: type) -> type:
    return type(kind.__name__, (_FusedLayer, kind), {"__module__": kind.__module__})


class _Parts(NamedTuple):
    """Modules of a layer, in the order in which they compute."""

    linear: tuple[Any, ...]
    """Layers of queries, keys, values, attention's output, and the two of the feed-forward part."""
    norms: tuple[Any, ...]
    drops: tuple[float, ...]
    """Dropout of attention's weights, and of both additions to the residual."""
    heads: int
    scaling: float


def parts_of(layer: Any, dtype: torch.dtype) -> _Parts | None:
    """Return the modules of a layer that is computed here on CPUs with products in ``dtype``.

    None: its form or one of its modules is another, or the library does not exist.
    """
    if dtype not in native.NAMES or torch.compiler.is_compiling() or native.library() is None:
        return None
    attention: Any = getattr(layer, "attention", None)
    if hasattr(attention, "self") and hasattr(layer, "intermediate"):
        part, mixed, output = attention.self, attention.output, layer.output
        linear = (part.query, part.key, part.value, mixed.dense, layer.intermediate.dense, output.dense)
        norms, drops = (mixed.LayerNorm, output.LayerNorm), (part.dropout.p, mixed.dropout.p, output.dropout.p)
        heads, activation = part.num_attention_heads, part.config.hidden_act
    elif hasattr(attention, "q_lin") and hasattr(layer, "ffn"):  # DistilBERT's
        part, rest = attention, layer.ffn
        linear = (part.q_lin, part.k_lin, part.v_lin, part.out_lin, rest.lin1, rest.lin2)
        norms, drops = (layer.sa_layer_norm, layer.output_layer_norm), (part.dropout.p, 0.0, rest.dropout.p)
        heads, activation = part.n_heads, part.config.activation
    else:
        return None
    supported = (
        all(type(module) in (nn.Linear, kernels.Linear) for module in linear)
        and all(type(module) is nn.LayerNorm for module in norms)
        and activation == "gelu"
        and norms[0].weight.dtype in native.NAMES
        and not any(width % native.LANES for width in (part.attention_head_size, linear[4].out_features))
    )
    return _Parts(linear, norms, drops, heads, part.scaling) if supported else None


class _FusedLayer:
    """Parent that a layer's class receives.

    A function stored in the layer would hold the layer in a reference cycle.
    """

    def __reduce_ex__(self, protocol: Any) -> tuple:
        return _restore, (type(self).__mro__[2],), self.__dict__

    def forward(self, x_1NH: Tensor, mask: None = None, *args: Any, **kwargs: Any) -> Any:
        layer, texts = cast(Any, self), cast(Any, kwargs.get("packed"))
        dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else x_1NH.dtype
        fusable = texts is not None and kwargs.get("fused", True) and x_1NH.device.type == "cpu"
        parts = parts_of(layer, dtype) if fusable else None
        if parts is None:
            return super().forward(x_1NH, mask, *args, **kwargs)  # type: ignore[misc]
        attention_drop, *residual_drops = parts.drops if layer.training else (0.0,) * 3
        drops = (attention_drop * kwargs.get("attention_dropout", True), *residual_drops)
        seed = int(torch.randint(2**62, ())) if any(drops) else 0
        modules = (*parts.linear[:4], parts.norms[0], *parts.linear[4:], parts.norms[1])
        weights = [tensor for module in modules for tensor in (module.weight, module.bias)]
        eps = tuple(norm.eps for norm in parts.norms)
        with torch.autocast("cpu", enabled=False):
            return _Layer.apply(x_1NH, (texts.starts, parts.heads, parts.scaling, eps, drops, seed, dtype), *weights)


def _restore(kind: Any) -> Any:
    return object.__new__(_class_of(kind))


class _Layer(torch.autograd.Function):
    """Layer from x [1, N, H] to [1, N, H] of the same type, with products in the call's type."""

    @staticmethod
    def forward(ctx: Any, x_1NH: Tensor, call: tuple, *weights: Tensor) -> Tensor:  # type: ignore[override]
        starts, heads, scaling, eps, drops, seed, dtype = call
        wq, bq, wk, bk, wv, bv, wo, bo, g1, b1, wi, bi, w2, b2, g2, be2 = weights
        x = x_1NH[0].contiguous()
        w_qkv, b_qkv = (torch.cat(parts).to(dtype) for parts in ((wq, wk, wv), (bq, bk, bv)))
        wo, bo, wi, bi, w2, b2 = (weight.to(dtype) for weight in (wo, bo, wi, bi, w2, b2))
        x_low = x.to(dtype)
        qkv = kernels.product(x_low, w_qkv, b_qkv)
        mixed, lse = _attention(qkv, starts, heads, scaling, drops[0], seed)
        attended = kernels.product(mixed, wo, bo)
        y, y_low, stats = _norm(attended, x, g1, b1, eps[0], drops[1], seed + 1)
        inner = kernels.product(y_low, wi, bi)
        active = torch.empty_like(inner)
        native.call("gelu", dtype, active, inner, *inner.shape)
        out = kernels.product(active, w2, b2)
        z, _, stats_2 = _norm(out, y, g2, be2, eps[1], drops[2], seed + 2, lower=False)
        ctx.call = call
        ctx.save_for_backward(
            x, x_low, qkv, mixed, lse, attended, y, y_low, stats, inner, active, out, stats_2, w_qkv, wo, wi, w2, g1, g2
        )
        return z[None]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dz_1NH: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        starts, heads, scaling, _, drops, seed, dtype = ctx.call
        x, x_low, qkv, mixed, lse, attended, y, y_low, stats, inner, active, out, stats_2, *weights = ctx.saved_tensors
        w_qkv, wo, wi, w2, g1, g2 = weights
        needs = ctx.needs_input_grad[2:]
        dy, d_out, (dg2, dbe2, db2) = _norm_backward(
            dz_1NH[0].contiguous(), None, out, y, g2, stats_2, drops[2], seed + 2
        )
        d_inner = torch.empty_like(inner)
        dbi = inner.new_empty(inner.shape[1], dtype=torch.float32)
        native.call("gelu_backward", dtype, d_inner, dbi, _through(d_out, w2), inner, *inner.shape)
        dy, d_attended, (dg1, db1, dbo) = _norm_backward(
            dy, _through(d_inner, wi), attended, x, g1, stats, drops[1], seed + 1
        )
        d_qkv = torch.empty_like(qkv)
        texts = _texts(qkv, starts, heads, scaling, drops[0], seed)
        native.call("attention_backward", dtype, d_qkv, _through(d_attended, wo), lse, qkv, *texts)
        db_qkv = lse.new_empty(qkv.shape[1])
        native.call("column_sums", dtype, db_qkv, d_qkv, *qkv.shape)
        dx = dy.add_(_through(d_qkv, w_qkv))[None] if ctx.needs_input_grad[0] else None
        dw_qkv = _outer(d_qkv, x_low) if any(needs[0:6:2]) else None
        dwq, dwk, dwv = (None,) * 3 if dw_qkv is None else dw_qkv.chunk(3)
        dbq, dbk, dbv = db_qkv.chunk(3)
        grads = (
            *(dwq, dbq, dwk, dbk, dwv, dbv, _outer(d_attended, mixed) if needs[6] else None, dbo, dg1, db1),
            *(_outer(d_inner, y_low) if needs[10] else None, dbi),
            *(_outer(d_out, active) if needs[12] else None, db2, dg2, dbe2),
        )
        pairs = zip(grads, needs, strict=True)
        return dx, None, *(grad.to(g1.dtype) if need and grad is not None else None for grad, need in pairs)


def _through(d_NF: Tensor, weight_FH: Tensor) -> Tensor:
    """Return d weight -> [N, H].

    With AVX-512 oneDNN computes float32: MKL, which torch uses, takes 10 to 40 % longer there on processors of AMD.
    """
    return d_NF @ weight_FH if d_NF.dtype == torch.bfloat16 else kernels.product(d_NF, weight_FH.t())


def _outer(d_NF: Tensor, x_NH: Tensor) -> Tensor:
    """Return d^T x -> [F, H].

    For bf16 tiles (AMX) the narrower factor is transposed first, because oneDNN's transposition takes longer.
    """
    if d_NF.dtype != torch.bfloat16 or d_NF.shape[0] % 8 or not torch.cpu._is_amx_tile_supported():
        return d_NF.t() @ x_NH
    if d_NF.shape[1] <= x_NH.shape[1]:
        return _transpose(d_NF) @ x_NH
    return _transpose(_transpose(x_NH) @ d_NF)


def _transpose(x_NC: Tensor) -> Tensor:
    """Return a transposed copy of bf16 values. N and C are multiples of 8."""
    x_CN = x_NC.new_empty(x_NC.shape[1], x_NC.shape[0])
    native.call("transpose", None, x_CN, x_NC, *x_NC.shape)
    return x_CN


def _draws_to_keep(p: float) -> int:
    """Return how many of 2^32 draws keep a value, or 0 if nothing is drawn."""
    return 0 if p == 0.0 else max(1, min(2**32 - 1, round((1.0 - p) * 2**32)))


def _texts(qkv: Tensor, starts: Tensor, heads: int, scaling: float, p: float, seed: int) -> tuple:
    width = qkv.shape[1] // 3
    return starts, len(starts) - 1, heads, width // heads, scaling, _draws_to_keep(p), ctypes.c_uint64(seed), len(qkv)


def _attention(qkv: Tensor, starts: Tensor, heads: int, scaling: float, p: float, seed: int) -> tuple[Tensor, Tensor]:
    mixed = qkv.new_empty(len(qkv), qkv.shape[1] // 3)
    lse = qkv.new_empty(len(qkv), heads, dtype=torch.float32)
    native.call("attention", qkv.dtype, mixed, lse, qkv, *_texts(qkv, starts, heads, scaling, p, seed))
    return mixed, lse


def _norm(
    x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, eps: float, p: float, seed: int, lower: bool = True
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the norm of residual + dropout(x), a copy in the type of ``x``, and statistics."""
    y = torch.empty_like(residual)
    low = torch.empty_like(x) if lower and x.dtype != y.dtype else None
    stats = x.new_empty(len(x), 2, dtype=torch.float32)
    parts = (y, low, stats, x, residual, weight.float(), bias.float())
    native.call("norm", (x.dtype, y.dtype), *parts, *x.shape, eps, _draws_to_keep(p), ctypes.c_uint64(seed))
    return y, y if low is None else low, stats


def _norm_backward(
    dy: Tensor, dy_extra: Tensor | None, x: Tensor, residual: Tensor, weight: Tensor, stats: Tensor, p: float, seed: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of the residual, of x, and [3, H] of weight, bias and x's bias."""
    dresidual, dx = torch.empty_like(dy), torch.empty_like(x)
    sums = stats.new_empty(3, x.shape[1])
    parts = (dresidual, dx, sums, dy, dy_extra, x, residual, weight.float(), stats)
    native.call("norm_backward", (x.dtype, dy.dtype), *parts, *x.shape, _draws_to_keep(p), ctypes.c_uint64(seed))
    return dresidual, dx, sums
