"""What a trial logged, for TensorBoard."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def write_scalars(folder: Path, metrics: Sequence[Mapping[str, Any]]) -> None:
    """Write the numbers of a trial's metrics lines as TensorBoard scalars; nothing where tensorboardX is not installed.

    Args:
        folder: the trial's own log directory.
        metrics: lines of its ``metrics.jsonl``.
    """
    with contextlib.suppress(ImportError):
        from tensorboardX import SummaryWriter

        with SummaryWriter(str(folder)) as writer:
            for line in metrics:
                for name, value in line.items():
                    if name not in ("step", "steps") and isinstance(value, (int, float)):
                        writer.add_scalar(name, value, line["step"])
