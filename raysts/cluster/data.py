"""Training batches streamed through Ray Data, in the same order as in-process. No torch here: the tasks that read import it."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import ray
import ray.data
from ray.data.block import BlockMetadata
from ray.data.datasource import Datasource, ReadTask

from raysts.cluster.connect import quiet_data
from raysts.data.batches import BatchOrder, WindowSlice, iter_batches, read_batches, read_slice
from raysts.data.windows import Windows
from raysts.models.tokens import LocalBatch

READ_AHEAD = 2
"""Windows that are read at once; backpressure keeps the rest of the corpus on disk."""

FEW = 8
"""Windows that a run reads itself."""

SEGMENT = 512
"""Windows in one Ray Data plan: planning costs about a millisecond a window before the first one comes."""


def read_streamed(
    windows: Windows, order: BatchOrder, start: int, stop: int, rank: int = 0, world: int = 1
) -> Iterator[LocalBatch]:
    """``raysts.data.batches.read_batches`` with the windows read and permuted by Ray Data tasks.

    The tasks ask for no CPU: training may hold every CPU of the cluster, and reading must go on. A run of few windows reads
    them itself, for to start processes that do takes seconds of CPU.
    """
    slices = list(order.slices(start, stop))
    if len(slices) <= FEW:
        return read_batches(windows, order, start, stop, rank, world)
    return iter_batches(_stream(windows, order, slices, rank, world), order, start, stop, rank, world)


class _WindowSlices(Datasource):
    """One read task, and one block, per slice."""

    def __init__(self, windows: Windows, order: BatchOrder, slices: list[WindowSlice], rank: int, world: int) -> None:
        super().__init__()
        self.order, self.slices = order, slices
        # Put once: a task that held them would grow with the corpus, and all tasks of an epoch with its square.
        self.shared = [ray.put((windows, order.share(rank, world)))]

    def estimate_inmemory_data_size(self) -> None:
        """Unknown."""

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: Any = None
    ) -> list[ReadTask]:
        return [self._task(window_slice) for window_slice in self.slices]

    def _task(self, window_slice: WindowSlice) -> ReadTask:
        shared = self.shared
        rows = int(self.order.sizes[window_slice.window])
        return ReadTask(
            lambda: [read_slice(*_got(shared), window_slice)],
            BlockMetadata(num_rows=rows, size_bytes=None, input_files=None, exec_stats=None),
        )


_latest: dict[Any, tuple[Windows, Any]] = {}
"""What the tasks of this process have in common, unpacked once; that of one dataset."""


def _got(shared: list[Any]) -> tuple[Windows, Any]:
    (reference,) = shared
    if reference not in _latest:
        _latest.clear()
        _latest[reference] = ray.get(reference)
    return _latest[reference]


def _stream(
    windows: Windows, order: BatchOrder, slices: list[WindowSlice], rank: int, world: int
) -> Iterator[tuple[WindowSlice, pa.Table]]:
    """Each slice with its rows, in order."""
    quiet_data()
    ray.data.DataContext.get_current().execution_options.preserve_order = True
    for first in range(0, len(slices), SEGMENT):
        segment = slices[first : first + SEGMENT]
        dataset = ray.data.read_datasource(
            _WindowSlices(windows, order, segment, rank, world),
            override_num_blocks=len(segment),
            concurrency=min(READ_AHEAD, len(segment)),
            num_cpus=0,
        )
        tables = iter(dataset.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=1))
        pending = next(tables, None)
        for window_slice in segment:
            # A process may need no row of a window: then no batch came for it.
            if pending is not None and _holds(window_slice, order, pending):
                yield window_slice, pending
                pending = next(tables, None)
            else:
                yield (
                    window_slice,
                    windows.read(window_slice.window).slice(0, 0).append_column("position", pa.array([], pa.int64())),
                )
        assert pending is None, "windows came out of order"


def _holds(window_slice: WindowSlice, order: BatchOrder, table: pa.Table) -> bool:
    if table.num_rows == 0:
        return True
    position = table.column("position")[0].as_py()
    return window_slice.first <= position < window_slice.first + int(order.sizes[window_slice.window])
