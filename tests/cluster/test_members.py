from __future__ import annotations

import contextlib
import os
import shutil
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import s3_server
from processes import family_of_title, wait_until, writer_of
from run_commands import listening
from safetensors.torch import load_file
from small_runs import Stage

from raysts.errors import InputError, RunFailed
from raysts.pipeline.executor import LocalExecutor
from raysts.pipeline.plan import Plan
from raysts.pipeline.step import Context, Step
from raysts.recipes.recipe import Resources
from raysts.storage.foreign import read_json
from raysts.storage.store import Store
from raysts.training.job import Job
from raysts.training.metrics import read_metrics
from raysts.training.runtime import Runtime

SHORT = {"train.max_steps": 10, "train.checkpoint_every": 5, "train.max_length": 24, "batch": 16, "members": 1}


def _made(planned: Callable[..., Plan], storage: Path | str, system: str, overrides: dict[str, Any]) -> Plan:
    """A plan with its backbone and token stores written."""
    made = planned(storage, system, overrides)
    made.write_backbone()
    for step in made.steps:
        if step.kind == "tokens" and step.work and step.state(made.store) != "done":
            step.work(Context(LocalExecutor(threads=1), made.store))
    return made


def _jobs(chain: list[Step]) -> list[Job]:
    return [step.training for step in chain]


class _Watch(threading.Thread):
    """Takes note of the processes that train in each run folder. Two are held back until both are in mid-training: then one is
    told to end, and the other killed as soon as that one has saved."""

    def __init__(self, folders: list[Path], victim: Path, told: Path) -> None:
        super().__init__(daemon=True)
        self.folders, self.victim, self.told = folders, victim, told
        self.killed = self.ended = 0
        self.saved: list[Path] = []
        self.writers: dict[Path, set[int]] = defaultdict(set)
        self.seen: dict[Path, list[float]] = defaultdict(list)
        self.environments: dict[int, list[bytes]] = {}
        self.stop = threading.Event()

    def run(self) -> None:
        while not self.stop.is_set():
            for folder in self.folders:
                if pid := writer_of(folder):
                    self.writers[folder].add(pid)
                    self.seen[folder].append(time.monotonic())
                    with contextlib.suppress(OSError):  # it has just been killed
                        if not self.environments.get(pid):
                            self.environments[pid] = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            at_it = {
                self.told: len(read_metrics(self.told / "metrics.jsonl")) >= 5,
                self.victim: any((self.victim / "checkpoints").glob("step-*.pt")),
            }
            if not self.ended and all(at_it.values()):
                self.ended = self._signal(self.told, signal.SIGTERM)
            self.saved = self.saved or list((self.told / "checkpoints").glob("step-*.pt"))
            if self.saved and not self.killed and at_it[self.victim]:
                self.killed = self._signal(self.victim, signal.SIGKILL)
            for folder in (folder for folder, there in at_it.items() if there and not self.killed):
                if folder == self.victim or not self.ended:
                    self._pause(folder)
            time.sleep(0.02)

    def _pause(self, folder: Path) -> None:
        """Hold back the process that trains there, for a moment, after which it answers Ray."""
        with contextlib.suppress(ProcessLookupError):
            if pid := self._signal(folder, signal.SIGSTOP):
                time.sleep(0.4)
                os.kill(pid, signal.SIGCONT)

    def _signal(self, folder: Path, number: int) -> int:
        """To the process that trains there, if one does now; its id, else 0, which would mean this process and its siblings."""
        if pid := writer_of(folder) or 0:
            os.kill(pid, number)
        return pid


@pytest.mark.anyray
def test_members_train_at_once_and_come_back_whoever_dies(
    planned, tmp_path: Path, cluster: None, s3_endpoint: str, mirrors: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two workers of one Ray Train run. One is told to end, which saves first; its member later fails for a reason of its own,
    which is not tried again. The other is killed. The run begins again, and both members go on from where they stood. A third
    waits until there is room; its storage is in a bucket, from which its worker brings what it needs, and to which it sends
    what it made. All end as in a process of their own, and no room is held any more."""
    import ray

    from raysts.cluster import compat, members
    from raysts.cluster.capacity import Room

    long = {**SHORT, "nli.train.max_steps": 40, "nli.train.checkpoint_every": 10}
    # The one that is told writes no checkpoint of its own accord; its second stage cannot be learned.
    told = {**long, "seed": 5, "nli.train.checkpoint_every": 10_000, "ct.optim.lr": 1e30}
    plans = [("nli-ct", long), ("nli-ct", told), ("nli", {**SHORT, "seed": 9})]
    s3_server.environment(s3_endpoint, mirrors, monkeypatch.setenv)
    places = {"here": [tmp_path / "here"] * 3, "there": [tmp_path / "there"] * 2 + [f"s3://{s3_server.new_bucket()}/x"]}
    here, there = (
        [
            chain
            for plan, place in zip(plans, places[which], strict=True)
            for chain in _made(planned, place, *plan).chains
        ]
        for which in places
    )
    remote = Store.of(there[2][0].training.folder)
    shutil.rmtree(remote.root)
    calm = [_jobs(here[0]), _jobs(here[1])[:1], *map(_jobs, here[2:])]
    assert LocalExecutor(threads=1).train(calm, Resources()) == [None] * 3

    chains = [_jobs(chain) for chain in there]
    folders = [job.folder for chain in chains for job in chain]
    victim, (ended, failing) = there[0][0].training.folder, there[1]
    watch, said = _Watch(folders, victim, ended.training.folder), []
    watch.start()
    labels = (_label_of_the_node(),) if compat.scales_with("label_selector") else ()
    close, running = members._Runs.close, []

    def closing(runs: Any) -> None:
        hosts = [run.ended for run in runs.runs.values()]
        running.append(ray.wait(hosts, num_returns=len(hosts), timeout=0)[1])
        close(runs)

    monkeypatch.setattr(members._Runs, "close", closing)
    with listening(said.append):
        outcomes = members.train_members(chains, Resources(label_selector=labels, gpus=0))
    watch.stop.set()
    watch.join()
    assert (remote.root / "backbones").is_dir() and list(remote.root.glob("tokens/*/part-*"))
    shutil.rmtree(remote.root)
    again = planned(remote.uri, *plans[2])
    assert [step.state(again.store) for chain in again.chains for step in chain] == ["done"]
    assert all(remote.get(node.output / "model.safetensors", fresh=True) for chain in again.chains for node in chain)

    assert [outcomes[0], *outcomes[2:]] == [None] * 2, outcomes
    assert "the loss is nan" in outcomes[1] and "ct.optim.lr (1e+30)" in outcomes[1]
    assert [text for text in said if "the loss is nan" in text] == [f"failed: {outcomes[1]}"]
    failed = read_json(failing.training.folder / "run.json")
    assert failed["status"] == "failed" and "the loss is nan" in failed["reason"]
    assert Path(outcomes[1].split("[log: ")[1].rstrip("]")).read_text().startswith("Traceback")

    assert watch.killed and watch.ended and watch.saved, "told to end, it saved and ended"
    assert all(len(watch.writers[folder]) > 1 for folder in (victim, watch.told)), watch.writers
    # What the C library reads when a process begins.
    assert all(b"MALLOC_ARENA_MAX=1" in found for found in watch.environments.values()), watch.environments
    both = zip(
        [*here[0], here[1][0], *(node for chain in here[2:] for node in chain)],
        [*there[0], ended, *(node for chain in there[2:] for node in chain)],
        strict=True,
    )
    for one, other in both:
        assert (one.output / "model.safetensors").read_bytes() == (other.output / "model.safetensors").read_bytes()
        assert other.record["where"].startswith("Ray Train") and one.record["where"].startswith("in-process")
        assert {**one.record, "where": 0, "timings": 0, "started_at": 0, "finished_at": 0} == {
            **other.record, "where": 0, "timings": 0, "started_at": 0, "finished_at": 0
        }  # fmt: skip
    assert watch.seen[victim][0] < watch.seen[watch.told][-1] and watch.seen[watch.told][0] < watch.seen[victim][-1]
    assert Room(Resources(gpus=0)).before == set()
    assert running == [[]], "no host is killed before its run has ended, which Ray would show as a failure"


@pytest.mark.slow  # test_jobs has a member of two workers, ops/test_collective two processes that fail together
def test_two_workers_train_the_member_of_one_and_fail_together(planned, tmp_path: Path, cluster: None) -> None:
    """Of a failure the other worker, which waits in a collective, learns; the reason reaches the user, in one line. A controller
    that dies is replaced, and the room that it held is free for the next."""
    import ray

    from raysts.cluster.members import train_members

    # Small steps: Adam turns the sign of a gradient that is zero but for rounding into a whole step.
    exact = {**SHORT, "train.max_steps": 8, "train.dropout": False, "train.precision": "fp32", "nli.optim.lr": 1e-4}
    exact |= {"batch": 24, "ct.optim.lr": 1e30}
    one = _made(planned, tmp_path / "one", "nli-ct", exact)
    assert LocalExecutor(threads=1).train([_jobs(one.chains[0])[:1]], Resources()) == [None]
    two = _made(planned, tmp_path / "two", "nli-ct", {**exact, "resources.workers": 2})
    assert [node.id for node in one.chains[0]] == [node.id for node in two.chains[0]]
    killed = set()

    def kill() -> None:
        """The controller, when it has got room for its workers."""
        wait_until(lambda: any(g["state"] == "CREATED" for g in ray.util.placement_group_table().values()), pause=0.05)
        for found in family_of_title("ray::TrainController", os.getpid()):
            killed.add(found)
            os.kill(found, signal.SIGKILL)

    threading.Thread(target=kill, daemon=True).start()
    (reason,) = train_members([_jobs(two.chains[0])], two.pipeline.resources)
    assert len(killed) == 1
    assert reason is not None and "the loss is nan" in reason and "Traceback" not in reason, reason
    a, b = one.chains[0][0], two.chains[0][0]
    assert (a.record["layout"]["world_size"], b.record["layout"]["world_size"]) == (1, 2)
    start, weights, others = (load_file(f / "model.safetensors") for f in (one.backbone, a.output, b.output))
    assert weights.keys() == others.keys()
    assert max((weights[name] - start[name]).abs().max() for name in weights) > 1e-4  # they were trained
    assert max((weights[name] - others[name]).abs().max() for name in weights) < 1e-5


def _label_of_the_node(equals: str = "=") -> str:
    """A label that Ray gives to all nodes, as a selector; ``=!``: of every other one."""
    import ray

    return f"ray.io/node-id{equals}{ray.nodes()[0]['Labels']['ray.io/node-id']}"


def test_an_actor_obeys_labels_and_serves_again(cluster: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever worker that has; it makes room for one that asks for something else. An error of its work is one line, not
    the traceback that Ray makes of it, and ends it. Work that kills its process ends the run."""
    import ray
    import ray.tune

    from raysts.cluster import executor

    arrived = tmp_path / "arrived"

    class Told:
        def __init__(self, device: str, word: str) -> None:
            self.word = word

        def __call__(self, unit: Any) -> tuple[int, str]:
            if isinstance(unit, Exception):
                raise unit
            if unit == "deadly":
                # When the answer to the unit before has arrived, which else would be lost with the process.
                while not arrived.exists():
                    time.sleep(0.02)
                os._exit(1)
            return os.getpid(), f"{self.word} {unit}"

    class Other(Told):
        pass

    plain = Resources(cpus=2, gpus=0)
    there = Resources(label_selector=(_label_of_the_node(),), memory=0.1, gpus=0)
    monkeypatch.setattr(executor, "DEATHS", 0)  # that its work is done again test_teacher shows
    actors = executor.RayExecutor()

    def mapped(word: str, units: list[Any], resources: Resources, worker: Any = Told) -> list[tuple[int, str]]:
        return list(actors.map(worker, (word,), units, resources))

    (elsewhere,) = executor.start_actors(1, Resources(label_selector=(_label_of_the_node("=!"),), gpus=0))
    ready = elsewhere.__ray_ready__.remote()
    ((first, _),) = mapped("a", [1], plain)
    assert mapped("b", [2, 3], plain, Other) == [(first, "b 2"), (first, "b 3")]
    ((other, text),) = mapped("c", [4], there)
    assert text == "c 4" and other != first
    assert ray.wait([ready], timeout=0)[0] == [], "it was asked for first, and has no place"
    wait_until(lambda: not Path(f"/proc/{first}").exists())
    with pytest.raises(RunFailed, match="^TypeError: x$"):
        mapped("d", [TypeError("x")], there)
    wait_until(lambda: not Path(f"/proc/{other}").exists())
    ray.kill(elsewhere)

    results = actors.map(Told, ("e",), [5, "deadly"], plain)
    assert next(results)[1] == "e 5"
    arrived.touch()
    with pytest.raises(RunFailed, match="its process died 1 times in the same work, the last time so: .*actor"):
        next(results)

    here = executor.UnitActor(there, None)
    assert str(here.run([ray.put((Told, ("f",)))], RunFailed("a.parquet: its pages"))[1]) == "a.parquet: its pages"
    asked = ray.tune.PlacementGroupFactory([there.bundle], bundle_label_selector=[there.selector])
    group = asked.to_placement_group()  # that of a trial
    assert group.wait(400)
    ray.util.remove_placement_group(group)


def test_a_node_gone_meanwhile_is_no_reason(cluster: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray refuses what is asked of a node that is gone, as it does of one that never was."""
    import ray

    from raysts.cluster import preflight

    there = ray.nodes()
    gone = {**there[0], "NodeID": "e" * 56}
    answers = [[*there, gone], there]
    monkeypatch.setattr(preflight.ray, "nodes", lambda: answers.pop(0) if len(answers) > 1 else answers[0])
    with preflight.check_nodes(tmp_path, []):
        pass
    answers[:] = [[*there, gone]]
    with pytest.raises(InputError, match="eeeeeeee.*raysts cannot be run there"), preflight.check_nodes(tmp_path, []):
        pass
    answers[:] = [there]
    monkeypatch.setattr(preflight, "current_versions", lambda: {"torch": "1.0"})
    said = "node 127.0.0.1 .*torch is .* there and 1.0 where the command runs"
    with pytest.raises(InputError, match=said), preflight.check_nodes(tmp_path, []):
        pass


def test_a_cluster_ends_with_its_connection_and_is_not_asked_any_more() -> None:
    """The cluster of the tests before. It would be started again: Python closes a map that an error left open, at any moment."""
    import ray

    from raysts.cluster.executor import end

    wait_until(
        lambda: not [*family_of_title("ray::", os.getpid()), *family_of_title("/site-packages/ray/", os.getpid())],
        pause=0.2,
    )
    end([object()])
    assert not ray.is_initialized()


def test_the_end_of_what_hands_out_members_is_said(cluster: None, stage: Stage, tmp_path: Path) -> None:
    import ray

    from raysts.cluster.members import _Runs

    job = stage.job("nli", tmp_path)
    chain = [replace(job, facts={**job.facts, "system": "nli"})]
    started = _Runs([chain], Resources(cpus=3, gpus=0), None)  # none has room
    assert ray.get(started.queue.state.remote()).waiting == [0]
    ray.kill(started.queue)
    with contextlib.suppress(ray.exceptions.RayActorError):  # the kill only asks for its end: until then it answers
        wait_until(lambda: not ray.get(started.queue.state.remote()))
    with pytest.raises(RunFailed, match="hands out the members of nli-nli-.* has died.*goes on from there"):
        started.look()
    started.close()


def test_a_run_that_never_begins_a_member_is_given_up(
    cluster: None, stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever ends its workers at once, as a part that cannot be imported does; the reason reaches the user."""
    from raysts.cluster import members

    monkeypatch.setattr(members, "DEATHS", 0)
    job = stage.job("nli", tmp_path)
    job = replace(job, facts={**job.facts, "system": "nli", "role": "member"})
    monkeypatch.setattr(members.runs, "environment", lambda resources: {"RAY_TRAIN_CALLBACKS": "no.such.Callback"})
    (reason,) = members.train_members([[job]], Resources(gpus=0))
    assert reason is not None and "its workers do not start: " in reason and "no.such" in reason, reason


def test_a_member_that_gets_on_survives_the_loss_of_any_number_of_nodes(cluster: None, stage: Stage, s3: str) -> None:
    """Its checkpoints are in a bucket, and of its mirror each new node has nothing."""
    import ray

    from raysts.cluster.members import DEATHS, _take
    from raysts.cluster.queue import MemberQueue, RunEnd

    root = Store.open(s3).root
    job, queue = stage.job("nli", root / "runs" / "nli"), ray.remote(MemberQueue).options(num_cpus=0).remote(1)
    for gets_on in (True, False):
        for number in range(DEATHS + 2):
            if gets_on:
                (job.folder / "checkpoints").mkdir(parents=True)
                (job.folder / "checkpoints" / f"step-{number:07}.pt").write_bytes(bytes([number]))
                Store.of(job.folder).seal(job.folder / "checkpoints")
            shutil.rmtree(root, ignore_errors=True)
            taken = _take(queue, (0, 0), [[job]], Runtime("cpu"))
            ray.get(queue.release.remote(0, RunEnd("gone", {0: ("killed", False)})))
            assert taken and (taken[1] is None) == (gets_on or number < DEATHS)
    assert taken and taken[1] and "its processes died 5 times without getting on, the last time so: killed" in taken[1]
    ray.kill(queue)
