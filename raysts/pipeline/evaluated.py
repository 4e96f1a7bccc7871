"""What an evaluation of several models has come to: kept model by model, so that one that is killed goes on.

``evaluations/<id>/`` holds the rows of every model that is done (``model-000.parquet``, written last) and the sum of the
members' vectors up to it (``sums-001.npz``), from which their ensemble is made. It goes when the results are written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from raysts.models.layers import Layers, as_layers
from raysts.schema import RESULTS
from raysts.storage.atomic import remove_drafts
from raysts.storage.manifests import remove
from raysts.storage.store import aside, need

Row = dict[str, Any]
Sums = dict[Layers, np.ndarray]
"""Per choice of layers the sum of vectors, float32 [N, D]."""


class Evaluated:
    """The models of one evaluation that are done: the first :attr:`count` of them, in order."""

    def __init__(self, storage: Path, node: str) -> None:
        self.folder = storage / "evaluations" / node
        self.rows: list[Row] = []
        self.sums: Sums = {}
        self.count = 0
        remove_drafts(self.folder)
        parts: list[Path] = []
        while part := self._here(f"model-{len(parts):03d}.parquet"):
            parts.append(part)
        if sums := self._here(_sums(len(parts))):  # without it these models would be missing in the ensemble
            self.count = len(parts)
            self.rows = [row for part in parts for row in pq.ParquetFile(part).read().to_pylist()]
            with np.load(sums) as found:
                self.sums = {as_layers(name): found[name] for name in found.files}

    def add(self, rows: Sequence[Mapping[str, Any]], vectors: Mapping[Layers, np.ndarray]) -> None:
        """Keep the rows of the next model, and add its vectors (those of a member of the ensemble; else none)."""
        for layers, values in vectors.items():
            self.sums[layers] = self.sums.get(layers, np.float32(0)) + values
        totals: dict[str, Any] = {str(layers): total for layers, total in self.sums.items()}
        with aside(self.folder / _sums(self.count + 1)) as draft, draft.open("wb") as file:
            np.savez(file, **totals)
        with aside(self.folder / f"model-{self.count:03d}.parquet") as draft:
            pq.write_table(pa.Table.from_pylist([dict(row) for row in rows], schema=RESULTS), draft)
        self.rows += [dict(row) for row in rows]
        self.count += 1
        (self.folder / _sums(self.count - 1)).unlink(missing_ok=True)

    def close(self) -> None:
        """The results are written: forget the parts."""
        remove(self.folder)

    def _here(self, name: str) -> Path | None:
        need(self.folder / name)
        return self.folder / name if (self.folder / name).exists() else None


def _sums(models: int) -> str:
    """Name of the file with the sums over the first ``models`` models."""
    return f"sums-{models:03d}.npz"
