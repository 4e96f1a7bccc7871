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

from raysts.cluster import signals
from raysts.cluster.connect import quiet_data
from raysts.cluster.data import read_streamed
from raysts.cluster.metrics import show_line
from raysts.cluster.preflight import Seen, here, unfit
from raysts.cluster.queue import Progress
from raysts.errors import RunFailed, StoreFailed
from raysts.pipeline.local import fail
from raysts.recipes.recipe import Resources
from raysts.training import checkpoint
from raysts.training.job import Job, finished
from raysts.training.loop import train
from raysts.training.runtime import Preempted, Preemption, Runtime, averaged
from raysts.training.shard import shard

DEATHS = 3
"""Deaths of its processes that a member survives without getting on in between, each from its last checkpoint."""


class RayRuntime(Runtime):
    """One Ray Train worker; one of several that train a run together unless each trains apart."""

    def __init__(self, resources: Resources) -> None:
        context = ray.train.get_context()
        device = ray.train.torch.get_device() if resources.gpus else "cpu"
        super().__init__(device, threads=resources.cpus, read=read_streamed)
        if resources.workers > 1:
            self.rank, self.world = context.get_world_rank(), context.get_world_size()
        self.shards = resources.shard and self.world > 1
        self.where = f"Ray Train, node {ray.util.get_node_ip_address()}"

    def wrap(self, module: nn.Module, precision: str) -> nn.Module:
        """Return the module with its gradients averaged, or spread whole, where several processes train together."""
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
        if signals.told_to_end.is_set():
            return Preemption.END
        return Preemption.SAVE if signals.drained.is_set() else Preemption.NONE

    def shared(self, value: Any) -> Any:
        """Return what the first of the workers that train together has."""
        if self.world == 1:
            return value
        box = [value]
        torch.distributed.broadcast_object_list(box, src=0, device=self.device)
        return box[0]


def take_members(queue: Any, number: int, shared: list[Any], resources: Resources, seen: Seen | None) -> None:
    """Train one member after the other, as long as there are any: the train function of a worker."""
    for logger in ("ray.data", "ray.train"):
        logging.getLogger(logger).setLevel(logging.CRITICAL)
    quiet_data()
    if seen is not None and (problem := unfit(seen)):
        return ray.get(queue.refuse.remote(f"node {here()}: {problem}"))
    runtime = RayRuntime(resources)
    slot = (number, 0 if resources.workers > 1 else ray.train.get_context().get_world_rank())
    if ray.train.get_context().get_world_rank() == 0:
        queue.hold.remote(number, ray.util.get_current_placement_group())
    threading.Thread(target=signals.watch_node, daemon=True).start()
    chains = ray.get(shared[0])
    try:
        with signals.at_work:
            while (taken := runtime.shared(_take(queue, slot, chains) if runtime.rank == 0 else None)) is not None:
                member, reason = taken
                if reason is None:
                    reason = _train(chains[member], runtime)
                if runtime.rank == 0:
                    ray.get(queue.end.remote(slot, reason))
                gc.collect()  # the next one begins where this one did
                if not gc.get_freeze_count():
                    gc.freeze()  # what came with imports stays, and need not be looked through after each
                if resources.gpus:
                    torch.cuda.empty_cache()
    except Preempted:
        os._exit(128 + signal.SIGTERM)  # the member goes on in another process
    return None


def _take(queue: Any, slot: tuple[int, int], chains: Sequence[Sequence[Job]]) -> tuple[int, str | None] | None:
    """Take the next member; return its number, and why it is not tried again, or None."""
    taken: tuple[int, Progress] | None = ray.get(queue.take.remote(slot))
    if taken is None:
        return None
    member, before = taken
    stand = _stand(chains[member])
    progress = Progress(stand, before.deaths if stand == before.stand else 0, before.cause)
    queue.begin.remote(slot, progress)
    return member, fail_chain(chains[member], _died(progress)) if progress.deaths > DEATHS else None


def _train(chain: Sequence[Job], runtime: Runtime) -> str | None:
    """Train a chain to its end; return None, or the reason it failed.

    Training is deterministic, so an error of its own would come again: it is not retried. Of workers that train together
    only what all of them find at the same step is such an error. Anything else may be the echo of another worker's death and
    leaves the others waiting in a collective: it ends the run, which is begun again.
    """
    for job in chain:
        try:
            train(job, runtime)
        except Exception as error:
            if runtime.world > 1 and (isinstance(error, StoreFailed) or not isinstance(error, RunFailed)):
                raise
            return fail(job, error) if runtime.rank == 0 else str(error)
    return None


def _died(progress: Progress) -> RunFailed:
    return RunFailed(
        f"its processes died {progress.deaths} times without getting on, the last time so: {progress.cause}"
    )


def fail_chain(chain: Sequence[Job], cause: BaseException) -> str | None:
    """Put on record why a chain was not trained to its end; None: it was."""
    unfinished = next((job for job in chain if finished(job) is None), None)
    return None if unfinished is None else fail(unfinished, cause)


def _stand(chain: Sequence[Job]) -> list[object]:
    """Return how far the runs have come, on disk."""
    return [finished(job) is not None or str(checkpoint.last(job.folder / "checkpoints")) for job in chain]
