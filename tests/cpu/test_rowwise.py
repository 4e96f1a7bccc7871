import copy
import math
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from raysts.cpu import native
from raysts.cpu.rowwise import RMSprop, adam_compiles, clip
from raysts.recipes.recipe import Optim
from raysts.training.optim import build


def small_net(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 7), nn.LayerNorm(7), nn.Tanh(), nn.Linear(7, 1))


def steps_of(module: nn.Module, optimizer: torch.optim.Optimizer, rates: list[float]) -> None:
    generator = torch.Generator().manual_seed(1)
    for step, rate in enumerate(rates):
        loss = module(torch.randn(4, 5, generator=generator)).square().sum() * 10 ** (step % 4)
        loss.backward()
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


@pytest.mark.parametrize(("name", "kind", "options"), [
    ("rmsprop", torch.optim.RMSprop, {"alpha": 0.9, "eps": 1e-7}),
    ("adamw", torch.optim.AdamW, {"weight_decay": 0.0}),
    ("adam", torch.optim.Adam, {"weight_decay": 0.0}),
])  # fmt: skip
def test_an_optimiser_is_torchs_and_its_hooks_run_once(name: str, kind: Any, options: dict[str, float]) -> None:
    """Of classes of which torch has seen instances, parents among them."""
    ours, theirs, seen = small_net(), small_net(), list[int]()
    rates = [1e-3 * (1 + step % 3) for step in range(60)]
    others = kind(theirs.parameters(), lr=1e-3, **options)
    hook = register_optimizer_step_pre_hook(lambda *_: seen.append(1))
    try:
        steps_of(ours, build(Optim(name=name, lr=1e-3), ours), rates)  # type: ignore[arg-type]
    finally:
        hook.remove()
    assert len(seen) == len(rates)
    steps_of(theirs, others, rates)
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_adamw_without_bias_correction_by_hand() -> None:
    """m = .9 m + .1 g; v = .999 v + .001 g^2; p -= lr (wd p + m / (sqrt(v) + eps)), in plain Python."""
    module = nn.ParameterList([torch.tensor([1.0, -2.0], dtype=torch.float64)])
    (p,) = module.parameters()
    optimizer = build(Optim(name="adamw-uncorrected", lr=0.01, weight_decay=0.1, eps=1e-6, decay_all=True), module)
    expected, m, v = [1.0, -2.0], [0.0, 0.0], [0.0, 0.0]
    for step in range(5):
        gradient = [0.5 * (step + 1), -3.0]
        p.grad = torch.tensor(gradient, dtype=torch.float64)
        optimizer.step()
        for i, g in enumerate(gradient):
            m[i], v[i] = 0.9 * m[i] + 0.1 * g, 0.999 * v[i] + 0.001 * g * g
            expected[i] -= 0.01 * (0.1 * expected[i] + m[i] / (math.sqrt(v[i]) + 1e-6))
    torch.testing.assert_close(p.detach(), torch.tensor(expected, dtype=torch.float64), rtol=1e-9, atol=0)


class Words(nn.Module):
    """Four words of twenty at a time, some of them twice; what they do to the loss, another layer does, too."""

    def __init__(self, sparse: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.linear = nn.Embedding(20, 16, padding_idx=0, sparse=sparse), nn.Linear(16, 1)

    def train_to(self, optimizer: torch.optim.Optimizer, first: int, last: int) -> nn.Module:
        for step in range(first, last):
            generator = torch.Generator().manual_seed(step)
            most = 17 if step % 50 < 5 else 8  # some rest for long, or for ever
            words = torch.randint(0, most, (4,), generator=generator)
            self.linear(self.table(words)).square().sum().backward()
            clip(self.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return self


@pytest.mark.parametrize("name, decay", [("rmsprop", 0.0), ("adam", 0.0), ("adamw", 0.1), ("adamw-uncorrected", 0.1)])
def test_an_update_by_rows_is_that_of_the_table(name: Any, decay: float) -> None:
    """Gone on with, by rows to the bit and as a whole. RMSprop's averages decay so fast that they are brought up to date on
    the way: .3^110 is no float32."""
    optim = Optim(name=name, lr=1e-3, weight_decay=decay)
    if native.library() is None and name != "rmsprop":
        pytest.skip("there is no C++ compiler")

    def trained(sparse: bool, stops: tuple[int, ...] = (), then_sparse: bool | None = None) -> nn.Module:
        words = Words(sparse)
        optimizer, first = build(optim, words), 0
        for group in optimizer.param_groups:
            group.update(rho=0.3)
        for stop in stops:
            words.train_to(optimizer, first, stop)
            kept = copy.deepcopy(optimizer.state_dict())
            optimizer, first = build(optim, words), stop
            optimizer.load_state_dict(kept)
            words.table.sparse = sparse if then_sparse is None else then_sparse
        return words.train_to(optimizer, first, 110)

    def differ(a: nn.Module, b: nn.Module) -> float:
        return max(float((x - y).detach().abs().max()) for x, y in zip(a.parameters(), b.parameters(), strict=True))

    whole, rows = trained(False), trained(True)
    assert differ(whole, Words(False)) > 0.05 and differ(whole, rows) < 3e-5
    assert differ(rows, trained(True, (60, 90))) == 0.0 and differ(whole, trained(True, (60,), False)) < 3e-5
    assert differ(whole, trained(False, (60,), True)) < 3e-5


@pytest.mark.skipif(native.library() is None, reason="there is no C++ compiler")
def test_adam_updates_tables_of_float32_whose_rows_fill_whole_vectors() -> None:
    forms = [(16, torch.float32), (17, torch.float32), (16, torch.bfloat16), (16, torch.float64)]
    assert [adam_compiles(nn.Embedding(3, width, dtype=dtype)) for width, dtype in forms] == [True, False, False, False]


def test_rmsprop_leaves_parameters_without_gradient() -> None:
    used, unused = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    optimizer = RMSprop([{"params": [used, unused]}], lr=0.1)
    used.grad = torch.ones(2)
    optimizer.step()
    assert unused.tolist() == [1.0, 1.0] and used.tolist() != [1.0, 1.0]
