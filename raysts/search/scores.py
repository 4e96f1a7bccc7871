"""Scores of points over their seeds, two ways to choose a point, and the table of both."""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from raysts.evaluation.dev import Mode, RunMetric, rank
from raysts.evaluation.standings import align_columns
from raysts.search.record import Record
from raysts.search.space import Point, text_of


@dataclass(frozen=True, slots=True)
class PointScores:
    """Trials of one point."""

    seeds: int  # planned number of trials
    records: Sequence[Record]  # of ended trials, by seed

    @property
    def point(self) -> Point:
        return self.records[0].point

    @property
    def key(self) -> str:
        return self.records[0].key

    @property
    def finished_trials(self) -> list[Record]:
        return [record for record in self.records if record.status == "finished"]

    @property
    def missing_seeds(self) -> int:
        return self.seeds - len(self.records)

    @property
    def has_all_seeds(self) -> bool:
        """True if every seed finished, so that the mean compares with that of another whole point."""
        return len(self.finished_trials) == self.seeds

    @property
    def values(self) -> list[float]:
        return [record.value for record in self.finished_trials if record.value is not None]

    @property
    def mean(self) -> float | None:
        return statistics.fmean(self.values) if self.values else None

    @property
    def cost(self) -> float | None:
        """The mean cost of the finished trials, in a search that has one."""
        costs = [record.cost for record in self.finished_trials if record.cost is not None]
        return statistics.fmean(costs) if costs else None

    @property
    def score(self) -> float | None:
        """The score that a sampler learns: the mean of a whole point."""
        return self.mean if self.has_all_seeds else None

    @property
    def std(self) -> float | None:
        return statistics.stdev(self.values) if len(self.values) > 1 else None

    @property
    def remark(self) -> str:
        reasons = [(record.reason or "").split(":")[0] for record in self.records if record.status == "infeasible"]
        raced = sum((record.reason or "").startswith(RACED) for record in self.records)
        counts = {
            "not trained: clearly worse": raced,
            "stopped early and not in the mean": sum(r.status == "stopped" for r in self.records) - raced,
            f"infeasible ({', '.join(dict.fromkeys(reasons))})": len(reasons),
            "to come": self.missing_seeds,
        }
        return "; ".join(f"{count} of {self.seeds} {what}" for what, count in counts.items() if count)


def group_by_point(records: Iterable[Record], seeds: int) -> list[PointScores]:
    """Group records by point, in the order in which the points first ended.

    Records with a seed number of ``seeds`` or more are omitted.
    """
    by_point: dict[str, list[Record]] = {}
    for record in records:
        if record.seed < seeds:
            by_point.setdefault(record.key, []).append(record)
    return [PointScores(seeds, sorted(trials, key=lambda record: record.seed)) for trials in by_point.values()]


def ranked_points(scores: Sequence[PointScores], mode: Mode) -> list[PointScores]:
    """Return the points with all of their seeds, best mean first. Without any, return all points."""
    candidates = [point for point in scores if point.has_all_seeds] or [point for point in scores if point.values]
    return sorted(candidates, key=lambda point: (-rank(point.mean, mode), point.key))


def ranked_trials(records: Iterable[Record], mode: Mode) -> list[Record]:
    """Return the finished trials, best first."""
    finished = [record for record in records if record.status == "finished"]
    return sorted(finished, key=lambda record: (-rank(record.value, mode), record.id))


def best_by_mean(scores: Sequence[PointScores], mode: Mode) -> PointScores | None:
    """Return the point with the best mean over its seeds."""
    return next(iter(ranked_points(scores, mode)), None)


def best_trial(scores: Sequence[PointScores], mode: Mode) -> Record | None:
    """Return the single best trial."""
    return next(iter(ranked_trials((record for point in scores for record in point.records), mode)), None)


def level_with(scores: Sequence[PointScores], mode: Mode) -> list[PointScores]:
    """Return the best point and those that it is not better than (:func:`is_better`)."""
    best = best_by_mean(scores, mode)
    if best is None:
        return []
    rivals = [point for point in scores if point is not best and min(len(point.values), len(best.values)) > 1]
    return [best, *(point for point in rivals if not is_better(best, point, mode))]


def front(scores: Sequence[PointScores], mode: Mode) -> list[PointScores]:
    """Return the Pareto front, cheapest first: points that are better than all cheaper ones."""
    points = [point for point in scores if point.has_all_seeds and point.cost is not None]
    points.sort(key=lambda point: (point.cost or 0.0, -rank(point.mean, mode), point.key))
    cheapest: list[PointScores] = []
    for point in points:
        if not cheapest or rank(point.mean, mode) > rank(cheapest[-1].mean, mode):
            cheapest.append(point)
    return cheapest


RACED = "raced"
"""First word of the reason of a trial that was not trained because its point is clearly worse."""
RACE = (
    "a point whose first two seeds are worse than the same seeds of the best point (one-sided t test of the paired "
    "differences at 95 %, their variance pooled over all points) gets no further seed"
)


def clearly_worse(point: PointScores, scores: Sequence[PointScores], mode: Mode) -> bool:
    """Return True if a point loses the race (``RACE``)."""
    best = best_by_mean(scores, mode)
    if best is None or best.key == point.key:
        return False
    gains = {other.key: _gains(best, other, mode) for other in scores if other is not best}
    variances = [(len(values) - 1, statistics.variance(values)) for values in gains.values() if len(values) > 1]
    if len(tested := gains.get(point.key, [])) < 2:
        return False
    freedom = sum(degrees for degrees, _ in variances)
    pooled = sum(degrees * variance for degrees, variance in variances) / freedom
    return _exceeds_zero(tested, math.sqrt(pooled), freedom, 0.95)


def is_better(point: PointScores, other: PointScores, mode: Mode) -> bool:
    """Return True if the 95 % t interval of the paired difference lies on the better side of 0.

    The pairs are the seeds that both points have. Fewer than two pairs give False.
    """
    gains = _gains(point, other, mode)
    return len(gains) > 1 and _exceeds_zero(gains, statistics.stdev(gains), len(gains) - 1, 0.975)


def _exceeds_zero(values: Sequence[float], std: float, freedom: int, level: float) -> bool:
    """Return True if a t test at this level shows that the mean of values is above 0."""
    from scipy.special import stdtrit

    return bool(statistics.fmean(values) > stdtrit(freedom, level) * std / math.sqrt(len(values)))


def _gains(point: PointScores, other: PointScores, mode: Mode) -> list[float]:
    """Return how much better a point is than another one with each seed that both have."""
    values = {record.seed: record.value for record in point.finished_trials}
    pairs = [(values.get(record.seed), record.value) for record in other.finished_trials]
    return [rank(a, mode) - rank(b, mode) for a, b in pairs if a is not None and b is not None]


def verdict(scores: Sequence[PointScores], mode: Mode, usual: Point) -> str:
    """Return a sentence that compares the chosen point with the other points.

    Of those to which no difference is shown it names the one that changes the fewest of the ``usual`` values.
    """
    best = best_by_mean(scores, mode)
    rivals = [point for point in scores if point.values and point is not best]
    if best is None or not rivals:
        return ""
    if (n := len(best.values)) < 2:
        reason = "Every point has one seed" if best.seeds == 1 else "One seed alone of the chosen point has finished"
        return f"{reason}: no difference between points is tested."
    test = f"95 % intervals over seeds, paired; n = {n}"
    equal = [point for point in rivals if not is_better(best, point, mode)]
    points = "the only other point" if len(rivals) == 1 else f"{len(equal) or 'each'} of the {len(rivals)} other points"
    if not equal:
        return f"On this development set it is better than {points} ({test})."

    def changes(point: PointScores) -> int:
        return sum(value != usual.get(key) for key, value in point.point.items())

    simplest = min([best, *equal], key=lambda point: (changes(point), _order(point)))
    named = f"the simplest of them is {text_of(simplest.point)}"
    if simplest is best:
        named = "the chosen point is the simplest of them"
    return f"No difference from {points} is shown ({test}); {named}."


def table(
    scores: Sequence[PointScores],
    metric: RunMetric,
    usual: Point,
    untrained: float | None = None,
    most: int = 60,
    cost: str | None = None,
) -> str:
    """Return a table of one line per point, the chosen point, and the verdict on it.

    The order is that of the space. Beyond ``most`` points, the table shows the best ones, best first.
    ``untrained`` is the score of the backbone without training, ``cost`` the name of the second measure.
    """
    cheapest = front(scores, metric.mode) if cost else []
    mean, best = best_by_mean(scores, metric.mode), best_trial(scores, metric.mode)
    shown = sorted(scores, key=_order)
    if len(shown) > most:
        shown = sorted(scores, key=lambda point: -rank(point.mean, metric.mode))[:most]
    has_seeds = any(point.seeds > 1 for point in scores)
    head = ["point", metric.label, "std", "best run", "seeds", ""] if has_seeds else ["point", metric.label, ""]
    if cost:
        head.insert(-1, cost)
    lines = [head]
    for point in shown:
        notes = ["<- chosen"] * (point is mean) + ["Pareto front"] * any(point is other for other in cheapest)
        top = max(point.values, key=lambda value: rank(value, metric.mode), default=None)
        cells = [text_of(point.point), metric.text(point.mean)]
        cells += [metric.text(point.std), metric.text(top), f"{len(point.values)}"] if has_seeds else []
        if cost:
            cells.append("-" if point.cost is None else f"{point.cost:,.2f}")
        lines.append([*cells, "; ".join(filter(None, [*notes, point.remark]))])
    text = align_columns(lines, (0, len(head) - 1))
    if len(scores) > len(shown):
        text.append(f"... and {len(scores) - len(shown)} more points")
    if untrained is not None:
        text.append(f"the starting model, before any training: {metric.text(untrained)}")
    if mean is not None:
        begin = "by mean over seeds" if has_seeds else "chosen"
        text.append(f"{begin}: {text_of(mean.point)} ({metric.text(mean.mean)})")
    if best is not None and has_seeds:
        text.append(f"by best run:        {text_of(best.point)} ({metric.text(best.value)}, seed {best.seed})")
    text += [conclusion] if (conclusion := verdict(scores, metric.mode, usual)) else []
    return "\n".join(text)


def _order(point: PointScores) -> tuple[tuple[int, float, str], ...]:
    """Return the place of a point in the order of the space: numbers come before words."""
    values = point.point.values()
    return tuple((0, float(value), "") if isinstance(value, (int, float)) else (1, 0.0, str(value)) for value in values)
