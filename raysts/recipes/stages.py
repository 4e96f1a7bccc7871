"""Default recipe of every objective: one function each.

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

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from raysts.objectives.kinds.contrastive_tension import ContrastiveTensionSettings
from raysts.objectives.kinds.distillation import DistillationSettings
from raysts.objectives.kinds.flow import FlowSettings
from raysts.objectives.kinds.gausscse import GaussCSESettings
from raysts.objectives.kinds.kind import Settings
from raysts.objectives.kinds.latte_mix import AutoencoderSettings, LatteMixSettings, NormalVAESettings
from raysts.objectives.kinds.mlm import MLMSettings
from raysts.objectives.kinds.nli import NLISettings
from raysts.objectives.kinds.simcse import SimCSESettings
from raysts.objectives.kinds.sts_regression import STSRegressionSettings
from raysts.objectives.kinds.whiten import CentreSettings, WhitenSettings
from raysts.recipes.recipe import Data, Optim, Recipe, Train


def mlm() -> Recipe:
    """Masked language modelling: one epoch, AdamW 5e-4, batch 256."""
    return Recipe(
        objective="mlm",
        settings=MLMSettings(),
        batch=256,
        optim=Optim(name="adamw", lr=5e-4, schedule="linear", warmup=0.1, weight_decay=0.01, clip=1.0),
        train=Train(epochs=1.0, max_length=64, keep="last"),
    )


def nli() -> Recipe:
    """Siamese NLI: one epoch, AdamW 2e-5, batch 16."""
    return Recipe(
        objective="nli",
        settings=NLISettings(),
        batch=16,
        optim=Optim(name="adamw", lr=2e-5, schedule="linear", warmup=0.1, weight_decay=0.01, clip=1.0),
        train=Train(epochs=1.0, keep="last"),
    )


def ct() -> Recipe:
    """Contrastive Tension: RMSprop, 1e-5 falling to 2e-6 in steps, 50,000 updates, dropout off."""
    return Recipe(
        objective="ct",
        settings=ContrastiveTensionSettings(),
        batch=16,
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
    )


def sts() -> Recipe:
    """Regression on STS-B train: four epochs, best on STS-B dev."""
    return Recipe(
        objective="sts",
        settings=STSRegressionSettings(),
        batch=16,
        optim=Optim(name="adamw", lr=2e-5, schedule="linear", warmup=0.1, weight_decay=0.01, clip=1.0),
        train=Train(epochs=4.0, keep="best", eval_first=True),
    )


def simcse_sup() -> Recipe:
    """Supervised SimCSE: three epochs of NLI pairs, AdamW 5e-5, batch 512, mean pooling, best on STS-B dev."""
    return Recipe(
        objective="simcse-sup",
        settings=SimCSESettings(head="none", false_negatives="masked"),
        data=Data(table="nli/pairs"),
        batch=512,
        optim=Optim(name="adamw", lr=5e-5, schedule="linear", warmup=0.0, clip=1.0),
        train=Train(epochs=3.0, max_length=32, keep="best", eval_every=125, eval_first=True),
    )


def simcse_unsup() -> Recipe:
    """Unsupervised SimCSE: a million sentences once, AdamW 3e-5, batch 64, mean pooling, best on STS-B dev."""
    return Recipe(
        objective="simcse-unsup",
        settings=SimCSESettings(head="none", false_negatives="masked"),
        data=Data(sample=1_000_000),
        batch=64,
        optim=Optim(name="adamw", lr=3e-5, schedule="linear", warmup=0.0, clip=1.0),
        train=Train(epochs=1.0, max_length=32, keep="best", eval_every=125, eval_first=True),
    )


def gausscse() -> Recipe:
    """GaussCSE: three epochs of NLI triplets, AdamW 5e-5, batch 16, best on SNLI dev."""
    return Recipe(
        objective="gausscse",
        settings=GaussCSESettings(),
        batch=16,
        optim=Optim(name="adamw", lr=5e-5, schedule="linear", warmup=0.1, weight_decay=0.01, decay_all=True, clip=None),
        train=Train(epochs=3.0, max_length=64, keep="best", eval_every=100, eval_first=True, drop_last=True),
        pooling="cls",
    )


def sed(supervised: bool = False) -> Recipe:
    """Distillation: 100,000 sentences once, Adam 2e-5, batch 32; early stopping when the members saw STS labels."""
    return Recipe(
        objective="sed",
        settings=DistillationSettings(),
        data=Data(sample=100_000),
        batch=32,
        optim=Optim(name="adam", lr=2e-5, schedule="constant", warmup=0.1, clip=1.0),
        train=Train(
            epochs=1.0, keep="best" if supervised else "last", patience=5 if supervised else None, eval_first=supervised
        ),
    )


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


def flow() -> Recipe:
    """Glow with two levels on the sentences of the target sets: one epoch, Adam 1e-3, batch 32."""
    return _isotropic("flow", FlowSettings(), batch=32)


def whiten() -> Recipe:
    """Mean and covariance of the sentences of the target sets, from one pass; the optimiser has nothing to do."""
    return _isotropic("whiten", WhitenSettings(), batch=64)


def centre() -> Recipe:
    """The mean of the sentences of the target sets, from one pass."""
    return _isotropic("centre", CentreSettings(), batch=64)


def latte() -> Recipe:
    """Latte-Mix: the Categorical VAE, 64 variables of 100 classes at temperature 0.3.

    It reads the sentences of NLI; the paper's are those of SNLI alone (``latte.data.sources=snli``).
    """
    return _latent("latte", LatteMixSettings(inputs="standardised"))


def latte_ae() -> Recipe:
    """The autoencoder baseline of Latte-Mix."""
    return _latent("latte-ae", AutoencoderSettings(inputs="standardised"))


def latte_normal() -> Recipe:
    """The Normal-VAE baseline of Latte-Mix."""
    return _latent("latte-normal", NormalVAESettings(inputs="standardised"))


def _isotropic(objective: str, settings: Settings, batch: int) -> Recipe:
    return Recipe(
        objective=objective,
        settings=settings,
        batch=batch,
        optim=Optim(name="adam", lr=1e-3, schedule="constant", warmup=0.0, clip=None),
        train=Train(epochs=1.0, max_length=64, dropout=False, precision="fp32", keep="last"),
    )


def _latent(objective: str, settings: Settings) -> Recipe:
    return Recipe(
        objective=objective,
        settings=settings,
        batch=16,
        optim=Optim(name="adam", lr=1e-3, schedule="linear", warmup=0.5, floor=2e-5, clip=1.0),
        train=Train(epochs=1.0, dropout=False, keep="best"),
    )


_ALL = (mlm, nli, ct, sts, simcse_sup, simcse_unsup, gausscse, sed, flow, whiten, centre, latte, latte_ae, latte_normal)

RECIPES: dict[str, Callable[[], Recipe]] = {recipe().objective: recipe for recipe in _ALL}
"""The default recipe of every objective, by its name."""
