"""Nodes that come, go and give notice: a member goes on with the workers there is room for. Slow: Ray takes its time."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from processes import wait_until
from small_runs import tokenize_table

from raysts.models.pretrained import load_tokenizer
from raysts.pipeline.plan import Plan
from raysts.recipes.recipe import Resources
from raysts.storage.foreign import read_json
from raysts.training import checkpoint
from raysts.training.job import Job
from raysts.training.metrics import read_metrics

pytestmark = pytest.mark.slow

QUICK = {"train.max_length": 16, "batch": 16, "members": 1, "train.eval_every": 100_000}


@pytest.fixture
def nodes(own_nodes: None) -> Iterator[Any]:
    """A private cluster whose head has no CPU; nodes are added by the test."""
    import ray
    from ray.cluster_utils import Cluster

    from raysts.cluster import connect

    if "local" in connect._joined:
        pytest.skip("this process has had a private cluster: with -n 2 others have theirs in another process")
    cluster = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 0, "include_dashboard": False, "object_store_memory": 100 << 20},
    )
    ray.init(address=cluster.address, log_to_driver=False, logging_level=logging.ERROR)
    yield cluster
    ray.shutdown()
    cluster.shutdown()


def _job(made: Plan) -> Job:
    made.write_backbone()
    for id_, spec in made.specs.items():
        if not (made.storage / "tokens" / id_ / "manifest.json").exists():
            tokenize_table(made.corpus, spec, load_tokenizer(made.backbone), made.store_folder(spec))
    job = made.chains[0][0].training
    assert job is not None
    return job


def _started(jobs: list[Job], resources: Resources) -> tuple[threading.Thread, list[str | None]]:
    from raysts.cluster.members import train_members

    found: list[str | None] = []
    run = threading.Thread(target=lambda: found.extend(train_members([[job] for job in jobs], resources)), daemon=True)
    run.start()
    return run, found


def _step(job: Job) -> int:
    saved = checkpoint.last(job.folder / "checkpoints")
    return int(saved.stem.split("-")[1]) if saved else 0


def test_a_member_goes_on_with_fewer_workers_and_then_with_more(
    planned: Callable[..., Plan], tmp_path: Path, nodes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from raysts.cluster import members

    first, second = (nodes.add_node(num_cpus=1) for _ in range(2))
    del first
    job = _job(planned(tmp_path, "nli", {**QUICK, "train.epochs": 1000, "train.checkpoint_every": 20}))
    run, found = _started([job], Resources(workers=2, min_workers=1))

    def world() -> int:
        return int((read_json(job.folder / "run.json") or {"layout": {"world_size": 0}})["layout"]["world_size"])

    def got_on(size: int, beyond: int) -> bool:
        assert run.is_alive(), found
        return world() == size and _step(job) > beyond

    reached = 0
    for size, change in (
        (2, lambda: nodes.remove_node(second, allow_graceful=False)),
        (1, lambda: nodes.add_node(num_cpus=1)),
        (2, lambda: None),
    ):
        wait_until(lambda size=size, reached=reached: got_on(size, reached), 240)
        reached = _step(job)
        change()
    steps = [line["step"] for line in read_metrics(job.folder / "metrics.jsonl")]
    assert steps == sorted(set(steps)), "every step once, whatever the number of workers"
    monkeypatch.setattr(members._Runs, "look", lambda runs: sys.exit())  # else the thread would join the cluster again
    run.join(60)
