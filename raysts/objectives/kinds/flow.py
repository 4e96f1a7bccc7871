"""What is known of ``flow`` (:mod:`raysts.objectives.flow`)."""

from dataclasses import dataclass

from raysts.objectives.kinds.kind import MOST_WIDE, Kind, Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowSettings(Settings):
    """Settings of ``flow``.

    Attributes:
        levels: each halves the dimensions: 2 (BERT-flow's Table 7) or 3 (the official code's default file).
        depth: steps of a level.
        width: hidden units of the coupling networks.
    """

    levels: int = 2
    depth: int = 3
    width: int = 32

    def __post_init__(self) -> None:
        for name in ("levels", "depth", "width"):
            if not 1 <= getattr(self, name) <= MOST_WIDE:
                raise ValueError(f"{name}={getattr(self, name)} must be from 1 to {MOST_WIDE:,}")


class FlowKind(Kind):
    """What is known of :class:`raysts.objectives.flow.Flow`."""

    trained_by = "flow:Flow"
    settings_type = FlowSettings
    table = "targets"
    texts = ("sentence",)
    post = "pooled"

    @classmethod
    def problem(cls, batch: int) -> str | None:
        """The first batch sets the scale of every dimension."""
        return None if batch > 1 else "must be at least 2: the first batch gives every dimension its variance"

    @classmethod
    def misfit(cls, settings: FlowSettings, dim: int) -> str | None:
        rule = f"levels={settings.levels}: every level halves the dimensions, so 2^levels must divide {dim}; take fewer"
        return rule if dim % 2**settings.levels else None
