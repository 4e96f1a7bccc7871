"""What Ray must have for raysts.cluster.ray_internals to work: a Ray that lacks it fails here, by name, without a cluster."""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from raysts.cluster import ray_internals
from raysts.cluster.connect import PRESTART, SETTINGS, STATES
from raysts.cluster.tune import ENVIRONMENT

RAY = Path(ray.__file__).parent
RAYLET = RAY / "core/src/ray/raylet/raylet"


@pytest.mark.parametrize(
    "name", [*SETTINGS, *ENVIRONMENT, STATES, "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER", "TUNE_MAX_PENDING_TRIALS_PG"]
)
def test_ray_reads_the_variable(name: str) -> None:
    """One that is no longer read would change nothing, and say nothing."""
    if not name.startswith(("RAY_", "TUNE_")):
        pytest.skip("of another library")
    folders = ("_private", "_common", "train", "tune")
    assert any(name in file.read_text() for folder in folders for file in (RAY / folder).rglob("*.py")), name


def test_a_controller_needs_no_torch_nor_do_tasks_that_read_windows() -> None:
    """Every training run has one, and such tasks: processes of their own. Its callbacks, and what is read, must not bring
    seconds and memory with them."""
    code = "import raysts.cluster.ray_internals, raysts.cluster.data, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_switch_to_loopback() -> None:
    from ray._private import ray_constants

    assert ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR == ray_internals.LOOPBACK_SWITCH
    before = ray_constants.ENABLE_RAY_CLUSTER
    assert isinstance(before, bool)
    with ray_internals.on_loopback():
        assert ray_constants.ENABLE_RAY_CLUSTER is False
    assert ray_constants.ENABLE_RAY_CLUSTER is before
    from ray._private import services

    # Looked up in the module at each call: a name that was imported would keep its value.
    assert "ray_constants.ENABLE_RAY_CLUSTER" in inspect.getsource(services)


def test_helpers_of_a_private_cluster() -> None:
    """Ray starts each by a method of its own, looked up at the call, and can do without it."""
    from ray._private.node import Node

    starts = inspect.getsource(Node.start_head_processes) + inspect.getsource(Node.start_ray_processes)
    names = ("start_log_monitor", "start_monitor", "start_api_server")
    before = [getattr(Node, name) for name in names]
    assert all(f"self.{name}(" in starts for name in names)
    for dashboard in (False, True):
        with ray_internals.without_helpers(dashboard):
            kept = [getattr(Node, name) is start for name, start in zip(names, before, strict=True)]
            assert kept == [False, False, dashboard]
            assert (ray_internals.REPORTS in os.environ) != dashboard
    assert ray_internals.REPORTS not in os.environ
    assert f'"{ray_internals.REPORTS}"' in (RAY / "dashboard/modules/reporter/reporter_consts.py").read_text()
    assert [getattr(Node, name) for name in names] == before
    assert PRESTART.removeprefix("RAY_").encode() in RAYLET.read_bytes()


def test_a_signal_to_the_group_of_a_driver_does_not_reach_its_cluster() -> None:
    from ray._private import services

    before = services.ConsolePopen
    with ray_internals.apart_from_signals():
        process = services.start_ray_process(["sleep", "60"], "test", fate_share=True).process
    try:
        assert os.getpgid(process.pid) == process.pid and os.getsid(process.pid) == os.getsid(0)
    finally:
        process.kill()
        process.wait()
    assert services.ConsolePopen is before


def test_names_of_processes() -> None:
    from ray._private import ray_constants

    title, workers, runtime_env, dashboard = ray_internals.CHILDREN_OF_A_RAYLET
    assert ray_constants.WORKER_PROCESS_TYPE_IDLE_WORKER.startswith(title)
    assert ray_constants.AGENT_PROCESS_TYPE_DASHBOARD_AGENT.startswith(title)
    for part, file in ((workers, "default_worker.py"), (runtime_env, "main.py"), (dashboard, "")):
        assert (RAY.parent / f"{part.removeprefix('/')}{file}").is_file(), part
    assert Path(ray._private.services.RAYLET_EXECUTABLE).name.startswith(ray_internals.RAYLET)


def test_files_of_a_cluster() -> None:
    from ray._common.constants import HEAD_NODE_RESOURCE_NAME
    from ray._common.utils import get_ray_address_file
    from ray._private import services

    assert Path(get_ray_address_file(None)).name == ray_internals.CURRENT_CLUSTER
    assert HEAD_NODE_RESOURCE_NAME == ray_internals.HEAD
    started = inspect.getsource(services.start_monitor)
    for part in (f'"{ray_internals.MONITOR}"', '"--autoscaling-config="', "--gcs-address="):
        assert part in started, part


def test_the_monitors_report(monkeypatch: pytest.MonkeyPatch) -> None:
    from ray._private import ray_constants
    from ray.autoscaler._private.autoscaler import AutoscalerSummary
    from ray.autoscaler.v2 import utils

    assert isinstance(ray_constants.DEBUG_AUTOSCALING_STATUS, str)
    assert "node_type_mapping" in AutoscalerSummary.__dataclass_fields__
    assert 'f"node_{node_id}"' in inspect.getsource(utils)  # the type of a node that no autoscaler has started
    for status, types in (
        (None, {}),
        (b"{}", {}),
        (b'{"autoscaler_report": {"node_type_mapping": {"a": "node_a"}}}', {"a": "node_a"}),
    ):
        monkeypatch.setattr(ray_internals, "_internal_kv_get", lambda key, status=status: status)
        assert ray_internals.monitored_node_types() == types


def test_statistics_of_ray_data() -> None:
    from ray.data._internal import stats

    assert not inspect.signature(stats.get_or_create_stats_actor).parameters


def test_callbacks_of_ray_train(tmp_path: Path) -> None:
    """All that Ray would have had without the two, and ours."""
    from ray.train import RunConfig
    from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

    def names(kind: Any) -> list[str]:
        trainer = kind(lambda: None, run_config=RunConfig(storage_path=str(tmp_path)))
        return [type(callback).__name__ for callback in trainer._create_default_callbacks()]

    every = names(DataParallelTrainer)
    assert set(every) > ray_internals.UNUSED_CALLBACKS
    left = [name for name in every if name not in ray_internals.UNUSED_CALLBACKS]
    assert names(ray_internals.SlotsTrainer) == [*left, "EndOnSigterm", "NamedRoom"]


def test_a_run_that_nobody_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many workers as Ray Train's own policy would have, without the actor that it asks; runs of variable size and
    clusters of others keep that."""
    from ray.train import ScalingConfig
    from ray.train.v2._internal.execution.scaling_policy import FixedScalingPolicy, scaling_policy
    from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

    fit = inspect.getsource(DataParallelTrainer.fit)
    assert "self._initialize_and_run_controller(" in fit and "scaling_policy=create_scaling_policy(" in fit
    assert "TrainAutoscalingCoordinatorClient(" in inspect.getsource(
        scaling_policy.ScalingPolicy.after_controller_start
    )

    fixed = ScalingConfig(num_workers=3, resources_per_worker={"CPU": 2})
    theirs, ours = FixedScalingPolicy(fixed), ray_internals.Unasked(fixed)
    monkeypatch.setattr(theirs, "_maybe_send_resource_request", lambda: None)
    for policy in (theirs, ours):
        monkeypatch.setattr(policy, "_send_resource_request", lambda: pytest.fail("it asks"))
    ours.after_controller_start(None)
    assert ours.make_decision_for_non_running_worker_group() == theirs.make_decision_for_non_running_worker_group()
    running: Any = (None, None)
    assert ours.make_decision_for_running_worker_group(*running) == theirs.make_decision_for_running_worker_group(
        *running
    )
    ours.before_controller_abort()
    asyncio.run(ours.before_controller_shutdown())

    trainer = ray_internals.OwnTrainer()
    for private, workers, kept in ((True, 2, False), (True, (1, 2), True), (False, 2, True)):
        monkeypatch.setattr(ray_internals, "on_private_cluster", lambda private=private: private)
        trainer.scaling_config = ScalingConfig(num_workers=workers)
        policy = trainer._policy("Ray's")
        assert policy == "Ray's" if kept else isinstance(policy, ray_internals.Unasked)


def test_the_controller_of_a_run() -> None:
    """Ray Train starts it as we do."""
    from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

    starts = inspect.getsource(DataParallelTrainer._initialize_and_run_controller)
    for part in (
        "env_vars = get_env_vars_to_propagate()", "RAY_WARN_BLOCKING_GET_INSIDE_ASYNC_ENV_VAR,", "num_cpus=0,",
        "ray._raylet.RAY_NODE_ID_KEY: ray.get_runtime_context().get_node_id()", 'runtime_env={"env_vars": env_vars},',
        "TrainController)", "ray.get(controller.run.remote())", "return ray.get(controller.get_result.remote())",
    ):  # fmt: skip
        assert part in starts, part


def test_the_actor_in_which_workers_meet() -> None:
    from ray.train.v2._internal.execution.worker_group import state, worker_group

    source = inspect.getsource(worker_group)
    assert "SynchronizationActor.options(" in source and "ray.get(sync_actor.reset.remote())" in source
    assert inspect.getsource(state).count("_shutdown_sync_actor(self.sync_actor)") == 2


def test_a_worker_that_is_told_to_end_notes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from ray.train.v2._internal.execution.callback import WorkerCallback

    assert not inspect.signature(WorkerCallback.after_init_train_context).parameters.keys() - {"self"}
    monkeypatch.setattr(ray_internals, "told_to_end", threading.Event())
    ended: list[list[int]] = []
    monkeypatch.setattr(
        ray_internals.threading,
        "Timer",
        lambda seconds, function, arguments: SimpleNamespace(start=lambda: ended.append(arguments), daemon=False),
    )
    before = signal.getsignal(signal.SIGTERM)
    try:
        ray_internals.EndOnSigterm().after_init_train_context()
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert ray_internals.told_to_end.is_set() and ended == [[128 + signal.SIGTERM]]


def test_a_notice_of_preemption(monkeypatch: pytest.MonkeyPatch) -> None:
    from ray.train.v2._internal.execution.context import TrainContext
    from ray.train.v2._internal.execution.preemption import PreemptionContext

    assert "preemption_context" in TrainContext.__dataclass_fields__
    context = SimpleNamespace(preemption_context=PreemptionContext())
    monkeypatch.setattr(ray_internals, "get_train_context", lambda: context)
    assert not ray_internals.node_is_drained()
    context.preemption_context.preemption_info = object()
    assert ray_internals.node_is_drained()


def test_callbacks_of_ray_tune_are_not_counted() -> None:
    from ray.air._internal import usage
    from ray.tune import tune

    assert "air_usage.tag_callbacks(callbacks)" in inspect.getsource(tune)
    assert "integrations.mlflow import" in inspect.getsource(usage._count_callbacks)
    before = usage.tag_callbacks
    with ray_internals.uncounted_callbacks():
        assert usage.tag_callbacks([object()]) is False
    assert usage.tag_callbacks is before


def test_the_actor_of_a_trial() -> None:
    from ray.tune.experiment import trial

    state = trial._TemporaryTrialState()
    assert state.ray_actor is None
    state.ray_actor = SimpleNamespace(_actor_id=ray.ActorID.nil())
    assert ray_internals.actor_of(SimpleNamespace(temporary_state=state)) == ray.ActorID.nil().hex()
    assert "_actor_id" in inspect.getsource(ray.actor.ActorHandle)


def test_the_text_of_a_kill_for_memory() -> None:
    text = f"(raylet) Selected to kill: (Actor({ray.ActorID.nil().hex()}): RaystsTrial.step, with memory 1GB)"
    assert ray_internals.killed_actor(RuntimeError(text)) == ray.ActorID.nil().hex()
    assert ray_internals.killed_actor(RuntimeError("out of memory")) is None
    program = RAYLET.read_bytes()
    assert b"Selected to kill: %s" in program and b"(Actor(%s): " in program
