"""Default recipes of GaussCSE.

Source: GaussCSE, section 3.2 and appendix A (batch, rate, epochs, evaluation every 100 steps), and its official code
(warm-up then linear decay, decay on all parameters, the untrained model among the candidates).
"""

from __future__ import annotations

from typing import Literal

from raysts.objectives.gausscse import GaussCSESettings
from raysts.recipes.recipe import Optim, Recipe, Train


def gausscse(loss: Literal["ent", "ent+con", "ent+rev", "ent+con+rev"]) -> Recipe:
    """GaussCSE with one of its losses: three epochs of NLI triplets, AdamW 5e-5, batch 16, best on SNLI dev."""
    return Recipe(
        objective="gausscse",
        settings=GaussCSESettings(loss=loss),
        batch=16,
        optim=Optim(name="adamw", lr=5e-5, schedule="linear", warmup=0.1, weight_decay=0.01, decay_all=True, clip=None),
        train=Train(epochs=3.0, max_length=64, keep="best", eval_every=100, eval_first=True, drop_last=True),
        pooling="cls",
    )
