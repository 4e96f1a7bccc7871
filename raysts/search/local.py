"""Execution of the trials of a search in this process, one after another."""

from functools import partial
from typing import Any

from raysts.recipes.recipe import Resources
from raysts.search.progress import SearchProgress
from raysts.search.queue import TrialQueue
from raysts.search.trial import Trial, TrialRuntime, run_trial


def run_locally(queue: TrialQueue, progress: SearchProgress, resources: Resources) -> None:
    """Train the remaining trials."""
    metric = queue.search.objective
    while (trial := queue.next()) is not None:

        def show(shown: Trial = trial) -> bool:
            progress.running([shown])
            return False  # never stop the trial

        def report(value: float, line: dict[str, Any], run_id: str = trial.id) -> None:
            queue.report(run_id, value, line["step"])

        place = partial(TrialRuntime, resources.device, threads=resources.cpus)
        runtime = partial(place, metric=metric, report=report, stopped=show)
        queue.done(trial.id, run_trial(trial.job, metric, runtime))
