"""Trained modules by objective. ``raysts.recipes.catalog`` describes them without torch."""

from raysts.objectives.contrastive_tension import ContrastiveTension
from raysts.objectives.distillation import Distillation
from raysts.objectives.flow import Flow
from raysts.objectives.gausscse import GaussCSE
from raysts.objectives.latte_mix import Autoencoder, LatteMix, NormalVAE
from raysts.objectives.mlm import MLM
from raysts.objectives.nli import NLI
from raysts.objectives.objective import Objective
from raysts.objectives.simcse import SupervisedSimCSE, UnsupervisedSimCSE
from raysts.objectives.sts_regression import STSRegression
from raysts.objectives.whiten import Centre, Whiten

MODULES: dict[str, type[Objective]] = {
    "mlm": MLM,
    "nli": NLI,
    "ct": ContrastiveTension,
    "sts": STSRegression,
    "simcse-sup": SupervisedSimCSE,
    "simcse-unsup": UnsupervisedSimCSE,
    "gausscse": GaussCSE,
    "sed": Distillation,
    "flow": Flow,
    "whiten": Whiten,
    "centre": Centre,
    "latte": LatteMix,
    "latte-ae": Autoencoder,
    "latte-normal": NormalVAE,
}
