"""Runs the trials of a search in this process, one after the other."""

from __future__ import annotations

from functools import partial

from raysts.search.attempt import TrialRuntime, attempt
from raysts.search.progress import Progress
from raysts.search.study import Trial
from raysts.search.tasks import Tasks
from raysts.training.runtime import Runtime


def run_here(tasks: Tasks, progress: Progress, threads: int | None, device: str | None = None) -> None:
    """Train what is left.

    Args:
        tasks: hands out the trials.
        progress: draws what trains.
        threads: CPU threads of a trial.
        device: default: the first GPU if there is one.
    """
    while (trial := tasks.next()) is not None:

        def looked(shown: Trial = trial) -> bool:
            progress.running([shown])
            return False  # nothing stops it

        def runtime(run_id: str = trial.id) -> Runtime:
            report = partial(tasks.report, run_id)
            return TrialRuntime(device, threads=threads, report=report, stopped=looked)  # noqa: B023

        tasks.done(trial.id, attempt(trial.job, runtime))
