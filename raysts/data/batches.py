"""The order of training rows, a function of (seed, epoch) alone, and the batches cut from it.

One order, two readers: this process, or Ray Data (``raysts.cluster.stream``). Both permute each ``WindowSlice`` with
``read_slice``, and cut the slices into batches with ``iter_batches``. The position in the order follows from the step, so a
checkpoint needs to hold nothing but the step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from raysts.data.windows import Windows, columns_of
from raysts.ids import derive_seed
from raysts.models.tokens import LocalBatch, Tokens
from raysts.recipes.catalog import Group


class WindowSlice(NamedTuple):
    """Window of an epoch in the order of reading."""

    epoch: int
    window: int
    first: int
    """Position of its first row in the epoch."""


class BatchOrder:
    """Position of every batch of a run in the data.

    Args:
        sizes: rows per window.
        group: the rows of a batch that form an example.
        batch: global batch size in examples.
        seed: seed of the order, and of the noise of every step.
        drop_last: leave out an epoch's last batch if it is smaller than the others.
        bootstrap: of every window as many of its rows as it has, drawn with replacement, the same in every epoch. (A draw from
            all rows would differ in how many come from each window, by about 1 in 90.)
    """

    def __init__(
        self, sizes: np.ndarray, group: Group, batch: int, seed: int, drop_last: bool = False, bootstrap: bool = False
    ) -> None:
        self.sizes, self.group, self.seed, self.bootstrap = sizes, group, seed, bootstrap
        self.rows_per_batch = rows_per_batch(group, batch)
        self.rows = int(sizes.sum())
        full, rest = divmod(self.rows, self.rows_per_batch)
        # Rows of the last batch that whole examples read; what remains of the epoch is left out.
        last = [] if drop_last else examples_in(group, rest)
        self.rest = 1 + max((row for example in last for row in example), default=-1)
        self.steps_per_epoch = full + (self.rest > 0)

    def slices(self, start: int, stop: int) -> Iterator[WindowSlice]:
        if start >= stop:
            return
        first_epoch, last_epoch = start // self.steps_per_epoch, (stop - 1) // self.steps_per_epoch
        for epoch in range(first_epoch, last_epoch + 1):
            low = (start - epoch * self.steps_per_epoch) * self.rows_per_batch if epoch == first_epoch else 0
            steps = min(stop - epoch * self.steps_per_epoch, self.steps_per_epoch)
            high = min(steps * self.rows_per_batch, self.rows)
            first = 0
            for window in np.random.default_rng(derive_seed(self.seed, "windows", epoch)).permutation(len(self.sizes)):
                size = int(self.sizes[window])
                if first + size > low and first < high:
                    yield WindowSlice(epoch, int(window), first)
                first += size

    def rows_in(self, step: int) -> int:
        last = (step + 1) % self.steps_per_epoch == 0
        return self.rest if last and self.rest else self.rows_per_batch

    def share(self, rank: int, world: int) -> Share:
        """Return the rows that one process reads of every window."""
        batches = (self.rows_per_batch, self.rest) if world > 1 else ()
        parts = (part_of(self.group, rows, rank, world).rows if rows else np.empty(0, np.int64) for rows in batches)
        return Share(self.seed, self.bootstrap, self.rows_per_batch, self.steps_per_epoch, tuple(parts))


class Share(NamedTuple):
    """Rows of one process as numbers, for a Ray task without objective or torch."""

    seed: int
    bootstrap: bool
    rows_per_batch: int
    steps_per_epoch: int
    offsets: tuple[np.ndarray, ...]
    """Their offsets in a full batch, and in an epoch's last one if that is smaller; empty: all rows."""


class Part(NamedTuple):
    """Rows of a batch that one process reads, and the examples that it makes of them."""

    rows: np.ndarray
    """Offsets in the batch, ascending."""
    local: list[tuple[int, ...]]
    """Per example its positions in ``rows``."""
    weight: np.ndarray
    first: int
    """Place of its first example in the global batch."""
    size: int
    """Examples in the global batch."""


def group_size(group: Group) -> int:
    """Return the number of rows that a group of examples reads."""
    return 1 + max(row for example in group for row in example)


def rows_per_batch(group: Group, batch: int) -> int:
    """Return the number of rows that a global batch of so many examples reads."""
    return batch // len(group) * group_size(group)


def examples_in(group: Group, rows: int) -> list[tuple[int, ...]]:
    """Return the rows of each example in a batch. An incomplete group at its end forms no example."""
    size = group_size(group)
    firsts = range(0, rows - size + 1, size)
    return [tuple(first + row for row in example) for first in firsts for example in group]


@lru_cache(maxsize=64)
def part_of(group: Group, rows: int, rank: int, world: int) -> Part:
    """Return what one process reads of a batch of so many rows."""
    from raysts.ops import collective  # not above, for torch

    examples = examples_in(group, rows)
    low, high = collective.part(len(examples), rank, world)
    # A process without examples gets the first one as filler (weight 0), so that all processes run the same graph.
    part = examples[low:high] or examples[:1]
    offsets = sorted({row for example in part for row in example})
    place = {row: i for i, row in enumerate(offsets)}
    local = [tuple(place[row] for row in example) for example in part]
    return Part(np.array(offsets), local, np.full(len(part), float(high > low), np.float32), low, len(examples))


def read_slice(windows: Windows, share: Share, window_slice: WindowSlice) -> pa.Table:
    """Return the share's rows of a slice in training order, with ``position`` in the epoch."""
    epoch, window, first = window_slice
    table = windows.read(window)
    size = table.num_rows
    shuffle = np.random.default_rng(derive_seed(share.seed, "rows", epoch, window)).permutation(size)
    if share.bootstrap:
        drawn = np.random.default_rng(derive_seed(share.seed, "bootstrap", window)).integers(size, size=size)
        shuffle = drawn[shuffle]
    position = first + np.arange(size)
    if share.offsets:
        step, offset = np.divmod(position, share.rows_per_batch)
        full, rest = (np.isin(offset, rows) for rows in share.offsets)
        keep = np.where(step == share.steps_per_epoch - 1, rest, full) if len(share.offsets[1]) else full
        position, shuffle = position[keep], shuffle[keep]
    return table.take(pa.array(shuffle)).append_column("position", pa.array(position))


def iter_batches(
    tables: Iterable[tuple[WindowSlice, pa.Table]],
    order: BatchOrder,
    start: int,
    stop: int,
    rank: int = 0,
    world: int = 1,
) -> Iterator[LocalBatch]:
    """Yield this process' part of the batches of steps [start, stop), from the slices in order."""
    step, epoch = start, -1
    pending: list[pa.Table] = []
    for window_slice, table in tables:
        if window_slice.epoch != epoch:
            pending, epoch = [], window_slice.epoch
        base = epoch * order.steps_per_epoch
        pending.append(table)
        merged = pa.concat_tables(pending).combine_chunks()
        position = merged.column("position").to_numpy()
        reached = window_slice.first + int(order.sizes[window_slice.window])
        texts = [field.name for field in merged.schema if pa.types.is_list(field.type)]
        columns = columns_of(merged, texts, sorted({*merged.column_names} - {*texts, "row", "position"}))
        ids = merged.column("row").to_numpy()
        while step < min(stop, base + order.steps_per_epoch):
            first, rows = (step - base) * order.rows_per_batch, order.rows_in(step)
            if first + rows > reached:
                break
            part = part_of(order.group, rows, rank, world)
            low, high = map(int, np.searchsorted(position, [first, first + rows]))
            seeds = np.random.default_rng(derive_seed(order.seed, "noise", step)).integers(2**62, size=part.size + 1)
            assert np.array_equal(position[low:high] - first, part.rows), "rows lost on the way"
            of_batch = {
                name: column.take(np.arange(low, high)) if isinstance(column, Tokens) else column[low:high]
                for name, column in columns.items()
            }
            seeds = seeds[part.first : part.first + len(part.local)]
            yield LocalBatch(of_batch, part.local, part.weight, seeds, ids[low:high], part.size)
            step += 1
        done = (step - base) * order.rows_per_batch
        pending = [merged.slice(int(np.searchsorted(position, done)))]
    assert step == stop, f"the data ended at step {step} of {stop}"


Reader = Callable[[Windows, BatchOrder, int, int, int, int], Iterator[LocalBatch]]
"""(windows, order, start, stop, rank, world) -> the part of one process in the batches of steps [start, stop)."""


def read_batches(
    windows: Windows, order: BatchOrder, start: int, stop: int, rank: int = 0, world: int = 1
) -> Iterator[LocalBatch]:
    """Read the batches in this process."""
    share = order.share(rank, world)
    tables = ((part, read_slice(windows, share, part)) for part in order.slices(start, stop))
    return iter_batches(tables, order, start, stop, rank, world)
