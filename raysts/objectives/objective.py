"""What an objective is: one module that owns everything trainable and knows how its batches are made."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from raysts.models.encoder import Encoder
from raysts.models.tokens import LocalBatch, Tokens

Batch = dict[str, Any]
"""Tensors by name; what the host has to know of a batch are arrays (``raysts.models.packing.to_device``)."""


class Objective(nn.Module):
    """One training objective. ``forward(batch)`` returns ``(loss, scalars)``; the loss is the global mean."""

    def __init__(self, settings: Any, encoder: Encoder) -> None:
        super().__init__()
        self.settings = settings
        self.encoder = encoder

    def collate(self, local: LocalBatch) -> Batch:
        """Tensors for ``forward`` from this process's part of the batch.

        By default they are of each example's first row: the padded ids of every text column, the values, and the weights.
        """
        first = [example[0] for example in local.examples]
        batch = {"weight": torch.from_numpy(local.weight)}
        for name, column in local.rows.items():
            if isinstance(column, Tokens):
                batch |= self.pad(name, column.take(first))
            else:
                values = np.asarray(column)[first]
                batch[name] = torch.from_numpy(values.astype(np.int64 if values.dtype.kind in "iu" else np.float32))
        return batch

    @abstractmethod
    def forward(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Loss (global mean, float32) and named scalars of one batch."""

    def candidates(self) -> dict[str, Encoder]:
        """Encoders that may be kept, the default first."""
        return {"encoder": self.encoder}

    def pad(self, name: str, tokens: Tokens) -> Batch:
        """``{name: ids [B, T], name_length: [B]}``."""
        ids, lengths = tokens.pad(self.encoder.pad_id)
        return {name: ids, f"{name}_length": lengths}

    def pad_together(self, name: str, local: LocalBatch, columns: Sequence[str]) -> Batch:
        """``{name: ids [B, V, T], name_length: [B, V], weight: [B]}`` of V text columns."""
        first = [example[0] for example in local.examples]
        padded = [local.rows[column].take(first).pad(self.encoder.pad_id) for column in columns]
        longest = max(ids.shape[1] for ids, _ in padded)
        ids = [nn.functional.pad(ids, (0, longest - ids.shape[1]), value=self.encoder.pad_id) for ids, _ in padded]
        return {
            name: torch.stack(ids, 1),
            f"{name}_length": torch.stack([lengths for _, lengths in padded], 1),
            "weight": torch.from_numpy(local.weight),
        }


class VectorObjective(Objective):
    """A loss of sentence vectors, which their first dimensions have by themselves too.

    With ``settings.matryoshka`` the loss is the mean over these widths and the whole one (Kusupati et al. 2022, equation 1, with
    equal weights; divided by their number, so that a learning rate means what it does without). Scalars are of the whole.
    """

    @abstractmethod
    def vectors(self, batch: Batch) -> tuple[Tensor, ...]:
        """Sentence vectors of a batch, each [..., D]."""

    @abstractmethod
    def loss(self, vectors: tuple[Tensor, ...], batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Loss and scalars of :meth:`vectors`, or of the first dimensions of each."""

    def embed_in_chunks(
        self,
        embed: Callable[..., Tensor],
        ids_RT: Tensor,
        lengths_R: Tensor,
        known: np.ndarray | None,
        per_example: int = 1,
    ) -> Tensor:
        """What ``embed`` makes of texts, each by itself, of which an example has so many; ``settings.grad_cache`` examples at a
        time, if it is given."""
        chunk = per_example * (self.settings.grad_cache or len(ids_RT))
        if chunk >= len(ids_RT):
            return embed(ids_RT, lengths_R, known)
        parts = []
        for first in range(0, len(ids_RT), chunk):
            rows = slice(first, first + chunk)
            known_R = None if known is None else known[..., rows]
            # What is recomputed has the generator's state of its first time, and so the same dropout.
            parts.append(checkpoint(embed, ids_RT[rows], lengths_R[rows], known_R, use_reentrant=False))
        return torch.cat(parts)

    def embed_pair(self, batch: Batch, first: str, second: str) -> tuple[Tensor, Tensor]:
        """Embeddings of two text columns from one pass through the encoder -> ([B, D], [B, D])."""
        (a, a_lengths, a_known), (b, b_lengths, b_known) = token_columns(batch, first), token_columns(batch, second)
        longest = max(a.shape[1], b.shape[1])
        ids = torch.cat([nn.functional.pad(x, (0, longest - x.shape[1]), value=self.encoder.pad_id) for x in (a, b)])
        known = None if a_known is None or b_known is None else np.concatenate([a_known, b_known], -1)
        both = self.embed_in_chunks(self.encoder, ids, torch.cat([a_lengths, b_lengths]), known, 2)
        return both[: len(a)], both[len(a) :]

    def forward(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        whole = self.vectors(batch)
        loss, scalars = self.loss(whole, batch)
        widths = [width for width in self.settings.matryoshka if width < whole[0].shape[-1]]
        for width in widths:
            loss = loss + self.loss(tuple(vectors[..., :width] for vectors in whole), batch)[0]
        return loss / (1 + len(widths)), scalars


def token_columns(batch: Batch, name: str) -> tuple[Tensor, Tensor, np.ndarray | None]:
    """What an encoder reads of a text column: ids, lengths, and the lengths as the host knows them."""
    return batch[name], batch[f"{name}_length"], batch.get(f"{name}_known")
