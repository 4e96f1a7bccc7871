import math
from typing import Any

import pytest
import torch
from scipy import integrate, stats
from torch import Tensor
from torch.distributions import Independent, Normal
from torch.distributions import kl_divergence as kl_of_torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from raysts.ops import gaussian
from raysts.ops.gaussian import KINDS, Gaussians, Kind, kl_divergence, similarity, similarity_matrix

both = pytest.mark.parametrize("kind", KINDS)


def gaussians(rows: int, dims: int, seed: int, dtype: torch.dtype = torch.float64) -> Gaussians:
    generator = torch.Generator().manual_seed(seed)
    mu, log_var = torch.randn(2, rows, dims, generator=generator, dtype=dtype).unbind()
    return Gaussians(mu.tanh().requires_grad_(), (0.7 * log_var).requires_grad_())


def normal(x: Gaussians, *index: slice | None) -> Normal:
    return Normal(x.mu[index], (0.5 * x.log_var[index]).exp())


def matrix_by_torch(candidates: Gaussians, given: Gaussians, kind: Kind) -> Tensor:
    """sim(candidates_j || given_i) with all B x K x D divergences at once, by torch.distributions."""
    a, b = normal(candidates, None), normal(given, slice(None), None)
    if kind == "per_dimension":
        return (1 / (1 + kl_of_torch(a, b))).mean(-1)
    return 1 / (1 + kl_of_torch(Independent(a, 1), Independent(b, 1)))


def gradients(value: Tensor, *of: Gaussians) -> list[Tensor]:
    return list(torch.autograd.grad(value, [tensor for x in of for tensor in x], retain_graph=True))


def test_divergence_against_torch_and_against_the_integral() -> None:
    a, b = gaussians(6, 5, 0), gaussians(6, 5, 1)
    found = kl_divergence(a, b)
    torch.testing.assert_close(found, kl_of_torch(normal(a), normal(b)), rtol=1e-12, atol=1e-12)
    p, q = (stats.norm(x.mu[2, 3].item(), math.exp(x.log_var[2, 3].item() / 2)) for x in (a, b))
    area, _ = integrate.quad(lambda x: p.pdf(x) * (p.logpdf(x) - q.logpdf(x)), -20, 20, epsabs=1e-12)
    assert found[2, 3].item() == pytest.approx(area, abs=1e-9)


@both
@pytest.mark.parametrize("block", [70, 10**6], ids=["two rows a block", "one block"])
def test_similarities_of_pairs_and_of_rows_are_torchs(kind: Kind, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gaussian, "BLOCK", {"cpu": block})
    candidates, given = gaussians(7, 5, 0), gaussians(5, 5, 1)
    matrix, rows = matrix_by_torch(candidates, given, kind), Gaussians(*(x[:5] for x in candidates))
    results = similarity_matrix(candidates, given, kind), similarity(rows, given, kind)
    for found, expected in zip(results, (matrix, matrix[:, :5].diagonal()), strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
        weights = torch.linspace(-1, 2, found.numel(), dtype=torch.float64).view_as(found)
        ours, theirs = (gradients((weights * x).sum(), candidates, given) for x in (found, expected))
        for one, other in zip(ours, theirs, strict=True):
            assert one.abs().max() > 0
            torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


@both
def test_float32_loses_little(kind: Kind) -> None:
    """Near equals the divergence is the small difference of large terms; variances far from 1 make them larger."""
    exact = [gaussians(8, 768, seed) for seed in (0, 1)]
    exact = [Gaussians(x.mu, x.log_var * 5 - 3) for x in exact]
    near = Gaussians(exact[1].mu + 1e-3, exact[1].log_var + 1e-3)
    for a, b in (exact, (near, exact[1])):
        single = similarity_matrix(*(Gaussians(x.mu.float(), x.log_var.float()) for x in (a, b)), kind)
        torch.testing.assert_close(single.double(), similarity_matrix(a, b, kind), rtol=1e-4, atol=1e-5)


class Largest(TorchDispatchMode):
    """Numbers of the largest tensor that an operation makes."""

    numbers = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = function(*args, **(kwargs or {}))
        self.numbers = max([self.numbers, *(x.numel() for x in tree_leaves(made) if isinstance(x, Tensor))])
        return made


@both
def test_no_step_holds_all_dimensions_of_all_pairs(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gaussian, "BLOCK", {"cpu": 2 * 16 * 64})
    a, b = gaussians(16, 64, 0), gaussians(16, 64, 1)
    with Largest() as blocks:
        similarity_matrix(a, b, kind).square().sum().backward()
    with Largest() as plain:
        matrix_by_torch(a, b, kind).square().sum().backward()
    assert blocks.numbers == 2 * 16 * 64 and plain.numbers == 16 * 16 * 64


def test_extremes_stay_finite() -> None:
    """Variances e^40 times apart, means far away: similarities 0, gradients finite."""
    far = [torch.tensor([[sign * size, -sign * size]]).requires_grad_() for sign in (1, -1) for size in (100.0, 20.0)]
    a, b = Gaussians(*far[:2]), Gaussians(*far[2:])
    for kind in KINDS:
        found = similarity_matrix(a, b, kind)
        assert found.isfinite().all() and float(found.detach()) >= 0
        assert all(gradient.isfinite().all() for gradient in gradients(found.sum(), a, b))
