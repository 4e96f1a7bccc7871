"""Default recipe of every training stage: METHODS.md's table, one function a stage.

Sources: nli: Sentence-BERT and SED B.1; ct: the official Contrastive Tension code and SED B.2; sts: Sentence-BERT and
SED 5.5; sed: SED 5.1.
"""

from __future__ import annotations

from raysts.objectives.contrastive_tension import ContrastiveTensionSettings
from raysts.objectives.distillation import DistillationSettings
from raysts.objectives.nli import NLISettings
from raysts.objectives.sts_regression import STSRegressionSettings
from raysts.recipes.recipe import Data, Optim, Recipe, Train


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
        train=Train(epochs=4.0, keep="best"),
    )


def sed(supervised: bool = False) -> Recipe:
    """Distillation: 100,000 sentences once, Adam 2e-5, batch 32; early stopping when the members saw STS labels."""
    return Recipe(
        objective="sed",
        settings=DistillationSettings(),
        data=Data(sample=100_000),
        batch=32,
        optim=Optim(name="adam", lr=2e-5, schedule="constant", warmup=0.1, clip=1.0),
        train=Train(epochs=1.0, keep="best" if supervised else "last", patience=5 if supervised else None),
    )
