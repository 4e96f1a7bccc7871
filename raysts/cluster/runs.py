"""A Ray Train run: its host and workers. No torch, which costs each of them 130 MB."""

import os
import signal
import threading
from functools import partial
from typing import Any

import ray
from ray.train import FailureConfig, RunConfig, ScalingConfig, WorkerGroupError
from ray.train.backend import Backend, BackendConfig
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

from raysts.cluster.capacity import ClusterNode
from raysts.cluster.compat import scales_with
from raysts.cluster.queue import RunEnd
from raysts.recipes.recipe import Resources

START_SECONDS = 30  # a run waits so long for room before its driver asks anew, for halves on a node that others use too
ELASTIC_START_SECONDS = 15  # one of variable size then takes what it gets: Ray believes a dead node free for 20 s
RESIZE_SECONDS = 30.0  # a member of variable size looks so often for room for more workers
END_SECONDS = 15  # a worker that gets SIGTERM may take so long to the end of its step
SAVE_SECONDS = 4.0  # the others may take so long to save when a run ends because a worker has died

ENVIRONMENT = {
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",  # how soon the end or death of a worker is seen
    "RAY_TRAIN_METRICS_ENABLED": "0",
    "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",  # two processes a run; a checkpoint is at most seconds old without notice
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "MALLOC_ARENA_MAX": "1",  # a worker trains in a second thread, whose memory ``keep_memory`` else hardly reaches
}


def environment(resources: Resources) -> dict[str, str]:
    """Return the environment of a run's processes. Variables of the user stay."""
    seconds = ELASTIC_START_SECONDS if resources.min_workers else START_SECONDS
    variables = {**ENVIRONMENT, "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": str(seconds)}
    return {name: os.environ.get(name, value) for name, value in variables.items()} | {"RAY_TRAIN_V2_ENABLED": "1"}


class TrainRun:
    """The actor that waits in ``fit``, beside the workers. Ray's controller and the workers end with it.

    ``folder`` gets a marker of Ray Train. ``work`` refers to a function of the run's number, which only workers unpack.
    """

    def __init__(
        self, name: str, folder: str, node: ClusterNode | None, resources: Resources, work: list[Any], number: int
    ) -> None:
        self.node, self.resources, self.train = node, resources, partial(_call, work, number)
        # Whatever ends a worker or the controller ends the run: the driver begins it again while members are left.
        failures = FailureConfig(0, controller_failure_limit=0)
        self.config = RunConfig(name=name, storage_path=folder, failure_config=failures)

    def fit(self, width: int) -> RunEnd:
        """Train with ``width`` workers until no member is left or a worker dies."""
        scaling = _scaling(self.resources, width, self.node)
        parts = {"backend_config": _backend(self.resources), "scaling_config": scaling, "run_config": self.config}
        try:
            DataParallelTrainer(self.train, **parts).fit()
        except WorkerGroupError as error:
            causes = {rank: getattr(e, "health_check_failure", e) for rank, e in error.worker_failures.items()}
            deaths = {rank: (str(cause), bool(getattr(cause, "preempted", False))) for rank, cause in causes.items()}
            if self.resources.workers > 1:  # they have one member, which is that of the first
                deaths = {0: min(deaths.values(), key=lambda death: death[1])}
            return RunEnd(str(error), deaths)
        except Exception as error:
            cause = getattr(error, "controller_failure", error)
            waited = type(cause).__name__ == "WorkerGroupStartupTimeoutError"
            return RunEnd(str(cause), {} if waited else None, waited)
        return RunEnd()


def _call(work: list[Any], number: int) -> None:
    ray.get(work[0])(number)


def _scaling(resources: Resources, width: int, node: ClusterNode | None) -> ScalingConfig:
    demand = {name: amount for name, amount in resources.bundle.items() if ":" not in name}
    options: dict[str, Any] = {"accelerator_type": resources.accelerator_type, "use_gpu": bool(resources.gpus)}
    selector = resources.selector
    if node is not None and scales_with("label_selector"):
        selector["ray.io/node-id"] = node.id
    elif node is not None:
        demand[f"node:{node.address}"] = 0.001
    if selector:
        options["label_selector"] = selector
    if resources.min_workers:
        options["elastic_resize_monitor_interval_s"] = RESIZE_SECONDS
    workers = (resources.min_workers, width) if resources.min_workers else width
    return ScalingConfig(num_workers=workers, resources_per_worker=demand, **options)


told_to_end = threading.Event()  # this worker got SIGTERM, or its run is about to end
at_work = threading.Lock()  # a worker holds it while it trains


class _Graceful(Backend):
    """Has workers save before they end. Ray trains in a thread that may not handle signals."""

    def on_start(self, worker_group: Any, backend_config: Any) -> None:
        super().on_start(worker_group, backend_config)
        worker_group.execute(_end_on_sigterm)

    def on_shutdown(self, worker_group: Any, backend_config: Any) -> None:
        saving = worker_group.execute_async(_save)
        ray.wait(saving, num_returns=len(saving), timeout=SAVE_SECONDS)


def _backend(resources: Resources) -> BackendConfig:
    """Return the configuration of workers that train apart or, in a process group, together."""
    kind: Any = BackendConfig
    options = {}
    if resources.workers > 1:
        from ray.train.torch import TorchConfig  # imports torch

        kind, options = TorchConfig, {"backend": "nccl" if resources.gpus else "gloo"}

    class Config(kind):
        @property
        def backend_cls(self) -> type[Backend]:
            return type("GracefulBackend", (_Graceful, super().backend_cls), {})

    return Config(**options)


def _end_on_sigterm() -> None:
    signal.signal(signal.SIGTERM, _end)


def _end(number: int, frame: Any) -> None:
    """Have this worker end at a step, or by the system in a while."""
    told_to_end.set()
    signal.alarm(END_SECONDS)


def _save() -> None:
    told_to_end.set()
    at_work.acquire(timeout=SAVE_SECONDS)
