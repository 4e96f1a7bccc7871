"""Default recipes of SimCSE and of masked language modelling.

Sources: simcse: SimCSE (Gao et al. 2021), appendix A, and its official code (dev evaluation every 125 steps); mlm:
BERT's objective at the size of a further pretraining on sentences.
"""

from __future__ import annotations

from raysts.objectives.mlm import MLMSettings
from raysts.objectives.simcse import SimCSESettings
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


def simcse_sup() -> Recipe:
    """Supervised SimCSE: three epochs of NLI triplets, AdamW 5e-5, batch 512, best on STS-B dev."""
    return Recipe(
        objective="simcse-sup",
        settings=SimCSESettings(),
        batch=512,
        optim=Optim(name="adamw", lr=5e-5, schedule="linear", warmup=0.0, clip=1.0),
        train=Train(epochs=3.0, max_length=32, keep="best", eval_every=125),
        pooling="cls",
    )


def simcse_unsup() -> Recipe:
    """Unsupervised SimCSE: a million sentences once, AdamW 3e-5, batch 64, best on STS-B dev."""
    return Recipe(
        objective="simcse-unsup",
        settings=SimCSESettings(),
        data=Data(sample=1_000_000),
        batch=64,
        optim=Optim(name="adamw", lr=3e-5, schedule="linear", warmup=0.0, clip=1.0),
        train=Train(epochs=1.0, max_length=32, keep="best", eval_every=125),
        pooling="cls",
    )
