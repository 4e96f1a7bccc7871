from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from raysts.errors import InputError
from raysts.recipes.recipe import Resources


def test_a_private_cluster_does_not_grow(cluster: None) -> None:
    from raysts.cluster.capacity import at_once, may_grow
    from raysts.cluster.executor import check_resources, with_gpus

    assert not may_grow() and with_gpus(Resources()).gpus == 0
    assert at_once(Resources(gpus=0)) == 2 and at_once(Resources(gpus=1)) == 1  # what fits nowhere counts as one
    check_resources(Resources(cpus=2), private=True)
    check_resources(Resources(workers=3, min_workers=2), private=True)
    for resources, said in (
        (Resources(cpus=3), r"cpus=3.*have: 2 CPUs, 0 GPUs; ask for less"),
        (Resources(workers=3), r"run of 3 workers .*holds 2 of them.*have: 2 CPUs, 0 GPUs; ask for less"),
        (Resources(accelerator_type="H100"), r"gpus=1: no node can hold such a worker \(1 CPU, 1 GPU, H100\)"),
    ):
        with pytest.raises(InputError, match=said):
            check_resources(resources, private=True)


@pytest.fixture
def growing(cluster: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster of which nobody can tell how far it grows."""
    from raysts.cluster import capacity, executor, members, tune

    for module in (capacity, members, tune):
        monkeypatch.setattr(module, "may_grow", lambda: True)
    assert executor.capacity is capacity


def test_where_a_cluster_may_grow_what_has_no_room_is_asked_for_and_waits(growing: None) -> None:
    from raysts.cluster.capacity import UNKNOWN, announce, at_once
    from raysts.cluster.executor import check_resources

    assert at_once(Resources(gpus=0)) == at_once(Resources(cpus=48, gpus=4)) == UNKNOWN
    check_resources(Resources(cpus=48, gpus=4), private=False)
    said: list[str] = []
    announce(Resources(cpus=2, gpus=0), said.append)
    assert said == []
    announce(Resources(cpus=3, gpus=0), said.append)
    assert said == ["no node with 3 CPUs, 0 GPUs is there yet; the cluster's nodes have: 2 CPUs, 0 GPUs; it may grow"]


def test_a_run_per_node_and_wider_ones_for_what_may_come(
    cluster: None, growing: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from raysts.cluster import members
    from raysts.cluster.capacity import Present

    def placed(cpus: list[int], count: int, grows: bool = True, **asked: Any) -> list[tuple[str | None, int]]:
        there = [Present(str(number), "10.0.0.1", {"CPU": float(has)}, {}) for number, has in enumerate(cpus)]
        monkeypatch.setattr(members, "nodes", lambda: there)
        monkeypatch.setattr(members, "may_grow", lambda: grows)
        monkeypatch.setattr(members, "at_once", lambda resources: sum(node.slots(resources) for node in there))
        found = members.placements(Resources(gpus=0, **asked), count)
        return [(place and place.id, width) for place, width in found]

    assert placed([0, 4, 2], 20, grows=False) == [("1", 4), ("2", 2)]
    assert placed([0, 4, 2], 5, grows=False) == [("1", 4), ("2", 1)]
    assert placed([0, 4], 4) == [("1", 4)]
    assert placed([0, 4], 12) == [("1", 4), (None, 1), (None, 1), (None, 2), (None, 4)]
    assert placed([0], 9, grows=False) == [(None, 1)]  # it waits, and says so
    assert placed([0], 1000) == [(None, width) for width in (1, 1, 2, 4, 8, 16, 32)]
    many = placed([8] * 40, 1000, grows=False)
    assert len(many) == members.MOST_RUNS and sum(width for _, width in many) == 320
    assert {place for place, _ in many} == {None} and max(width for _, width in many) == 20
    assert placed([4, 4], 5, grows=False, workers=2) == [(None, 2)] * 4
    assert placed([4, 4], 3, grows=False, workers=4, min_workers=2) == [(None, 4)] * 3


def test_who_waits_is_said_once(cluster: None, growing: None, monkeypatch: pytest.MonkeyPatch) -> None:
    from raysts.cluster import capacity

    monkeypatch.setattr(capacity, "LOOK_SECONDS", 0.0)
    said: list[str] = []
    runs = [2]
    waiting = capacity.PendingReporter(Resources(cpus=3, gpus=0), said.append, lambda: runs[0])
    for _ in range(4):
        waiting.update()
    assert said == [
        "waiting for the cluster to have room for 2 training runs: needs 3 CPUs, 0 GPUs each; its nodes have: 2 CPUs, 0 GPUs"
    ]
    for runs[0] in (1, 0):
        for _ in range(3):
            waiting.update()
    assert len(said) == 2 and "for 1 training run:" in said[1]


def test_what_has_no_room_now_and_gets_it_is_not_said(cluster: None, monkeypatch: pytest.MonkeyPatch) -> None:
    from raysts.cluster import capacity

    monkeypatch.setattr(capacity, "LOOK_SECONDS", 0.0)
    said: list[str] = []
    for asked in (Resources(cpus=2), Resources(cpus=3), Resources(workers=4, min_workers=3)):
        waiting = capacity.PendingReporter(asked, said.append, lambda: 1)
        for _ in range(3):
            waiting.update()
    assert [text.partition("needs ")[2].partition(" each")[0] for text in said] == [
        "3 CPUs, 0 GPUs", "4 workers with 1 CPU, 0 GPUs"
    ]  # fmt: skip


def test_requests_for_room_are_told_apart_and_taken_back(cluster: None) -> None:
    """Ours, by their shape, from those of a driver that calls us; the id of a group ends with that of its job."""
    import ray
    from processes import wait_until

    from raysts.cluster import runs

    three = Resources(cpus=3, gpus=0)
    groups = [ray.util.placement_group([{"CPU": cpus}] * 2) for cpus in (3, 3, 5)]
    wait_until(lambda: sorted(runs.groups(three).values()) == ["PENDING"] * 2, 60)
    assert runs.groups(three).keys() == {group.id.hex() for group in groups[:2]}
    runs.give_back(runs.groups(three))
    wait_until(lambda: not runs.groups(three), 60)
    assert len(runs.groups(Resources(cpus=5, gpus=0))) == 1
    runs.give_back([group.id.hex() for group in groups])  # what is gone already is no error


def test_a_search_and_bulk_embedding_ask_for_nodes_that_may_come(
    growing: None, small_world: Path, tiny_backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What has no room yet is what makes the cluster grow; a sampler is not asked far ahead of what it can learn from."""
    import ray.tune

    from raysts.cluster import executor, tune
    from raysts.commands.options import RunOptions
    from raysts.commands.study import planned as planned_study
    from raysts.pipeline.steps.vectors import EmbedTeachers
    from raysts.search.queue import TrialQueue

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
    wide = Resources(cpus=16, gpus=0)
    for more, pending, most in (
        ({}, 64, 80),
        ({"space.optim.lr": "log(1e-6,1e-3)", "num_samples": 80}, 8, 9),
    ):
        given = {"backbone": str(tiny_backbone), "seeds": 2, **more}
        study = planned_study("lower-bound", given, RunOptions(data=small_world, storage=tmp_path / str(most)))
        study.open("raysts tune")
        tasks = TrialQueue(study)
        with pytest.raises(Looked):
            tune._fit(tasks, wide, tune._Watch(tasks, None, wide), [])  # type: ignore[arg-type]
        assert asked["pending"] == pending
        handed = 0
        while handed < most and isinstance(asked["searcher"].suggest(str(handed)), dict):
            handed += 1
        assert asked["searcher"].suggest("more") is None or handed < most or not more, handed

    def looked(worker: Any, count: int, resources: Resources, seen: Any) -> None:
        asked["actors"] = count
        raise Looked

    monkeypatch.setattr(executor, "start_actors", looked)
    for count, expected in ((4, 4), (100, 64)):
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

    from raysts.cluster import members
    from raysts.cluster.capacity import nodes
    from raysts.cluster.executor import check_resources
    from raysts.cluster.members import _with_memory

    with pytest.raises(InputError, match=r"no node can hold such a worker \(1 CPU, 0 GPUs, 9999.0 GB of memory\)"):
        check_resources(Resources(memory=9999.0), private=True)
    with pytest.raises(InputError, match=r"zone=moon"):
        check_resources(Resources(label_selector=("zone=moon",)), private=True)

    def asked(resources: Resources, parent: Path = tiny_backbone) -> float | None:
        return _with_memory(resources, [[SimpleNamespace(parent=parent)]]).memory  # type: ignore[list-item]

    assert 1.3 <= (asked(Resources()) or 1.4) < 2.0
    assert asked(Resources(memory=3.0)) == 3.0
    has = nodes()[0].has["memory"] / 1e9
    for gigabytes, workers, expected in ((0.6 * has, 1, 0.6 * has), (0.6 * has, 2, None), (1.1 * has, 1, None)):
        monkeypatch.setattr(members, "worker_gigabytes", lambda model, on_gpu, size=gigabytes: size)
        assert asked(Resources(workers=workers)) == expected, "of two that have no room together none is asked for"
