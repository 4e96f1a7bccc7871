"""What is known of ``latte`` and its baselines (:mod:`raysts.objectives.latte_mix`)."""

import math
from dataclasses import dataclass
from typing import Literal

from raysts.ids import later
from raysts.objectives.kinds.kind import MOST_WIDE, Kind, Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoencoderSettings(Settings):
    """Settings of ``latte-ae``.

    Attributes:
        dims: latent dimensions (``latte``: variables, or for ``single`` the dimensions a class is embedded in).
        encoder_layers: linear layers of the encoder, 1 to 3.
        hidden: width between the layers of encoder and decoder; none: that of the token vectors.
        reconstruction: squared error, ``sum`` or ``mean`` over the dimensions of a token vector.
        inputs: token vectors as they are (``raw``), or every dimension with mean 0 and variance 1 over the tokens read so far
            (``standardised``), so that few dimensions of large variance do not take what a code can carry. The model that is
            kept has it in its first layer.
        variance: of the decoder's Gaussian: the error is divided by twice that. None: learnt, one for all dimensions.
    """

    dims: int = 64
    encoder_layers: int = 1
    hidden: int | None = None
    reconstruction: Literal["sum", "mean"] = "sum"
    inputs: Literal["raw", "standardised"] = later("raw")
    variance: float | None = later(0.5)

    def __post_init__(self) -> None:
        if not 1 <= self.dims <= MOST_WIDE:
            raise ValueError(f"dims={self.dims} must be from 1 to {MOST_WIDE:,}")
        if not 1 <= self.encoder_layers <= 3:
            raise ValueError(f"encoder_layers={self.encoder_layers} must be 1, 2 or 3")
        if self.hidden is not None and not 1 <= self.hidden <= MOST_WIDE:
            raise ValueError(
                f"hidden={self.hidden} must be from 1 to {MOST_WIDE:,}, or none for the width of the token vectors"
            )
        if self.variance is not None and not 0 < self.variance < math.inf:
            raise ValueError(f"variance={self.variance} divides the error: it must be above 0, or none to be learnt")


@dataclass(frozen=True, slots=True, kw_only=True)
class NormalVAESettings(AutoencoderSettings):
    """Settings of ``latte-normal``.

    Attributes:
        free_bits: divergence from the prior, in nats, below which it costs no less.
        free_bits_of: that holds of a token's divergence, ``total``, or of each latent variable's, ``per_latent``.
        beta_warmup_fraction: part of the run over which the weight of the divergence grows linearly from 0 to ``beta``.
        beta: weight of the divergence after that.
    """

    free_bits: float = 0.3
    free_bits_of: Literal["total", "per_latent"] = "total"
    beta_warmup_fraction: float = 0.1
    beta: float = later(1.0)

    def __post_init__(self) -> None:
        AutoencoderSettings.__post_init__(self)  # slots: super() would look for the class before it got them
        if self.free_bits < 0:
            raise ValueError(f"free_bits={self.free_bits} must not be negative")
        if not 0 <= self.beta_warmup_fraction <= 1:
            raise ValueError(f"beta_warmup_fraction={self.beta_warmup_fraction} is a part of the run, from 0 to 1")
        if not 0 <= self.beta < math.inf:
            raise ValueError(f"beta={self.beta} must not be negative")


@dataclass(frozen=True, slots=True, kw_only=True)
class LatteMixSettings(NormalVAESettings):
    """Settings of ``latte``.

    Attributes:
        layout: ``factorised``: ``dims`` variables of ``classes`` classes each; ``single``: one variable, whose (nearly)
            one-hot sample is embedded in ``dims`` dimensions before the decoder.
        classes: classes of a variable.
        tau: temperature of the Gumbel-softmax.
        tau_test: temperature of the probabilities that represent a text; none: ``tau``.
    """

    layout: Literal["factorised", "single"] = "factorised"
    classes: int = 100
    tau: float = 0.3
    tau_test: float | None = None

    def __post_init__(self) -> None:
        NormalVAESettings.__post_init__(self)
        if self.classes < 2:  # in a search, more than fit into the memory are an infeasible point
            raise ValueError(f"classes={self.classes} must be at least 2")
        for name in ("tau", "tau_test"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name}={value} divides the logits and must be above 0")


class LatentKind(Kind):
    """What is known of a :class:`raysts.objectives.latte_mix.LatentObjective`."""

    table = "nli/sentences"
    texts = ("sentence",)
    post = "tokens"
    members = 3
    scales = {
        "paper": {"data.sources": ["snli"], "settings.inputs": "raw", "train.keep": "last"},
        "small": {"train.max_steps": 2_000},
    }
    around = {"paper": {"backbone": "bert-base-uncased", "nli.data.sources": ["snli"]}}


class LatteMixKind(LatentKind):
    """The Categorical VAE."""

    trained_by = "latte_mix:LatteMix"
    settings_type = LatteMixSettings


class NormalVAEKind(LatentKind):
    """The Normal-VAE baseline."""

    trained_by = "latte_mix:NormalVAE"
    settings_type = NormalVAESettings


class AutoencoderKind(LatentKind):
    """The autoencoder baseline."""

    trained_by = "latte_mix:Autoencoder"
    settings_type = AutoencoderSettings
