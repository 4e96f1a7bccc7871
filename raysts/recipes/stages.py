"""The default recipe of every objective.

Sources: mlm: BERT's objective at the size of a further pretraining on sentences; nli: Sentence-BERT and SED B.1; ct: the
official Contrastive Tension code and SED B.2; sts: Sentence-BERT and SED 5.5; simcse: SimCSE (Gao et al. 2021), appendix A,
and its official code (dev evaluation every 125 steps); gausscse: GaussCSE, section 3.2 and appendix A (batch, rate, epochs,
evaluation every 100 steps), and its official code (warm-up then linear decay, decay on all parameters, the untrained model
among the candidates); sed: SED 5.1; flow: BERT-flow (Li et al. 2020), Table 7 and official code, and SED B.3 (sentences of
the target sets, one epoch at 1e-3); whiten: Su et al. 2021; latte and its baselines: Latte-Mix, appendices A.4 and A.5.
Off the papers (``@paper`` has theirs) what dev chooses from includes the model that training starts from, and SimCSE, which
pools the first token through a dense layer with tanh in its paper, pools the mean without one, trains on all entailments
and masks false negatives; Latte-Mix standardises token vectors, and dev chooses among its heads, the untrained one included.
Flow and whitening are fitted in float32, to the vectors that evaluation reads.

The learning rate of Latte-Mix rises linearly from 2e-5 "to 1" and falls back; with 1 as a rate Adam diverges, so it is read
as the shape of the schedule, and the peak is a setting.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from raysts.objectives.kinds.contrastive_tension import ContrastiveTensionSettings
from raysts.objectives.kinds.distillation import DistillationSettings
from raysts.objectives.kinds.flow import FlowSettings
from raysts.objectives.kinds.gausscse import GaussCSESettings
from raysts.objectives.kinds.latte_mix import AutoencoderSettings, LatteMixSettings, NormalVAESettings
from raysts.objectives.kinds.mlm import MLMSettings
from raysts.objectives.kinds.nli import NLISettings
from raysts.objectives.kinds.simcse import SimCSESettings
from raysts.objectives.kinds.sts_regression import STSRegressionSettings
from raysts.objectives.kinds.whiten import CentreSettings, WhitenSettings
from raysts.recipes.recipe import Data, Optim, Recipe, Train

_ONTO_ISOTROPY: dict[str, Any] = {
    "optim": Optim(name="adam", lr=1e-3, schedule="constant", warmup=0.0, clip=None),
    "train": Train(max_length=64, dropout=False, precision="fp32"),
}
_LATENT: dict[str, Any] = {
    "optim": Optim(name="adam", lr=1e-3, warmup=0.5, floor=2e-5),
    "train": Train(dropout=False, keep="best"),
}

_ALL = (
    Recipe(
        objective="mlm",
        settings=MLMSettings(),
        batch=256,
        optim=Optim(lr=5e-4, weight_decay=0.01),
        train=Train(max_length=64),
    ),
    Recipe(objective="nli", settings=NLISettings(), optim=Optim(weight_decay=0.01)),
    Recipe(
        objective="ct",
        settings=ContrastiveTensionSettings(),
        optim=Optim(
            name="rmsprop",
            lr=1e-5,
            schedule="steps",
            warmup=0.0,
            milestones=(500, 1000, 1500, 2000),
            factors=(1.0, 0.8, 0.6, 0.4, 0.2),
            clip=None,
        ),
        train=Train(epochs=1000.0, max_steps=50_000, dropout=False, keep="second", eval_every=500),
    ),
    Recipe(
        objective="sts",
        settings=STSRegressionSettings(),
        optim=Optim(weight_decay=0.01),
        train=Train(epochs=4.0, keep="best", eval_first=True),
    ),
    Recipe(
        objective="simcse-sup",
        settings=SimCSESettings(head="none", false_negatives="masked"),
        data=Data(table="nli/pairs"),
        batch=512,
        optim=Optim(lr=5e-5, warmup=0.0),
        train=Train(epochs=3.0, max_length=32, keep="best", eval_every=125, eval_first=True),
    ),
    Recipe(
        objective="simcse-unsup",
        settings=SimCSESettings(head="none", false_negatives="masked"),
        data=Data(sample=1_000_000),
        batch=64,
        optim=Optim(lr=3e-5, warmup=0.0),
        train=Train(max_length=32, keep="best", eval_every=125, eval_first=True),
    ),
    Recipe(
        objective="gausscse",
        settings=GaussCSESettings(),
        optim=Optim(lr=5e-5, weight_decay=0.01, decay_all=True, clip=None),
        train=Train(epochs=3.0, max_length=64, keep="best", eval_every=100, eval_first=True, drop_last=True),
        pooling="cls",
    ),
    Recipe(
        objective="sed",
        settings=DistillationSettings(),
        data=Data(sample=100_000),
        batch=32,
        optim=Optim(name="adam", schedule="constant"),
    ),
    Recipe(objective="flow", settings=FlowSettings(), batch=32, **_ONTO_ISOTROPY),  # two levels
    Recipe(objective="whiten", settings=WhitenSettings(), batch=64, **_ONTO_ISOTROPY),  # one pass; nothing to optimise
    Recipe(objective="centre", settings=CentreSettings(), batch=64, **_ONTO_ISOTROPY),
    Recipe(
        objective="latte", settings=LatteMixSettings(inputs="standardised"), **_LATENT
    ),  # the paper's reads SNLI alone
    Recipe(objective="latte-ae", settings=AutoencoderSettings(inputs="standardised"), **_LATENT),
    Recipe(objective="latte-normal", settings=NormalVAESettings(inputs="standardised"), **_LATENT),
)

RECIPES: dict[str, Recipe] = {recipe.objective: recipe for recipe in _ALL}
"""By the objective's name."""


def sed(supervised: bool = False) -> Recipe:
    """Distillation, with early stopping where the members saw STS labels."""
    recipe = RECIPES["sed"]
    train = replace(recipe.train, keep="best", patience=5, eval_first=True) if supervised else recipe.train
    return replace(recipe, train=train)


def learnt(settings: DistillationSettings, elsewhere: bool) -> Mapping[str, Any]:
    """What changes in :func:`sed` where models that are there teach, by path in the recipe.

    The vectors of teachers that began elsewhere than the student have nothing to do with its own, other than those of
    members: their directions are learnt, at a larger rate, and on the student's own axes, unless a projection finds its
    own, or the first dimensions of a reduced target are to be those that hold most of it.

    Args:
        elsewhere: whether the student starts from another encoder than its teachers did.
    """
    if settings.matched == "similarity":
        return {"optim.lr": 1e-4}
    if not elsewhere:
        return {}
    turned = settings.projection is None and not settings.matryoshka
    axes = {"settings.axes": "student"} if turned else {}
    if settings.loss not in (None, "cosine"):
        return axes
    return {"settings.loss": "cosine", "optim.lr": 3e-4, "optim.schedule": "linear", **axes}
