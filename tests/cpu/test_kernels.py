import copy
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from raysts.cpu import kernels


@pytest.mark.parametrize("bias", [True, False])
def test_linear_is_torchs(bias: bool) -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(7, 4, bias=bias))
    fast = copy.deepcopy(plain)
    kernels.install(fast)
    assert type(fast[0]) is kernels.Linear and list(fast.state_dict()) == list(plain.state_dict())
    found, x = [], torch.randn(2, 3, 7)
    for module in (plain, fast):
        given = x.clone().requires_grad_()
        out = module(given)
        (out * torch.linspace(-1, 1, out.numel()).reshape(out.shape)).sum().backward()
        found.append([out.detach(), given.grad, *(p.grad for p in module.parameters())])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(plain(x), fast(x)) and fast(x).dtype == torch.bfloat16
    assert torch.equal(plain.double()(x.double()), fast.double()(x.double()))


@pytest.mark.parametrize("p", [0.1, 0.9])
def test_dropout_keeps_the_share_and_the_expectation(p: float) -> None:
    torch.manual_seed(0)
    found = kernels.dropout(torch.ones(1000, 333), p)
    kept = found != 0
    assert float(kept.float().mean()) == pytest.approx(1 - p, abs=0.005)
    rounded = 65_536 / round((1 - p) * 65_536)  # what is kept is scaled by the share that is kept
    assert bool((found[kept] == found[kept][0]).all()) and float(found[kept][0]) == pytest.approx(rounded, rel=1e-7)
    # Elements that share a draw, and neighbours in general, are kept independently of each other.
    for shift in (1, 2, 3, 4):
        both = (kept.flatten()[shift:] & kept.flatten()[:-shift]).float().mean()
        assert float(both) == pytest.approx((1 - p) ** 2, abs=0.005)


def test_dropout_is_that_of_its_seed_has_its_gradient_and_is_off_in_eval_mode() -> None:
    module = nn.Sequential(nn.Dropout(0.5)).eval()
    kernels.install(module)
    x = torch.randn(3, 5, requires_grad=True)
    assert torch.equal(module(x), x), "the mode is kept"
    module.train()
    torch.manual_seed(1)
    first = module(x)
    torch.manual_seed(1)
    assert torch.equal(module(x), first)
    first.sum().backward()
    torch.testing.assert_close(x.grad, (first != 0).float() * 2)
    assert torch.equal(kernels.dropout(x, 0.0), x) and not kernels.dropout(x, 1.0).any()
    assert kernels.dropout(torch.zeros(0, 4), 0.5).shape == (0, 4)


@pytest.mark.parametrize("variable", ["", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"])
def test_large_blocks_are_kept_unless_the_user_has_said_what_is(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[int, int] = {}
    library = SimpleNamespace(mallopt=asked.__setitem__)
    monkeypatch.setattr(kernels, "sys", SimpleNamespace(platform="linux"))
    monkeypatch.setattr(kernels, "ctypes", SimpleNamespace(CDLL=lambda name: library))
    if variable:
        monkeypatch.setenv(variable, "131072")
    kernels.keep_memory.__wrapped__()
    # M_MMAP_THRESHOLD and M_TRIM_THRESHOLD, as malloc.h has them.
    assert asked == ({} if variable else {-3: 256 * 2**20, -1: 512 * 2**20})
