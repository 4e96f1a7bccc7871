"""Queue of the trials of a search.

A sampler proposes points. The queue tries no point twice, and each point with all of its seeds.
"""

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
"""Number of repeated proposals in a row, after which a point is drawn from the untried ones."""


class TrialQueue:
    """Queue of the remaining trials of a study, which takes their outcomes.

    Points of earlier sessions that lack seeds come first, then the grid or the first points of the search. Up to
    ``num_samples``, the sampler then proposes points from all scores so far.

    Args:
        earlier: points and scores of another study that the sampler learns from.
        said: takes the record of a trial that has ended.
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
        self._names: dict[str, str | None] = {}  # the sampler's names of the points on trial
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
        # The seed differs between sessions, because an equal seed would propose the same points again.
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
        """Pass an intermediate value to the sampler.

        Only a point of one trial has such values: the sampler learns how far a stopped trial came.
        """
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
        self._count_end(trial.point)

    def requeue(self) -> None:
        """Put running trials back into the queue, in their order."""
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
                self._count_end(point)
        return True

    def _propose(self) -> tuple[str | None, Point | None]:
        """Return an untried point and the sampler's name for it.

        The point is None if the space is exhausted. A point that the sampler did not propose has no name.
        """
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

    def _count_end(self, point: Point) -> None:
        """Count an ended trial of a point. After the last one, the sampler learns the score."""
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
