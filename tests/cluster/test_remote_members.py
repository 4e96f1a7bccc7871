"""A storage in a bucket on real Ray: workers have nothing but what they bring from it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import s3_server

from raysts.commands.context import store_of
from raysts.commands.run import run as run_recipe
from raysts.storage.store import Store

SHORT = {
    "members": 2, "train.max_steps": 8, "train.eval_every": 8, "train.checkpoint_every": 4, "train.max_length": 24,
    "evaluation.tasks": ["stsb"], "evaluation.resamples": 4,
}  # fmt: skip
WEIGHTS = "model/model.safetensors"


@pytest.fixture(autouse=True)
def _environment(s3_endpoint: str, mirrors: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of the cluster's nodes."""
    s3_server.environment(s3_endpoint, mirrors, monkeypatch.setenv)


@pytest.mark.slow  # a minute; the first test of test_members is its quick sibling
def test_a_whole_system_on_ray_goes_on_from_the_bucket_alone(
    mirrors: Path, cluster: None, small_world: Path, tiny_backbone: Path, tmp_path: Path
) -> None:
    """Members, then, without the mirror, teacher means by actors, a student, evaluation: the bits of a local run."""
    given: dict[str, Any] = {"backbone": str(tiny_backbone), **SHORT}
    uri = f"s3://{s3_server.new_bucket()}/x"
    run_recipe("nli-ensemble", given, small_world, uri)
    shutil.rmtree(mirrors)
    given["sed.data.sample"] = 100
    found = run_recipe("nli-sed", given, small_world, uri)
    calm = run_recipe("nli-sed", given, small_world, tmp_path / "calm", address="none")
    assert [row["value"] for row in found["results"]] == [row["value"] for row in calm["results"]]
    root = store_of(uri).root
    for path in (tmp_path / "calm/runs").iterdir():
        weights = Store.of(root).get(root / "runs" / path.name / WEIGHTS, fresh=True)
        assert weights and weights.read_bytes() == (path / WEIGHTS).read_bytes()
