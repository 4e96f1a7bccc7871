"""Many texts as one row of tokens: every layer sees all tokens at once, only attention looks at one text at a time.

Texts of similar length stand in groups and are padded to the longest of their group, so that little of the work is
padding and no kernel runs once per group but those of attention.

Shapes: B texts, N tokens of the packed row, R texts of a group, T tokens of its longest, A heads, E values a head.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from raysts.models import kernels

ATTENTION = "raysts-packed"
"""Name under which transformers knows ``attend``."""

GROUP_OVERHEAD = {"cpu": 16, "cuda": 4096}
"""Cost of one more group, in tokens of work: what a group must save in padding to be worth it."""


class Group(NamedTuple):
    """Texts that are padded to one length and attend in one call."""

    rows: int
    longest: int
    mask_RT: Tensor | None
    """True where there is a token; None: no padding, attention without a mask is faster."""
    stacked: bool = False
    """Several members' texts under vmap."""


class Packed(NamedTuple):
    """A batch as one row."""

    ids_N: Tensor
    positions_N: Tensor
    groups: list[Group]
    lengths_B: Tensor
    """Lengths in packed order."""
    order_B: Tensor | None
    """Where in the batch each packed text stood; None: in the same place."""

    @property
    def sizes(self) -> list[int]:
        """Tokens per group, padding included."""
        return [group.rows * group.longest for group in self.groups]

    def unpack(self, tokens_NH: Tensor) -> list[Tensor]:
        """[R, T, H] per group."""
        parts = tokens_NH.split(self.sizes)
        return [part.unflatten(0, (g.rows, g.longest)) for part, g in zip(parts, self.groups, strict=True)]

    def restore(self, rows_BD: Tensor) -> Tensor:
        """Rows in packed order -> in the batch's order."""
        return rows_BD if self.order_B is None else rows_BD[torch.argsort(self.order_B)]


def pack(ids_BT: Tensor, lengths_B: Tensor, position_pad: int | None, split: bool = True) -> Packed:
    """Pack right-padded token ids.

    Args:
        ids_BT: token ids.
        lengths_B: tokens per text.
        position_pad: padding index of a RoBERTa's position embeddings, whose positions count from the next one on.
        split: into groups as cheap as ``GROUP_OVERHEAD`` allows; otherwise one group in the batch's order.

    Under vmap every member has a batch of its own, and all batches get the same groups: each is sorted by length, and
    place i has room for the longest of the members' i-th texts. No other assignment of texts to common places pads less.
    """
    device = ids_BT.device
    ascending_MB = _Ascending.apply(lengths_B).tolist()
    members = len(ascending_MB)
    room = [max(place) for place in zip(*ascending_MB, strict=True)]
    least = [min(place) for place in zip(*ascending_MB, strict=True)]
    cuts = [(0, len(room))]
    if split:
        # One more group is one more call for all members together.
        cuts = cut(tuple(room), GROUP_OVERHEAD.get(device.type, 4096) // members)
    order_B = lengths_B.argsort(stable=True) if len(cuts) > 1 else None
    if order_B is not None:
        ids_BT, lengths_B = ids_BT[order_B], lengths_B[order_B]
    groups, ids, positions = [], [], []
    for first, last in cuts:
        longest = room[last - 1]
        column_T = torch.arange(longest, device=device)
        mask_RT = column_T < lengths_B[first:last, None] if least[first] < longest else None
        groups.append(Group(last - first, longest, mask_RT, members > 1))
        ids_RT = ids_BT[first:last, :longest]
        ids.append(ids_RT.reshape(-1))
        positions.append(_positions(ids_RT, column_T, position_pad).reshape(-1))
    return Packed(torch.cat(ids), torch.cat(positions), groups, lengths_B, order_B)


class _Ascending(torch.autograd.Function):
    """Ascending lengths [M, B] of every batch that is packed: of one, or under vmap of all M members.

    What it returns is the same for all members, so that shapes can be made of it.
    """

    @staticmethod
    def forward(lengths_B: Tensor) -> Tensor:  # type: ignore[override]
        return lengths_B.sort().values[None]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:  # type: ignore[override]
        ctx.mark_non_differentiable(output)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int], lengths: Tensor) -> tuple[Tensor, None]:
        return lengths.movedim(in_dims[0], 0).sort().values, None


def _positions(ids_RT: Tensor, column_T: Tensor, position_pad: int | None) -> Tensor:
    if position_pad is None:
        return column_T.expand_as(ids_RT)
    token_RT = ids_RT != position_pad
    return token_RT.cumsum(1) * token_RT + position_pad


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: None,
    *,
    groups: Sequence[Group],
    scaling: float,
    dropout: float = 0.0,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attention of a packed row [1, A, N, E], each text to itself -> [1, N, A, E] (a transformers attention function)."""
    sizes = [group.rows * group.longest for group in groups]
    parts = zip(groups, *(x[0].split(sizes, dim=1) for x in (query, key, value)), strict=True)
    found = [_attend_group(group, q, k, v, scaling, dropout) for group, q, k, v in parts]
    return (found[0] if len(found) == 1 else torch.cat(found, dim=1)).transpose(0, 1)[None], None


def _attend_group(group: Group, q: Tensor, k: Tensor, v: Tensor, scaling: float, dropout: float) -> Tensor:
    q_ARTE, k_ARTE, v_ARTE = (x.unflatten(1, (group.rows, group.longest)) for x in (q, k, v))
    if q.device.type != "cpu":
        return _fused(group, q_ARTE, k_ARTE, v_ARTE, scaling, dropout)
    # On CPUs torch's fused attention is no faster for short texts in fp32, and its backward in bf16 is 5 to 10 times
    # slower than these three products.
    scores_ARTT = (q_ARTE @ k_ARTE.transpose(-1, -2)) * scaling
    if group.mask_RT is not None:
        scores_ARTT = scores_ARTT.masked_fill(~group.mask_RT[:, None], float("-inf"))
    at_least_float32 = torch.float64 if scores_ARTT.dtype == torch.float64 else torch.float32
    weights_ARTT = torch.softmax(scores_ARTT, -1, dtype=at_least_float32).to(q.dtype)
    return (kernels.dropout(weights_ARTT, dropout) @ v_ARTE).flatten(1, 2)


def _fused(group: Group, q_ARTE: Tensor, k_ARTE: Tensor, v_ARTE: Tensor, scaling: float, dropout: float) -> Tensor:
    mask = None if group.mask_RT is None else group.mask_RT[:, None, None]
    q_RATE, k_RATE, v_RATE = (x.transpose(0, 1) for x in (q_ARTE, k_ARTE, v_ARTE))
    if group.stacked:
        mixed_RATE = _Stacked.apply(q_RATE, k_RATE, v_RATE, mask, scaling, dropout)
    else:
        mixed_RATE = F.scaled_dot_product_attention(q_RATE, k_RATE, v_RATE, mask, dropout, scale=scaling)
    return mixed_RATE.transpose(0, 1).flatten(1, 2)


class _Stacked(torch.autograd.Function):
    """Fused attention under vmap: the members' texts are so many more rows of one call."""

    @staticmethod
    def forward(*_: Any) -> Tensor:
        raise AssertionError("members are stacked by vmap alone")

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        """What ``vmap`` calls keeps what its own backward needs."""

    @staticmethod
    def vmap(info: Any, in_dims: tuple, *inputs: Any) -> tuple[Tensor, int]:
        q, k, v = (x.movedim(dim, 0).flatten(0, 1) for x, dim in zip(inputs[:3], in_dims[:3], strict=True))
        mask, scaling, dropout = inputs[3:]
        if mask is not None:
            mask = mask.movedim(in_dims[3], 0).flatten(0, 1)
        mixed = F.scaled_dot_product_attention(q, k, v, mask, dropout, scale=scaling)
        return mixed.unflatten(0, (info.batch_size, -1)), 0


@lru_cache(maxsize=4096)
def cut(lengths: tuple[int, ...], overhead: int) -> list[tuple[int, int]]:
    """Cut ascending ``lengths`` into runs that minimise the sum of (rows x longest + overhead) by dynamic programming."""
    ends = [i + 1 for i in range(len(lengths)) if i + 1 == len(lengths) or lengths[i] != lengths[i + 1]]
    starts = [0, *ends]
    cost, origin = [0.0], [0]
    for j, end in enumerate(ends):
        choices = [cost[i] + (end - starts[i]) * lengths[end - 1] + overhead for i in range(j + 1)]
        best = min(range(j + 1), key=choices.__getitem__)
        cost.append(choices[best])
        origin.append(best)
    cuts: list[tuple[int, int]] = []
    j = len(ends)
    while j > 0:
        cuts.append((starts[origin[j]], starts[j]))
        j = origin[j]
    return cuts[::-1]
