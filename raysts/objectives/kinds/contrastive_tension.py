"""What is known of ``ct`` (:mod:`raysts.objectives.contrastive_tension`)."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from raysts.objectives.kinds.kind import Kind, Settings, VectorKind

PAIRS = 8
"""Pairs in a group: one identical, seven non-identical."""

FRESH = ((0,), *((k, k + PAIRS - 1) for k in range(1, PAIRS)))
"""A group of 15 sentences: one for the identical pair, two of their own for every other pair."""

ANCHORED = ((0,), *((0, k) for k in range(1, PAIRS)))
"""A group of 8 sentences: the identical pair's is the first of every other pair."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContrastiveTensionSettings(Settings):
    """Settings of ``ct``.

    Attributes:
        reduction: of the pairs' losses over the global batch: ``mean`` (official code) or ``sum`` (sentence-transformers).
        negatives: ``fresh``: both sentences of a non-identical pair are draws of their own (official code);
            ``anchored``: the first encoder reads the group's identical sentence in all of its pairs
            (sentence-transformers).
    """

    reduction: Literal["mean", "sum"] = "mean"
    negatives: Literal["fresh", "anchored"] = "fresh"


class TensionKind(VectorKind):
    """Two encoders.

    Class attributes:
        group: sentences that the pairs of a group read; one where both encoders read the same.
        keeps: ``second``: encoder 2 of the last step; ``dev``: the best of both encoders over all dev evaluations.
    """

    settings_type = ContrastiveTensionSettings
    table = "wikipedia/sentences"
    texts = ("sentence",)
    sentences = 2
    keeps = ("second", "dev")
    keeps_by_dev = ("dev",)
    scales = {"paper": {"train.max_steps": 50_000, "train.keep": "dev"}, "small": {"train.max_steps": 500}}
    group: ClassVar[tuple[tuple[int, ...], ...]]

    @classmethod
    def variant(cls, settings: ContrastiveTensionSettings) -> type[Kind]:
        """The class whose batches are those of ``settings.negatives``."""
        return {"fresh": ContrastiveTensionKind, "anchored": AnchoredContrastiveTensionKind}[settings.negatives]

    @classmethod
    def problem(cls, batch: int) -> str | None:
        """The batch must hold whole groups."""
        return None if batch % PAIRS == 0 else f"must be a multiple of {PAIRS} (1 identical and 7 non-identical pairs)"

    @classmethod
    def rows_per_batch(cls, batch: int) -> int:
        """The sentences of a group of 8 pairs, times the groups."""
        return batch // PAIRS * cls._rows()

    @classmethod
    def examples(cls, rows: int) -> list[tuple[int, ...]]:
        """The pairs of every whole group: (i,) the identical one, (a, b) the others."""
        step = cls._rows()
        firsts = range(0, rows - step + 1, step)
        return [tuple(first + row for row in pair) for first in firsts for pair in cls.group]

    @classmethod
    def _rows(cls) -> int:
        return 1 + max(row for pair in cls.group for row in pair)


class ContrastiveTensionKind(TensionKind):
    """A batch of 16 pairs is two groups of one identical and seven non-identical pairs of fresh sentences."""

    trained_by = "contrastive_tension:ContrastiveTension"
    group = FRESH


class AnchoredContrastiveTensionKind(TensionKind):
    """A group's seven non-identical pairs share their first sentence with the identical one."""

    trained_by = "contrastive_tension:AnchoredContrastiveTension"
    group = ANCHORED
