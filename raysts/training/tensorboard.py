"""Training runs as TensorBoard reads them."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from raysts.storage.store import Store


def write_scalars(
    folder: Path,
    metrics: Sequence[Mapping[str, Any]],
    start: float,
    hparams: Mapping[str, Any] | None = None,
    kept: tuple[int, float] | None = None,
) -> None:
    """Every number of a run at its step and its time; a folder that has these lines already stays as it is.

    Args:
        start: when training began, Unix time.
        hparams: what the run has in the HPARAMS tab.
        kept: step and score by which that tab compares it, as the scalar ``kept``.
    """
    store, lines = Store.of(folder), f".{len(metrics)}-lines"
    if any(path.name.endswith(lines) for path in store.list(folder)):
        return
    from tensorboardX import SummaryWriter
    from tensorboardX.summary import hparams as as_summaries

    with (
        contextlib.ExitStack() as ended,
        store.put_dir(folder) as draft,
        SummaryWriter(str(draft), filename_suffix=lines) as writer,
    ):
        # It would close its file again when Python ends: where the disk is full, with a traceback after the message.
        ended.callback(setattr, writer.file_writer, "event_writer", contextlib.ExitStack())
        for step, when, line in numbers(metrics, start):
            for name, value in line.items():
                writer.add_scalar(name, value, step, walltime=when)
        if hparams is not None:
            for summary in as_summaries(dict(hparams), {"kept": 0.0}):
                writer.file_writer.add_summary(summary)
        if kept is not None:
            writer.add_scalar("kept", kept[1], kept[0])


def numbers(metrics: Sequence[Mapping[str, Any]], start: float) -> Iterator[tuple[int, float, dict[str, float]]]:
    """Step, Unix time and numbers of every line."""
    for line in metrics:
        named = {
            name: float(value)
            for name, value in line.items()
            if name not in ("step", "steps") and type(value) in (int, float)  # a bool is an int, and no number
        }
        yield line["step"], start + line.get("seconds", 0.0), named
