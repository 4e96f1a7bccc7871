"""Latte-Mix and its baselines: autoencoders of frozen token vectors.

Latte-Mix, sections 2.3 and 2.4, appendix A.4. Shapes: B texts, T tokens of the longest, N tokens of all texts, H hidden
dimensions, V latent variables (or dimensions), K classes, W numbers of a token's code.
"""

import copy
import math
from abc import abstractmethod
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from raysts.models.encoder import Encoder
from raysts.models.head import CategoricalHead, LatentHead, NormalHead, PointHead
from raysts.models.packing import rows_and_columns
from raysts.models.shipped.latent import Categorical, Normal, Point, mlp
from raysts.models.tokens import LocalBatch
from raysts.objectives.objective import Batch, Objective, token_columns
from raysts.ops import collective
from raysts.ops.variational import draw, free_bits, gumbel, gumbel_softmax, kl_to_standard_normal, kl_to_uniform
from raysts.recipes.catalog import AutoencoderSettings, LatteMixSettings, NormalVAESettings

DECODER_LAYERS = 3
"""The paper's choice: an expressive decoder (appendix A.5)."""


class Sample(NamedTuple):
    """Input of a decoder, and its cost beside the reconstruction."""

    code_NW: Tensor
    kl_NV: Tensor | None = None
    """Divergence from the prior of every latent variable. None: no prior."""


class LatentObjective(Objective):
    """Squared error of decoded token vectors and beta KL(q(z | u) || p(z)), mean over tokens.

    The encoder's token vectors u are frozen. An MLP in front of the pooling gives q(z | u). A decoder MLP of three
    layers, which serves training alone, reconstructs u from a sample of z (equation 3).
    """

    count: Tensor
    sum_H: Tensor
    squares_H: Tensor

    def __init__(self, settings: Any, encoder: Encoder) -> None:
        if len(encoder.heads):
            raise ValueError(
                "latte reads token vectors, and this model has a head behind its pooling: its vectors are not their mean; "
                "take a model without head, such as nli, ct, sts or sed"
            )
        width, hidden = encoder.width, settings.hidden or encoder.width
        encoder.requires_grad_(False)
        head = self.head(settings, width, hidden)
        super().__init__(settings, encoder.followed_by(head))
        # In tuples, so that torch does not register them: the objective's state holds the encoder once.
        self._without_head, self._untrained = (encoder,), (copy.deepcopy(head),)
        if settings.inputs == "standardised":
            for name in ("sum_H", "squares_H"):
                self.register_buffer(name, torch.zeros(width, dtype=torch.float64))
            self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        if settings.variance is None:
            self.log_variance = nn.Parameter(torch.tensor(math.log(0.5)))
        self.decoder = mlp([self.code_width(settings), *[hidden] * (DECODER_LAYERS - 1), width])

    @staticmethod
    @abstractmethod
    def head(settings: Any, width: int, hidden: int) -> LatentHead: ...

    @staticmethod
    def code_width(settings: Any) -> int:
        """Return W, the numbers of a token that the decoder reads."""
        return settings.dims

    @abstractmethod
    def sample(self, u_NH: Tensor, seeds_B: np.ndarray, lengths_B: np.ndarray) -> Sample:
        """Return a sample of z for every token of texts of these lengths, with a seed per text."""

    @property
    def latent(self) -> Any:
        return self.encoder.heads[-1].shipped

    def collate(self, local: LocalBatch) -> Batch:
        """Return ``sentence`` [B, T] token ids with ``weight`` [B] and noise seeds.

        Also ``sentence_length`` and ``progress`` [B]. ``seed`` [B] is an array.
        """
        return super().collate(local) | {
            "seed": local.seeds,
            "progress": torch.full((len(local.examples),), local.progress),
        }

    def forward(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss, and its parts before free bits and beta."""
        ids_BT, lengths_B, host_lengths = token_columns(batch, "sentence")
        host_lengths = lengths_B.numpy() if host_lengths is None else host_lengths
        with torch.no_grad():
            tokens_BTH = self.encoder.tokens(ids_BT, lengths_B, host_lengths)
        row_N, column_N = rows_and_columns(lengths_B, int(host_lengths.sum()))
        weight_N = batch["weight"][row_N]
        u_NH = self._standardise(tokens_BTH[row_N, column_N], weight_N).to(next(self.decoder.parameters()).dtype)
        with torch.autocast(u_NH.device.type, enabled=False):
            code_NW, kl_NV = self.sample(u_NH, batch["seed"], host_lengths)
            error_NH = (self.decoder(code_NW) - u_NH).square()
        error_N = error_NH.sum(-1) if self.settings.reconstruction == "sum" else error_NH.mean(-1)
        scalars = {"reconstruction": collective.mean(error_N.detach(), weight_N)}
        scalars["explained"] = self._explained_variance(error_NH.detach(), u_NH, weight_N)
        error_N = self._likelihood_loss(error_N)
        if kl_NV is None:
            return collective.mean(error_N, weight_N), scalars
        beta_N = self.beta(batch["progress"])[row_N]
        paid_N = free_bits(kl_NV, self.settings.free_bits, self.settings.free_bits_of)
        scalars["kl"] = collective.mean(kl_NV.detach().sum(-1), weight_N)
        scalars["beta"] = collective.mean(beta_N, weight_N)
        return collective.mean(beta_N * paid_N + error_N, weight_N), scalars

    def beta(self, progress_B: Tensor) -> Tensor:
        """Return the weight of the divergence [B]: linear from 0 over the warm-up, then ``beta``."""
        fraction = self.settings.beta_warmup_fraction
        warm_B = (progress_B / fraction).clamp_max(1.0) if fraction else torch.ones_like(progress_B)
        return self.settings.beta * warm_B

    def candidates(self) -> dict[str, Encoder]:
        """Return the encoder with its head, and with the head of the start of training."""
        trained = self.encoder.heads[-1]
        untrained = self._untrained[0].to(next(trained.parameters()).device)
        if self.settings.inputs == "raw":
            return {"encoder": self.encoder, "untrained": self._without_head[0].followed_by(untrained)}
        heads = {"encoder": trained, "untrained": untrained}
        return {name: self._without_head[0].followed_by(self._fold_moments(head)) for name, head in heads.items()}

    @torch.no_grad()
    def _fold_moments(self, head: nn.Module) -> Any:
        """Return a copy of a head of standardised vectors that reads the original ones."""
        adapted: Any = copy.deepcopy(head)
        mean_H, deviation_H = self._moments()
        first = adapted.shipped.encoder[0]
        weight_WH = first.weight.double() / deviation_H
        first.bias.copy_(first.bias.double() - weight_WH @ mean_H)
        first.weight.copy_(weight_WH)
        return adapted

    def _moments(self) -> tuple[Tensor, Tensor]:
        """Return mean and standard deviation of every dimension, float64.

        The standard deviation is 1 for a constant dimension, and before the first text.
        """
        count = self.count.clamp_min(1.0)
        mean_H = self.sum_H / count
        variance_H = self.squares_H / count - mean_H.square()
        varies_H = variance_H > torch.finfo(torch.float32).eps * variance_H.max()
        return mean_H, torch.where(varies_H, variance_H, 1.0).sqrt()

    def _standardise(self, u_NH: Tensor, weight_N: Tensor) -> Tensor:
        """Return token vectors standardised by all vectors so far, these included."""
        if self.settings.inputs == "raw":
            return u_NH
        weighted_NH = u_NH.double() * weight_N[:, None]
        self.count += collective.total(weight_N.double().sum())
        self.sum_H += collective.total(weighted_NH.sum(0))
        self.squares_H += collective.total((weighted_NH * u_NH).sum(0))
        mean_H, deviation_H = self._moments()
        return (u_NH.double() - mean_H) / deviation_H

    def _likelihood_loss(self, error_N: Tensor) -> Tensor:
        """Return the Gaussian negative log-likelihood of a squared error, without constants."""
        if self.settings.variance is not None:
            return error_N / (2 * self.settings.variance)
        width = self._without_head[0].width if self.settings.reconstruction == "sum" else 1
        return error_N / (2 * self.log_variance.exp()) + width * self.log_variance / 2

    @staticmethod
    def _explained_variance(error_NH: Tensor, u_NH: Tensor, weight_N: Tensor) -> Tensor:
        """Return the share of the variance of the batch's tokens that the decoder reconstructs."""
        count = collective.total(weight_N.sum())
        mean_H = collective.total((u_NH * weight_N[:, None]).sum(0)) / count
        variance = collective.total(((u_NH - mean_H).square().sum(-1) * weight_N).sum())
        return 1 - collective.total((error_NH.sum(-1) * weight_N).sum()) / variance.clamp_min(1e-12)


class LatteMix(LatentObjective):
    """Categorical VAE: Gumbel-softmax samples, uniform prior."""

    def __init__(self, settings: LatteMixSettings, encoder: Encoder) -> None:
        super().__init__(settings, encoder)
        if settings.layout == "single":
            self.decoder.insert(0, nn.Linear(settings.classes, settings.dims, bias=False))

    @staticmethod
    def head(settings: LatteMixSettings, width: int, hidden: int) -> LatentHead:
        variables = settings.dims if settings.layout == "factorised" else 1
        tau = settings.tau if settings.tau_test is None else settings.tau_test
        return CategoricalHead(Categorical(width, variables, settings.classes, tau, settings.encoder_layers, hidden))

    @staticmethod
    def code_width(settings: LatteMixSettings) -> int:
        """Return the number of all probabilities, or the width of the embedding of a class."""
        return settings.dims * settings.classes if settings.layout == "factorised" else settings.dims

    def sample(self, u_NH: Tensor, seeds_B: np.ndarray, lengths_B: np.ndarray) -> Sample:
        logits_NVK = self.latent.logits(u_NH)
        uniform_NW = draw(torch.rand, seeds_B, lengths_B, self.latent.dim, logits_NVK)
        z_NVK = gumbel_softmax(logits_NVK, gumbel(uniform_NW).view_as(logits_NVK), self.settings.tau)
        return Sample(z_NVK.flatten(-2), kl_to_uniform(logits_NVK))


class NormalVAE(LatentObjective):
    """Normal-VAE baseline: mu + sigma times noise, standard normal prior."""

    @staticmethod
    def head(settings: NormalVAESettings, width: int, hidden: int) -> LatentHead:
        return NormalHead(Normal(width, settings.dims, settings.encoder_layers, hidden))

    def sample(self, u_NH: Tensor, seeds_B: np.ndarray, lengths_B: np.ndarray) -> Sample:
        mu_NV, log_var_NV = self.latent.gaussians(u_NH)
        noise_NV = draw(torch.randn, seeds_B, lengths_B, self.latent.dim, mu_NV)
        return Sample(mu_NV + (log_var_NV / 2).exp() * noise_NV, kl_to_standard_normal(mu_NV, log_var_NV))


class Autoencoder(LatentObjective):
    """Autoencoder baseline: no noise, no prior."""

    @staticmethod
    def head(settings: AutoencoderSettings, width: int, hidden: int) -> LatentHead:
        return PointHead(Point(width, settings.dims, settings.encoder_layers, hidden))

    def sample(self, u_NH: Tensor, seeds_B: np.ndarray, lengths_B: np.ndarray) -> Sample:
        return Sample(self.latent.embed(u_NH))
