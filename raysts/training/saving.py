"""When a checkpoint is due besides those that the recipe counts in steps: by the clock, or because the end is near.

Whoever is killed every twenty seconds must still get on, however long a step is; and a process that is told of its end
saves what it has. All runs of a stack and all workers of a run save at the same step: they are one decision.
"""

from __future__ import annotations

import time
from enum import IntEnum
from typing import TYPE_CHECKING

from raysts.ops.collective import Vote

if TYPE_CHECKING:
    from raysts.training.loop import Run

FIRST = 3.0
"""Seconds of training after which a process writes its first checkpoint."""

EVERY = 10.0
"""Seconds between checkpoints, unless they are dear."""

DEAR = 20.0
"""Checkpoints by the clock are this many times their own writing apart: they take 5 % of the time at most."""


class Notice(IntEnum):
    """What a process has been told about its future."""

    NONE = 0
    SAVE = 1
    """The machine may go soon: what is not saved may be lost."""
    END = 2
    """This process has to end now."""


class Ended(BaseException):  # noqa: N818
    """Training has stopped at a checkpoint because the process was told to end; not an error of the run."""


class Saving:
    """The decision, step by step, for runs that are trained together."""

    def __init__(self) -> None:
        self._vote = Vote()
        self._heeded = Notice.NONE

    def now(self, runs: list[Run]) -> Notice:
        """What to do after this step; the same on all workers."""
        told = runs[0].runtime.notice()
        mine = told if told > self._heeded else Notice.SAVE if _due(runs[0]) else Notice.NONE
        found = Notice(self._vote(mine, runs[0].runtime.device))
        if found:
            self._heeded = max(told, self._heeded)
        return found


def _due(run: Run) -> bool:
    if run.job.recipe.train.checkpoint_every is not None or run.runtime.rank:
        return False  # the recipe says when; the first worker's clock is the one that counts
    saved_at, seconds = run.saved or (run.resumed, None)
    apart = FIRST if seconds is None else max(EVERY, DEAR * seconds)
    return time.monotonic() - saved_at >= apart
