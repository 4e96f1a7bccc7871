"""A worker of a Ray Train run: it trains one member after the other."""

from __future__ import annotations

import gc
import logging
import os
import signal
import threading
from collections.abc import Sequence
from typing import Any

import ray
import ray.train
import ray.train.torch
import torch
from torch import nn

from raysts.cluster import runs
from raysts.cluster.connect import quiet_data
from raysts.cluster.metrics import show_line
from raysts.cluster.preflight import node_problem
from raysts.cluster.stream import read_streamed
from raysts.errors import RunFailed, StoreFailed
from raysts.pipeline.local import fail
from raysts.recipes.recipe import Resources
from raysts.training import checkpoint
from raysts.training.job import Job, finished
from raysts.training.loop import train
from raysts.training.runtime import Preempted, Preemption, Runtime, averaged
from raysts.training.shard import shard

DEATHS = 3
"""Deaths of its processes that a member survives without progress on disk, each from its last checkpoint."""


class RayRuntime(Runtime):
    """One Ray Train worker, which trains a run alone or together with the others of its group."""

    def __init__(self, resources: Resources) -> None:
        device = ray.train.torch.get_device() if resources.gpus else "cpu"
        super().__init__(device, threads=resources.cpus, read=read_streamed)
        if resources.workers > 1:
            context = ray.train.get_context()
            self.rank, self.world = context.get_world_rank(), context.get_world_size()
        self.shards = resources.shard and self.world > 1
        self.where = f"Ray Train, node {ray.util.get_node_ip_address()}"

    def wrap(self, module: nn.Module, precision: str) -> nn.Module:
        """Return the module with its gradients averaged, or sharded, over the processes that train together."""
        if self.shards:
            return shard(module, self.device, precision)
        return averaged(module, self.device) if self.world > 1 else module

    def report(self, line: dict[str, Any]) -> None:
        """Send nothing: the driver reads ``metrics.jsonl``."""

    def observe(self, facts: dict[str, Any], line: dict[str, Any], sentences: int) -> None:
        member = facts.get("member")
        show_line(facts["system"], facts["stage"], facts["role"] if member is None else member, line, sentences)

    def barrier(self) -> None:
        if self.world > 1:
            torch.distributed.barrier()

    def preemption(self) -> Preemption:
        """Return END after SIGTERM, SAVE where the node of this worker is about to be taken away."""
        if runs.told_to_end.is_set():
            return Preemption.END
        return Preemption.SAVE if runs.drained.is_set() else Preemption.NONE

    def broadcast(self, value: Any) -> Any:
        """Return the value of the first worker that trains together."""
        box = [value]
        if self.world > 1:
            torch.distributed.broadcast_object_list(box, src=0, device=self.device)
        return box[0]


def take_members(work: runs.Work) -> None:
    """Train members of the queue, one after the other, until none is left."""
    for logger in ("ray.data", "ray.train"):
        logging.getLogger(logger).setLevel(logging.CRITICAL)
    quiet_data()
    if problem := node_problem(work.requirements):
        return ray.get(work.queue.refuse.remote(problem))
    runtime, queue, rank = RayRuntime(work.resources), work.queue, ray.train.get_context().get_world_rank()
    slot = (work.number, 0 if work.resources.workers > 1 else rank)
    if rank == 0:
        queue.hold.remote(work.number, ray.util.get_current_placement_group().id.hex())
    threading.Thread(target=runs.watch_node, daemon=True).start()
    chains: Sequence[Sequence[Job]] = ray.get(work.chains[0])
    try:
        with runs.at_work:
            while (
                member := runtime.broadcast(ray.get(queue.take.remote(slot)) if runtime.rank == 0 else None)
            ) is not None:
                reason = runtime.broadcast(_begin(chains[member], slot, queue) if runtime.rank == 0 else None)
                reason = reason or _train(chains[member], runtime)
                if runtime.rank == 0:
                    ray.get(queue.end.remote(slot, reason))
                gc.collect()  # the next one begins where this one did
                if not gc.get_freeze_count():
                    gc.freeze()  # imports stay: a later collection need not look through them
                if work.resources.gpus:
                    torch.cuda.empty_cache()
    except Preempted:
        os._exit(128 + signal.SIGTERM)  # the member goes on in another process
    return None


def _begin(chain: Sequence[Job], slot: tuple[int, int], queue: Any) -> str | None:
    """Return the reason why a member is not tried again, or None."""
    stand = [finished(job) is not None or str(checkpoint.last(job.folder / "checkpoints")) for job in chain]
    progress = ray.get(queue.begin.remote(slot, stand))
    if progress.deaths <= DEATHS:
        return None
    return fail_chain(
        chain, f"its processes died {progress.deaths} times without getting on, the last time so: {progress.cause}"
    )


def _train(chain: Sequence[Job], runtime: Runtime) -> str | None:
    """Train a chain to its end; return the reason why it failed, or None.

    Training is deterministic, so an error of its own would come again: it is not retried. Of workers that train together
    only what all of them find at the same step is such an error. Anything else may be the echo of another worker's death and
    leaves the others waiting in a collective: it ends the run, and the driver begins it again.
    """
    for job in chain:
        try:
            train(job, runtime)
        except Exception as error:
            if runtime.world > 1 and (isinstance(error, StoreFailed) or not isinstance(error, RunFailed)):
                raise
            return fail(job, error) if runtime.rank == 0 else str(error)
    return None


def fail_chain(chain: Sequence[Job], cause: str) -> str | None:
    """Put on record why a chain was not trained to its end; return the reason, or None if it was."""
    unfinished = next((job for job in chain if finished(job) is None), None)
    return None if unfinished is None else fail(unfinished, RunFailed(cause))
