"""The process of an actor that is given units of work.

Neither Ray Train nor what the driver needs besides: each actor would pay for it with most of a second.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import ray

from raysts.cluster.preflight import Seen, here, unfit
from raysts.errors import RunFailed
from raysts.recipes.recipe import Resources

if TYPE_CHECKING:
    from raysts.pipeline.local import Worker

KERNELS = "64"
"""Kernels of oneDNN that an embedding process keeps: those of one batch."""

UNFIT = "unfit"
"""In place of a unit's value: its node cannot take part."""


class UnitActor:
    """An actor that makes its worker when it gets the first unit of a map, so that a failure is a result of that unit."""

    def __init__(self, worker: Worker, resources: Resources, seen: Seen | None) -> None:
        set_threads(resources)
        self.unfit = f"node {here()}: {problem}" if seen is not None and (problem := unfit(seen)) else None
        self.worker, self.device = worker, "cuda" if resources.gpus else "cpu"
        self.work: Any = None
        self.made_of = ""

    def run(self, args: list[Any], unit: Any) -> tuple[Any, str | None]:
        """What the worker makes of a unit, or why it failed: as text, not as a traceback on every log."""
        if self.unfit is not None:
            return UNFIT, self.unfit
        try:
            # Not arguments of the constructor: a restart would look for them after Ray has let them go.
            if self.made_of != args[0].hex():
                self.work = None  # the models of the last map go first
                self.work, self.made_of = self.worker(self.device, *ray.get(args[0])), args[0].hex()
            return self.work(unit), None
        except Exception as error:
            return None, str(error) if isinstance(error, RunFailed) else f"{type(error).__name__}: {error}"


def set_threads(resources: Resources) -> None:
    """As many threads as CPUs were asked for, and no more memory for kernels than pays."""
    # oneDNN keeps the kernels of the last 1,024 shapes, about 1 MB each. Batches of texts hardly ever have a shape in
    # common, the layers of an encoder do within a batch. Read when the first kernel is made.
    for cache in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):  # that of torch's bindings is the second
        os.environ.setdefault(cache, KERNELS)
    import torch

    torch.set_num_threads(resources.cpus)
