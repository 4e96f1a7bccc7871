"""What is known of ``mlm`` (:mod:`raysts.objectives.mlm`)."""

from dataclasses import dataclass

from raysts.objectives.kinds.kind import Kind, Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class MLMSettings(Settings):
    """Settings of ``mlm``. ``rate``: part of a text's tokens that is predicted, in (0, 1); one token at least."""

    rate: float = 0.15

    def __post_init__(self) -> None:
        if not 0.0 < self.rate < 1.0:
            raise ValueError(f"rate={self.rate} is a part of a text's tokens and must be between 0 and 1")


class MLMKind(Kind):
    """What is known of :class:`raysts.objectives.mlm.MLM`."""

    trained_by = "mlm:MLM"
    settings_type = MLMSettings
    table = "wikipedia/sentences"
    texts = ("sentence",)
    scales = {"small": {"train.max_steps": 500}}
