"""A Ray Train run, hosted by an actor beside its workers: what it asks for, how it ends, who gives back its room.

No torch here: the host and Ray's controller, a process each in every run, would pay for it with 130 MB each.
"""

import os
from functools import partial
from typing import Any, NamedTuple

import ray
from ray.train import FailureConfig, RunConfig, ScalingConfig, WorkerGroupError
from ray.train.backend import Backend, BackendConfig
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer
from ray.util.placement_group import PlacementGroup

from raysts.cluster import signals
from raysts.cluster.capacity import Present
from raysts.cluster.compat import scales_with
from raysts.cluster.queue import Deaths
from raysts.recipes.recipe import Resources

START_SECONDS, ELASTIC_START_SECONDS = 30, 15
"""How long a run waits for room before it is asked for again: in halves on a node that others use too; one of variable size
for what is there by then, for Ray believes a dead node's CPUs to be free for 20 seconds."""

RESIZE_SECONDS = 30.0
"""How often a member of variable size looks whether there is room for more workers."""

ENVIRONMENT = {
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",  # how soon the end or death of a worker is seen
    "RAY_TRAIN_METRICS_ENABLED": "0",
    "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",  # two processes a run; a worker looks after its own node
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    # A worker trains in a thread that is not its first: by itself glibc gives such a thread memory from areas of 64 MB at
    # most, where ``keep_memory`` reaches little.
    "MALLOC_ARENA_MAX": "1",
}
"""Environment of a run's processes."""


class Ended(NamedTuple):
    """How a run came to its end.

    Attributes:
        cause: what ended it; empty: nothing was left to do.
        deaths: of its workers, by rank; None: nobody knows which.
        waited: whether it found no room.
    """

    cause: str = ""
    deaths: Deaths | None = {}  # noqa: RUF012
    waited: bool = False


class TrainRun:
    """The actor that waits in ``fit``: Ray's controller, and with it the workers, end with it.

    Args:
        number: of the run.
        place: the node that its workers must be on; None: any.
        queue: which members the workers take from.
        shared: reference of the members' chains, in a list: only workers unpack them.
        resources: of a worker.
        seen: what a node must see to take part; None: nobody looks.
        name: of the run, for Ray's pages.
        folder: where Ray Train leaves a marker.
    """

    def __init__(
        self, number: int, place: Present | None, queue: Any, shared: list[Any], resources: Resources, seen: Any,
        name: str, folder: str,
    ) -> None:  # fmt: skip
        self.place, self.resources = place, resources
        self.train = partial(_take_members, queue, number, shared, resources, seen)
        self.config = RunConfig(
            # Whatever ends a worker or the controller ends the run: the driver begins it again while members are left.
            name=f"{name}-{number}", storage_path=folder, failure_config=FailureConfig(0, controller_failure_limit=0)
        )  # fmt: skip

    def fit(self, width: int) -> Ended:
        """Train with ``width`` workers until no member is left or a worker dies."""
        together = self.resources.workers > 1
        backend = _process_group(bool(self.resources.gpus)) if together else Apart()
        scaling = _scaling(self.resources, width, self.place)
        try:
            DataParallelTrainer(
                self.train, backend_config=backend, scaling_config=scaling, run_config=self.config
            ).fit()
        except WorkerGroupError as error:
            return Ended(str(error), _deaths(error.worker_failures, together))
        except Exception as error:
            cause = getattr(error, "controller_failure", error)
            waited = type(cause).__name__ == "WorkerGroupStartupTimeoutError"
            return Ended(str(cause), {} if waited else None, waited)
        return Ended()


def _deaths(failures: dict[int, Exception], together: bool) -> Deaths:
    """Return who died, and why; what workers have together is that of the first."""
    deaths = {}
    for rank, error in failures.items():
        cause = getattr(error, "health_check_failure", error)
        deaths[rank] = str(cause), bool(getattr(cause, "preempted", False))
    return {0: min(deaths.values(), key=lambda death: death[1])} if together else deaths


def _take_members(queue: Any, number: int, shared: list[Any], resources: Resources, seen: Any) -> None:
    from raysts.cluster.worker import take_members  # imports torch

    take_members(queue, number, shared, resources, seen)


def _scaling(resources: Resources, width: int, place: Present | None) -> ScalingConfig:
    workers = (resources.min_workers, width) if resources.min_workers else width
    demand = {name: amount for name, amount in resources.bundle.items() if ":" not in name}
    options: dict[str, Any] = {}
    if resources.min_workers:
        options["elastic_resize_monitor_interval_s"] = RESIZE_SECONDS
    selector = dict(resources.selector)
    if place is not None:
        if scales_with("label_selector"):
            selector["ray.io/node-id"] = place.id
        else:
            demand[f"node:{place.address}"] = 0.001
    if selector:
        options["label_selector"] = selector
    return ScalingConfig(
        num_workers=workers,
        use_gpu=bool(resources.gpus),
        resources_per_worker=demand,
        accelerator_type=resources.accelerator_type,
        placement_strategy="PACK",
        **options,
    )


def environment(resources: Resources) -> dict[str, str]:
    """Return what a host's processes have in their environment; what the user has set stays."""
    seconds = ELASTIC_START_SECONDS if resources.min_workers else START_SECONDS
    variables = {**ENVIRONMENT, "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": str(seconds)}
    return {name: os.environ.get(name, value) for name, value in variables.items()} | {"RAY_TRAIN_V2_ENABLED": "1"}


# -- how a worker learns that it has to end ------------------------------------------------------------------------------


class _Told(Backend):
    """Lets a worker that gets SIGTERM come to the end of its step and save, where Ray ends it at once: only the main thread
    of a process may set a handler, and the train function runs in another."""

    def on_start(self, worker_group: Any, backend_config: Any) -> None:
        super().on_start(worker_group, backend_config)
        worker_group.execute(signals.end_on_sigterm)


class _Apart(_Told):
    """Workers that train apart: when one has died the others save before they are ended."""

    def on_shutdown(self, worker_group: Any, backend_config: Any) -> None:
        saving = worker_group.execute_async(signals.save)
        ray.wait(saving, num_returns=len(saving), timeout=signals.SAVE_SECONDS)


class Apart(BackendConfig):
    """Of workers that train apart."""

    @property
    def backend_cls(self) -> type[Backend]:
        return _Apart


def _process_group(gpus: bool) -> BackendConfig:
    from ray.train.torch import TorchConfig  # imports torch

    class Together(TorchConfig):
        """Of workers that train one member together."""

        @property
        def backend_cls(self) -> type[Backend]:
            return type("_Together", (_Told, super().backend_cls), {})

    return Together(backend="nccl" if gpus else "gloo")


# -- room ----------------------------------------------------------------------------------------------------------------


def groups(resources: Resources) -> dict[str, str]:
    """Return state by id of the placement groups of this driver whose bundles are workers of these resources.

    The id of a group ends with that of the job that it was made in.
    """
    worker = {"CPU": float(resources.cpus), "GPU": float(resources.gpus or 0)}
    job = ray.get_runtime_context().get_job_id()
    return {
        name: group["state"]
        for name, group in ray.util.placement_group_table().items()
        if name.endswith(job)
        and group["state"] != "REMOVED"
        and all({kind: bundle.get(kind, 0.0) for kind in worker} == worker for bundle in group["bundles"].values())
    }


def give_back(names: Any) -> None:
    """Remove placement groups: nobody does so for a host or controller that was killed, nor for a run that waits."""
    for name in names:
        ray.util.remove_placement_group(PlacementGroup(ray.PlacementGroupID.from_hex(name)))
