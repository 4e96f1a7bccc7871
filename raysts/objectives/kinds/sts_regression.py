"""What is known of ``sts`` (:mod:`raysts.objectives.sts_regression`)."""

from dataclasses import dataclass

from raysts.objectives.kinds.kind import Settings, VectorKind


@dataclass(frozen=True, slots=True, kw_only=True)
class STSRegressionSettings(Settings):
    """Settings of ``sts``. ``lower_bound``: cosine that a pair of score 0 is trained towards, in [0, 1); a pair of score 5 has
    1."""

    lower_bound: float = 0.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.lower_bound < 1.0:
            raise ValueError(f"lower_bound {self.lower_bound} must be in [0, 1)")


class STSRegressionKind(VectorKind):
    """What is known of :class:`raysts.objectives.sts_regression.STSRegression`."""

    trained_by = "sts_regression:STSRegression"
    settings_type = STSRegressionSettings
    table = "sts/stsb_train"
    texts = ("sentence1", "sentence2")
    values = ("score",)
    sentences = 2
    keeps = ("best", "last")
    scales = {"paper": {"train.eval_first": False, "layers": 2}}
