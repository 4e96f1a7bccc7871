"""The objectives by name. Adding one is a loss, a file here, what is known of it in ``kinds``, this line, and a recipe."""

from raysts.objectives.kinds.contrastive_tension import ContrastiveTensionKind
from raysts.objectives.kinds.distillation import DistillationKind
from raysts.objectives.kinds.flow import FlowKind
from raysts.objectives.kinds.gausscse import GaussCSEKind
from raysts.objectives.kinds.kind import Kind
from raysts.objectives.kinds.latte_mix import AutoencoderKind, LatteMixKind, NormalVAEKind
from raysts.objectives.kinds.mlm import MLMKind
from raysts.objectives.kinds.nli import NLIKind
from raysts.objectives.kinds.simcse import SupervisedSimCSEKind, UnsupervisedSimCSEKind
from raysts.objectives.kinds.sts_regression import STSRegressionKind
from raysts.objectives.kinds.whiten import CentreKind, WhitenKind

OBJECTIVES: dict[str, type[Kind]] = {
    "mlm": MLMKind,
    "nli": NLIKind,
    "ct": ContrastiveTensionKind,
    "sts": STSRegressionKind,
    "simcse-sup": SupervisedSimCSEKind,
    "simcse-unsup": UnsupervisedSimCSEKind,
    "gausscse": GaussCSEKind,
    "sed": DistillationKind,
    "flow": FlowKind,
    "whiten": WhitenKind,
    "centre": CentreKind,
    "latte": LatteMixKind,
    "latte-ae": AutoencoderKind,
    "latte-normal": NormalVAEKind,
}
