"""Default recipes of Latte-Mix and its two baselines (Latte-Mix, appendices A.4 and A.5).

The paper's learning rate rises linearly from 2e-5 "to 1" and falls back; with 1 as a rate Adam diverges, so it is read as
the shape of the schedule, and the peak is a setting.
"""

from __future__ import annotations

from raysts.objectives.latte_mix import AutoencoderSettings, LatteMixSettings, NormalVAESettings
from raysts.objectives.objective import Settings
from raysts.recipes.recipe import Optim, Recipe, Train


def latte() -> Recipe:
    """Latte-Mix: the Categorical VAE, 64 variables of 100 classes at temperature 0.3.

    It reads the sentences of NLI; the paper's are those of SNLI alone (``latte.data.sources=snli``).
    """
    return _latent("latte", LatteMixSettings())


def latte_ae() -> Recipe:
    """The autoencoder baseline."""
    return _latent("latte-ae", AutoencoderSettings())


def latte_normal() -> Recipe:
    """The Normal-VAE baseline."""
    return _latent("latte-normal", NormalVAESettings())


def _latent(objective: str, settings: Settings) -> Recipe:
    return Recipe(
        objective=objective,
        settings=settings,
        batch=16,
        optim=Optim(name="adam", lr=1e-3, schedule="linear", warmup=0.5, floor=2e-5, clip=1.0),
        train=Train(epochs=1.0, dropout=False, keep="last"),
    )
