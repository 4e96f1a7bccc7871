from __future__ import annotations

import contextlib
import os
import re
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from processes import wait_until
from run_commands import listening

from raysts.errors import InputError
from raysts.recipes.recipe import Resources

LOOPBACK = {"127.0.0.1", "::1", "::ffff:127.0.0.1"}


def listening_addresses() -> dict[str, set[str]]:
    """Addresses on which the processes below this one, and it itself, take connections, by process."""
    found: dict[str, set[str]] = {}
    for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            command = " ".join(process.cmdline())
            for socket in process.net_connections("inet"):
                if socket.status == psutil.CONN_LISTEN:
                    found.setdefault(f"{process.pid} {command[:200]}", set()).add(socket.laddr.ip)
    return found


def test_a_private_cluster_is_this_machine_alone(cluster: None, processes_at_start: list[str]) -> None:
    """Nothing of it listens beyond this machine, and it does not grow."""
    import ray

    from raysts.cluster import connect
    from raysts.cluster.capacity import may_grow, resolve_gpus, slot_count

    assert "local" in connect._joined, "from now on this process joins no other"
    # Workers are not started before there is work.
    workers = [word for word in processes_at_start if re.fullmatch(r".*default_worker\.py|ray::IDLE.*", word)]
    assert processes_at_start and not workers

    @ray.remote(num_cpus=1)
    def worker() -> int:
        return os.getpid()

    at_work = ray.get(worker.remote())
    assert [node["NodeManagerAddress"] for node in ray.nodes()] == ["127.0.0.1"]
    found = listening_addresses()
    for name in ("gcs_server", "raylet", str(at_work), str(os.getpid())):
        assert any(name in process for process in found), (name, found)
    assert {process: addresses for process, addresses in found.items() if addresses - LOOPBACK} == {}
    assert not may_grow() and resolve_gpus(Resources()).gpus == 0
    assert slot_count(Resources(gpus=0)) == 2 and slot_count(Resources(gpus=1)) == 1  # what fits nowhere counts as one


@pytest.mark.parametrize(("asked", "said"), [
    ({"cpus": 2}, None), ({"workers": 3, "min_workers": 2}, None),
    ({"cpus": 3}, r"cpus=3.*have: 2 CPUs, 0 GPUs; ask for less"),
    ({"workers": 3}, r"run of 3 workers .*holds 2 of them.*have: 2 CPUs, 0 GPUs; ask for less"),
    ({"accelerator_type": "H100"}, r"gpus=1: no node can hold such a worker \(1 CPU, 1 GPU, H100\)"),
    ({"memory": 9999.0}, r"no node can hold such a worker \(1 CPU, 0 GPUs, 9999.0 GB of memory\)"),
    ({"label_selector": ("zone=moon",)}, "zone=moon"),
])  # fmt: skip
def test_a_worker_that_no_node_holds_is_refused(asked: dict[str, Any], said: str | None, cluster: None) -> None:
    from raysts.cluster.capacity import check_resources

    with pytest.raises(InputError, match=said) if said else contextlib.nullcontext():
        check_resources(Resources(**asked), private=True)


@pytest.fixture
def growing(cluster: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster of which nobody can tell how far it grows."""
    from raysts.cluster import capacity, members, tune

    for module in (capacity, members, tune):
        monkeypatch.setattr(module, "may_grow", lambda: True)


def test_where_a_cluster_may_grow_what_has_no_room_is_asked_for_and_waits(growing: None) -> None:
    from raysts.cluster.capacity import UNKNOWN, announce, check_resources, slot_count

    assert slot_count(Resources(gpus=0)) == slot_count(Resources(cpus=48, gpus=4)) == UNKNOWN
    check_resources(Resources(cpus=48, gpus=4), private=False)
    said: list[str] = []
    for cpus in (2, 3):
        with listening(said.append):
            announce(Resources(cpus=cpus, gpus=0))
    assert said == ["no node with 3 CPUs, 0 GPUs is there yet; the cluster's nodes have: 2 CPUs, 0 GPUs; it may grow"]


@pytest.mark.parametrize(("cpus", "members", "grows", "asked", "expected"), [
    ([0, 4, 2], 20, False, {}, [("1", 4), ("2", 2)]), ([0, 4, 2], 5, False, {}, [("1", 4), ("2", 1)]),
    ([0, 4], 4, True, {}, [("1", 4)]), ([0, 4], 12, True, {}, [("1", 4), (None, 1), (None, 1), (None, 2), (None, 4)]),
    ([0], 9, False, {}, [(None, 1)]),  # it waits, and says so
    ([0], 1000, True, {}, [(None, width) for width in (1, 1, 2, 4, 8, 16, 32)]),
    ([8] * 40, 1000, False, {}, [(None, 20)] * 16), ([4, 4], 5, False, {"workers": 2}, [(None, 2)] * 4),
    ([4, 4], 3, False, {"workers": 4, "min_workers": 2}, [(None, 4)] * 3),
])  # fmt: skip
def test_a_run_per_node_and_wider_ones_for_what_may_come(
    cpus: list[int], members: int, grows: bool, asked: dict[str, Any], expected: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    from raysts.cluster import members as runs
    from raysts.cluster.capacity import ClusterNode

    alive = [ClusterNode(str(number), "10.0.0.1", {"CPU": float(count)}, {}) for number, count in enumerate(cpus)]
    monkeypatch.setattr(runs, "nodes", lambda: alive)
    monkeypatch.setattr(runs, "may_grow", lambda: grows)
    monkeypatch.setattr(runs, "slot_count", lambda resources: sum(node.slots(resources) for node in alive))
    placements = runs.placements(Resources(gpus=0, **asked), members)
    assert [(node and node.id, width) for node, width in placements] == expected


@pytest.mark.parametrize("grows", [True, False])
def test_what_waits_is_said_once_in_a_while(grows: bool, cluster: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the cluster does not grow only when none trains: runs take turns."""
    import ray

    from raysts.cluster import capacity

    monkeypatch.setattr(capacity, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(capacity, "may_grow", lambda: grows)
    said: list[str] = []
    monkeypatch.setattr(capacity, "say", said.append)
    room = capacity.Room(Resources(cpus=3, workers=2, gpus=0))
    for _ in range(2):
        ray.util.placement_group([{"CPU": 3.0}] * 2)
    wait_until(lambda: [*room.groups().values()] == ["PENDING"] * 2)
    for training, expected in ((1, 0), (1, grows), (0, 1), (0, 1)):
        room.report(training)
        assert len(said) == expected
    assert said == [
        "waiting for the cluster to have room for 2 training runs: needs 2 workers with 3 CPUs, 0 GPUs each; its nodes have: "
        "2 CPUs, 0 GPUs"
    ]
    room.look_at = 0.0  # minutes later
    room.report(0)
    room.give_back(room.groups())
    wait_until(lambda: not room.groups())
    room.look_at = 0.0
    room.report(0)
    assert len(said) == 2


def test_requests_for_room_are_told_apart_and_taken_back(cluster: None) -> None:
    """Ours, by their shape and time, from those of a driver that calls us; the id of a group ends with that of its job."""
    import ray

    from raysts.cluster.capacity import Room

    three = Resources(cpus=3, gpus=0)
    before = ray.util.placement_group([{"CPU": 3.0}])
    wait_until(lambda: before.id.hex() in Room(three).before)
    room = Room(three)
    groups = [ray.util.placement_group([{"CPU": cpus}] * 2) for cpus in (3, 3, 5)]
    wait_until(lambda: sorted(room.groups().values()) == ["PENDING"] * 2)
    assert room.groups().keys() == {group.id.hex() for group in groups[:2]}
    room.give_back(room.groups())
    wait_until(lambda: not room.groups())
    assert len(Room(Resources(cpus=5, gpus=0)).before) == len(Room(three).before) == 1
    room.give_back([group.id.hex() for group in (before, *groups)])  # what is gone already is no error


def test_a_search_and_bulk_embedding_ask_for_nodes_that_may_come(
    growing: None, small_world: Path, tiny_backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What has no room yet is what makes the cluster grow; a sampler is not asked far ahead of what it can learn from."""
    from raysts.cluster import executor, tune
    from raysts.commands.options import RunOptions
    from raysts.commands.study import plan_study
    from raysts.pipeline.steps.vectors import EmbedTeachers
    from raysts.search.queue import TrialQueue

    wide = Resources(cpus=16, gpus=0)
    for more, pending, most in (
        ({}, 64, 80),
        ({"space.optim.lr": "log(1e-6,1e-3)", "num_samples": 80}, 8, 9),
    ):
        given = {"backbone": str(tiny_backbone), "seeds": 2, **more}
        study = plan_study("lower-bound", given, RunOptions(data=small_world, storage=tmp_path / str(most)))
        study.open("raysts tune")
        trials = tune.Trials(TrialQueue(study), Counter(), wide)
        handed = 0
        while handed < most and isinstance(trials.suggest(str(handed)), dict):
            handed += 1
        assert trials.pending == pending and (trials.suggest("more") is None or not more), handed

    asked: list[int] = []
    monkeypatch.setattr(executor, "start_actors", lambda count, *of: asked.append(count) or 1 / 0)
    for count in (4, 100):
        with pytest.raises(ZeroDivisionError):
            list(executor.RayExecutor().map(EmbedTeachers, (), range(count), wide))
    assert asked == [4, 64]


@pytest.mark.parametrize(("amounts", "labels", "asked", "expected"), [
    ({"CPU": 4}, {}, {"cpus": 2}, 2), ({"CPU": 4, "GPU": 1}, {}, {"gpus": 0.3}, 3),
    ({"CPU": 16, "GPU": 1}, {}, {"gpus": 0.1}, 10),  # not nine, as floats have it
    ({"CPU": 16, "GPU": 1}, {}, {"cpus": 2, "gpus": 0.25}, 4), ({"CPU": 4, "GPU": 1}, {}, {"cpus": 2, "gpus": 0.25}, 2),
    ({"CPU": 16}, {}, {"gpus": 0.25}, 0), ({"CPU": 4, "memory": 7e9}, {}, {"memory": 2.0}, 3),
    ({"CPU": 4}, {}, {"memory": 2.0}, 0),  # nobody says how much it has
    ({"CPU": 4, "GPU": 1, "accelerator_type:L4": 1.0}, {}, {"gpus": 1, "accelerator_type": "L4"}, 1),
    ({"CPU": 4, "GPU": 1, "accelerator_type:A100": 1.0}, {}, {"gpus": 1, "accelerator_type": "L4"}, 0),
    ({"CPU": 1}, {"zone": "a"}, {"label_selector": ("zone=a",)}, 1),
    ({"CPU": 1}, {"zone": "b"}, {"label_selector": ("zone=a",)}, 0),
    ({"CPU": 1}, {}, {"label_selector": ("zone=a",)}, 0), ({"CPU": 1}, {}, {"label_selector": ("zone=!a",)}, 1),
    ({"CPU": 1}, {"zone": "b"}, {"label_selector": ("zone=in(a, b)", "kind=!in(x)")}, 1),
    ({"CPU": 1}, {"zone": "b", "kind": "x"}, {"label_selector": ("zone=in(a,b)", "kind=!in(x)")}, 0),
])  # fmt: skip
def test_workers_of_a_node(
    amounts: dict[str, float], labels: dict[str, str], asked: dict[str, Any], expected: int
) -> None:
    from raysts.cluster.capacity import ClusterNode

    assert ClusterNode("", "", amounts, labels).slots(Resources(**asked)) == expected


def test_memory_that_none_has_is_no_demand(cluster: None, tiny_backbone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from raysts.cluster import members
    from raysts.cluster.capacity import nodes

    def asked(resources: Resources) -> float | None:
        return members._reserve_memory(resources, [[SimpleNamespace(parent=tiny_backbone)]]).memory  # type: ignore[list-item]

    assert 1.3 <= (asked(Resources()) or 1.4) < 2.0 and asked(Resources(memory=3.0)) == 3.0
    memory = nodes()[0].amounts["memory"] / 1e9
    for gigabytes, workers, expected in (
        (0.6 * memory, 1, 0.6 * memory), (0.6 * memory, 2, None), (1.1 * memory, 1, None),
    ):  # fmt: skip
        monkeypatch.setattr(members, "worker_gigabytes", lambda model, on_gpu, size=gigabytes: size)
        assert asked(Resources(workers=workers)) == expected, "of two that have no room together none is asked for"
