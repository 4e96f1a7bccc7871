"""A Ray Train run: its host, an actor beside the workers, what it asks for, and how its workers learn that they must end.

No torch here: the host and Ray's controller, a process each in every run, would pay for it with 130 MB each.
"""

import os
import signal
import threading
from functools import partial
from typing import Any, NamedTuple

import ray
from ray.train import FailureConfig, RunConfig, ScalingConfig, WorkerGroupError
from ray.train.backend import Backend, BackendConfig
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

from raysts.cluster.capacity import ClusterNode
from raysts.cluster.compat import is_drained, scales_with
from raysts.cluster.queue import Deaths
from raysts.recipes.recipe import Resources

START_SECONDS, ELASTIC_START_SECONDS = 30, 15
"""How long a run waits for room before its driver asks anew: for halves on a node that others use too; a run of variable
size for what there is, for Ray believes a dead node's CPUs to be free for 20 seconds."""

RESIZE_SECONDS = 30.0
"""How often a member of variable size looks for room for more workers."""

END_SECONDS = 15.0
"""How long a worker that gets SIGTERM may take to the end of its step."""

SAVE_SECONDS = 4.0
"""How long the others may take to save when a run ends because a worker has died."""

DRAIN_SECONDS = 5.0
"""How often a worker looks whether its node is about to be taken away."""

ENVIRONMENT = {
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",  # how soon the end or death of a worker is seen
    "RAY_TRAIN_METRICS_ENABLED": "0",
    "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",  # two processes a run; a worker looks after its own node
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    # A worker trains in a thread that is not its first. By default glibc gives such a thread memory from areas of 64 MB at
    # most, where ``keep_memory`` reaches little.
    "MALLOC_ARENA_MAX": "1",
}
"""Environment of a run's processes. Variables of the user stay."""


def environment(resources: Resources) -> dict[str, str]:
    """Return the environment of a run's processes."""
    seconds = ELASTIC_START_SECONDS if resources.min_workers else START_SECONDS
    variables = {**ENVIRONMENT, "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": str(seconds)}
    return {name: os.environ.get(name, value) for name, value in variables.items()} | {"RAY_TRAIN_V2_ENABLED": "1"}


class Ended(NamedTuple):
    """The end of a run: its cause, the deaths (None: of unknown workers), and whether it found no room."""

    cause: str = ""
    deaths: Deaths | None = {}  # noqa: RUF012
    waited: bool = False


class Work(NamedTuple):
    """What a run's workers train.

    Attributes:
        number: of the run.
        queue: that the workers take members from.
        chains: reference of the members' chains, in a list: only workers unpack them.
        resources: of a worker.
        requirements: that a node must meet to take part, or None.
    """

    number: int
    queue: Any
    chains: list[Any]
    resources: Resources
    requirements: Any


class TrainRun:
    """The actor that waits in ``fit``. Ray's controller and the workers end with it."""

    def __init__(self, work: Work, node: ClusterNode | None, name: str, folder: str) -> None:
        self.work, self.node = work, node
        # Whatever ends a worker or the controller ends the run: the driver begins it again while members are left.
        failures = FailureConfig(0, controller_failure_limit=0)
        self.config = RunConfig(name=f"{name}-{work.number}", storage_path=folder, failure_config=failures)

    def fit(self, width: int) -> Ended:
        """Train with ``width`` workers until no member is left or a worker dies."""
        resources = self.work.resources
        together = resources.workers > 1
        try:
            DataParallelTrainer(
                partial(_take_members, self.work),
                backend_config=_process_group(bool(resources.gpus)) if together else Apart(),
                scaling_config=_scaling(resources, width, self.node),
                run_config=self.config,
            ).fit()
        except WorkerGroupError as error:
            deaths = {}
            for rank, failure in error.worker_failures.items():
                cause = getattr(failure, "health_check_failure", failure)
                deaths[rank] = str(cause), bool(getattr(cause, "preempted", False))
            if together:  # they have one member, which is that of the first
                deaths = {0: min(deaths.values(), key=lambda death: death[1])}
            return Ended(str(error), deaths)
        except Exception as error:
            cause = getattr(error, "controller_failure", error)
            waited = type(cause).__name__ == "WorkerGroupStartupTimeoutError"
            return Ended(str(cause), {} if waited else None, waited)
        return Ended()


def _take_members(work: Work) -> None:
    from raysts.cluster.worker import take_members  # imports torch

    take_members(work)


def _scaling(resources: Resources, width: int, node: ClusterNode | None) -> ScalingConfig:
    demand = {name: amount for name, amount in resources.bundle.items() if ":" not in name}
    options: dict[str, Any] = {"num_workers": width}
    if resources.min_workers:
        options = {
            "num_workers": (resources.min_workers, width),
            "elastic_resize_monitor_interval_s": RESIZE_SECONDS,
        }
    selector = dict(resources.selector)
    if node is not None and scales_with("label_selector"):
        selector["ray.io/node-id"] = node.id
    elif node is not None:
        demand[f"node:{node.address}"] = 0.001
    if selector:
        options["label_selector"] = selector
    return ScalingConfig(
        use_gpu=bool(resources.gpus),
        resources_per_worker=demand,
        accelerator_type=resources.accelerator_type,
        placement_strategy="PACK",
        **options,
    )


# -- the end of a worker -------------------------------------------------------------------------------------------------

told_to_end, drained = threading.Event(), threading.Event()
"""Set when this worker got SIGTERM or its run is about to end, and when its node is about to be taken away."""

at_work = threading.Lock()
"""Held by a worker while it trains."""


class _Graceful(Backend):
    """Has a worker that gets SIGTERM come to the end of its step and save, where Ray ends it at once.

    Only the main thread of a process may set a handler, and the train function runs in another.
    """

    def on_start(self, worker_group: Any, backend_config: Any) -> None:
        super().on_start(worker_group, backend_config)
        worker_group.execute(_end_on_sigterm)


class _Separate(_Graceful):
    """Has workers that train apart save before they end because another one has died."""

    def on_shutdown(self, worker_group: Any, backend_config: Any) -> None:
        saving = worker_group.execute_async(_save)
        ray.wait(saving, num_returns=len(saving), timeout=SAVE_SECONDS)


class Apart(BackendConfig):
    """The configuration of workers that train apart."""

    @property
    def backend_cls(self) -> type[Backend]:
        return _Separate


def _process_group(gpus: bool) -> BackendConfig:
    from ray.train.torch import TorchConfig  # imports torch

    class Together(TorchConfig):
        """The configuration of workers that train one member together."""

        @property
        def backend_cls(self) -> type[Backend]:
            return type("_Together", (_Graceful, super().backend_cls), {})

    return Together(backend="nccl" if gpus else "gloo")


def _end_on_sigterm() -> None:
    signal.signal(signal.SIGTERM, _handle)


def _handle(number: int, frame: Any) -> None:
    if not told_to_end.is_set():
        told_to_end.set()
        late = threading.Timer(END_SECONDS, os._exit, [128 + number])
        late.daemon = True
        late.start()


def _save() -> None:
    told_to_end.set()
    at_work.acquire(timeout=SAVE_SECONDS)


def watch_node() -> None:
    """Look, as long as this process lives, whether its node is about to be taken away."""
    while not drained.wait(DRAIN_SECONDS):
        if is_drained():
            drained.set()
