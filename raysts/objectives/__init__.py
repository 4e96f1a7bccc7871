"""The objectives by name. Adding one is a file here, a loss, this line, and a recipe."""

from raysts.objectives.contrastive_tension import ContrastiveTension
from raysts.objectives.distillation import Distillation
from raysts.objectives.nli import NLI
from raysts.objectives.objective import Batch, Objective, Rows, Settings, Share
from raysts.objectives.sts_regression import STSRegression

OBJECTIVES: dict[str, type[Objective]] = {
    "nli": NLI,
    "ct": ContrastiveTension,
    "sts": STSRegression,
    "sed": Distillation,
}

__all__ = ["OBJECTIVES", "Batch", "Objective", "Rows", "Settings", "Share"]
