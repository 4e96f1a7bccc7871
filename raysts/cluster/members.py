"""Ensemble members as independent Ray Train runs, all demanded at once, admitted as resources come."""

from __future__ import annotations

import logging
import os
import queue
import signal
import threading
import time
from collections.abc import Sequence
from typing import Any

import ray
import ray.train
import torch
from ray.train import ControllerError, FailureConfig, LoggingConfig, RunConfig, ScalingConfig, WorkerGroupError
from ray.train.torch import TorchConfig, TorchTrainer
from torch import nn

from raysts.cluster.capacity import PendingReporter, reachable
from raysts.cluster.connect import SETTINGS, quiet_data
from raysts.cluster.data import read_streamed
from raysts.cluster.ray_internals import OneWorkerTrainer, OwnCallbacks, node_is_drained, told_to_end
from raysts.errors import RunFailed, StoreFailed
from raysts.pipeline.local import Say, fail, train_chains
from raysts.recipes.recipe import Resources
from raysts.training import checkpoint
from raysts.training.job import Job, finished
from raysts.training.loop import train
from raysts.training.monitor import RunMonitor
from raysts.training.runtime import Preempted, Preemption, Runtime
from raysts.training.stacked import stacks

DEATHS = 3
"""Deaths of its processes that a member survives without getting on in between, each from its last checkpoint."""

RESIZE_SECONDS = 30.0
"""How often a member of variable size looks whether there is room for more workers."""

START_TIMEOUT = "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S"
ELASTIC_START_SECONDS = "15"
"""A member of variable size asks for what Ray believes to be free, which for 20 seconds may be a node that has died:
then it asks again, for less."""


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
        if self.world > 1:
            torch.distributed.barrier()

    def preemption(self) -> Preemption:
        """END after SIGTERM; SAVE when a node of this run is being drained (Ray Train's watcher tells every worker)."""
        if told_to_end.is_set():
            return Preemption.END
        return Preemption.SAVE if node_is_drained() else Preemption.NONE


class _TorchTrainer(OwnCallbacks, TorchTrainer):
    """A run of several workers."""


def train_members(chains: Sequence[Sequence[Job]], resources: Resources, say: Say) -> list[str | None]:
    """Train every chain as one Ray Train run, or members that are stacked as one together; per chain None or the reason
    it failed. The others go on."""
    outcomes: queue.Queue[tuple[int, str | None]] = queue.Queue()
    for stack in stacks(chains, resources.most_stacked(len(chains), _gpu_workers(resources))):
        # Daemon threads: after Ctrl-C a fit may never return, and the process must end all the same.
        work = [(index, list(chains[index])) for index in stack]
        threading.Thread(target=_run, args=(work, resources, outcomes), daemon=True).start()
    reasons: dict[int, str | None] = {}
    pending = PendingReporter(resources, say)
    with RunMonitor([job for chain in chains for job in chain], say) as monitor:
        while len(reasons) < len(chains):
            try:
                index, reason = outcomes.get(timeout=0.5)
                reasons[index] = reason
                if reason is not None:
                    say(f"failed: {reason}")
            except queue.Empty:
                pass
            monitor.update()
            pending.update(len(chains) - len(reasons))
    return [reasons[index] for index in range(len(chains))]


def _gpu_workers(resources: Resources) -> int:
    """How many workers the GPUs of the cluster, once grown, hold at once; 0 where workers use none, else at least 1."""
    return max(1, int(reachable("GPU") // resources.gpus)) if resources.gpus else 0


def _run(
    work: list[tuple[int, list[Job]]], resources: Resources, outcomes: queue.Queue[tuple[int, str | None]]
) -> None:
    indices, chains = [index for index, _ in work], [chain for _, chain in work]
    try:
        reasons = _fit(chains, resources)
    except BaseException as error:
        reasons = [f"run {chain[0].id}: {type(error).__name__}: {error}" for chain in chains]
    for outcome in zip(indices, reasons, strict=True):
        outcomes.put(outcome)


def _fit(chains: list[list[Job]], resources: Resources) -> list[str | None]:
    """Train the chains to their ends, however often processes die, as long as they get on in between; per chain None or
    the reason it failed."""
    deaths = 0
    os.environ[START_TIMEOUT] = ELASTIC_START_SECONDS if resources.min_workers else SETTINGS[START_TIMEOUT]
    while True:
        before = _stand(chains)
        try:
            return _trainer(chains, resources).fit().return_value["reasons"]
        except WorkerGroupError as error:
            cause, times = next(iter(error.worker_failures.values()), error), DEATHS + 1  # Ray has tried that often
        except (ControllerError, ray.exceptions.RayActorError) as error:
            # A worker that dies in its first moments, or a controller, is reported so and not retried by Ray.
            cause = getattr(error, "controller_failure", error)
            times = 1 if isinstance(cause, ray.exceptions.RayActorError) else DEATHS + 1
        deaths = deaths + times if _stand(chains) == before else 0
        if deaths > DEATHS:
            if isinstance(cause, ray.exceptions.RayActorError):
                cause = RunFailed(f"its processes died {deaths} times without getting on, the last time so: {cause}")
            unfinished = [next((job for job in chain if finished(job) is None), None) for chain in chains]
            return [None if job is None else fail(job, cause) for job in unfinished]
        time.sleep(1)


def _stand(chains: list[list[Job]]) -> list[object]:
    """How far the runs have come, on disk."""
    jobs = [job for chain in chains for job in chain]
    return [finished(job) is not None or checkpoint.last(job.folder / "checkpoints") for job in jobs]


def _trainer(chains: list[list[Job]], resources: Resources) -> OneWorkerTrainer | _TorchTrainer:
    """One Ray Train run over the chains."""
    first, last = chains[0][0].facts, chains[-1][0].facts
    who = first["stage"] if first.get("member") is None else f"{first.get('role', 'member')}-{first['member']}"
    more = f"-to-{last['member']}" if len(chains) > 1 else ""
    kind, options = (
        (OneWorkerTrainer, {})
        if resources.workers == 1
        else (_TorchTrainer, {"torch_config": TorchConfig(backend="nccl" if resources.gpus else "gloo")})
    )
    return kind(
        _work,
        train_loop_config={"chains": chains, "resources": resources},
        scaling_config=ScalingConfig(
            num_workers=(resources.min_workers, resources.workers) if resources.min_workers else resources.workers,
            elastic_resize_monitor_interval_s=RESIZE_SECONDS,
            use_gpu=bool(resources.gpus),
            resources_per_worker={"CPU": resources.cpus, **({"GPU": resources.gpus} if resources.gpus else {})},
        ),
        run_config=RunConfig(
            name=f"{first['system']}-{who}{more}-{chains[0][0].id[:6]}",
            # raysts keeps its own checkpoints; Ray Train writes no more than a marker here.
            storage_path=str(chains[0][0].folder.parent.parent / "ray"),
            # A node that is taken away is nobody's fault: it is not counted, however often.
            failure_config=FailureConfig(max_failures=DEATHS, max_preemption_failures=-1),
            logging_config=LoggingConfig(log_level="CRITICAL"),
        ),
        **options,
    )


def _work(config: dict[str, Any]) -> dict[str, Any]:
    """The train function of a worker. An error of its own would come again, so it is a result, not a failure."""
    for logger in ("ray.data", "ray.train"):
        logging.getLogger(logger).setLevel(logging.CRITICAL)
    quiet_data()
    runtime = RayRuntime(config["resources"])
    try:
        if runtime.world == 1:
            return {"reasons": train_chains(config["chains"], lambda job: runtime)}
        (chain,) = config["chains"]
        return {"reasons": [_train_together(chain, runtime)]}
    except Preempted:
        os._exit(128 + signal.SIGTERM)  # the run goes on in another process


def _train_together(chain: list[Job], runtime: Runtime) -> str | None:
    """``train_chains`` for one of several workers.

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
