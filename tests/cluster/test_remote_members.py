"""A storage in a bucket on real Ray: workers have nothing but what they bring from it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import s3_server

from raysts.commands.context import store_of
from raysts.commands.plan import plan as plan_recipe
from raysts.commands.run import run as run_recipe
from raysts.pipeline.local import LocalExecutor
from raysts.pipeline.plan import Plan
from raysts.recipes.recipe import Resources
from raysts.storage.store import Store

SHORT = {
    "members": 2,
    "train.max_steps": 8,
    "train.eval_every": 8,
    "train.checkpoint_every": 4,
    "train.max_length": 24,
    "evaluation.tasks": ["stsb"],
    "evaluation.resamples": 4,
}
WEIGHTS = "model/model.safetensors"


def quiet(text: str) -> None:
    pass


@pytest.fixture(autouse=True)
def _environment(s3_endpoint: str, mirrors: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of the cluster's nodes."""
    s3_server.environment(s3_endpoint, mirrors, monkeypatch.setenv)


def prepared(made: Plan) -> Plan:
    made.write_backbone()
    for node in made.token_nodes:
        node.run(LocalExecutor(threads=1), made.store, quiet)
    return made


def weights_of(made: Plan) -> list[bytes | None]:
    paths = [node.model.parent / WEIGHTS for node in made.members]
    weights = [Store.of(path).get(path, fresh=True) for path in paths]
    return [path and path.read_bytes() for path in weights]


def test_members_bring_what_they_need_and_send_what_they_made(
    cluster: None, small_world: Path, tiny_backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of them at once, in one Ray Train run."""
    from raysts.cluster import members
    from raysts.cluster.members import train_members

    monkeypatch.setattr(members, "widths", lambda slots: [slots])
    given = {"backbone": str(tiny_backbone), **SHORT}
    here = prepared(plan_recipe("nli", given, small_world, tmp_path / "here"))
    assert LocalExecutor(threads=1).train([[n.job for n in c] for c in here.chains], Resources(), quiet) == [None] * 2

    there = prepared(plan_recipe("nli", given, small_world, f"s3://{s3_server.new_bucket()}/x"))
    shutil.rmtree(there.storage)
    assert train_members([[n.job for n in c] for c in there.chains], Resources(), quiet) == [None] * 2
    assert weights_of(there) == weights_of(here)
    assert (there.storage / "backbones").is_dir() and list(there.storage.glob("tokens/*/part-*"))

    shutil.rmtree(there.storage)
    again = plan_recipe("nli", given, small_world, Store.of(there.storage).uri)
    assert [node.status(again.store) for chain in again.chains for node in chain] == ["done"] * 2
    assert [node.record["where"].split(",")[0] for chain in again.chains for node in chain] == ["Ray Train"] * 2


@pytest.mark.slow  # a minute; the test above is its quick sibling
def test_a_whole_system_on_ray_goes_on_from_the_bucket_alone(
    mirrors: Path, cluster: None, small_world: Path, tiny_backbone: Path, tmp_path: Path
) -> None:
    """Members, then, without the mirror, teacher means by actors, a student, evaluation: the bits of a local run."""
    given: dict[str, Any] = {"backbone": str(tiny_backbone), **SHORT}
    uri = f"s3://{s3_server.new_bucket()}/x"
    run_recipe("nli-ensemble", given, small_world, uri, say=quiet)
    shutil.rmtree(mirrors)
    given["sed.data.sample"] = 100
    found = run_recipe("nli-sed", given, small_world, uri, say=quiet)
    calm = run_recipe("nli-sed", given, small_world, tmp_path / "calm", address="none", say=quiet)
    assert [row["value"] for row in found["results"]] == [row["value"] for row in calm["results"]]
    root = store_of(uri).root
    for path in (tmp_path / "calm/runs").iterdir():
        weights = Store.of(root).get(root / "runs" / path.name / WEIGHTS, fresh=True)
        assert weights and weights.read_bytes() == (path / WEIGHTS).read_bytes()
