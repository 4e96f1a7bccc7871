"""Which trial is next: points as a sampler proposes them, each with all of its seeds, none twice."""

import random
from collections import deque
from collections.abc import Callable, Sequence

from raysts.ids import derive_seed
from raysts.search.record import Record
from raysts.search.sampler import Sampler
from raysts.search.space import Point, grid, key_of, text_of
from raysts.search.study import Study
from raysts.search.trial import Trial, TrialOutcome

REPEATS = 20
"""Proposals in a row that were tried already, after which a point is drawn from those that are left."""


class TrialQueue:
    """Hands out the trials of a study that are left, and takes their outcomes.

    First come the points of earlier sessions that lack seeds, then the grid or the search's first points, then, up to
    ``num_samples``, what the sampler makes of everything that has ended so far. ``earlier``: points and scores of another study
    that the sampler learns from. ``said``: takes the record of a trial that has ended.
    """

    def __init__(
        self,
        study: Study,
        earlier: Sequence[tuple[Point, float]] = (),
        said: Callable[[Record], None] = lambda record: None,
    ) -> None:
        self.study, self.search, self.said = study, study.search, said
        self.ready: deque[Trial] = deque()
        self.running: dict[str, Trial] = {}
        self.failures: list[str] = []
        self._asked = {key_of(point) for point in study.asked}
        self._names: dict[str, str | None] = {}  # points that are being tried, by what the sampler calls them
        self._seeds_left: dict[str, int] = {}

        scored = study.scores()
        done = [scores for scores in scored if not scores.missing]
        begun = [scores.point for scores in scored if scores.missing] + study.asked
        planned = grid(self.search.space) if self.search.num_samples is None else None
        self._tried = {key_of(scores.point) for scores in done}
        waiting = {key_of(point): point for point in (*begun, *(planned or self.search.first))}
        first = [point for key, point in waiting.items() if key not in self._tried]
        if planned is None:
            first = first[: max(0, self.search.points - len(done))]
        self._first = len(first)
        self._new = 0 if planned is not None else max(0, self.search.points - len(done) - len(first))
        # Another seed each time, for the same one would propose the same points again.
        self.sampler = Sampler(self.search, first, derive_seed(study.plan.pipeline.seed, "sampler", len(done)))
        for point, value in earlier:
            self.sampler.add(point, value)
        for scores in done:
            self.sampler.add(scores.point, scores.score)

    @property
    def full(self) -> bool:
        return self.search.concurrency is not None and len(self.running) >= self.search.concurrency

    def next(self) -> Trial | None:
        while not self.ready:
            if not self._ask():
                return None
        trial = self.ready.popleft()
        self.running[trial.id] = trial
        return trial

    def report(self, trial_id: str, value: float, step: int) -> None:
        """A value on the way; where a point is one trial, the sampler sees how far a stopped one came."""
        name = self._names.get(key_of(self.running[trial_id].point))
        if name is not None and self.search.seeds == 1:
            self.sampler.report(name, value, step)

    def done(self, trial_id: str, outcome: TrialOutcome) -> None:
        trial = self.running.pop(trial_id)
        if outcome.status == "failed":
            self.failures.append(f"{text_of(trial.point)} seed {trial.seed}: {outcome.reason}")
            name = self._names.pop(key_of(trial.point), None)
            if name is not None:
                self.sampler.forget(name)
            return
        self.said(self.study.finish(trial, outcome))
        self._ended(trial.point)

    def requeue(self) -> None:
        """Trials that were handed out and have not ended are handed out again."""
        self.ready.extendleft(reversed(self.running.values()))
        self.running.clear()

    # -- points ------------------------------------------------------------------------------------------------------

    def _ask(self) -> bool:
        if not self._first and not self._new:
            return False
        name, point = self._propose()
        if point is None:
            self._first = self._new = 0
            return False
        if self._first:
            self._first -= 1
        else:
            self._new -= 1
        key = key_of(point)
        self._tried.add(key)
        self._names[key] = name
        if self.search.num_samples is not None and key not in self._asked:
            self.study.ask(point)
        trials = [self.study.trial(point, seed) for seed in range(self.search.seeds)]
        to_train = [trial for trial in trials if trial.id not in self.study.records]
        self._seeds_left[key] = len(to_train)
        for trial in to_train:
            record = self.study.reuse_finished(trial)
            if record is None:
                self.ready.append(trial)
            else:
                self.said(record)
                self._ended(point)
        return True

    def _propose(self) -> tuple[str | None, Point | None]:
        """A point that was not tried, and what the sampler calls it; none is left where the space is exhausted."""
        for repeat in range(REPEATS):
            name = f"{len(self._tried)}.{repeat}"
            suggested = self.sampler.suggest(name)
            point = {key: suggested[key] for key in self.search.space}
            if key_of(point) not in self._tried:
                return name, point
            self.sampler.forget(name)
        rest = [point for point in grid(self.search.space) or [] if key_of(point) not in self._tried]
        dice = random.Random(derive_seed(self.study.plan.pipeline.seed, "rest", len(rest)))
        return None, dice.choice(rest) if rest else None

    def _ended(self, point: Point) -> None:
        """One more trial of a point has ended; with the last one the sampler learns its score."""
        key = key_of(point)
        self._seeds_left[key] -= 1
        if self._seeds_left[key] or key not in self._names:
            return
        name = self._names.pop(key)
        scores = self.study.scores_of(point)
        assert scores is not None
        if name is None:
            self.sampler.add(point, scores.score)
        else:
            self.sampler.complete(name, scores.score)
