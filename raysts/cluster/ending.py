"""What a worker does when it is told to end. No torch here: Ray Train's controllers import this too."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

from ray.train.v2._internal.execution.callback import WorkerCallback

END_SECONDS = 15.0
"""A worker that is told to end (SIGTERM) and has not reached the end of a step by then ends all the same."""

told_to_end = threading.Event()
"""Set when this worker has got SIGTERM."""


class EndOnSigterm(WorkerCallback):
    """Lets a worker that gets SIGTERM come to the end of its step and save, where Ray ends it at once."""

    def after_init_train_context(self) -> None:
        """In the worker, before it trains."""
        signal.signal(signal.SIGTERM, _told)


def _told(number: int, frame: Any) -> None:
    if not told_to_end.is_set():
        told_to_end.set()
        late = threading.Timer(END_SECONDS, os._exit, [128 + number])
        late.daemon = True
        late.start()
