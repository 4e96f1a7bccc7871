"""The process of a training run: in-process, a Ray Train worker, or a Tune trial."""

from collections.abc import Callable
from enum import IntEnum
from typing import Any

import torch
from torch import nn

from raysts.data.batches import Reader, read_batches
from raysts.log import say
from raysts.training.job import Job
from raysts.training.metrics import figures
from raysts.training.shard import shard


class Preemption(IntEnum):
    """Termination notice that this process has received."""

    NONE = 0
    SAVE = 1
    """A checkpoint is due."""
    END = 2
    """This process has to end now."""


class Preempted(BaseException):  # noqa: N818
    """End of training at a checkpoint after a termination notice. The run has no error."""


class Runtime:
    """Process of a training run, alone or with the other ranks of torch's process group.

    Args:
        read: source of batches.
        reports: True if the reported lines become messages.
        watch: is called after every metrics line, with its run.

    Attributes:
        shards: True if the module is sharded over the processes, which then run it and gather its state together.
        saves_end: True if a finished run writes a checkpoint before its model.
    """

    saves_end, shards = True, False

    def __init__(
        self, device: str | torch.device | None = None, *, threads: int | None = None, read: Reader = read_batches,
        reports: bool = False, watch: Callable[[Job], None] = lambda job: None,
    ) -> None:  # fmt: skip
        self.rank, self.world = 0, 1
        self.device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self.read, self.where = read, "in-process"
        self._reports, self._watch = reports, watch
        if threads is not None:
            torch.set_num_threads(threads)

    def wrap(self, module: nn.Module, precision: str) -> nn.Module:
        """Return the module to call, sharded or with averaged gradients. ``precision``: that of sent weights."""
        if self.shards:
            return shard(module, self.device, precision)
        if self.world == 1 or not any(parameter.requires_grad for parameter in module.parameters()):
            return module
        devices = [self.device] if self.device.type == "cuda" else None
        # Every step runs the same graph on all processes.
        return nn.parallel.DistributedDataParallel(module, devices, gradient_as_bucket_view=True, static_graph=True)

    def report(self, job: Job, line: dict[str, Any]) -> None:
        """Report one metrics line (dev evaluations and the end of a run)."""
        if self._reports:
            rate = line.get("examples_per_second")
            speed = [f"{rate:.0f} examples/s"] if rate else []
            say(", ".join([f"{job.title}: step {line['step']}/{line['steps']}", *figures(line), *speed]))

    def observe(self, job: Job, line: dict[str, Any]) -> None:
        self._watch(job)

    def barrier(self) -> None:
        """Wait for the other processes."""
        if self.world > 1:
            torch.distributed.barrier()

    def preemption(self) -> Preemption:
        return Preemption.NONE
