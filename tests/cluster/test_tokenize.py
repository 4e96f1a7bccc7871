from __future__ import annotations

import shutil
from pathlib import Path

import damage
import pytest

from raysts.commands.look import plan as plan_recipe
from raysts.errors import RunFailed
from raysts.pipeline.step import Context


def test_a_file_that_has_gone_bad_since_the_check_is_named(small_world: Path, tmp_path: Path, cluster: None) -> None:
    """The error of a Ray task reaches the user as one line, not as the traceback that Ray makes of it."""
    from raysts.cluster.executor import RayExecutor

    data = Path(shutil.copytree(small_world, tmp_path / "data"))
    (path,) = damage.shards(data, "nli/train", 1)
    plan = plan_recipe("nli", {"members": 1, "backbone": "tiny"}, data, tmp_path / "storage")
    plan.write_backbone()
    (node,) = (step for step in plan.steps if step.kind == "tokens")
    damage.flipped(path)
    with pytest.raises(RunFailed) as failed:
        node.work(Context(RayExecutor(), plan.store))
    said = str(failed.value)
    assert said.startswith(f"tokenising nli/train: {path}: its pages of row group 0 cannot be read (")
    assert "--skip-bad" in said and "\n" not in said
    assert not (node.output / "manifest.json").exists()
