"""What an objective is: one module that owns everything trainable and knows how its batches are made."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from raysts.ids import later
from raysts.models.encoder import Encoder
from raysts.models.tokens import Tokens

Batch = dict[str, Any]
"""Tensors by name; what the host has to know of a batch are arrays (``raysts.models.packing.to_device``)."""
Rows = Mapping[str, Any]
"""Rows of a training table: ``Tokens`` for a text column, an array with the row as first axis for the others."""


class LocalBatch(NamedTuple):
    """The part of a global batch that one process trains on."""

    rows: Rows
    examples: list[tuple[int, ...]]
    """Per example, positions in ``rows``."""
    weight: np.ndarray
    """[examples] float32: 1 for an example, 0 for the filler of a process that has none."""
    seeds: np.ndarray
    """[examples] int64: of each example's own noise; a function of (run seed, step, place in the global batch) alone."""
    ids: np.ndarray
    """Row ids (``row`` of the token store) in the order of ``rows``."""
    size: int
    """Examples in the global batch."""
    progress: float = 0.0
    """How much of the run is done, 0 to 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Base of the objectives' own settings; every field is part of the recipe.

    Attributes:
        matryoshka: numbers of first dimensions that are to be good sentence vectors by themselves: the loss is the mean of that
            of the whole vectors and of those of their first dimensions (:class:`VectorObjective`). None: the whole alone.
    """

    matryoshka: tuple[int, ...] = later(())

    @property
    def recomputes(self) -> bool:
        """Whether backward computes again what forward did, to hold less of it."""
        return False


class Objective(nn.Module, ABC):
    """One training objective. ``forward(batch)`` returns ``(loss, scalars)``; the loss is the global mean.

    Class attributes:
        settings_type: the frozen dataclass of its settings.
        table: the canonical table it trains on by default.
        texts: its text columns.
        values: its other columns (``label``, ``score``, ``teacher``).
        sentences: sentences that an example sends through an encoder.
        keeps: allowed values of ``train.keep``; the first is the default.
        keeps_by_dev: those of them for which the score on ``dev`` chooses.
        stackable: several members of one shape may be trained as one (no ``.item()``, no data-dependent shapes).
        version: part of the run id; raise it when the mathematics changes.
        dev: table whose score selects checkpoints (``raysts.evaluation.dev``).
        post: trains a head on the frozen model that came out: on what its heads give (``pooled``) or on its token vectors
            (``tokens``); stands last in a system's name.
        endings: its words in a system's name: what follows its own name, and the settings that this stands for.
        members: members of a system that combines none: over so many runs its paper averages.
        scales: what changes in its recipe at a scale of ``raysts.recipes.names.SCALES``, as overrides of a stage.
        around: what changes at a scale in the pipeline around it, as overrides of a pipeline that may lack some of the stages:
            its paper's backbone, the data of the stages before.
    """

    settings_type: ClassVar[type[Settings]]
    table: ClassVar[str]
    texts: ClassVar[tuple[str, ...]]
    values: ClassVar[tuple[str, ...]] = ()
    sentences: ClassVar[int] = 1
    keeps: ClassVar[tuple[str, ...]] = ("last", "best")
    keeps_by_dev: ClassVar[tuple[str, ...]] = ("best",)
    stackable: ClassVar[bool] = False
    version: ClassVar[int] = 1
    dev: ClassVar[str] = "sts/stsb_dev"
    post: ClassVar[Literal["", "pooled", "tokens"]] = ""
    endings: ClassVar[Mapping[str, Mapping[str, Any]]] = {"": {}}
    members: ClassVar[int] = 1
    scales: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    around: ClassVar[Mapping[str, Mapping[str, Any]]] = {}

    def __init__(self, settings: Any, encoder: Encoder) -> None:
        super().__init__()
        self.settings = settings
        self.encoder = encoder

    @classmethod
    def variant(cls, settings: Any) -> type[Objective]:
        """The class that does what ``settings`` say, where they decide which rows an example reads."""
        return cls

    @classmethod
    def rows_per_batch(cls, batch: int) -> int:
        """Table rows that a global batch of ``batch`` examples reads."""
        return batch

    @classmethod
    def examples(cls, rows: int) -> list[tuple[int, ...]]:
        """Which of a batch's ``rows`` consecutive rows each example reads; a last batch may hold fewer rows."""
        return [(row,) for row in range(rows)]

    @classmethod
    def problem(cls, batch: int) -> str | None:
        """What is wrong with a batch size, or None."""
        return None

    @classmethod
    def misfit(cls, settings: Any, dim: int) -> str | None:
        """Why ``settings`` do not fit a model of ``dim`` dimensions, or None."""
        most = max(settings.matryoshka, default=0)
        return f"matryoshka={list(settings.matryoshka)}: the vectors have {dim} dimensions" if most > dim else None

    @classmethod
    def undivided(cls, settings: Any) -> str | None:
        """Why the first dimensions of its vectors have no loss of their own (``matryoshka``), or None."""
        return "it is no loss of sentence vectors; leave it out"

    @classmethod
    def adds_head(cls, settings: Any) -> bool:
        """Whether the model that comes out has a head of the objective's own, which begins with random weights."""
        return bool(cls.post)

    def collate(self, local: LocalBatch) -> Batch:
        """Tensors for ``forward`` from this process's part of the batch.

        As it stands: of each example's first row the padded ids of every text column, the values, and the weights.
        """
        first = [example[0] for example in local.examples]
        batch = {"weight": torch.from_numpy(local.weight)}
        for name in self.texts:
            batch |= self.pad(name, local.rows[name].take(first))
        for name in self.values:
            values = np.asarray(local.rows[name])[first]
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
    def loss_of(self, vectors: tuple[Tensor, ...], batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Loss and scalars of :meth:`vectors`, or of the first dimensions of each."""

    @classmethod
    def undivided(cls, settings: Any) -> str | None:
        return None

    def forward(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        whole = self.vectors(batch)
        loss, scalars = self.loss_of(whole, batch)
        widths = [width for width in self.settings.matryoshka if width < whole[0].shape[-1]]
        for width in widths:
            loss = loss + self.loss_of(tuple(vectors[..., :width] for vectors in whole), batch)[0]
        return loss / (1 + len(widths)), scalars


def texts(batch: Batch, name: str) -> tuple[Tensor, Tensor, np.ndarray | None]:
    """What an encoder reads of a text column: ids, lengths, and the lengths as the host knows them."""
    return batch[name], batch[f"{name}_length"], batch.get(f"{name}_known")


def embed_pair(encoder: Encoder, batch: Batch, first: str, second: str) -> tuple[Tensor, Tensor]:
    """Embeddings of two text columns from one pass through the encoder -> ([B, D], [B, D])."""
    (a, a_lengths, a_known), (b, b_lengths, b_known) = texts(batch, first), texts(batch, second)
    longest = max(a.shape[1], b.shape[1])
    ids = torch.cat([nn.functional.pad(x, (0, longest - x.shape[1]), value=encoder.pad_id) for x in (a, b)])
    known = None if a_known is None or b_known is None else np.concatenate([a_known, b_known], -1)
    both = encoder(ids, torch.cat([a_lengths, b_lengths]), known)
    return both[: len(a)], both[len(a) :]
