"""Training runs in TensorBoard's format."""

import contextlib
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from raysts.storage.store import Store


def write_scalars(
    folder: Path,
    metrics: Sequence[Mapping[str, Any]],
    start: float,
    hparams: Mapping[str, Any] | None = None,
    selected: tuple[int, float] | None = None,
) -> None:
    """Write every number of a run at its step and time, unless the folder has these lines.

    ``start`` of training is in Unix time. ``hparams`` and ``selected`` (step and score, a scalar) appear in the HPARAMS
    tab.
    """
    store, lines = Store.of(folder), f".{len(metrics)}-lines"
    if any(path.name.endswith(lines) for path in store.list(folder)):
        return
    # Not its SummaryWriter, which writes in a thread, and once more when Python ends: on a full disk, with tracebacks.
    from tensorboardX.event_file_writer import EventsWriter
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.summary import hparams as as_summaries
    from tensorboardX.summary import scalar

    with store.put_dir(folder) as draft, contextlib.closing(EventsWriter(str(draft / "events"), lines)) as writer:
        for line in metrics:
            when = start + line.get("seconds", 0.0)
            for name, value in line.items():
                if name not in ("step", "steps") and type(value) in (int, float):  # a bool is an int, and no number
                    writer.write_event(Event(wall_time=when, step=line["step"], summary=scalar(name, float(value))))
        if hparams is not None:
            for summary in as_summaries(dict(hparams), {"kept": 0.0}):
                writer.write_event(Event(wall_time=time.time(), summary=summary))
        if selected is not None:
            writer.write_event(Event(wall_time=time.time(), step=selected[0], summary=scalar("kept", selected[1])))
