from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from raysts.recipes.recipe import Optim
from raysts.training import checkpoint, optim
from raysts.training.checkpoint import TrainState
from raysts.training.metrics import MetricsLog, last_metrics, read_metrics


def module_and_optimizer(name: str, seed: int = 0) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    module = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 1))
    return module, optim.build(Optim(name=name, lr=1e-2), module)  # type: ignore[arg-type]


def step(module: nn.Module, optimizer: torch.optim.Optimizer, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    module(torch.randn(8, 3, generator=generator)).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


@pytest.mark.parametrize("name", ["adamw", "adam", "rmsprop"])
def test_everything_comes_back(name: str, tmp_path: Path) -> None:
    module, optimizer = module_and_optimizer(name)
    for seed in range(3):
        step(module, optimizer, seed)
    progress = TrainState(step=3, loss_sum=0.0, latest=0.25, best=0.5, best_step=2, best_candidate="encoder", since_best=1,
                        seconds=1.5)  # fmt: skip
    checkpoint.save(tmp_path, module, optimizer, progress)
    again, again_optimizer = module_and_optimizer(name, seed=1)
    assert checkpoint.restore(tmp_path, again, again_optimizer, str, False) == progress
    for seed in range(3, 6):
        step(module, optimizer, seed)
        step(again, again_optimizer, seed)
    for a, b in zip(module.parameters(), again.parameters(), strict=True):
        assert torch.equal(a, b)


def test_the_last_whole_checkpoint_counts(tmp_path: Path) -> None:
    """A process killed between writing a checkpoint and removing the old one leaves both; killed while it wrote, a draft."""
    module, optimizer = module_and_optimizer("adam")
    checkpoint.save(tmp_path, module, optimizer, TrainState(step=9))
    (tmp_path / "step-0000009.pt").rename(tmp_path / "kept")
    checkpoint.save(tmp_path, module, optimizer, TrainState(step=10))
    (tmp_path / "kept").rename(tmp_path / "step-0000009.pt")
    (tmp_path / ".aside-step-0000011.pt.1.1").write_bytes(b"half")
    assert checkpoint.restore(tmp_path, module, optimizer, str, False).step == 10


def test_metrics_are_appended_and_cut_at_the_step_of_the_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    log = MetricsLog(path, 0)
    for number in (1, 2, 3):
        log.write({"step": number})
        assert last_metrics(path) == {"step": number}, "visible at once"
    log.close()
    log = MetricsLog(path, 2)
    assert [line["step"] for line in read_metrics(path)] == [1, 2]
    log.write({"step": 3, "again": True})
    log.close()
    assert read_metrics(path)[-1] == {"step": 3, "again": True}


def test_a_torn_line_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    assert read_metrics(path) == [] and last_metrics(path) is None
    lines = [json.dumps({"step": number, "text": "x" * 50}) + "\n" for number in range(500)]
    path.write_text("".join(lines) + '{"step": 500, "lo')
    assert len(read_metrics(path)) == 500 and last_metrics(path) == {"step": 499, "text": "x" * 50}
    MetricsLog(path, 600).close()
    assert path.read_text() == "".join(lines)
    path.write_text("")
    assert last_metrics(path) is None
