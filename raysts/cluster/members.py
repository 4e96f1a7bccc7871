"""Ensemble members as independent Ray Train runs, all demanded at once, admitted as resources come."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Sequence
from typing import Any

import ray
import ray.train
import torch
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer
from ray.train.v2.api.config import LoggingConfig
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer
from ray.train.v2.api.exceptions import ControllerError, WorkerGroupError
from torch import nn

from raysts.cluster.connect import quiet_data
from raysts.cluster.data import read_streamed
from raysts.errors import RunFailed, StoreFailed
from raysts.recipe import Resources
from raysts.training.here import Say, fail, train_chains
from raysts.training.loop import Job, finished, train
from raysts.training.progress import Progress
from raysts.training.runtime import Runtime
from raysts.training.stacked import stacks

DEATHS = 3
"""Deaths of its processes that a member survives, each from its last checkpoint."""


class RayRuntime(Runtime):
    """One Ray Train worker."""

    def __init__(self, resources: Resources) -> None:
        context = ray.train.get_context()
        device = ray.train.torch.get_device() if resources.gpus else "cpu"
        super().__init__(device, threads=resources.cpus, read=read_streamed)
        self.rank, self.world = context.get_world_rank(), context.get_world_size()
        self.where = f"Ray Train, node {ray.util.get_node_ip_address()}"

    def wrap(self, module: nn.Module) -> nn.Module:
        """DistributedDataParallel where several processes train together and there are gradients to average."""
        if self.world == 1 or not any(parameter.requires_grad for parameter in module.parameters()):
            return module
        return nn.parallel.DistributedDataParallel(
            module, device_ids=[self.device] if self.device.type == "cuda" else None
        )

    def report(self, line: dict[str, Any]) -> None:
        """The driver reads ``metrics.jsonl``: nothing to send."""

    def barrier(self) -> None:
        """Wait for the other workers."""
        if self.world > 1:
            torch.distributed.barrier()


class _Slim:
    """Leaves out two of Ray Train's helpers, each an actor process of its own per run, that have nothing to do here:
    one feeds datasets given to the trainer (ours are read by the workers), one polls the dashboard."""

    def _create_default_callbacks(self) -> list[Any]:
        without = {"PlacementGroupCleanerCallback", "DatasetsCallback"}
        return [c for c in super()._create_default_callbacks() if type(c).__name__ not in without]  # type: ignore[misc]


class _OneWorker(_Slim, DataParallelTrainer):
    """A run of one worker needs no process group, and its controller no torch."""


class _ManyWorkers(_Slim, TorchTrainer):
    """A run of several workers."""


def train_members(chains: Sequence[Sequence[Job]], resources: Resources, say: Say) -> list[str | None]:
    """Train every chain as one Ray Train run, or members that are stacked as one together; per chain None or the reason
    it failed. The others go on."""
    outcomes: queue.Queue[tuple[int, str | None]] = queue.Queue()
    for stack in stacks(chains, resources.most_stacked(len(chains), _gpu_workers(resources))):
        # Daemon threads: after Ctrl-C a fit may never return, and the process must end all the same.
        work = [(index, list(chains[index])) for index in stack]
        threading.Thread(target=_run, args=(work, resources, outcomes), daemon=True).start()
    found: dict[int, str | None] = {}
    with Progress([job for chain in chains for job in chain], say) as progress:
        while len(found) < len(chains):
            try:
                index, reason = outcomes.get(timeout=0.5)
                found[index] = reason
                if reason is not None:
                    say(f"failed: {reason}")
            except queue.Empty:
                pass
            progress.update()
    return [found[index] for index in range(len(chains))]


def _gpu_workers(resources: Resources) -> int:
    """How many workers the cluster's GPUs hold at once; 0 where workers use none, at least 1 where they do."""
    return max(1, int(ray.cluster_resources().get("GPU", 0) // resources.gpus)) if resources.gpus else 0


def _run(
    work: list[tuple[int, list[Job]]], resources: Resources, outcomes: queue.Queue[tuple[int, str | None]]
) -> None:
    indices, chains = [index for index, _ in work], [chain for _, chain in work]
    try:
        reasons = _fit(chains, resources)
    except BaseException as error:
        reasons = [f"run {chain[0].id}: {type(error).__name__}: {error}" for chain in chains]
    for found in zip(indices, reasons, strict=True):
        outcomes.put(found)


def _fit(chains: list[list[Job]], resources: Resources) -> list[str | None]:
    """One Ray Train run over the chains; per chain None or the reason it failed."""
    first, last = chains[0][0].facts, chains[-1][0].facts
    who = first["stage"] if first.get("member") is None else f"member-{first['member']}"
    more = f"-to-{last['member']}" if len(chains) > 1 else ""
    name = f"{first['system']}-{who}{more}-{chains[0][0].id[:6]}"
    for attempt in range(DEATHS + 1):
        kind, options = (
            (_OneWorker, {})
            if resources.workers == 1
            else (_ManyWorkers, {"torch_config": TorchConfig(backend="nccl" if resources.gpus else "gloo")})
        )
        trainer = kind(
            _work,
            train_loop_config={"chains": chains, "resources": resources},
            scaling_config=ScalingConfig(
                num_workers=resources.workers,
                use_gpu=bool(resources.gpus),
                resources_per_worker={"CPU": resources.cpus, **({"GPU": resources.gpus} if resources.gpus else {})},
            ),
            run_config=RunConfig(
                name=name,
                # raysts keeps its own checkpoints; Ray Train writes no more than a marker here.
                storage_path=str(chains[0][0].folder.parent.parent / "ray"),
                failure_config=FailureConfig(max_failures=DEATHS),
                logging_config=LoggingConfig(log_level="CRITICAL"),
            ),
            **options,
        )
        try:
            return trainer.fit().return_value["reasons"]
        except WorkerGroupError as error:
            cause = next(iter(error.worker_failures.values()), error)
            unfinished = [next((job for job in chain if finished(job) is None), None) for chain in chains]
            return [None if job is None else fail(job, cause) for job in unfinished]
        except (ControllerError, ray.exceptions.RayActorError) as error:
            # A worker that dies in its first moments, or a controller, is reported so and not retried by Ray.
            cause = getattr(error, "controller_failure", error)
            if attempt == DEATHS or not isinstance(cause, ray.exceptions.RayActorError):
                return [f"{name}: its processes died {attempt + 1} times: {error}"] * len(chains)
            time.sleep(1)
    raise AssertionError


def _work(config: dict[str, Any]) -> dict[str, Any]:
    """The train function of a worker. An error of its own would come again, so it is a result, not a failure."""
    for logger in ("ray.data", "ray.train"):
        logging.getLogger(logger).setLevel(logging.CRITICAL)
    quiet_data()
    runtime = RayRuntime(config["resources"])
    if runtime.world == 1:
        return {"reasons": train_chains(config["chains"], lambda job: runtime)}
    (chain,) = config["chains"]
    return {"reasons": [_train_together(chain, runtime)]}


def _train_together(chain: list[Job], runtime: Runtime) -> str | None:
    """``train_chain`` for one of several workers.

    Only what all of them find at the same step is a result. Anything else may be the echo of another worker's death and
    leaves the others waiting in a collective: it ends the group, which Ray Train starts again.
    """
    for job in chain:
        try:
            train(job, runtime)
        except StoreFailed:
            raise  # of one worker alone
        except RunFailed as error:
            return fail(job, error) if runtime.rank == 0 else str(error)
    return None
