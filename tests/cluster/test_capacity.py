from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from raysts.errors import InputError
from raysts.recipes.recipe import Resources

KINDS = {
    "head": {"resources": {"CPU": 8}},
    "small": {"resources": {"CPU": 4, "GPU": 1}, "max_workers": 3},
    "large": {"resources": {"CPU": 48, "GPU": 4}},
    "none": {"resources": {"CPU": 96}, "max_workers": 0},
}


@pytest.fixture
def autoscaler(cluster: None, tmp_path: Path) -> Iterator[Any]:
    """A process with the command line of the cluster's autoscaler."""
    import ray

    file = tmp_path / "cluster file.yaml"
    file.write_text(json.dumps({"max_workers": 5, "head_node_type": "head", "available_node_types": KINDS}))
    script = tmp_path / "monitor.py"
    script.write_text("import time\nprint('ready', flush=True)\ntime.sleep(600)\n")
    started = []

    def start(address: str | None = None) -> None:
        gcs = address or ray.get_runtime_context().gcs_address
        words = [sys.executable, script, f"--gcs-address={gcs}", f"--autoscaling-config={file}"]
        started.append(subprocess.Popen(words, stdout=subprocess.PIPE, text=True))
        assert started[-1].stdout is not None and started[-1].stdout.readline() == "ready\n"

    yield start
    for process in started:
        process.kill()
        process.wait()


def test_a_cluster_without_an_autoscaler_does_not_grow(cluster: None, autoscaler: Any) -> None:
    from raysts.cluster.capacity import node_types, reachable
    from raysts.cluster.executor import check_resources, with_gpus

    autoscaler("127.0.0.1:1")  # that of another cluster
    assert node_types() == [] and reachable("CPU") == 2 and with_gpus(Resources()).gpus == 0
    check_resources(Resources(cpus=2), private=True)
    check_resources(Resources(workers=3, min_workers=2), private=True)
    for resources, said in (
        (Resources(cpus=3), r"cpus=3.*have: 2 CPUs, 0 GPUs; ask for less"),
        (Resources(workers=3), r"run of 3 workers .*holds 2 of them.*have: 2 CPUs, 0 GPUs; ask for less"),
        (Resources(accelerator_type="H100"), r"gpus=1: no node can hold such a worker \(1 CPU, 1 GPU, H100\)"),
    ):
        with pytest.raises(InputError, match=said):
            check_resources(resources, private=True)


def test_kinds_of_nodes_that_may_come_count(autoscaler: Any) -> None:
    from raysts.cluster.capacity import announce, at_once, node_types, reachable
    from raysts.cluster.executor import check_resources, with_gpus

    autoscaler()
    assert list(map(str, node_types())) == ["small (4 CPUs, 1 GPU; at most 3)", "large (48 CPUs, 4 GPUs; at most 5)"]
    assert reachable("GPU") == 3 * 1 + 5 * 4 and with_gpus(Resources()).gpus == 1
    assert at_once(Resources(gpus=0.5)) == 5 * 8, "five nodes at most"
    check_resources(Resources(cpus=48, gpus=4), private=False)
    said: list[str] = []
    announce(Resources(cpus=2, gpus=0), said.append)
    assert said == []
    announce(Resources(cpus=3, gpus=0), said.append)
    assert len(said) == 1 and said[0].startswith(
        "no node with 3 CPUs, 0 GPUs is there yet; the cluster may start small"
    )
    for resources in (Resources(cpus=49), Resources(gpus=5)):
        with pytest.raises(InputError, match=r"no node can hold.*may start: small \(4 CPUs, 1 GPU; at most 3\), large"):
            check_resources(resources, private=False)


def test_who_waits_for_a_node_is_said_once(autoscaler: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import ray
    from processes import wait_until

    from raysts.cluster import capacity

    monkeypatch.setattr(capacity, "LOOK_SECONDS", 0.0)
    autoscaler()
    said: list[str] = []
    waiting = capacity.PendingReporter(Resources(cpus=3, gpus=0), said.append)
    groups = [ray.util.placement_group([{"CPU": cpus}]) for cpus in (3, 3, 2, 5)]
    wait_until(lambda: waiting._pending_groups() == 2, 60)
    for _ in range(4):
        waiting.update(unfinished=4)
    assert said == [
        "waiting for the cluster to start nodes for 2 training runs: needs 3 CPUs, 0 GPUs each; it may start "
        "small (4 CPUs, 1 GPU; at most 3), large (48 CPUs, 4 GPUs; at most 5)"
    ]
    ray.util.remove_placement_group(groups[0])
    wait_until(lambda: waiting._pending_groups() == 1, 60)
    for _ in range(3):
        waiting.update(unfinished=4)
    assert len(said) == 2 and "for 1 training run:" in said[1]
    for group in groups:
        ray.util.remove_placement_group(group)
    wait_until(lambda: not waiting._pending_groups(), 60)
    for _ in range(3):
        waiting.update(unfinished=4)
    assert len(said) == 2


def test_without_kinds_only_what_no_node_can_hold_is_said(cluster: None, monkeypatch: pytest.MonkeyPatch) -> None:
    import ray
    from processes import wait_until

    from raysts.cluster import capacity

    monkeypatch.setattr(capacity, "LOOK_SECONDS", 0.0)
    said: list[str] = []
    for asked, pending in (
        (Resources(cpus=2), 1),
        (Resources(cpus=3), 2),
        (Resources(workers=4, min_workers=3), 2),
    ):
        groups = [ray.util.placement_group([{"CPU": asked.cpus}] * asked.least) for _ in range(2)]
        waiting = capacity.PendingReporter(asked, said.append)
        wait_until(lambda w=waiting, n=pending: w._pending_groups() == n, 60)  # type: ignore[misc]
        for _ in range(3):
            waiting.update(unfinished=2)
        for group in groups:
            ray.util.remove_placement_group(group)
    assert said == [
        "waiting for the cluster to start nodes for 2 training runs: needs 3 CPUs, 0 GPUs each; its nodes have: "
        "2 CPUs, 0 GPUs",
        "waiting for the cluster to start nodes for 2 training runs: needs 4 workers with 1 CPU, 0 GPUs each; its nodes "
        "have: 2 CPUs, 0 GPUs",
    ]


def test_a_search_and_bulk_embedding_ask_for_nodes_that_may_come(
    autoscaler: Any, small_world: Path, tiny_backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many requests at once as the cluster would hold when grown: those it cannot meet yet are what makes it grow."""
    import ray.tune

    from raysts.cluster import executor, tune
    from raysts.cluster.capacity import at_once
    from raysts.commands.options import RunOptions
    from raysts.commands.study import planned as planned_study
    from raysts.pipeline.nodes.teacher import EmbedTeachers
    from raysts.search.queue import TrialQueue

    one, gpu = Resources(cpus=1, gpus=0), Resources(cpus=2, gpus=0.5)
    assert at_once(one) == 2 and at_once(gpu) == 1  # the head alone; what fits nowhere counts as one
    autoscaler()
    # Five nodes at most, the large ones first: 5 x 48, and the head's two CPUs.
    assert at_once(one) == 5 * 48 + 2 and at_once(Resources(cpus=4, gpus=0)) == 5 * 12
    assert at_once(gpu) == 5 * 8 and at_once(Resources(cpus=49, gpus=0)) == 1

    asked: dict[str, Any] = {}

    class Looked(Exception):  # noqa: N818
        """Nothing is started."""

    class Tuner:
        def __init__(self, trainable: Any, tune_config: Any, **options: Any) -> None:
            import os

            asked["pending"] = int(os.environ["TUNE_MAX_PENDING_TRIALS_PG"])
            asked["searcher"] = tune_config.search_alg

        def fit(self) -> None:
            raise Looked

    monkeypatch.setattr(ray.tune, "Tuner", Tuner)
    wide = Resources(cpus=16, gpus=0)  # 3 a large node
    for more, most in (({}, None), ({"space.optim.lr": "log(1e-6,1e-3)", "num_samples": 40}, 16)):
        given = {"backbone": str(tiny_backbone), "seeds": 2, **more}
        study = planned_study("lower-bound", given, RunOptions(data=small_world, storage=tmp_path / str(most)))
        study.open("raysts tune")
        tasks = TrialQueue(study)
        with pytest.raises(Looked):
            tune._fit(tasks, wide, tune._Watch(tasks, None, wide))  # type: ignore[arg-type]
        assert asked["pending"] == 15
        handed = 0
        while handed < 40 and isinstance(asked["searcher"].suggest(str(handed)), dict):
            handed += 1
        assert handed == (most or 40)  # a sampler is never asked further ahead than the room there may be

    def looked(worker: Any, count: int, resources: Resources, seen: Any) -> None:
        asked["actors"] = count
        raise Looked

    monkeypatch.setattr(executor, "start_actors", looked)
    for count, expected in ((4, 4), (100, 15)):
        with pytest.raises(Looked):
            list(executor.RayExecutor().map(EmbedTeachers, (), range(count), wide, lambda text: None))
        assert asked["actors"] == expected


@pytest.mark.parametrize(
    ("has", "asked", "expected"),
    [
        ({"CPU": 4}, {"cpus": 2}, 2),
        ({"CPU": 4, "GPU": 1}, {"gpus": 0.3}, 3),
        ({"CPU": 4, "memory": 7e9}, {"memory": 2.0}, 3),
        ({"CPU": 4}, {"memory": 2.0}, 0),  # nobody says how much it has
        ({"CPU": 4, "GPU": 1, "accelerator_type:L4": 1.0}, {"gpus": 1, "accelerator_type": "L4"}, 1),
        ({"CPU": 4, "GPU": 1, "accelerator_type:A100": 1.0}, {"gpus": 1, "accelerator_type": "L4"}, 0),
    ],
)
def test_workers_of_a_node(has: dict[str, float], asked: dict[str, Any], expected: int) -> None:
    from raysts.cluster.capacity import slots

    assert slots(has, Resources(**asked)) == expected


@pytest.mark.parametrize(
    ("labels", "selector", "expected"),
    [
        ({"zone": "a"}, ("zone=a",), True),
        ({"zone": "b"}, ("zone=a",), False),
        ({}, ("zone=a",), False),
        ({}, ("zone=!a",), True),
        ({"zone": "b"}, ("zone=in(a, b)", "kind=!in(x)"), True),
        ({"zone": "b", "kind": "x"}, ("zone=in(a,b)", "kind=!in(x)"), False),
    ],
)
def test_labels_of_a_node(labels: dict[str, str], selector: tuple[str, ...], expected: bool) -> None:
    from raysts.cluster.capacity import matches

    assert matches(labels, Resources(label_selector=selector).selector) is expected


def test_a_memory_that_no_node_has_is_refused_and_an_estimate_is_not(
    cluster: None, tiny_backbone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from types import SimpleNamespace

    from raysts.cluster.capacity import nodes
    from raysts.cluster.executor import check_resources
    from raysts.cluster.members import _with_memory

    with pytest.raises(InputError, match=r"no node can hold such a worker \(1 CPU, 0 GPUs, 9999.0 GB of memory\)"):
        check_resources(Resources(memory=9999.0), private=True)
    with pytest.raises(InputError, match=r"zone=moon"):
        check_resources(Resources(label_selector=("zone=moon",)), private=True)
    job: Any = SimpleNamespace(parent=tiny_backbone)
    assert 1.3 <= (_with_memory(Resources(), [[job]]).memory or 1.4) < 2.0
    assert _with_memory(Resources(memory=3.0), [[job]]).memory == 3.0
    has = nodes()[0].has["memory"] / 1e9
    monkeypatch.setattr("raysts.models.memory.PROCESS", 2e9 * has)
    assert _with_memory(Resources(), [[job]]).memory is None
    monkeypatch.setattr("raysts.models.memory.PROCESS", 0.6e9 * has)
    assert _with_memory(Resources(), [[job]]).memory
    assert _with_memory(Resources(workers=2), [[job]]).memory is None, "two would have no room"
