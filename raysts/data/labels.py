"""Class labels, given as strings or as integer codes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


def label_codes(values: pa.ChunkedArray | pa.Array, labels: Sequence[str]) -> np.ndarray:
    """Class labels given as strings or as integer codes -> int64 codes; -1 where a label is unknown."""
    if pa.types.is_dictionary(values.type):
        values = pc.cast(values, values.type.value_type)
    if pa.types.is_integer(values.type):
        values = values.cast(pa.int64())  # unsigned types have no -1
        codes = np.asarray(
            pc.fill_null(values, -1).to_numpy(zero_copy_only=False)
            if isinstance(values, pa.Array)
            else pc.fill_null(values, -1).to_numpy(),
            dtype=np.int64,
        )
        return np.where((codes >= 0) & (codes < len(labels)), codes, -1)
    index = pc.index_in(pc.utf8_lower(pc.cast(values, pa.string())), value_set=pa.array(labels))
    return np.asarray(
        pc.fill_null(index, -1).to_numpy(zero_copy_only=False)
        if isinstance(index, pa.Array)
        else pc.fill_null(index, -1).to_numpy(),
        dtype=np.int64,
    )
