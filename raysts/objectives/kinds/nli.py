"""What is known of ``nli`` (:mod:`raysts.objectives.nli`)."""

from dataclasses import dataclass

from raysts.objectives.kinds.kind import Settings, VectorKind


@dataclass(frozen=True, slots=True, kw_only=True)
class NLISettings(Settings):
    """Settings of ``nli``. ``bias``: the classifier has a bias (BERT-flow's has none)."""

    bias: bool = True


class NLIKind(VectorKind):
    """What is known of :class:`raysts.objectives.nli.NLI`."""

    trained_by = "nli:NLI"
    settings_type = NLISettings
    table = "nli/train"
    texts = ("premise", "hypothesis")
    values = ("label",)
    sentences = 2
    scales = {"paper": {"data.sample": 1_000_000}, "small": {"train.max_steps": 1_000}}
