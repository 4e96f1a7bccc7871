from __future__ import annotations

from typing import Any

import pytest
from small_runs import tiny_encoder
from torch import nn

from raysts.cpu import native
from raysts.recipes.names import pipeline
from raysts.recipes.recipe import DEFAULTS, Optim
from raysts.training.optim import build, learning_rate, use_sparse_gradients


def test_where_updates_are_by_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    objective = nn.ModuleList([tiny_encoder(), tiny_encoder()])

    def sparse(optim: Optim) -> bool:
        use_sparse_gradients(objective, optim)
        (answer,) = {encoder.word_table.sparse for encoder in objective}
        return answer

    assert sparse(Optim(name="rmsprop"))
    assert sparse(Optim(name="adamw", weight_decay=0.1)) == sparse(Optim(name="adam")) == (native.library() is not None)
    assert not sparse(Optim(name="adam", weight_decay=0.1)), "which is a gradient of every row"
    for encoder in objective:
        encoder.fused = False  # as of a run that began without a compiler
    assert sparse(Optim(name="rmsprop")) and not sparse(Optim(name="adamw"))
    for encoder in objective:
        encoder.fused = True
    monkeypatch.setattr(native, "library", lambda: None)
    assert sparse(Optim(name="rmsprop")) and not sparse(Optim(name="adamw"))


def test_biases_and_layer_norms_are_not_decayed() -> None:
    module = nn.Sequential(nn.Linear(5, 7), nn.LayerNorm(7), nn.Tanh(), nn.Linear(7, 1))
    module[3].bias.requires_grad_(False)
    optimizer = build(Optim(name="adamw", lr=1e-3, weight_decay=0.25), module)
    decay = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    assert len(decay) == 5, "the frozen bias is left out"
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            assert decay[id(parameter)] == (0.25 if name in ("0.weight", "3.weight") else 0.0), name


def test_epsilon_is_that_of_the_optimiser_unless_given() -> None:
    for name, default in (("adamw", 1e-8), ("adam", 1e-8), ("rmsprop", 1e-7)):
        for given, expected in ((None, default), (1e-3, 1e-3)):
            optimizer = build(Optim(name=name, eps=given), nn.Linear(5, 7))  # type: ignore[arg-type]
            assert {group["eps"] for group in optimizer.param_groups} == {expected}


@pytest.mark.parametrize(("options", "steps", "rates"), [
    ({"schedule": "linear", "warmup": 0.1}, 100, {0: 0.1, 8: 0.9, 9: 1.0, 10: 1.0, 11: 89 / 90, 55: 0.5, 99: 1 / 90}),
    ({"schedule": "constant", "warmup": 0.1}, 50, {0: 0.2, 4: 1.0, 5: 1.0, 49: 1.0}),
    ({"schedule": "linear", "warmup": 0.1, "floor": 0.2}, 50, {0: 0.36, 4: 1.0, 5: 1.0, 41: 0.36, 49: 0.2 + 0.8 / 45}),
    ({"warmup": 0.0}, 10, {0: 1.0}), ({"warmup": 0.1}, 1, {0: 1.0}), ({"warmup": 0.1}, 3, {0: 1.0}),
])  # fmt: skip
def test_warmup_and_what_follows(options: dict[str, Any], steps: int, rates: dict[int, float]) -> None:
    optim = Optim(lr=1.0, **options)
    assert {step: learning_rate(optim, step, steps) for step in rates} == pytest.approx(rates)


def test_the_steps_of_contrastive_tension() -> None:
    """1e-5, then 8e-6, 6e-6, 4e-6, 2e-6 after 500, 1000, 1500, 2000 updates; an override of the rate scales them."""
    steps = (0, 499, 500, 999, 1000, 1499, 1500, 1999, 2000, 49_999)
    expected = [1e-5, 1e-5, 8e-6, 8e-6, 6e-6, 6e-6, 4e-6, 4e-6, 2e-6, 2e-6]
    assert [learning_rate(DEFAULTS["ct"].optim, step, 50_000) for step in steps] == pytest.approx(expected)
    optim = pipeline("ct", {"ct.optim.lr": 1e-3}).stages["ct"].optim
    assert [learning_rate(optim, step, 50_000) for step in (0, 2000)] == pytest.approx([1e-3, 2e-4])
