"""Base classes of objectives: modules that own everything trainable and make their batches."""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from raysts.models.encoder import Encoder
from raysts.models.tokens import LocalBatch, Tokens

Batch = dict[str, Any]
"""Tensors by name. Values that the host needs are arrays (``raysts.models.packing.to_device``)."""


class Objective(nn.Module):
    """Training objective.

    ``forward(batch)`` returns ``(loss, scalars)`` with the global mean as loss.
    """

    def __init__(self, settings: Any, encoder: Encoder) -> None:
        super().__init__()
        self.settings = settings
        self.encoder = encoder

    def hold(self, arrays: Mapping[str, np.ndarray], device: torch.device) -> None:  # noqa: B027 (most need none)
        """Take the arrays that no batch brings, as tensors on the device that are not part of the state."""

    def collate(self, local: LocalBatch) -> Batch:
        """Return tensors for ``forward`` from this process's part of the batch.

        By default they are of each example's first row: the padded ids of every text column, the values, and the
        weights.
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
        """Return the loss (global mean, float32) and named scalars of one batch."""

    def candidates(self) -> dict[str, Encoder]:
        """Return the encoders that the run may select, the default first."""
        return {"encoder": self.encoder}

    def pad(self, name: str, tokens: Tokens) -> Batch:
        """Return ``{name: ids [B, T], name_length: [B]}``."""
        ids, lengths = tokens.pad(self.encoder.pad_id)
        return {name: ids, f"{name}_length": lengths}


class VectorObjective(Objective):
    """Loss of sentence vectors that can also be computed of their first dimensions.

    With ``settings.matryoshka`` the loss is the mean over these widths and the full one (Kusupati et al. 2022, equation
    1, with equal weights). The mean keeps the scale of the loss, and so the meaning of a learning rate. Scalars are of
    the full width.
    """

    @abstractmethod
    def vectors(self, batch: Batch) -> tuple[Tensor, ...]:
        """Return sentence vectors of a batch, each [..., D]."""

    @abstractmethod
    def loss(self, vectors: tuple[Tensor, ...], batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return loss and scalars of :meth:`vectors`, or of the first dimensions of each."""

    def embed_in_chunks(
        self,
        embed: Callable[..., Tensor],
        ids_RT: Tensor,
        lengths_R: Tensor,
        host_lengths: np.ndarray | None,
        per_example: int = 1,
    ) -> Tensor:
        """Embed texts in chunks of ``settings.grad_cache`` examples, or all at once without it.

        ``embed`` treats each text separately. ``per_example``: texts of an example.
        """
        chunk = per_example * (self.settings.grad_cache or len(ids_RT))
        if chunk >= len(ids_RT):
            return embed(ids_RT, lengths_R, host_lengths)
        parts = []
        for first in range(0, len(ids_RT), chunk):
            rows = slice(first, first + chunk)
            host_lengths_R = None if host_lengths is None else host_lengths[..., rows]
            # The recomputation restores the state of the generator, and so has the same dropout.
            parts.append(checkpoint(embed, ids_RT[rows], lengths_R[rows], host_lengths_R, use_reentrant=False))
        return torch.cat(parts)

    def embed_pair(self, batch: Batch, first: str, second: str) -> tuple[Tensor, Tensor]:
        """Return embeddings of two text columns from one pass -> ([B, D], [B, D])."""
        (a, a_lengths, a_host), (b, b_lengths, b_host) = token_columns(batch, first), token_columns(batch, second)
        longest = max(a.shape[1], b.shape[1])
        ids = torch.cat([nn.functional.pad(x, (0, longest - x.shape[1]), value=self.encoder.pad_id) for x in (a, b)])
        host_lengths = None if a_host is None or b_host is None else np.concatenate([a_host, b_host], -1)
        vectors = self.embed_in_chunks(self.encoder, ids, torch.cat([a_lengths, b_lengths]), host_lengths, 2)
        return vectors[: len(a)], vectors[len(a) :]

    def forward(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        full = self.vectors(batch)
        loss, scalars = self.loss(full, batch)
        widths = [width for width in self.settings.matryoshka if width < full[0].shape[-1]]
        for width in widths:
            loss = loss + self.loss(tuple(vectors[..., :width] for vectors in full), batch)[0]
        return loss / (1 + len(widths)), scalars


def token_columns(batch: Batch, name: str) -> tuple[Tensor, Tensor, np.ndarray | None]:
    """Return the ids and lengths of a text column, and the lengths as the host knows them."""
    return batch[name], batch[f"{name}_length"], batch.get(f"{name}_known")
