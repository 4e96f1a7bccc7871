"""Optuna: proposals of points, and the importance of options."""

import math
import random
from collections.abc import Collection, Sequence
from typing import Any, Literal

from raysts.ids import derive_seed
from raysts.search.scores import PointScores
from raysts.search.search import Search
from raysts.search.space import Point, grid, key_of

REPEATS = 20
"""Number of repeated proposals in a row, after which a point is drawn from the untried ones."""


def optuna() -> Any:
    """Return the library, which takes a second to import, without its messages."""
    import optuna as library

    library.logging.set_verbosity(library.logging.WARNING)
    return library


def direction(search: Search) -> Literal["maximize", "minimize"]:
    """Return the direction of a search as Optuna names it."""
    return "maximize" if search.objective.mode == "max" else "minimize"


class Sampler:
    """TPE sampler that proposes the points of ``first`` before its own.

    It draws at random until ten points beyond the preset ones have scores. A point is one trial of Optuna, regardless of
    the number of its seeds.
    """

    def __init__(self, search: Search, first: Sequence[Point], seed: int) -> None:
        library = optuna()
        self.search = search
        self.space = {key: dimension.distribution() for key, dimension in search.space.items()}
        tpe = library.samplers.TPESampler(seed=seed % 2**32, n_startup_trials=10 + len(search.first))
        self.study = library.create_study(direction=direction(search), sampler=tpe)
        for point in first:
            self.study.enqueue_trial(point)
        self.trials: dict[str, Any] = {}  # of proposed points without a score, by point id

    def propose(self, tried: Collection[str]) -> Point | None:
        """Return a point whose id is not among ``tried``, or None if the space has no other."""
        for _ in range(REPEATS):
            trial = self.study.ask(self.space)
            point = {key: trial.params[key] for key in self.space}
            if key_of(point) not in tried:
                self.trials[key_of(point)] = trial
                return point
            self.study.tell(trial, state=optuna().trial.TrialState.FAIL)
        rest = [point for point in grid(self.search.space) or [] if key_of(point) not in tried]
        dice = random.Random(derive_seed(self.search.pipeline.seed, "rest", len(rest)))
        return dice.choice(rest) if rest else None

    def report(self, point: Point, value: float, step: int) -> None:
        """Add an intermediate value of a proposed point."""
        if (trial := self.trials.get(key_of(point))) is not None:
            trial.report(value, step)

    def complete(self, point: Point, value: float | None) -> None:
        """Add the score of a point. None or NaN ranks below every number."""
        library = optuna()
        bad = value is None or math.isnan(value)
        score, state = (None, library.trial.TrialState.PRUNED) if bad else (value, library.trial.TrialState.COMPLETE)
        if (trial := self.trials.pop(key_of(point), None)) is not None:
            self.study.tell(trial, score, state)
        else:  # of another session or study
            options = {"params": dict(point), "distributions": self.space}
            self.study.add_trial(library.trial.create_trial(value=score, state=state, **options))

    def forget(self, point: Point) -> None:
        """Drop a proposed point without a score."""
        if (trial := self.trials.pop(key_of(point), None)) is not None:
            self.study.tell(trial, state=optuna().trial.TrialState.FAIL)


def importance(search: Search, scores: Sequence[PointScores]) -> dict[str, float]:
    """Return the share of each option in the variance of the mean scores, largest first.

    The method is PED-ANOVA (Watanabe et al. 2023). The result is empty for a single option, for too few points, and for
    equal scores.
    """
    complete = [point for point in scores if point.whole]
    least = 4 * len(search.space)
    if len(search.space) < 2 or len(complete) < least or len({point.mean for point in complete}) < 2:
        return {}
    library = optuna()
    study = library.create_study(direction=direction(search))
    axes = {key: dimension.axis() for key, dimension in search.space.items()}
    for point in complete:
        study.add_trial(library.trial.create_trial(value=point.mean, params=point.point, distributions=axes))
    evaluator = library.importance.PedAnovaImportanceEvaluator()
    return library.importance.get_param_importances(study, evaluator=evaluator)
