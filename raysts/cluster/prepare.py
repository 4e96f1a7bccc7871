"""Units of work of ``raysts.data.wikipedia.prepare`` on a cluster, with Ray Data."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import ray.data

from raysts.cluster.connect import quiet_data
from raysts.data.wikipedia.prepare import Row


def over_ray(
    function: Callable[..., pa.Table], units: Sequence[Row], arguments: dict[str, Any], block_bytes: int
) -> Iterator[Row]:
    """What ``function`` makes of every unit, a table of one row; Ray must be initialised."""
    quiet_data()
    context = ray.data.DataContext.get_current()
    before = context.target_max_block_size, context.target_min_block_size
    context.target_max_block_size, context.target_min_block_size = block_bytes, 1
    try:
        made = ray.data.from_items(list(units), override_num_blocks=len(units)).map_batches(
            function, fn_kwargs=arguments, batch_size=1, batch_format="pyarrow"
        )
        yield from made.iter_rows()
    finally:
        context.target_max_block_size, context.target_min_block_size = before
