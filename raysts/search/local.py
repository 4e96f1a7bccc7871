"""Runs the trials of a search in this process, one after the other."""

from __future__ import annotations

from functools import partial
from typing import Any

from raysts.search.attempt import TrialRuntime, attempt
from raysts.search.progress import Progress
from raysts.search.queue import Tasks
from raysts.search.study import Trial


def run_here(tasks: Tasks, progress: Progress, threads: int | None, device: str | None = None) -> None:
    """Train what is left.

    Args:
        tasks: hands out the trials.
        progress: draws what trains.
        threads: CPU threads of a trial.
        device: default: the first GPU if there is one.
    """
    metric = tasks.search.objective
    while (trial := tasks.next()) is not None:

        def looked(shown: Trial = trial) -> bool:
            progress.running([shown])
            return False  # nothing stops it

        def report(value: float, line: dict[str, Any], run_id: str = trial.id) -> None:
            tasks.report(run_id, value, line["step"])

        runtime = partial(TrialRuntime, device, threads=threads, metric=metric, report=report, stopped=looked)
        tasks.done(trial.id, attempt(trial.job, metric, runtime))
