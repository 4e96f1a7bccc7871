from __future__ import annotations

import copy
import os
import platform
import subprocess
import sys

import pytest
import torch
from torch import nn

from raysts.cpu import kernels


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


def test_dropout_is_off_in_eval_mode_which_is_kept() -> None:
    module = nn.Sequential(nn.Dropout(0.5)).eval()
    kernels.install(module)
    x = torch.randn(4, 4)
    assert not module[0].training
    assert torch.equal(module.eval()(x), x) and not torch.equal(module.train()(x), x)


LARGE_BLOCKS = """
import ctypes, os
from raysts.cpu import kernels

libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
for name in ("", *kernels._GLIBC_VARIABLES):
    if not os.fork():
        os.environ |= {name: "131072"} if name else {}
        libc.mallopt(kernels._M_MMAP_THRESHOLD, 131_072)
        kernels.keep_memory()
        word_before = ctypes.c_size_t.from_address(libc.malloc(64 << 20) - ctypes.sizeof(ctypes.c_size_t))
        print(name, bool(word_before.value & 2), flush=True)
        os._exit(0)
    os.wait()
"""
"""Whether a block of 64 MiB lies in pages of its own, by glibc's flag, where no variable is set and where each is."""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's")
def test_large_blocks_are_kept_unless_the_user_has_said_what_is() -> None:
    """In a fresh process: what another has freed, or failed to get, decides where its next block lies."""
    environment = {name: value for name, value in os.environ.items() if name not in kernels._GLIBC_VARIABLES}
    asked = subprocess.run(
        [sys.executable, "-c", LARGE_BLOCKS], env=environment, capture_output=True, text=True, check=False, timeout=600
    )
    assert asked.stdout.split() == ["False", *(word for name in kernels._GLIBC_VARIABLES for word in (name, "True"))], (
        asked.stderr
    )
