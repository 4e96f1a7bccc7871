"""A search without Ray: Optuna proposes points, and trials train in this process, one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from raysts.search.progress import SearchProgress
from raysts.search.queue import METRIC, TrialQueue
from raysts.search.sampler import direction, distributions, tpe
from raysts.search.search import Search
from raysts.search.space import Point
from raysts.search.trial import Trial, TrialRuntime, run_trial


def run_locally(queue: TrialQueue, progress: SearchProgress, threads: int | None, device: str | None = None) -> None:
    """Train what is left.

    Args:
        queue: hands out the trials.
        progress: draws what trains.
        threads: CPU threads of a trial.
        device: default: the first GPU if there is one.
    """
    metric = queue.search.objective
    while (trial := queue.next()) is not None:

        def looked(shown: Trial = trial) -> bool:
            progress.running([shown])
            return False  # nothing stops it

        def report(value: float, line: dict[str, Any], run_id: str = trial.id) -> None:
            queue.report(run_id, value, line["step"])

        runtime = partial(TrialRuntime, device, threads=threads, metric=metric, report=report, stopped=looked)
        queue.done(trial.id, run_trial(trial.job, metric, runtime))


class LocalOptuna:
    """TPE; proposes the points of ``first`` before its own."""

    def __init__(self, search: Search, first: Sequence[Point], seed: int) -> None:
        import optuna

        self.space = distributions(search.space)
        self.study = optuna.create_study(direction=direction(search), sampler=tpe(search, seed))
        for point in first:
            self.study.enqueue_trial(point)
        self.trials: dict[str, Any] = {}

    def suggest(self, trial_id: str) -> dict[str, Any]:
        """The next point."""
        self.trials[trial_id] = self.study.ask(self.space)
        return dict(self.trials[trial_id].params)

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        """A score on the way."""
        self.trials[trial_id].report(result[METRIC], result["training_iteration"])

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """The score of a point."""
        from optuna.trial import TrialState

        value = None if result is None else result[METRIC]
        state = TrialState.FAIL if error else TrialState.PRUNED if value is None else TrialState.COMPLETE
        self.study.tell(self.trials.pop(trial_id), value, state=state)

    def add_evaluated_point(
        self, parameters: dict[str, Any], value: Any, error: bool = False, pruned: bool = False
    ) -> None:
        """A point that was not proposed, and its score."""
        import optuna

        state = optuna.trial.TrialState.PRUNED if pruned else optuna.trial.TrialState.COMPLETE
        trial = optuna.trial.create_trial(
            state=state, value=None if pruned else value, params=parameters, distributions=self.space
        )
        self.study.add_trial(trial)
