"""What is known of ``sed`` (:mod:`raysts.objectives.distillation`)."""

import math
from dataclasses import dataclass
from typing import Literal

from raysts.ids import later
from raysts.objectives.kinds.kind import Settings, VectorKind
from raysts.ops.ensemble import Target

Loss = Literal["mse", "cosine", "similarity", "infonce"]
Axes = Literal["teachers", "student"]
AGREEMENT = "agreement"


@dataclass(frozen=True, slots=True, kw_only=True)
class DistillationSettings(Settings):
    """Settings of ``sed``.

    Attributes:
        projection: a linear layer behind the student's pooling, of so many dimensions. Of ``mean`` and ``unit-mean`` the width
            of the teachers where it is not the student's, and the student keeps the layer. Of ``concat`` the sum of the
            teachers' widths: the whole vectors are matched and the layer is dropped afterwards; none: they are reduced to
            the student's width.
        target: what the teachers are combined to (:mod:`raysts.ops.ensemble`): the ``mean`` of their vectors, for members of
            one start (the papers'); the ``unit-mean`` of vectors of unit length, for teachers of one width and space;
            ``concat``, for any: vectors of unit length one after the other; ``similarity``, for any: the cosines of a batch.
        loss: ``mse`` of the vectors (the papers'); ``cosine``, of their directions; ``similarity``, of the cosines within a
            batch; ``infonce``, which tells the text's own target from those of the batch. None: similarity for the target of
            that name, else mse.
        weights: of the teachers, in their order; or ``agreement``: how well a teacher's cosines rank pairs of the text as
            the others' do, in the mean (Spearman), which needs no labels. None: equal ones.
        temperature: of infonce; none: 0.05.
        axes: what the vectors of the target are written in: the axes that the ``teachers`` have, or that their reduction
            gives; or those of the ``student``, to which the target is turned (:func:`raysts.ops.ensemble.turn`): for one that
            starts elsewhere than its teachers did.
    """

    projection: int | None = None
    target: Target = later("mean")
    loss: Loss | None = later(None)
    weights: tuple[float, ...] | str | None = later(None)
    temperature: float | None = later(None)
    axes: Axes = later("teachers")

    def __post_init__(self) -> None:
        if self.projection is not None and self.projection < 1:
            raise ValueError(f"projection={self.projection} must be the number of dimensions of the members, or none")
        if self.target == "similarity" and self.loss not in (None, "similarity"):
            raise ValueError(
                f"loss={self.loss}: target=similarity is the cosines of a batch, and no vectors that could be matched; take "
                f"loss=similarity, or target=concat"
            )
        if self.matched == "similarity" and self.projection is not None:
            raise ValueError(
                f"projection={self.projection}: loss=similarity compares cosines, which need no common width; leave it out"
            )
        if self.axes == "student" and (self.matched == "similarity" or self.projection is not None):
            raise ValueError(
                "axes=student: loss=similarity compares cosines, and a projection finds its own axes; leave one of them out"
            )
        if self.temperature is not None and not (self.loss == "infonce" and 0 < self.temperature < math.inf):
            raise ValueError(f"temperature={self.temperature} is of loss=infonce alone, and must be above 0")
        if isinstance(self.weights, str):
            if self.weights != AGREEMENT:
                raise ValueError(f"weights={self.weights!r} must be numbers, [2, 1], or {AGREEMENT}, or none")
        elif self.weights is not None and not (self.weights and all(0 < weight < math.inf for weight in self.weights)):
            raise ValueError(f"weights={list(self.weights)} must be one number above 0 for each teacher, or none")

    @property
    def matched(self) -> Loss:
        return self.loss or ("similarity" if self.target == "similarity" else "mse")

    @property
    def in_batch(self) -> bool:
        return self.matched in ("similarity", "infonce")

    @property
    def reduced(self) -> bool:
        return self.target == "concat" and self.matched != "similarity" and self.projection is None

    @property
    def mapped(self) -> bool:
        """Whether the student learns a linear map of what the teachers are combined to."""
        return self.reduced or self.axes == "student"


class DistillationKind(VectorKind):
    """What is known of a :class:`raysts.objectives.distillation.Distillation`."""

    trained_by = "distillation:Distillation"
    settings_type = DistillationSettings
    table = "wikipedia/sentences"
    texts = ("sentence",)
    values = ("teacher",)
    scales = {"paper": {"data.sample": 100_000, "train.eval_first": False}, "small": {"data.sample": 20_000}}

    @classmethod
    def adds_head(cls, settings: DistillationSettings) -> bool:
        return settings.projection is not None and settings.target != "concat"

    @classmethod
    def misfit(cls, settings: DistillationSettings, dim: int) -> str | None:
        return super().misfit(settings, settings.projection or dim)

    @classmethod
    def undivided(cls, settings: DistillationSettings) -> str | None:
        if settings.projection is None or cls.adds_head(settings):
            return None
        return "the projection reads all dimensions and is dropped after training; leave projection out"
