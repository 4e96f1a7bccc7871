"""Many texts as one row of tokens: layers see all of it, attention one text at a time.

Attention has a kernel for texts of any lengths on GPUs and, by ``raysts.cpu.fused``, on CPUs; without one the texts are
padded for it alone. The host knows all sizes and never waits for a GPU.

Shapes: B texts, N tokens of the packed row, T tokens of the longest text, A heads, E values a head.
"""

from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from raysts.cpu.kernels import dropout as fast_dropout

ATTENTION = "raysts-packed"
"""Name under which transformers knows ``attend``."""

LONG = 64
"""Tokens of the longest text from which CPUs attend one text at a time, without training by torch's fused attention."""

ROUND = 32
"""Rows on CPUs have a multiple of this many tokens, because oneDNN compiles its bf16 kernels for every new number of tokens."""

_ALIGNED = 16
"""Alignment in bytes of the tensors of a copied batch."""

_LENGTH = "_length"


class PackedTexts(NamedTuple):
    """Batch as one row."""

    ids_N: Tensor
    positions_N: Tensor
    lengths_B: Tensor
    longest: int
    mask_BT: Tensor | None
    """True for a token. None: texts of one length, and attention without a mask is faster."""
    starts: Tensor
    """[B + 1] int32: where each text begins, and where the last one ends."""
    places_N: Tensor | None
    """Position of each token in the texts padded to the longest, [B * T]. None: the row is the padded texts."""

    def pad(self, x_NH: Tensor) -> Tensor:
        """Return [N, ...] as [B, T, ...], zero behind the texts."""
        shape = len(self.lengths_B), self.longest
        if self.places_N is None:
            return x_NH.unflatten(0, shape)
        padded = x_NH.new_zeros(shape[0] * shape[1], *x_NH.shape[1:])
        # Every position is written once, and backward reads: a GPU chooses no order of sums.
        return padded.index_copy_(0, self.places_N, x_NH).unflatten(0, shape)


def pack(
    ids_BT: Tensor, lengths_B: Tensor, position_pad: int | None, host_lengths: np.ndarray | None = None, packed: bool = True
) -> PackedTexts:  # fmt: skip
    """Pack token ids, which are padded on the right.

    Args:
        ids_BT: token ids.
        lengths_B: tokens of each text.
        position_pad: padding index of a RoBERTa's position embeddings. Positions count from the next index.
        host_lengths: the lengths on the host, [B]. None: the host reads them from the device and waits for it.
        packed: False: the row is the padded texts, for families that cannot be packed.
    """
    host = lengths_B.cpu().numpy() if host_lengths is None else host_lengths
    longest, device = int(host.max()), ids_BT.device
    ids_BT, column_T = ids_BT[:, :longest], torch.arange(longest, device=device)
    mask_BT = column_T < lengths_B[:, None] if int(host.min()) < longest else None
    positions_BT, starts = column_T.expand_as(ids_BT), F.pad(lengths_B.cumsum(0), (1, 0)).int()
    if position_pad is not None:
        token_BT = ids_BT != position_pad
        positions_BT = token_BT.cumsum(1) * token_BT + position_pad
    if not packed:
        return PackedTexts(ids_BT.flatten(), positions_BT.flatten(), lengths_B, longest, mask_BT, starts, None)
    row_N, column_N = rows_and_columns(lengths_B, int(host.sum()))
    ids_N, positions_N = ids_BT[row_N, column_N], positions_BT[row_N, column_N]
    return PackedTexts(ids_N, positions_N, lengths_B, longest, mask_BT, starts, row_N * longest + column_N)


def fill_row(packed: PackedTexts, pad_id: int) -> PackedTexts:
    """Return the row on CPUs with padding behind it, up to a multiple of ``ROUND`` tokens."""
    padding = -len(packed.ids_N) % ROUND
    ids_N, positions_N = F.pad(packed.ids_N, (0, padding), value=pad_id), F.pad(packed.positions_N, (0, padding))
    return packed._replace(ids_N=ids_N, positions_N=positions_N)


def rows_and_columns(lengths_B: Tensor, tokens: int) -> tuple[Tensor, Tensor]:
    """Return the text [N] and the position [N] of each token of concatenated texts. ``tokens``: N."""
    row_N = torch.repeat_interleave(lengths_B, output_size=tokens)
    first_B = lengths_B.cumsum(0) - lengths_B
    return row_N, torch.arange(tokens, device=lengths_B.device) - first_B[row_N]


def attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: None, *, packed: PackedTexts,
    scaling: float, dropout: float = 0.0, attention_dropout: bool = True, **_: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    """Return attention within each text of a packed row [1, A, N, E] -> [1, N, A, E]."""
    assert packed.places_N is not None
    tokens, filled = len(packed.places_N), query.shape[2]
    q_NAE, k_NAE, v_NAE = (x[0, :, :tokens].transpose(0, 1) for x in (query, key, value))
    dropout = dropout if attention_dropout else 0.0
    width, longest, device = q_NAE.shape[-1], packed.longest, q_NAE.device
    if dropout == 0.0 and width % 8 == 0 and width <= 256 and has_kernel(device, q_NAE.dtype):
        starts = packed.starts
        return varlen_attn(q_NAE, k_NAE, v_NAE, starts, starts, longest, longest, scale=scaling)[None], None
    if device.type == "cpu" and longest >= LONG:  # padding would cost more than a call for each text
        texts = zip(
            *(x.transpose(0, 1)[None].split(packed.lengths_B.tolist(), 2) for x in (q_NAE, k_NAE, v_NAE)), strict=True
        )
        mixed_NAE = torch.cat([_attend_padded(q, k, v, None, scaling, dropout)[0] for q, k, v in texts])
    else:
        mask = None if packed.mask_BT is None else packed.mask_BT[:, None, None]
        q_BATE, k_BATE, v_BATE = (packed.pad(x).transpose(1, 2) for x in (q_NAE, k_NAE, v_NAE))
        mixed_BTAE = _attend_padded(q_BATE, k_BATE, v_BATE, mask, scaling, dropout)
        mixed_NAE = mixed_BTAE.flatten(0, 1).index_select(0, packed.places_N)
    if filled > tokens:
        mixed_NAE = F.pad(mixed_NAE, (0, 0, 0, 0, 0, filled - tokens))  # which copies, also by zero
    return mixed_NAE[None], None


def has_kernel(device: torch.device, dtype: torch.dtype) -> bool:
    """Return True if flash attention exists, which needs a GPU, two-byte numbers and no dropout."""
    if dtype not in (torch.float16, torch.bfloat16) or device.type == "cpu":
        return False
    return device.type != "cuda" or torch.cuda.get_device_capability(device) >= (8, 0)


def varlen_attn(*args: Any, **options: Any) -> Any:
    """Call torch's kernel for attention without padding. Its import takes seconds."""
    from torch.nn.attention import varlen

    return varlen.varlen_attn(*args, **options)


def _attend_padded(
    q_BATE: Tensor, k_BATE: Tensor, v_BATE: Tensor, mask: Tensor | None, scaling: float, dropout: float
) -> Tensor:
    """Return attention within padded texts -> [B, T, A, E]."""
    if q_BATE.device.type != "cpu" or (q_BATE.shape[2] >= LONG and not torch.is_grad_enabled()):
        return F.scaled_dot_product_attention(q_BATE, k_BATE, v_BATE, mask, dropout, scale=scaling).transpose(1, 2)
    # On CPUs torch's fused attention is no faster for short texts, and its backward in bf16 is 5 to 10 times slower than
    # these two products; so small ones are in float32 no slower than in bf16, where oneDNN compiles for every shape.
    at_least_float32 = torch.promote_types(q_BATE.dtype, torch.float32)
    with torch.autocast("cpu", enabled=False):
        query, key, value = (x.to(at_least_float32) for x in (q_BATE, k_BATE, v_BATE))
        scores_BATT = (query @ key.transpose(-1, -2)) * scaling
        if mask is not None:
            scores_BATT = scores_BATT.masked_fill(~mask, float("-inf"))
        mixed_BATE = fast_dropout(torch.softmax(scores_BATT, -1), dropout) @ value
        return mixed_BATE.to(q_BATE.dtype).transpose(1, 2)


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
