"""Runs of different names in one storage, at the same time."""

from __future__ import annotations

from pathlib import Path

import pytest

from raysts.commands.run import run as run_recipe
from raysts.storage.atomic import atomic_write


@pytest.mark.parametrize("folder", ["results", "backbones"])
def test_a_driver_leaves_what_another_one_is_writing(
    folder: str, small_world: Path, tiny_backbone: Path, tmp_path: Path
) -> None:
    with atomic_write(tmp_path / folder / "of-another-run") as draft:
        draft.write_text("half")
        found = run_recipe(
            "raw",
            {"backbone": str(tiny_backbone), "evaluation.tasks": ["stsb"], "evaluation.resamples": 0},
            data=small_world, storage=tmp_path, address="none", say=lambda text: None,
        )  # fmt: skip
        assert found["status"] == "done" and found["results"]
        draft.write_text(draft.read_text() + " and whole")
    assert (tmp_path / folder / "of-another-run").read_text() == "half and whole"
