"""Optuna: proposals of points, importance of options, and the export to its dashboard."""

import contextlib
import datetime
import math
import random
import warnings
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

from raysts.ids import derive_seed
from raysts.search.record import Record
from raysts.search.scores import PointScores
from raysts.search.search import Search
from raysts.search.space import Point, grid, key_of

REPEATS = 20
"""Number of repeated proposals in a row, after which a point is drawn from the untried ones."""


def _optuna() -> Any:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def direction(search: Search) -> Literal["maximize", "minimize"]:
    """Return the direction of a search as Optuna names it."""
    return "maximize" if search.objective.mode == "max" else "minimize"


class Sampler:
    """TPE sampler that proposes the points of ``first`` before its own.

    It draws at random until ten points beyond the preset ones have scores. A point is one trial of Optuna, regardless of
    the number of its seeds.
    """

    def __init__(self, search: Search, first: Sequence[Point], seed: int) -> None:
        optuna = _optuna()
        self.search = search
        self.space = {key: dimension.distribution() for key, dimension in search.space.items()}
        tpe = optuna.samplers.TPESampler(seed=seed % 2**32, n_startup_trials=10 + len(search.first))
        self.study = optuna.create_study(direction=direction(search), sampler=tpe)
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
            self.study.tell(trial, state=_optuna().trial.TrialState.FAIL)
        rest = [point for point in grid(self.search.space) or [] if key_of(point) not in tried]
        dice = random.Random(derive_seed(self.search.pipeline.seed, "rest", len(rest)))
        return dice.choice(rest) if rest else None

    def report(self, point: Point, value: float, step: int) -> None:
        """Add an intermediate value of a proposed point."""
        if (trial := self.trials.get(key_of(point))) is not None:
            trial.report(value, step)

    def complete(self, point: Point, value: float | None) -> None:
        """Add the score of a point. None or NaN ranks below every number."""
        optuna = _optuna()
        bad = value is None or math.isnan(value)
        score, state = (None, optuna.trial.TrialState.PRUNED) if bad else (value, optuna.trial.TrialState.COMPLETE)
        if (trial := self.trials.pop(key_of(point), None)) is not None:
            self.study.tell(trial, score, state)
        else:  # of another session or study
            options = {"params": dict(point), "distributions": self.space}
            self.study.add_trial(optuna.trial.create_trial(value=score, state=state, **options))

    def forget(self, point: Point) -> None:
        """Drop a proposed point without a score."""
        if (trial := self.trials.pop(key_of(point), None)) is not None:
            self.study.tell(trial, state=_optuna().trial.TrialState.FAIL)


def importance(search: Search, scores: Sequence[PointScores]) -> dict[str, float]:
    """Return the share of each option in the variance of the mean scores, largest first.

    The method is PED-ANOVA (Watanabe et al. 2023). The result is empty for a single option, for too few points, and for
    equal scores.
    """
    complete = [point for point in scores if point.whole]
    least = 4 * len(search.space)
    if len(search.space) < 2 or len(complete) < least or len({point.mean for point in complete}) < 2:
        return {}
    optuna = _optuna()
    study = optuna.create_study(direction=direction(search))
    axes = {key: dimension.axis() for key, dimension in search.space.items()}
    for point in complete:
        study.add_trial(optuna.trial.create_trial(value=point.mean, params=point.point, distributions=axes))
    evaluator = optuna.importance.PedAnovaImportanceEvaluator()
    return optuna.importance.get_param_importances(study, evaluator=evaluator)


class View:
    """Export of the records of a study to ``optuna.db``, for Optuna's dashboard.

    No code reads the file, so errors in it are harmless.

    Args:
        search: the search. With more than one seed per point, the seed is an additional parameter.
    """

    def __init__(self, path: Path, name: str, search: Search, say: Callable[[str], None]) -> None:
        from optuna.distributions import IntDistribution

        self.path, self.name, self.say = path, name, say
        self.metric, self.direction = search.objective, direction(search)
        self.axes = {key: dimension.axis() for key, dimension in search.space.items()}
        if search.seeds > 1:
            self.axes["seed"] = IntDistribution(0, search.seeds - 1)
        self.study: Any = None

    def rebuild(self, records: Iterable[Record]) -> None:
        """Replace the content by the records."""
        with self._tolerant():
            try:
                self.study = self._empty()
            except Exception:  # damaged by a kill, or no database
                for path in self.path.parent.glob(f"{self.path.name}*"):
                    path.unlink()
                self.study = self._empty()
            for record in records:
                self._add(record)

    def add(self, record: Record) -> None:
        with self._tolerant():
            self._add(record)

    def _empty(self) -> Any:
        optuna = _optuna()
        storage = optuna.storages.RDBStorage(f"sqlite:///{self.path}")
        with contextlib.suppress(KeyError):
            optuna.delete_study(study_name=self.name, storage=storage)
        study = optuna.create_study(storage=storage, study_name=self.name, direction=self.direction)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            study.set_metric_names([self.metric.name])
        return study

    def _add(self, record: Record) -> None:
        if self.study is None:
            return
        optuna = _optuna()
        states = {"finished": "COMPLETE", "stopped": "PRUNED", "infeasible": "FAIL"}
        trial = optuna.trial.create_trial(
            state=optuna.trial.TrialState[states[record.status]],
            value=record.value if record.status == "finished" else None,
            params={key: value for key, value in {**record.point, "seed": record.seed}.items() if key in self.axes},
            distributions=self.axes,
            user_attrs={"run": record.id, "seed": record.seed, "status": record.status, "reason": record.reason},
            intermediate_values=dict(record.curve),
        )
        trial.datetime_complete = datetime.datetime.fromisoformat(record.finished_at).astimezone().replace(tzinfo=None)
        trial.datetime_start = trial.datetime_complete - datetime.timedelta(seconds=record.seconds or 0.0)
        self.study.add_trial(trial)

    @contextlib.contextmanager
    def _tolerant(self) -> Any:
        try:
            yield
        except Exception as error:
            self.study = None
            self.say(f"{self.path} cannot be written ({type(error).__name__}: {error}); the search does not need it")
