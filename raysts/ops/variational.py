"""Variational autoencoders: samples, divergences, free bits (Latte-Mix, section 2).

Shapes: B texts, N tokens, V latent variables, K classes.
"""

import math
from collections.abc import Callable
from typing import Literal

import numpy as np
import torch
from torch import Tensor

FreeBits = Literal["total", "per_latent"]
"""Scope of the threshold: a token's whole divergence, or that of each of its latent variables."""


def gumbel_softmax(logits_NVK: Tensor, gumbel_NVK: Tensor, tau: float) -> Tensor:
    """Return softmax((logits + g) / tau) -> [N, V, K] (equation 4)."""
    return torch.softmax((logits_NVK + gumbel_NVK) / tau, dim=-1)


def gumbel(uniform: Tensor) -> Tensor:
    """Return Gumbel(0, 1) noise from numbers in [0, 1): -log(-log(u))."""
    return uniform.clamp_min(torch.finfo(uniform.dtype).tiny).log_().neg_().log_().neg_()  # in place: in its own copy


def kl_to_uniform(logits_NVK: Tensor) -> Tensor:
    """Return KL(softmax(logits) || uniform over K) = log K - entropy -> [N, V], in nats."""
    log_p_NVK = torch.log_softmax(logits_NVK, dim=-1)
    return (log_p_NVK.exp() * log_p_NVK).sum(-1) + math.log(logits_NVK.shape[-1])


def kl_to_standard_normal(mu_NV: Tensor, log_var_NV: Tensor) -> Tensor:
    """Return KL(N(mu, var) || N(0, 1)) of every dimension -> [N, V], in nats."""
    return (mu_NV.square() + log_var_NV.exp() - 1 - log_var_NV) / 2


def free_bits(kl_NV: Tensor, threshold: float, scope: FreeBits) -> Tensor:
    """Return the divergence that the loss counts -> [N].

    ``total``: max(sum, threshold). ``per_latent``: sum of max(KL, threshold).
    """
    return kl_NV.sum(-1).clamp_min(threshold) if scope == "total" else kl_NV.clamp_min(threshold).sum(-1)


def draw(kind: Callable[..., Tensor], seeds_B: np.ndarray, lengths_B: np.ndarray, width: int, like: Tensor) -> Tensor:
    """Return noise of the texts' tokens in order, each text's from its seed alone -> [N, width].

    ``kind``: ``torch.rand`` or ``torch.randn``.
    """
    generator = torch.Generator(like.device)
    parts = [
        kind(length, width, generator=generator.manual_seed(seed), device=like.device)
        for seed, length in zip(seeds_B.tolist(), lengths_B.tolist(), strict=True)
    ]
    return torch.cat(parts).to(like.dtype)
