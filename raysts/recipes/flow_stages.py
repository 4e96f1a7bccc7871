"""Default recipes of what makes the embeddings of a finished model isotropic: flow and whitening.

Sources: flow: BERT-flow (Li et al. 2020), Table 7 and official code, and SED B.3 (sentences of the target sets, one epoch
at 1e-3); whiten: Su et al. 2021. Both are fitted in float32, to the vectors that evaluation reads.
"""

from __future__ import annotations

from raysts.objectives.flow import FlowSettings
from raysts.objectives.whiten import WhitenSettings
from raysts.recipes.recipe import Optim, Recipe, Train


def flow() -> Recipe:
    """Glow with two levels on the sentences of the target sets: one epoch, Adam 1e-3, batch 32."""
    return Recipe(
        objective="flow",
        settings=FlowSettings(),
        batch=32,
        optim=Optim(name="adam", lr=1e-3, schedule="constant", warmup=0.0, clip=None),
        train=Train(epochs=1.0, max_length=64, dropout=False, precision="fp32", keep="last"),
    )


def whiten() -> Recipe:
    """Mean and covariance of the sentences of the target sets, from one pass; the optimiser has nothing to do."""
    return Recipe(
        objective="whiten",
        settings=WhitenSettings(),
        batch=64,
        optim=Optim(name="adam", lr=1e-3, schedule="constant", warmup=0.0, clip=None),
        train=Train(epochs=1.0, max_length=64, dropout=False, precision="fp32", keep="last"),
    )
