"""What is known of an objective before anything is trained: its settings, data, sizes and names. It needs no torch, and so
neither does what asks for no more: recipes, names, messages about wrong input."""

from __future__ import annotations

from abc import ABC
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np

from raysts.ids import later

MOST_WIDE = 10_000
"""Of dimensions and of layers that a head may have: with more the memory would be full before anything is learnt."""


class LocalBatch(NamedTuple):
    """The part of a global batch that one process trains on."""

    rows: Mapping[str, Any]
    """Of a training table: ``Tokens`` for a text column, an array with the row as first axis for the others."""
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
        grad_cache: embed so many examples at once, so that memory grows with them and not with the batch (GradCache, Gao
            et al. 2021): nothing but the embeddings is kept for backward, which embeds them again with the same dropout.
            Loss and gradients are those of the whole batch, for a third more work. None: all at once. A step of BERT-base
            on 512 NLI pairs (21,290 tokens, bf16 on CPU) peaks at 3.1 GiB in chunks of 32; on 128 at once it takes 3.8.
    """

    matryoshka: tuple[int, ...] = later(())
    grad_cache: int | None = later(None)


class Kind(ABC):  # noqa: B024 (what is trained is abstract)
    """What an objective says of itself.

    Class attributes:
        trained_by: the :class:`raysts.objectives.objective.Objective` that is trained, ``file:class`` of ``raysts.objectives``.
        settings_type: the frozen dataclass of its settings.
        table: the canonical table it trains on by default.
        texts: its text columns.
        values: its other columns (``label``, ``score``, ``teacher``).
        sentences: sentences that an example sends through an encoder.
        keeps: allowed values of ``train.keep``; the first is the default.
        keeps_by_dev: those of them for which the score on ``dev`` chooses.
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

    trained_by: ClassVar[str]
    settings_type: ClassVar[type[Settings]]
    table: ClassVar[str]
    texts: ClassVar[tuple[str, ...]]
    values: ClassVar[tuple[str, ...]] = ()
    sentences: ClassVar[int] = 1
    keeps: ClassVar[tuple[str, ...]] = ("last", "best")
    keeps_by_dev: ClassVar[tuple[str, ...]] = ("best",)
    version: ClassVar[int] = 1
    dev: ClassVar[str] = "sts/stsb_dev"
    post: ClassVar[Literal["", "pooled", "tokens"]] = ""
    endings: ClassVar[Mapping[str, Mapping[str, Any]]] = {"": {}}
    members: ClassVar[int] = 1
    scales: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    around: ClassVar[Mapping[str, Mapping[str, Any]]] = {}

    @classmethod
    def variant(cls, settings: Any) -> type[Kind]:
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


class VectorKind(Kind):
    """What is trained by a loss of sentence vectors (:class:`raysts.objectives.objective.VectorObjective`)."""

    @classmethod
    def undivided(cls, settings: Any) -> str | None:
        return None
