"""Diagonal Gaussians: divergence, asymmetric similarity, contrastive loss (GaussCSE).

Shapes: B rows of this process, K candidates (the rows of all processes), D dimensions, N rows of a block.
"""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

Kind = Literal["per_dimension", "paper"]
"""How the divergences of the dimensions become one similarity: the mean over d of 1 / (1 + KL_d), as the official code
has it, or 1 / (1 + sum over d of KL_d), equation 3 read with the divergence of the whole Gaussian."""

KINDS: tuple[Kind, ...] = ("per_dimension", "paper")

BLOCK = {"cpu": 2**20, "cuda": 2**25}
"""Numbers in a block of the similarity matrix before its dimensions are reduced: what fits the cache of a CPU core, and
what keeps a GPU busy."""


class Gaussians(NamedTuple):
    """Diagonal Gaussians, one a row: ``mu`` and ``log_var`` (log of the variance), both [..., D]."""

    mu: Tensor
    log_var: Tensor


class Triplets(NamedTuple):
    """Premises, hypotheses that they entail, and contradictions (None if the loss needs none)."""

    premise: Gaussians
    hypothesis: Gaussians
    contradiction: Gaussians | None = None


def kl_divergence(a: Gaussians, b: Gaussians) -> Tensor:
    """Return KL(a || b) of every dimension in closed form -> [..., D] (equation 2)."""
    ratio = ((a.mu - b.mu).square() + a.log_var.exp()) * b.log_var.neg().exp()
    return (ratio - a.log_var + (b.log_var - 1)) / 2


def similarity(a: Gaussians, b: Gaussians, kind: Kind = "per_dimension") -> Tensor:
    """Return sim(a || b) of rows -> [B], in (0, 1], largest where a lies within b (equation 3)."""
    kl_BD = kl_divergence(a, b)
    return (1 + kl_BD).reciprocal().mean(-1) if kind == "per_dimension" else (1 + kl_BD.sum(-1)).reciprocal()


def similarity_matrix(candidates: Gaussians, references: Gaussians, kind: Kind = "per_dimension") -> Tensor:
    """Return S[i, j] = sim(candidates_j || references_i) of [K, D] and [B, D] -> [B, K].

    Forward and backward hold no B x K x D numbers: both work on blocks of rows of ``references``, and backward computes
    a block's divergences again.
    """
    return _SimilarityMatrix.apply(*candidates, *references, kind)


def contrastive(
    local: Triplets,
    candidates: Triplets,
    counts: Mapping[str, Tensor],
    loss: str,
    temperature: float,
    kind: Kind = "per_dimension",
) -> Tensor:
    """Return -log(exp(E[i, i] / t) / sum of exp(entry / t) over the sets) -> [B] (equation 4).

    The entries of row i are E[i, j] = sim(hypothesis_j || premise_i), with ``con`` C[i, j] = sim(contradiction_j ||
    premise_i), with ``rev`` R[i, j] = sim(premise_j || hypothesis_i).

    Args:
        local: the triplets of this process.
        candidates: the triplets of all processes.
        counts: candidates of each set, bool [K], or for each row [B, K]. The others (fillers) are excluded.
        loss: the sets of the denominator: ``ent``, ``ent+con``, ``ent+rev`` or ``ent+con+rev``.
        temperature: t, above 0.
        kind: the similarity of two Gaussians, as :func:`similarity` takes it.
    """
    pairs = {
        "ent": (candidates.hypothesis, local.premise),
        "con": (candidates.contradiction, local.premise),
        "rev": (candidates.premise, local.hypothesis),
    }
    parts = []
    for name in loss.split("+"):
        compared, references = pairs[name]
        assert compared is not None
        parts.append(
            (similarity_matrix(compared, references, kind) / temperature).masked_fill(~counts[name], float("-inf"))
        )
    entries = torch.cat(parts, dim=1)
    return entries.logsumexp(1) - similarity(local.hypothesis, local.premise, kind) / temperature


class _SimilarityMatrix(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, mu_KD: Tensor, log_var_KD: Tensor, ref_mu_BD: Tensor, ref_log_var_BD: Tensor, kind: Kind
    ) -> Tensor:
        ctx.save_for_backward(mu_KD, log_var_KD, ref_mu_BD, ref_log_var_BD)
        ctx.kind = kind
        var_KD, precision_BD = log_var_KD.exp(), ref_log_var_BD.neg().exp()
        result_BK = mu_KD.new_empty(len(ref_mu_BD), len(mu_KD))
        for rows in _blocks(mu_KD, len(ref_mu_BD)):
            kl_NKD = mu_KD - ref_mu_BD[rows, None]
            kl_NKD.square_().add_(var_KD).mul_(precision_BD[rows, None])
            kl_NKD.sub_(log_var_KD).add_(ref_log_var_BD[rows, None] - 1).mul_(0.5)
            if kind == "per_dimension":
                result_BK[rows] = kl_NKD.add_(1).reciprocal_().mean(-1)
            else:
                result_BK[rows] = kl_NKD.sum(-1).add_(1).reciprocal_()
        return result_BK

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_BK: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        mu_KD, log_var_KD, ref_mu_BD, ref_log_var_BD = ctx.saved_tensors
        var_KD, precision_BD = log_var_KD.exp(), ref_log_var_BD.neg().exp()
        grad_mu_KD, grad_log_var_KD = torch.zeros_like(mu_KD), torch.zeros_like(mu_KD)
        grad_ref_mu_BD, grad_ref_log_var_BD = torch.empty_like(ref_mu_BD), torch.empty_like(ref_mu_BD)
        for rows in _blocks(mu_KD, len(ref_mu_BD)):
            difference_NKD = mu_KD - ref_mu_BD[rows, None]
            ratio_NKD = difference_NKD.square().add_(var_KD).mul_(precision_BD[rows, None])
            kl_NKD = ratio_NKD.sub(log_var_KD).add_(ref_log_var_BD[rows, None] - 1).mul_(0.5)
            # d sim / d KL_d = -1 / (1 + KL)^2: of the dimension (and 1/D of the mean), or of the sum for all dimensions.
            if ctx.kind == "per_dimension":
                share_NKD = kl_NKD.add_(1).square_().reciprocal_().mul_(grad_BK[rows, :, None] / -mu_KD.shape[1])
            else:
                share_NK1 = (kl_NKD.sum(-1, keepdim=True) + 1).square_().reciprocal_() * -grad_BK[rows, :, None]
                share_NKD = kl_NKD.copy_(share_NK1)
            # d KL_d: by mu_a (mu_a - mu_b) / var_b, by mu_b its negative, by log var_a (var_a / var_b - 1) / 2,
            # by log var_b (1 - (var_a + (mu_a - mu_b)^2) / var_b) / 2.
            grad_ref_log_var_BD[rows] = 0.5 * (share_NKD.sum(1) - ratio_NKD.mul_(share_NKD).sum(1))
            grad_log_var_KD.sub_(share_NKD.sum(0), alpha=0.5)
            share_NKD.mul_(precision_BD[rows, None])
            grad_log_var_KD.addcmul_(share_NKD.sum(0), var_KD, value=0.5)
            share_NKD.mul_(difference_NKD)
            grad_mu_KD.add_(share_NKD.sum(0))
            grad_ref_mu_BD[rows] = -share_NKD.sum(1)
        return grad_mu_KD, grad_log_var_KD, grad_ref_mu_BD, grad_ref_log_var_BD, None


def _blocks(mu_KD: Tensor, rows: int) -> list[slice]:
    step = max(1, BLOCK.get(mu_KD.device.type, BLOCK["cpu"]) // max(1, mu_KD.numel()))
    return [slice(first, first + step) for first in range(0, rows, step)]
