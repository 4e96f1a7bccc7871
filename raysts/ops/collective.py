"""Communication between the processes of one training run. One process exchanges nothing."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn


def world_size() -> int:
    """Return the number of processes that train this run together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def total(value: Tensor) -> Tensor:
    """Return the sum of ``value`` over all processes, without gradient."""
    value = value.detach().clone()
    if world_size() > 1:
        dist.all_reduce(value)
    return value


def mean(per_row_B: Tensor, weight_B: Tensor) -> Tensor:
    """Return sum(weight * per_row) / sum(weight) over the rows of all processes -> scalar.

    The value is the global mean on every process. DistributedDataParallel averages gradients over processes, so the
    gradient is scaled until that average is the gradient of the global mean, for any division of the rows.
    """
    count = total(weight_B.sum())
    local = (per_row_B * weight_B).sum() * (world_size() / count)
    if world_size() == 1:
        return local
    return local + (total((per_row_B * weight_B).sum()) / count - local).detach()


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, sizes: list[int]) -> Tensor:  # type: ignore[override]
        ctx.sizes = sizes
        longest = max(sizes)
        padded = x.new_zeros((longest, *x.shape[1:]))
        padded[: x.shape[0]] = x
        parts = [torch.empty_like(padded) for _ in sizes]
        dist.all_gather(parts, padded)
        return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        parts = nn.utils.rnn.pad_sequence(grad.split(ctx.sizes), batch_first=True)
        local = torch.empty_like(parts[0])
        dist.reduce_scatter(local, list(parts.unbind()))
        return local[: ctx.sizes[dist.get_rank()]], None


def gather(x_BD: Tensor, sizes: Sequence[int] | None = None) -> Tensor:
    """Return the rows of all processes in rank order, with gradients to the process of each row.

    ``x_BD``: those of this process. ``sizes``: rows of each (None: the processes exchange them, which waits for a GPU).
    """
    if world_size() == 1:
        return x_BD
    if sizes is None:
        counts = [torch.zeros((), dtype=torch.int64, device=x_BD.device) for _ in range(world_size())]
        dist.all_gather(counts, torch.tensor(x_BD.shape[0], device=x_BD.device))
        sizes = [int(count) for count in counts]
    return _Gather.apply(x_BD, list(sizes))


def part(count: int, rank: int, world: int) -> tuple[int, int]:
    """Return the first example of a process and the one after its last, of ``count`` examples."""
    return rank * count // world, (rank + 1) * count // world


def sizes(count: int, world: int) -> list[int]:
    """Return the examples of each process, at least 1. A process without any has a filler."""
    bounds = [part(count, rank, world) for rank in range(world)]
    return [max(1, last - first) for first, last in bounds]


@lru_cache(maxsize=1)
def _hosts(world: Any) -> Any:
    """Return the group of the same processes on their hosts, one for all runs."""
    # Each holds threads and sockets.
    return dist.new_group(backend="gloo")


class AsyncMax:
    """Largest number that any process contributed, known to all of them at the same call.

    With several processes it is that of the call before, so that no process waits. The answer after one above 0 is 0: a
    process that repeats its number until it is answered receives one answer.
    """

    def __init__(self) -> None:
        self._cast: tuple[Tensor, Any] | None = None

    def __call__(self, number: int) -> int:
        """Exchange a number (0 for nothing) and return the answer."""
        if world_size() == 1:
            return number
        answer = 0
        if self._cast is not None:
            maximum, work = self._cast
            work.wait()
            answer = int(maximum)
        # On hosts: no process waits for its GPU to vote.
        group = None if "gloo" in dist.get_backend() else _hosts(dist.group.WORLD)
        maximum = torch.tensor(0 if answer else number)
        self._cast = maximum, dist.all_reduce(maximum, dist.ReduceOp.MAX, group=group, async_op=True)
        return answer
