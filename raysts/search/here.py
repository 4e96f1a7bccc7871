"""Runs the trials of a search in this process, one after the other."""

from __future__ import annotations

from raysts.search.attempt import TrialRuntime, attempt
from raysts.search.progress import Progress
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

        def runtime(run_id: str = trial.id) -> Runtime:
            return TrialRuntime(device, threads=threads, report=lambda line: tasks.report(run_id, line))

        progress.running([trial])
        tasks.done(trial.id, attempt(trial.job, runtime))
