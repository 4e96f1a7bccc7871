"""What is known of ``whiten`` and ``centre`` (:mod:`raysts.objectives.whiten`)."""

from dataclasses import dataclass
from typing import Any, ClassVar

from raysts.objectives.kinds.kind import Kind, Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class WhitenSettings(Settings):
    """Settings of ``whiten``. ``dimensions``: keep this many, those of largest variance; none: all."""

    dimensions: int | None = None

    def __post_init__(self) -> None:
        if self.dimensions is not None and self.dimensions < 1:
            raise ValueError(f"dimensions={self.dimensions} must be at least 1, or none for all")


@dataclass(frozen=True, slots=True, kw_only=True)
class CentreSettings(Settings):
    """Settings of ``centre``: none."""

    dimensions: ClassVar[None] = None


class MomentsKind(Kind):
    """One pass over the sentences; nothing is trained."""

    table = "targets"
    texts = ("sentence",)
    keeps = ("last",)
    post = "pooled"

    @classmethod
    def misfit(cls, settings: Any, dim: int) -> str | None:
        wanted = settings.dimensions or dim
        return f"dimensions={wanted} must be at most those of the model, {dim}" if wanted > dim else None


class WhitenKind(MomentsKind):
    """Mean 0 and covariance I."""

    trained_by = "whiten:Whiten"
    settings_type = WhitenSettings


class CentreKind(MomentsKind):
    """Mean 0."""

    trained_by = "whiten:Centre"
    settings_type = CentreSettings
