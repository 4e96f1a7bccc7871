from __future__ import annotations

import copy
import ctypes
import os
import sys

import pytest
import torch
from torch import nn

from raysts.models import kernels


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(5, 7), (2, 3, 7), (1, 1, 7)])
def test_linear_is_torchs(bias: bool, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(7, 4, bias=bias))
    fast = copy.deepcopy(plain)
    kernels.install(fast)
    assert type(fast[0]) is kernels.Linear and list(fast.state_dict()) == list(plain.state_dict())
    found, x = [], torch.randn(*shape)
    for module in (plain, fast):
        given = x.clone().requires_grad_()
        out = module(given)
        (out * torch.linspace(-1, 1, out.numel()).reshape(out.shape)).sum().backward()
        found.append([out.detach(), given.grad, *(p.grad for p in module.parameters())])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_dropout_keeps_the_share_and_the_expectation(p: float) -> None:
    torch.manual_seed(0)
    found = kernels.dropout(torch.ones(1000, 333), p)
    kept = found != 0
    assert float(kept.float().mean()) == pytest.approx(1 - p, abs=0.005)
    assert bool((found[kept] == found[kept][0]).all()) and float(found[kept][0]) == pytest.approx(1 / (1 - p), rel=1e-3)
    # Elements that share a draw, and neighbours in general, are kept independently of each other.
    for shift in (1, 2, 3, 4):
        both = (kept.flatten()[shift:] & kept.flatten()[:-shift]).float().mean()
        assert float(both) == pytest.approx((1 - p) ** 2, abs=0.005)


def test_dropout_at_the_ends_and_per_seed() -> None:
    x = torch.randn(3, 5, requires_grad=True)
    assert torch.equal(kernels.dropout(x, 0.0), x) and not kernels.dropout(x, 1.0).any()
    torch.manual_seed(1)
    first = kernels.dropout(x, 0.5)
    torch.manual_seed(1)
    assert torch.equal(kernels.dropout(x, 0.5), first)
    first.sum().backward()
    torch.testing.assert_close(x.grad, (first != 0).float() * 2)
    assert kernels.dropout(torch.zeros(0, 4), 0.5).shape == (0, 4)


def test_dropout_is_off_in_eval_mode() -> None:
    module = nn.Sequential(nn.Dropout(0.5))
    kernels.install(module)
    x = torch.randn(4, 4)
    assert torch.equal(module.eval()(x), x) and not torch.equal(module.train()(x), x)


def test_install_keeps_the_mode() -> None:
    module = nn.Sequential(nn.Dropout(0.5)).eval()
    kernels.install(module)
    assert not module[0].training


class Blocks(ctypes.Structure):
    """glibc's ``struct mallinfo2``; ``hblks`` is the number of blocks that lie in pages of their own."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in [
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        ]
    ]


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's")
@pytest.mark.parametrize("name", ["", *kernels._OF_GLIBC])
def test_large_blocks_are_kept_unless_the_user_has_said_what_is(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a fork, as the settings are the process's.

    40 MiB: more than the 32 that glibc keeps, less than the 64 that it can keep for a thread whose allocation has
    failed once, as one of an earlier test's may have.
    """
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallinfo2"):
        pytest.skip("another C library, or an old one")
    libc.mallinfo2.restype = Blocks
    if name:
        monkeypatch.setenv(name, "131072")
    if not (child := os.fork()):
        libc.mallopt(kernels._M_MMAP_THRESHOLD, 131_072)
        kernels.keep_memory.__wrapped__()
        before = libc.mallinfo2().hblks
        libc.malloc(40 << 20)
        os._exit(libc.mallinfo2().hblks - before)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == bool(name)
