"""How much disk a search takes: never more than what it says before its first trial."""

from __future__ import annotations

import contextlib
import os
import re
import threading
from pathlib import Path
from typing import Any

import pytest

from raysts.commands.options import RunOptions
from raysts.commands.study import planned as planned_study
from raysts.commands.tune import tune as run_search
from raysts.models.pretrained import load
from raysts.search import disk
from raysts.search.named import SEARCHES


def bytes_in(*folders: Path) -> int:
    """What the files in them take now; files and folders come and go meanwhile."""
    total = 0
    for folder in folders:
        for parent, _, files in os.walk(folder):  # unlike rglob, it passes over a folder that is gone
            for name in files:
                with contextlib.suppress(FileNotFoundError):
                    total += (Path(parent) / name).stat().st_size
    return total


class Peak:
    """The most that a storage's runs and studies have taken, looked at again and again."""

    def __init__(self, storage: Path) -> None:
        self.folders, self.most, self._end = (storage / "runs", storage / "studies"), 0, threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def _look(self) -> None:
        while not self._end.wait(0.01):
            self._once()

    def _once(self) -> None:
        self.most = max(self.most, bytes_in(*self.folders))

    def __enter__(self) -> Peak:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._end.set()
        self._thread.join()
        self._once()


def test_a_search_keeps_the_best_models_and_stays_below_the_bound_it_states(
    small_world: Path, tiny_backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "RECORDS", 20_000)  # short trials: the bound is to be near
    overrides: dict[str, Any] = {
        "backbone": str(tiny_backbone), "space.settings.classes": [2, 3, 4, 5], "space.settings.dims": [2, 4], "keep": 2,
        "num_samples": None, "train.max_steps": 3, "train.checkpoint_every": 1, "train.eval_every": 1,
        "train.max_length": 24, "data.sample": 64, "latte.data.sources": [],
    }  # fmt: skip
    others = (key.removeprefix("latte.") for key in SEARCHES["latte-mix"]("").space)
    overrides = {f"space.{key}": None for key in others} | overrides
    said: list[str] = []
    with Peak(tmp_path) as peak:
        found = run_search("latte-mix", overrides, small_world, tmp_path, address="none", say=said.append)
    (line,) = [text for text in said if "MB on disk" in text]
    stated = float(re.search(r"at most ([\d.,]+) MB", line)[1].replace(",", "")) * 1e6  # type: ignore[index]
    best = sorted(found["points"], key=lambda point: -point["value"])[:2]
    kept = sorted(path.parent.name for path in tmp_path.glob("runs/*/model"))
    assert found["trials"] == 8 and kept == sorted(point["run"] for point in best)
    model = bytes_in(tmp_path / "runs" / kept[0] / "model")
    assert 2 * model < peak.most <= stated < 30 * model  # what is kept, at least
    assert 8 * model > bytes_in(tmp_path / "runs")  # beaten models are gone


def test_the_size_of_a_trial_is_that_of_the_largest_point(
    small_world: Path, tiny_backbone: Path, tmp_path: Path
) -> None:
    def sizes(classes: list[int]) -> disk.Sizes:
        overrides = {"backbone": str(tiny_backbone), "space.settings.classes": classes}
        return disk.sizes(planned_study("latte-mix", overrides, RunOptions(data=small_world, storage=tmp_path)))

    small, large = sizes([4]), sizes([4, 400])
    encoder = load(tiny_backbone, device="cpu").encoder
    frozen = sum(4 * parameter.numel() for parameter in encoder.parameters())
    assert small.model > frozen > small.trained  # the backbone is kept with the head, and never saved while training
    # With the most variables, 128, of 396 more classes each: what gives their logits from 32 numbers, and its bias.
    assert large.model - small.model == 4 * 396 * 128 * (32 + 1) and large.trained > small.trained
    assert sizes([10**13]).model > 10**15  # said without making such a tensor
