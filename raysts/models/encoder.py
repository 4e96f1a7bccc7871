"""A transformer encoder with pooling: token ids in, one embedding per text out.

Shapes: B texts, T tokens, H hidden = D embedding dimensions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from raysts.cpu.fused import accelerate
from raysts.models.families import family_of
from raysts.models.head import Head
from raysts.models.layers import Layers, layer_indices, layer_weights, pooling_modes
from raysts.models.packing import ATTENTION, PackedTexts, attend, fill_row, pack
from raysts.models.static import pooling_problem
from raysts.models.word_vectors import WordVectors


class Encoder(nn.Module):
    """Hugging Face encoder or word vectors, with pooling and heads.

    Args:
        backbone: the encoder without pooler head, or word vectors. As far as its family allows, attention for packed
            batches and faster linear layers and dropout replace its own.
        pooling: a ``PoolingMode`` over the non-padding tokens, special tokens included. ``+`` joins several, and their
            vectors are concatenated.
        layers: layers that are averaged before pooling.
        heads: applied one after the other. One that reads tokens is first and is pooled by ``mean``.
        mask_id: id of the mask token, if the tokenizer has one.
        skipped: tokens of a prompt at the start of each text that are not pooled.

    Attributes:
        attention_dropout: whether training drops weights of attention (of packed families).
        fused: whether a CPU computes layers by ``raysts.cpu.fused`` if it can.
    """

    backbone: Any
    heads: Any
    """The heads in their order (a ``ModuleList``)."""

    def __init__(
        self, backbone: Any, pad_id: int, pooling: str = "mean", layers: Layers = 1, heads: Sequence[Head] = (),
        mask_id: int | None = None, special_ids: tuple[int, ...] = (), skipped: int = 0,
    ) -> None:  # fmt: skip
        from transformers import AttentionInterface

        super().__init__()
        self.family = family_of(backbone.config.model_type)
        if isinstance(backbone, WordVectors):
            if problem := pooling_problem(pooling):
                raise ValueError(problem)
        elif self.family.packed:
            AttentionInterface.register(ATTENTION, attend)
            backbone.set_attn_implementation(ATTENTION)
        self.backbone = backbone
        accelerate(self)
        self.modes = pooling_modes(pooling)
        self.pad_id, self.pooling, self.layers, self.skipped = pad_id, pooling, layers, skipped
        self.heads = nn.ModuleList(heads)
        self.mask_id, self.special_ids = mask_id, special_ids
        self.attention_dropout = self.fused = True

    @property
    def config(self) -> Any:
        return self.backbone.config

    @property
    def width(self) -> int:
        """H, the number of dimensions of a token vector."""
        return int(getattr(self.config, self.family.width))

    @property
    def dim(self) -> int:
        """D, the number of embedding dimensions."""
        return self.heads[-1].dim if len(self.heads) else self.width * len(self.modes)

    @property
    def depth(self) -> int:
        return int(getattr(self.config, self.family.depth))

    @property
    def has_choice(self) -> bool:
        """True if it can pool other layers: heads belong to the layers they were trained on."""
        return not len(self.heads)

    @property
    def is_bf16(self) -> bool:
        """True if the backbone's weights are bf16, so that no cast is needed (a quarter of the time on CPUs)."""
        return next(self.backbone.parameters()).dtype == torch.bfloat16

    def forward(self, ids_BT: Tensor, lengths_B: Tensor, host_lengths: np.ndarray | None = None) -> Tensor:
        """Return embeddings [B, D] in float32 of right-padded token ids.

        ``host_lengths``: the lengths on the host. Without them the host waits for a GPU.
        """
        return self.represent(ids_BT, lengths_B, host_lengths)["vectors"]

    def represent(self, ids_BT: Tensor, lengths_B: Tensor, host_lengths: np.ndarray | None = None) -> dict[str, Any]:
        """Return the last head's arrays [B, ...], for ``ragged`` names one [T, ...] per text."""
        return self.represent_layers(ids_BT, lengths_B, (self.layers,), host_lengths)[0]

    def represent_layers(
        self, ids_BT: Tensor, lengths_B: Tensor, layers: Sequence[Layers], host_lengths: np.ndarray | None = None
    ) -> list[dict[str, Any]]:
        """Return the representation for each choice of layers, from one pass.

        An encoder with heads accepts one choice alone.
        """
        packed = self._pack(ids_BT, lengths_B, host_lengths)
        of_layers = self._token_layers(packed, layers)
        if not len(self.heads):
            return [{"vectors": self._pool(packed, tokens_NH, self.pooling)} for tokens_NH in of_layers]
        assert tuple(layers) == (self.layers,), "heads belong to the layers they were trained on"
        (tokens_NH,), (first, *rest) = of_layers, self.heads
        if first.reads == "tokens":
            arrays = self._pool_each(packed, first.represent(tokens_NH.float()), first.ragged, host_lengths)
        else:
            arrays = first.represent(self._pool(packed, tokens_NH, self.pooling))
        for head in rest:
            arrays = head.represent(arrays["vectors"])
        return [arrays]

    def followed_by(self, head: Head) -> Encoder:
        assert head.reads == "pooled" or not len(self.heads), "tokens are read before anything else"
        pooling = self.pooling if head.reads == "pooled" else "mean"
        pooled, rest = (pooling, self.layers, (*self.heads, head)), (self.mask_id, self.special_ids, self.skipped)
        longer = Encoder(self.backbone, self.pad_id, *pooled, *rest)
        longer.attention_dropout, longer.fused = self.attention_dropout, self.fused
        return longer.train(self.training)

    def recompute_layers(self) -> None:
        """Save only the input of each layer for backward, which computes the rest again with the same dropout."""
        # The switch of transformers does nothing with dropout off or in a family without support.
        for layer in self.layer_list():
            layer.forward = partial(_recompute, layer.forward)

    def compile_layers(self) -> None:
        """Let torch compile every layer at its first call, for any numbers of texts and tokens."""
        self.fused = False
        for layer in self.layer_list():
            layer.compile(dynamic=True)

    @property
    def word_table(self) -> nn.Embedding | None:
        """The word embeddings, or None if transformers has no plain table of them."""
        if isinstance(self.backbone, WordVectors):
            return None
        try:
            table = self.backbone.get_input_embeddings()
        except NotImplementedError:
            return None
        return table if isinstance(table, nn.Embedding) else None

    def layer_list(self) -> Iterable[Any]:
        return next((module for module in self.backbone.modules() if isinstance(module, nn.ModuleList)), ())

    def tokens(self, ids_BT: Tensor, lengths_B: Tensor, host_lengths: np.ndarray | None = None) -> Tensor:
        """Return token vectors [B, T, H] in float32 of the pooled layers."""
        return self.token_layers(ids_BT, lengths_B, (self.layers,), host_lengths)[0]

    def token_layers(
        self, ids_BT: Tensor, lengths_B: Tensor, layers: Sequence[Layers], host_lengths: np.ndarray | None = None
    ) -> list[Tensor]:
        """Return :meth:`tokens` for each choice of layers, from one pass."""
        packed = self._pack(ids_BT, lengths_B, host_lengths)
        behind = (0, 0, 0, ids_BT.shape[1] - packed.longest)
        vectors = self._token_layers(packed, layers)
        return [nn.functional.pad(packed.pad(tokens_NH), behind).float() for tokens_NH in vectors]

    def _pack(self, ids_BT: Tensor, lengths_B: Tensor, host_lengths: np.ndarray | None) -> PackedTexts:
        position_pad = self.config.pad_token_id if self.family.positions == "after-padding" else None
        return pack(ids_BT, lengths_B, position_pad, host_lengths, self.family.packed)

    def _token_layers(self, packed: PackedTexts, layers: Sequence[Layers]) -> list[Tensor]:
        """Return packed token vectors [N, H] for each choice of layers, from one pass."""
        chosen = [layer_indices(choice, self.depth) for choice in layers]
        all_layers = any(indices != (self.depth,) for indices in chosen)
        output = self._run_packed(packed, all_layers) if self.family.packed else self._run_padded(packed, all_layers)
        results = []
        for choice, indices in zip(layers, chosen, strict=True):
            if indices == (self.depth,):
                results.append(output.last_hidden_state.flatten(0, 1))
            elif weights := layer_weights(choice):
                states = torch.stack([state.flatten(0, 1) for state in output.hidden_states]).float()
                results.append(torch.tensordot(states.new_tensor(weights), states, 1) / sum(weights))
            elif len(indices) == 1:
                results.append(output.hidden_states[indices[0]].flatten(0, 1))
            else:
                results.append(torch.stack([output.hidden_states[i].flatten(0, 1) for i in indices]).float().mean(0))
        return results

    def _run_packed(self, packed: PackedTexts, all_layers: bool) -> Any:
        """Return hidden states [1, N, H], with ``all_layers`` those of every layer."""
        tokens, on_cpu = len(packed.ids_N), packed.ids_N.device.type == "cpu"
        if self.family.kernels and on_cpu and (self.is_bf16 or torch.is_autocast_enabled("cpu")):
            packed = fill_row(packed, self.pad_id)
        options: dict[str, Any] = {"output_hidden_states": all_layers, "packed": packed}
        options |= {} if self.fused else {"fused": False}
        options |= {} if self.attention_dropout else {"attention_dropout": False}
        output = self.backbone(input_ids=packed.ids_N[None], position_ids=packed.positions_N[None], **options)
        if len(packed.ids_N) > tokens:
            output.last_hidden_state = output.last_hidden_state[:, :tokens]
            if all_layers:
                output.hidden_states = tuple(state[:, :tokens] for state in output.hidden_states)
        return output

    def _run_padded(self, packed: PackedTexts, all_layers: bool) -> Any:
        """Return hidden states [B, T, H] of a padded batch, as transformers runs it."""
        ids_BT = packed.pad(packed.ids_N)
        mask_BT = torch.ones_like(ids_BT) if packed.mask_BT is None else packed.mask_BT.long()
        return self.backbone(input_ids=ids_BT, attention_mask=mask_BT, output_hidden_states=all_layers)

    def _pool(self, packed: PackedTexts, tokens_NH: Tensor, pooling: str) -> Tensor:
        return pool(packed.pad(tokens_NH), packed.mask_BT, packed.lengths_B, pooling, self.skipped)

    def _pool_each(
        self, packed: PackedTexts, arrays: dict[str, Tensor], ragged: Sequence[str], host_lengths: np.ndarray | None
    ) -> dict[str, Any]:
        """Return the mean over each text's tokens, and for ``ragged`` names the tokens themselves."""
        lengths = (packed.lengths_B if host_lengths is None else host_lengths).tolist()
        return {
            name: [row[:length] for row, length in zip(packed.pad(values_N), lengths, strict=True)]
            if name in ragged
            else self._pool(packed, values_N, "mean")
            for name, values_N in arrays.items()
        }


def _recompute(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    if not torch.is_grad_enabled():
        return forward(*args, **kwargs)
    return checkpoint(forward, *args, use_reentrant=False, **kwargs)


def pool(tokens_BTH: Tensor, mask_BT: Tensor | None, lengths_B: Tensor, pooling: str, skipped: int = 0) -> Tensor:
    """Return pooled token vectors -> [B, H] per mode, concatenated, in float32 (float64 stays).

    Padding and the first ``skipped`` tokens do not count. Of a text without other tokens means and maxima are zero, and
    ``cls`` is its first token.
    """
    if tokens_BTH.dtype != torch.float64:
        tokens_BTH = tokens_BTH.float()
    pooled_B = lengths_B
    if skipped:
        column_T = torch.arange(tokens_BTH.shape[1], device=tokens_BTH.device)
        mask_BT = (column_T >= skipped) & (column_T < lengths_B[:, None])
        pooled_B = (lengths_B - skipped).clamp(min=1)
    parts = [_pool_by(mode, tokens_BTH, mask_BT, lengths_B, pooled_B, skipped) for mode in pooling_modes(pooling)]
    return parts[0] if len(parts) == 1 else torch.cat(parts, -1)


def _pool_by(
    mode: str, tokens_BTH: Tensor, mask_BT: Tensor | None, lengths_B: Tensor, pooled_B: Tensor, skipped: int
) -> Tensor:
    """Return the vectors of one mode. ``pooled_B``: number of pooled tokens."""
    if mode in ("cls", "lasttoken"):
        place_B = lengths_B - 1 if mode == "lasttoken" else torch.where(lengths_B > skipped, skipped, 0)
        return tokens_BTH.gather(1, place_B[:, None, None].expand(-1, 1, tokens_BTH.shape[2]))[:, 0]
    if mode == "max":
        if mask_BT is not None:
            tokens_BTH = tokens_BTH.masked_fill(~mask_BT[..., None], float("-inf"))
        return tokens_BTH.amax(1).masked_fill((lengths_B <= skipped)[:, None], 0.0)
    if mask_BT is not None:
        tokens_BTH = tokens_BTH * mask_BT[..., None]
    if mode == "weightedmean":
        weights_T = torch.arange(1, tokens_BTH.shape[1] + 1, device=tokens_BTH.device).to(tokens_BTH.dtype)
        weight_sum_B = (lengths_B * (lengths_B + 1) - skipped * (skipped + 1)) // 2  # weights of the pooled tokens
        return (tokens_BTH * weights_T[:, None]).sum(1) / weight_sum_B.clamp(min=1)[:, None]
    return tokens_BTH.sum(1) / (pooled_B if mode == "mean" else pooled_B.sqrt())[:, None]
