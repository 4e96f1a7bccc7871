"""Many texts as one row of tokens: layers see all of it, attention one text at a time.

With a kernel for texts of any lengths (on GPUs, and on CPUs by ``raysts.cpu.fused``) the row holds the texts' tokens
and nothing else. On other CPUs groups of texts of similar length are padded to their longest text. Little of the work
is then padding, and only the kernels of attention run once per group. The host knows all sizes and never waits for a
GPU.

Shapes: B texts, N tokens of the packed row, R texts of a group, T tokens of its longest, A heads, E values a head.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from raysts.cpu.kernels import dropout as fast_dropout

ATTENTION = "raysts-packed"
"""Name under which transformers knows ``attend``."""

GROUP_OVERHEAD = {"cpu": 16, "cuda": 4096}
"""Cost of one more group, in tokens of work: the padding that it must save."""


LONG = 64
"""Tokens of a group's longest text from which torch's fused attention is faster on CPUs, without training."""

ROUND = 32
"""Rows on CPUs have a multiple of this many tokens, because oneDNN compiles its bf16 kernels for every new number of tokens."""

_ALIGNED = 16
"""Alignment in bytes of the tensors of a copied batch."""

_LENGTH = "_length"


class LengthGroup(NamedTuple):
    """Texts that are padded to one length and attend in one call."""

    rows: int
    longest: int
    mask_RT: Tensor | None
    """True for a token. None: no padding, and attention without a mask is faster."""


class Row(NamedTuple):
    """Concatenated texts without padding."""

    starts: Tensor
    """[B + 1] int32: where each text begins, and where the last one ends."""
    places_N: Tensor
    """Position of each token in the texts padded to the longest, [B * T]."""
    texts: LengthGroup
    """The texts when they are padded."""

    def pad(self, x_NH: Tensor) -> Tensor:
        """Return [N, ...] as [B, T, ...], zero behind the texts."""
        padded = x_NH.new_zeros(self.texts.rows * self.texts.longest, *x_NH.shape[1:])
        # Every position is written once, and backward reads: a GPU chooses no order of sums.
        return padded.index_copy_(0, self.places_N, x_NH).unflatten(0, (self.texts.rows, self.texts.longest))


class PackedTexts(NamedTuple):
    """Batch as one row."""

    ids_N: Tensor
    positions_N: Tensor
    groups: list[LengthGroup]
    lengths_B: Tensor
    """Lengths in packed order."""
    order_B: Tensor | None
    """Index in the batch of each packed text. None: the same order."""
    row: Row | None = None
    """The texts without padding. Then ``groups`` is one group of all texts."""

    @property
    def sizes(self) -> list[int]:
        """Tokens per group, padding included."""
        return [group.rows * group.longest for group in self.groups]

    def unpack(self, tokens_NH: Tensor) -> list[Tensor]:
        """Return [R, T, H] per group."""
        if self.row is not None:
            return [self.row.pad(tokens_NH)]
        parts = tokens_NH.split(self.sizes)
        return [part.unflatten(0, (g.rows, g.longest)) for part, g in zip(parts, self.groups, strict=True)]

    def restore(self, rows_BD: Tensor) -> Tensor:
        """Return rows in packed order in the batch's order."""
        return rows_BD if self.order_B is None else rows_BD[torch.argsort(self.order_B)]


def packs_without_padding(device: torch.device) -> bool:
    """Return True if the device packs texts without any padding."""
    return device.type != "cpu"


def pack(
    ids_BT: Tensor, lengths_B: Tensor, position_pad: int | None, split: bool = True,
    host_lengths: np.ndarray | None = None, fused: bool = False,
) -> PackedTexts:  # fmt: skip
    """Pack right-padded token ids.

    Args:
        ids_BT: token ids, padded on the right.
        lengths_B: tokens of each text.
        position_pad: padding index of a RoBERTa's position embeddings. Positions count from the next index.
        split: into groups as cheap as ``GROUP_OVERHEAD`` allows, or without padding. False: one group in the batch's
            order.
        host_lengths: the lengths on the host, [B]. None: the host reads them from the device and waits for it.
        fused: whether layers are ``raysts.cpu.fused``'s, which need no padding on a CPU.
    """
    device = ids_BT.device
    ascending_B = (lengths_B.sort().values if host_lengths is None else np.sort(host_lengths)).tolist()
    if split and (fused or packs_without_padding(device)):
        return _pack_row(ids_BT, lengths_B, position_pad, ascending_B)
    cuts = cut(tuple(ascending_B), GROUP_OVERHEAD.get(device.type, 4096)) if split else [(0, len(ascending_B))]
    order_B = lengths_B.argsort(stable=True) if len(cuts) > 1 else None
    if order_B is not None:
        ids_BT, lengths_B = ids_BT[order_B], lengths_B[order_B]
    groups, ids, positions = [], [], []
    for first, last in cuts:
        longest = ascending_B[last - 1]
        column_T = torch.arange(longest, device=device)
        mask_RT = column_T < lengths_B[first:last, None] if ascending_B[first] < longest else None
        groups.append(LengthGroup(last - first, longest, mask_RT))
        ids_RT = ids_BT[first:last, :longest]
        ids.append(ids_RT.reshape(-1))
        positions.append(_positions(ids_RT, column_T, position_pad).reshape(-1))
    return PackedTexts(torch.cat(ids), torch.cat(positions), groups, lengths_B, order_B)


def fill_row(packed: PackedTexts, pad_id: int) -> PackedTexts:
    """Return the row on CPUs with padding behind it, up to a multiple of ``ROUND`` tokens.

    Where the row has groups, the padding is one more group.
    """
    padding = -len(packed.ids_N) % ROUND
    if not padding:
        return packed
    ids_N, positions_N = F.pad(packed.ids_N, (0, padding), value=pad_id), F.pad(packed.positions_N, (0, padding))
    groups = packed.groups if packed.row is not None else [*packed.groups, LengthGroup(1, padding, None)]
    return packed._replace(ids_N=ids_N, positions_N=positions_N, groups=groups)


def _pack_row(ids_BT: Tensor, lengths_B: Tensor, position_pad: int | None, ascending_B: list[int]) -> PackedTexts:
    longest, device = ascending_B[-1], ids_BT.device
    row_N, column_N = rows_and_columns(lengths_B, sum(ascending_B))
    column_T = torch.arange(longest, device=device)
    ids_BT = ids_BT[:, :longest]
    positions_N = _positions(ids_BT, column_T, position_pad)[row_N, column_N]
    mask_BT = column_T < lengths_B[:, None] if ascending_B[0] < longest else None
    texts = LengthGroup(len(ascending_B), longest, mask_BT)
    starts = F.pad(lengths_B.cumsum(0), (1, 0)).int()
    row = Row(starts, row_N * longest + column_N, texts)
    return PackedTexts(ids_BT[row_N, column_N], positions_N, [texts], lengths_B, None, row)


def rows_and_columns(lengths_B: Tensor, tokens: int) -> tuple[Tensor, Tensor]:
    """Return the text [N] and the position [N] of each token of concatenated texts.

    ``tokens``: their number N.
    """
    row_N = torch.repeat_interleave(lengths_B, output_size=tokens)
    first_B = lengths_B.cumsum(0) - lengths_B
    return row_N, torch.arange(tokens, device=lengths_B.device) - first_B[row_N]


def _positions(ids_RT: Tensor, column_T: Tensor, position_pad: int | None) -> Tensor:
    if position_pad is None:
        return column_T.expand_as(ids_RT)
    token_RT = ids_RT != position_pad
    return token_RT.cumsum(1) * token_RT + position_pad


def attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: None, *, groups: Sequence[LengthGroup] | Row,
    scaling: float, dropout: float = 0.0, attention_dropout: bool = True, **_: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    """Return attention within each text of a packed row [1, A, N, E] -> [1, N, A, E]."""
    dropout = dropout if attention_dropout else 0.0
    if isinstance(groups, Row):
        return _attend_row(groups, query[0], key[0], value[0], scaling, dropout)[None], None
    sizes = [group.rows * group.longest for group in groups]
    parts = zip(groups, *(x[0].split(sizes, dim=1) for x in (query, key, value)), strict=True)
    mixed = [_attend_group(group, q, k, v, scaling, dropout) for group, q, k, v in parts]
    return (mixed[0] if len(mixed) == 1 else torch.cat(mixed, dim=1)).transpose(0, 1)[None], None


def has_kernel(device: torch.device, dtype: torch.dtype) -> bool:
    """Return True if flash attention exists, which needs two-byte numbers and no dropout."""
    if dtype not in (torch.float16, torch.bfloat16) or not packs_without_padding(device):
        return False
    return device.type != "cuda" or torch.cuda.get_device_capability(device) >= (8, 0)


def varlen_attn(*args: Any, **options: Any) -> Any:
    """Call torch's kernel for attention without padding.

    The import takes seconds, because it imports the compiler. Machines without a GPU do not need it.
    """
    from torch.nn.attention import varlen

    return varlen.varlen_attn(*args, **options)


def _attend_row(row: Row, q_ANE: Tensor, k_ANE: Tensor, v_ANE: Tensor, scaling: float, dropout: float) -> Tensor:
    """Return attention within each text of a row -> [N, A, E]."""
    q_NAE, k_NAE, v_NAE = (x.transpose(0, 1) for x in (q_ANE, k_ANE, v_ANE))
    width, longest = q_NAE.shape[-1], row.texts.longest
    if dropout == 0.0 and width % 8 == 0 and width <= 256 and has_kernel(q_NAE.device, q_NAE.dtype):
        return varlen_attn(q_NAE, k_NAE, v_NAE, row.starts, row.starts, longest, longest, scale=scaling)
    q_BATE, k_BATE, v_BATE = (row.pad(x).transpose(1, 2) for x in (q_NAE, k_NAE, v_NAE))
    mask = None if row.texts.mask_RT is None else row.texts.mask_RT[:, None, None]
    mixed_BATE = F.scaled_dot_product_attention(q_BATE, k_BATE, v_BATE, mask, dropout, scale=scaling)
    return mixed_BATE.transpose(1, 2).flatten(0, 1).index_select(0, row.places_N)


def _attend_group(group: LengthGroup, q: Tensor, k: Tensor, v: Tensor, scaling: float, dropout: float) -> Tensor:
    q_ARTE, k_ARTE, v_ARTE = (x.unflatten(1, (group.rows, group.longest)) for x in (q, k, v))
    long = group.longest >= LONG and not torch.is_grad_enabled()
    if q.device.type != "cpu" or long:
        return _fused_call(group, q_ARTE, k_ARTE, v_ARTE, scaling, dropout)
    # On CPUs torch's fused attention is no faster for short texts, and its backward in bf16 is 5 to 10 times slower than
    # these three products; so small ones are in float32 no slower than in bf16, where oneDNN compiles for every shape.
    at_least_float32 = torch.promote_types(q.dtype, torch.float32)
    with torch.autocast("cpu", enabled=False):
        q_ARTE, k_ARTE, v_ARTE = (x.to(at_least_float32) for x in (q_ARTE, k_ARTE, v_ARTE))
        scores_ARTT = (q_ARTE @ k_ARTE.transpose(-1, -2)) * scaling
        if group.mask_RT is not None:
            scores_ARTT = scores_ARTT.masked_fill(~group.mask_RT[:, None], float("-inf"))
        mixed_ARTE = fast_dropout(torch.softmax(scores_ARTT, -1), dropout) @ v_ARTE
    return mixed_ARTE.flatten(1, 2).to(q.dtype)


def _fused_call(
    group: LengthGroup, q_ARTE: Tensor, k_ARTE: Tensor, v_ARTE: Tensor, scaling: float, dropout: float
) -> Tensor:
    mask = None if group.mask_RT is None else group.mask_RT[:, None, None]
    q_RATE, k_RATE, v_RATE = (x.transpose(0, 1) for x in (q_ARTE, k_ARTE, v_ARTE))
    mixed_RATE = F.scaled_dot_product_attention(q_RATE, k_RATE, v_RATE, mask, dropout, scale=scaling)
    return mixed_RATE.transpose(0, 1).flatten(1, 2)


@lru_cache(maxsize=4096)
def cut(lengths: tuple[int, ...], overhead: int) -> list[tuple[int, int]]:
    """Cut ascending ``lengths`` into runs of least total (rows x longest + overhead)."""
    ends = [i + 1 for i in range(len(lengths)) if i + 1 == len(lengths) or lengths[i] != lengths[i + 1]]
    starts = [0, *ends]
    cost, origin = [0.0], [0]
    for j, end in enumerate(ends):
        choices = [cost[i] + (end - starts[i]) * lengths[end - 1] + overhead for i in range(j + 1)]
        origin.append(min(range(j + 1), key=choices.__getitem__))
        cost.append(choices[origin[-1]])
    cuts: list[tuple[int, int]] = []
    j = len(ends)
    while j > 0:
        cuts.append((starts[origin[j]], starts[j]))
        j = origin[j]
    return cuts[::-1]


def to_device(batch: dict[str, Any], device: torch.device) -> dict[str, Any]:
    """Copy a batch's tensors to a device in one copy, without waiting. Other values stay.

    ``NAME_known`` holds the array of each ``NAME_length`` for the host.
    """
    if device.type == "cpu":
        return batch
    tensors = {name: value.contiguous() for name, value in batch.items() if isinstance(value, Tensor)}
    ends = np.cumsum([0, *(-(-value.nbytes // _ALIGNED) * _ALIGNED for value in tensors.values())]).tolist()
    buffer = torch.empty(ends[-1], dtype=torch.uint8, pin_memory=device.type == "cuda")

    def views(memory: Tensor) -> dict[str, Tensor]:
        places = zip(tensors.items(), ends, strict=False)
        return {n: memory[start : start + x.nbytes].view(x.dtype).view(x.shape) for (n, x), start in places}

    for name, view in views(buffer).items():
        view.copy_(tensors[name])
    lengths = {f"{n.removesuffix(_LENGTH)}_known": x.numpy() for n, x in tensors.items() if n.endswith(_LENGTH)}
    return batch | views(buffer.to(device, non_blocking=True)) | lengths
