from __future__ import annotations

import json
from pathlib import Path

from torch import nn

from raysts.recipes.recipe import Optim
from raysts.training import checkpoint, optim
from raysts.training.checkpoint import TrainState
from raysts.training.metrics import MetricsLog, last_metrics, read_metrics


def test_the_last_whole_checkpoint_counts(tmp_path: Path) -> None:
    """A process killed between writing a checkpoint and removing the old one leaves both; killed while it wrote, a draft."""
    module = nn.Linear(3, 4)
    optimizer = optim.build(Optim(name="adam", lr=1e-2), module)
    checkpoint.save(tmp_path, module, optimizer, TrainState(step=9))
    (tmp_path / "step-0000009.pt").rename(tmp_path / "kept")
    progress = TrainState(step=10, latest={"stsb": 0.25}, best=0.5, best_step=2, best_candidate="encoder", since_best=1)
    checkpoint.save(tmp_path, module, optimizer, progress)
    (tmp_path / "kept").rename(tmp_path / "step-0000009.pt")
    (tmp_path / ".aside-step-0000011.pt.1.1").write_bytes(b"half")
    assert checkpoint.restore(tmp_path, module, optimizer, str, False) == progress


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
    path.write_text('{"step": 1}\n{"step": true}\n{"step": 3}\n')
    assert read_metrics(path) == [{"step": 1}], "no number of a step: the file is damaged from there"
    path.write_text("")
    assert last_metrics(path) is None
