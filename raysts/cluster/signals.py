"""How a process that trains learns that it has to end. No torch here: Ray's controller imports it."""

import os
import signal
import threading
from typing import Any

from raysts.cluster.compat import is_drained

END_SECONDS = 15.0
"""A worker that is told to end (SIGTERM) and has not reached the end of a step by then ends all the same."""

SAVE_SECONDS = 4.0
"""How long the others may take to save when a run ends because a worker has died."""

DRAIN_SECONDS = 5.0
"""How often a worker looks whether its node is about to be taken away."""

told_to_end = threading.Event()
"""Set when this worker has got SIGTERM, or its run is about to be ended."""

at_work = threading.Lock()
"""Held by a worker while it trains."""

drained = threading.Event()
"""Set when the node of this worker is about to be taken away."""


def end_on_sigterm() -> None:
    """Have this process end at a step once it is told to."""
    signal.signal(signal.SIGTERM, _sigterm)


def _sigterm(number: int, frame: Any) -> None:
    if not told_to_end.is_set():
        told_to_end.set()
        late = threading.Timer(END_SECONDS, os._exit, [128 + number])
        late.daemon = True
        late.start()


def save() -> None:
    """Wait until this worker has saved and ended its work, for a while."""
    told_to_end.set()
    at_work.acquire(timeout=SAVE_SECONDS)


def watch_node() -> None:
    """Look, as long as this process lives, whether its node is about to be taken away."""
    while not drained.wait(DRAIN_SECONDS):
        if is_drained():
            drained.set()
