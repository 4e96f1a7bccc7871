"""Where a training run happens: in this process, as a Ray Train worker, as a Tune trial. The loop need not know."""

from collections.abc import Callable
from enum import IntEnum
from typing import Any

import torch
from torch import nn

from raysts.data.batches import Reader, read_batches


class Preemption(IntEnum):
    """What a process has been told about its future."""

    NONE = 0
    SAVE = 1
    """The machine may go soon: what is not saved may be lost."""
    END = 2
    """This process has to end now."""


class Preempted(BaseException):  # noqa: N818
    """Training has stopped at a checkpoint because the process was told to end; not an error of the run."""


class Runtime:
    """One process of a training run; this one trains alone, in the caller's process.

    Attributes:
        read: source of batches.
        shards: whether the module is spread over the processes, which then run it and ask for its state together.
        saves_end: whether a run at its end writes a checkpoint before its model, so that a kill in between costs nothing.
    """

    saves_end, shards = True, False

    def __init__(
        self,
        device: str | torch.device | None = None,
        *,
        threads: int | None = None,
        read: Reader = read_batches,
        say: Callable[[str], None] | None = None,
    ) -> None:
        self.rank, self.world = 0, 1
        self.device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self.read = read
        self.where = "in-process"
        self._say = say
        if threads is not None:
            torch.set_num_threads(threads)

    def wrap(self, module: nn.Module, precision: str) -> nn.Module:
        """The module as it is called: with gradients averaged over processes where there are several.

        ``precision``: resolved; what is spread over processes is sent in it.
        """
        return module

    def report(self, line: dict[str, Any]) -> None:
        """Take note of one metrics line (dev evaluations and the end of a run)."""
        if self._say is not None:
            self._say(progress_text(line))

    def observe(self, facts: dict[str, Any], line: dict[str, Any], sentences: int) -> None:
        """Take note of every metrics line, for whoever watches. ``sentences``: that an example sends through an encoder."""

    def barrier(self) -> None:
        """Wait for the other processes."""

    def preemption(self) -> Preemption:
        """What this process has been told about its end; it never takes back what it has said."""
        return Preemption.NONE


def progress_text(line: dict[str, Any]) -> str:
    """A metrics line as people read it."""
    parts = [f"step {line['step']}/{line['steps']}"]
    parts += [f"{name} {line[name]:.4f}" for name in ("loss", "dev") if line.get(name) is not None]
    if line.get("examples_per_second"):
        parts.append(f"{line['examples_per_second']:.0f} examples/s")
    return ", ".join(parts)


def averaged(module: nn.Module, device: torch.device) -> nn.Module:
    """The module with gradients averaged over the processes that train it together, where it has any.

    Every step runs the same graph on all of them (``raysts.data.batches.Part``): DistributedDataParallel may rely on it.
    """
    if not any(parameter.requires_grad for parameter in module.parameters()):
        return module
    return nn.parallel.DistributedDataParallel(
        module, device_ids=[device] if device.type == "cuda" else None, gradient_as_bucket_view=True, static_graph=True
    )
