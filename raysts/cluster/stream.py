"""Ray Data: batches for training and units of Wikipedia. No torch here: its tasks import this module."""

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import pyarrow as pa
import ray
import ray.data

from raysts.cluster.connect import quiet_data
from raysts.data.batches import BatchOrder, Share, WindowSlice, iter_batches, read_batches, read_slice
from raysts.data.wikipedia.prepare import Row
from raysts.data.windows import Windows
from raysts.models.tokens import LocalBatch

READ_AHEAD = 2  # windows that tasks read at once; the rest of the corpus stays on disk
FEW = 8  # windows that a run reads itself: processes that do it take seconds to start
SEGMENT = 512  # windows in one plan of Ray Data, which plans a millisecond for each before the first one comes


def read_streamed(
    windows: Windows, order: BatchOrder, start: int, stop: int, rank: int = 0, world: int = 1
) -> Iterator[LocalBatch]:
    """Return the batches of ``read_batches``. Tasks of Ray Data read and permute their windows."""
    slices = list(order.slices(start, stop))
    if len(slices) <= FEW:
        return read_batches(windows, order, start, stop, rank, world)
    return iter_batches(_stream(windows, order.share(rank, world), slices), order, start, stop, rank, world)


def _stream(windows: Windows, share: Share, slices: list[WindowSlice]) -> Iterator[tuple[WindowSlice, pa.Table]]:
    """Yield each slice with its rows, in order. The tasks ask for no CPU: training may hold all of them."""
    quiet_data()
    ray.data.DataContext.get_current().execution_options.preserve_order = True
    shared = [ray.put((windows, share))]  # a task that held them would grow with the corpus
    for first in range(0, len(slices), SEGMENT):
        segment = slices[first : first + SEGMENT]
        units = ray.data.from_items([part._asdict() for part in segment], override_num_blocks=len(segment))
        tables = units.map(_read, fn_args=[shared], num_cpus=0, concurrency=min(READ_AHEAD, len(segment)))
        for part, row in zip(segment, tables.iter_rows(), strict=True):
            yield part, pa.ipc.open_stream(row["table"]).read_all()


def _read(part: dict[str, int], shared: list[Any]) -> dict[str, bytes]:
    """Return the rows of a slice as one value, so that a slice without any is a row too."""
    windows, share = _load(shared[0])
    table = read_slice(windows, share, WindowSlice(**part))
    batch = pa.RecordBatch.from_arrays([column.combine_chunks() for column in table.columns], schema=table.schema)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return {"table": sink.getvalue().to_pybytes()}


@lru_cache(maxsize=1)
def _load(reference: Any) -> Any:
    """Return an object of the cluster, unpacked once per process."""
    return ray.get(reference)


def over_ray(
    function: Callable[..., pa.Table], units: Sequence[Row], arguments: dict[str, Any], block_bytes: int
) -> Iterator[Row]:
    """Yield what ``function`` makes of every unit, a table of one row."""
    quiet_data()
    context = ray.data.DataContext.get_current()
    before = context.target_max_block_size, context.target_min_block_size
    context.target_max_block_size, context.target_min_block_size = block_bytes, 1
    try:
        yield from (
            ray.data.from_items(list(units), override_num_blocks=len(units))
            .map_batches(function, fn_kwargs=arguments, batch_size=1, batch_format="pyarrow")
            .iter_rows()
        )
    finally:
        context.target_max_block_size, context.target_min_block_size = before
