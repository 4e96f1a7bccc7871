"""A transformer encoder with pooling: token ids in, one embedding per text out.

Shapes: B texts, T tokens, H hidden = D embedding dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from raysts.models import kernels
from raysts.models.packing import ATTENTION, Packed, attend, pack

PoolingMode = Literal["mean", "cls", "max"]


class Encoder(nn.Module):
    """A Hugging Face encoder and its pooling.

    Args:
        backbone: the encoder without pooler head; its attention is replaced by one that understands packed batches, its
            linear layers and dropout by faster ones.
        pad_id: id of the padding token.
        pooling: ``mean``, ``cls`` or ``max`` over the non-padding tokens, special tokens included.
        layers: pool the mean of the last ``layers`` layers' token vectors.
    """

    backbone: Any

    def __init__(self, backbone: Any, pad_id: int, pooling: PoolingMode = "mean", layers: int = 1) -> None:
        from transformers import AttentionInterface

        super().__init__()
        AttentionInterface.register(ATTENTION, attend)
        backbone.set_attn_implementation(ATTENTION)
        kernels.install(backbone)
        kernels.keep_memory()
        self.backbone = backbone
        self.pad_id = pad_id
        self.pooling: PoolingMode = pooling
        self.layers = layers

    @property
    def config(self) -> Any:
        """The backbone's Hugging Face configuration."""
        return self.backbone.config

    @property
    def dim(self) -> int:
        """D, the number of embedding dimensions."""
        return int(self.config.hidden_size)

    @property
    def depth(self) -> int:
        """Number of transformer layers."""
        return int(self.config.num_hidden_layers)

    def forward(self, ids_BT: Tensor, lengths_B: Tensor) -> Tensor:
        """Embeddings [B, D] in float32 of right-padded token ids.

        Texts of similar length are padded together, so that little of the work is padding; the rows come back in their
        own order.
        """
        return self._embed(pack(ids_BT, lengths_B, self._position_pad), (self.layers,))[0]

    def forward_layers(self, ids_BT: Tensor, lengths_B: Tensor, layers: Sequence[int]) -> list[Tensor]:
        """Embeddings [B, D] for each number of pooled last layers in ``layers``, from one pass."""
        return self._embed(pack(ids_BT, lengths_B, self._position_pad), layers)

    @property
    def _position_pad(self) -> int | None:
        return self.backbone.embeddings.position_embeddings.padding_idx

    def _embed(self, packed: Packed, layers: Sequence[int]) -> list[Tensor]:
        output = self.backbone(
            input_ids=packed.ids_N[None],
            position_ids=packed.positions_N[None],
            output_hidden_states=max(layers) > 1,
            groups=packed.groups,
        )
        results = []
        for k in layers:
            tokens_NH = output.last_hidden_state[0]
            if k > 1:
                tokens_NH = torch.stack([hidden[0] for hidden in output.hidden_states[-k:]]).float().mean(0)
            first, parts = 0, []
            for group, tokens_RTH in zip(packed.groups, packed.unpack(tokens_NH), strict=True):
                lengths_R = packed.lengths_B[first : first + group.rows]
                parts.append(pool(tokens_RTH, group.mask_RT, lengths_R, self.pooling))
                first += group.rows
            results.append(packed.restore(torch.cat(parts) if len(parts) > 1 else parts[0]))
        return results


def pool(tokens_BTH: Tensor, mask_BT: Tensor | None, lengths_B: Tensor, mode: PoolingMode) -> Tensor:
    """Token vectors -> [B, H] in float32 (float64 stays): mean, maximum or the first token; padding takes no part."""
    if tokens_BTH.dtype != torch.float64:
        tokens_BTH = tokens_BTH.float()
    if mode == "cls":
        return tokens_BTH[:, 0]
    if mode == "max":
        if mask_BT is not None:
            tokens_BTH = tokens_BTH.masked_fill(~mask_BT[..., None], float("-inf"))
        return tokens_BTH.amax(1)
    if mask_BT is not None:
        tokens_BTH = tokens_BTH * mask_BT[..., None]
    return tokens_BTH.sum(1) / lengths_B[:, None]
