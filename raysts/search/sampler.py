"""Optuna: proposals of points, and the importance of options."""

import math
import random
import warnings
from collections.abc import Collection, Sequence
from typing import Any, Literal

from raysts.ids import derive_seed
from raysts.search.scores import PointScores
from raysts.search.search import MOST_TRIALS, Search
from raysts.search.space import Point, as_stored, grid, key_of

DRAWS = 40
"""Bootstrap samples of the points, for the interval of an importance."""
REPEATS = 20
"""Number of repeated proposals in a row, after which a point is drawn from the untried ones."""


def optuna() -> Any:
    """Return the library, which takes a second to import, without its messages."""
    import optuna as library

    library.logging.set_verbosity(library.logging.WARNING)
    return library


Direction = Literal["maximize", "minimize"]


def directions(search: Search) -> list[Direction]:
    """Return the directions of a search as Optuna names them: of its metric, and of its cost, if any."""
    first: Direction = "maximize" if search.objective.mode == "max" else "minimize"
    return [first, "minimize"] if search.cost else [first]


class Sampler:
    """Sampler of a search, which proposes the points of ``first`` before its own.

    TPE and GP draw at random until ten points beyond the preset ones have scores. A point is one trial of Optuna, regardless
    of the number of its seeds. With a cost it has two values, the second of them minimised.
    """

    def __init__(self, search: Search, first: Sequence[Point], seed: int) -> None:
        library = optuna()
        self.search = search
        startup, samplers = 10 + len(search.first), library.samplers
        samplers_by_name = {
            "tpe": lambda **seeded: samplers.TPESampler(n_startup_trials=startup, **seeded),
            "gp": lambda **seeded: samplers.GPSampler(n_startup_trials=startup, **seeded),
            "nsga2": lambda **seeded: samplers.NSGAIISampler(population_size=max(4, search.points // 5), **seeded),
            "random": samplers.RandomSampler,
        }
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", library.exceptions.ExperimentalWarning)
            sampler = samplers_by_name[search.sampler or ("nsga2" if search.cost else "tpe")](seed=seed % 2**32)
        self.study = library.create_study(directions=directions(search), sampler=sampler)
        for point in first:
            self.study.enqueue_trial(as_stored(search.space, point))
        self.trials: dict[str, Any] = {}  # of proposed points without a score, by point id

    def propose(self, tried: Collection[str]) -> Point | None:
        """Return a point that is not among ``tried``, or None if the space has no other."""
        for _ in range(REPEATS):
            trial, point = self.study.ask(), Point()
            for key, dimension in self.search.space.items():
                if dimension.applies(point):
                    point[key] = dimension.suggest(trial, key)
            if key_of(point) not in tried:
                self.trials[key_of(point)] = trial
                return point
            self.study.tell(trial, state=optuna().trial.TrialState.FAIL)
        dice = random.Random(derive_seed(self.search.pipeline.seed, "rest", len(tried)))
        drawn = {key: dimension.draw(dice) for key, dimension in self.search.space.items()}
        points = grid(self.search.space, most=MOST_TRIALS) or grid(drawn) or []
        rest = [point for point in points if key_of(point) not in tried]
        return dice.choice(rest) if rest else None

    def report(self, point: Point, value: float, step: int) -> None:
        if (trial := self.trials.get(key_of(point))) is not None and not self.search.cost:
            trial.report(value, step)

    def complete(self, scores: PointScores) -> None:
        """Add the score of a point, and its cost if the search has one. None or NaN ranks below every number."""
        states, point = optuna().trial.TrialState, scores.point
        values = [scores.score, scores.cost][: len(directions(self.search))]
        bad = any(value is None or math.isnan(value) for value in values)
        without_value = states.FAIL if self.search.cost else states.PRUNED
        state = without_value if bad else states.COMPLETE
        if (trial := self.trials.pop(key_of(point), None)) is not None:
            self.study.tell(trial, None if bad else values, state)
        else:  # of another session or study
            axes = {key: self.search.space[key].distribution() for key in point}
            has_curve = scores.seeds == 1 and not self.search.cost  # as `report` had it
            options = {
                "intermediate_values": dict(scores.records[0].curve) if has_curve else None,
                "params": as_stored(self.search.space, point),
                "distributions": axes,
                "values": None if bad else values,
            }
            self.study.add_trial(optuna().trial.create_trial(state=state, **options))

    def forget(self, point: Point) -> None:
        if (trial := self.trials.pop(key_of(point), None)) is not None:
            self.study.tell(trial, state=optuna().trial.TrialState.FAIL)


def importance(search: Search, scores: Sequence[PointScores]) -> dict[str, tuple[float, float, float]]:
    """Return the share of each option in the variance of the scores, with its 90 % interval.

    The method is PED-ANOVA (Watanabe et al. 2023), the interval that of ``DRAWS`` bootstrap samples of the points. The result
    is empty for a single option, for too few points, and for equal scores.
    """
    complete = [point for point in scores if point.has_all_seeds]
    least = 4 * len(search.space)
    if len(search.space) < 2 or len(complete) < least or len({point.mean for point in complete}) < 2:
        return {}
    library = optuna()
    axes = {key: dimension.axis() for key, dimension in search.space.items()}
    points = [(as_stored(search.space, point.point), point.mean) for point in complete]
    trials = [
        library.trial.create_trial(value=mean, params=point, distributions={key: axes[key] for key in point})
        for point, mean in points
    ]

    def shares(drawn: Sequence[Any]) -> dict[str, float]:
        study = library.create_study(direction=directions(search)[0])
        study.add_trials(drawn)
        return library.importance.get_param_importances(
            study, evaluator=library.importance.PedAnovaImportanceEvaluator()
        )

    dice, drawn = random.Random(0), list[dict[str, float]]()
    while len(drawn) < DRAWS:
        sample = dice.choices(trials, k=len(trials))
        if len({trial.value for trial in sample}) > 1:
            drawn.append(shares(sample))
    low, high = round(0.05 * DRAWS), round(0.95 * DRAWS) - 1
    of_key = {key: sorted(shares_of.get(key, 0.0) for shares_of in drawn) for key in axes}
    return {key: (share, of_key[key][low], of_key[key][high]) for key, share in shares(trials).items()}
