"""Scores of points over their seeds, the two ways to choose among them, and the table that shows both."""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from raysts.evaluation.run_metric import Mode, RunMetric, rank
from raysts.evaluation.standings import aligned
from raysts.search.record import Record
from raysts.search.space import Point, key_of, text_of


@dataclass(frozen=True, slots=True)
class PointScores:
    """The trials of one point. ``seeds``: how many it is to have; ``records``: those that have ended, by seed."""

    seeds: int
    records: Sequence[Record]

    @property
    def point(self) -> Point:
        return self.records[0].point

    @property
    def finished(self) -> list[Record]:
        return [record for record in self.records if record.status == "finished"]

    @property
    def missing(self) -> int:
        return self.seeds - len(self.records)

    @property
    def whole(self) -> bool:
        """Whether every seed trained to its end, so that its mean compares with another whole point's."""
        return len(self.finished) == self.seeds

    @property
    def values(self) -> list[float]:
        return [record.value for record in self.finished if record.value is not None]

    @property
    def mean(self) -> float | None:
        return statistics.fmean(self.values) if self.values else None

    @property
    def score(self) -> float | None:
        """What a sampler learns: the mean of a whole point."""
        return self.mean if self.whole else None

    @property
    def std(self) -> float | None:
        return statistics.stdev(self.values) if len(self.values) > 1 else None

    @property
    def remark(self) -> str:
        parts = []
        stopped = [record for record in self.records if record.status == "stopped"]
        infeasible = [record for record in self.records if record.status == "infeasible"]
        if stopped:
            parts.append(f"{len(stopped)} of {self.seeds} stopped early and not in the mean")
        if infeasible:
            reasons = dict.fromkeys((record.reason or "").split(":")[0] for record in infeasible)
            parts.append(f"{len(infeasible)} of {self.seeds} infeasible ({', '.join(reasons)})")
        if self.missing:
            parts.append(f"{self.missing} of {self.seeds} to come")
        return "; ".join(parts)


def grouped(records: Iterable[Record], seeds: int) -> list[PointScores]:
    """Records by point, in the order in which the points came first; those of seeds from ``seeds`` on are left out."""
    by_point: dict[str, list[Record]] = {}
    for record in records:
        if record.seed < seeds:
            by_point.setdefault(key_of(record.point), []).append(record)
    return [PointScores(seeds, sorted(trials, key=lambda record: record.seed)) for trials in by_point.values()]


def by_mean(scores: Sequence[PointScores], mode: Mode) -> PointScores | None:
    """The point with the best mean over its seeds, of those that have all; where none has, of all. Of equals it is the same
    whichever ended first."""
    whole = [point for point in scores if point.whole] or [point for point in scores if point.values]
    return min(whole, key=lambda point: (-rank(point.mean, mode), key_of(point.point)), default=None)


def by_best_run(scores: Sequence[PointScores], mode: Mode) -> Record | None:
    """The single best trial."""
    finished = [record for point in scores for record in point.finished]
    return min(finished, key=lambda record: (-rank(record.value, mode), record.id), default=None)


def is_better(point: PointScores, other: PointScores, mode: Mode) -> bool:
    """Whether the 95 % t interval of the difference over the seeds that both have lies on the better side of 0; of fewer than
    two seeds nothing is shown."""
    theirs = {record.seed: record.value for record in other.finished}
    pairs = [(record.value, theirs.get(record.seed)) for record in point.finished]
    differences = [a - b for a, b in pairs if a is not None and b is not None]
    if len(differences) < 2:
        return False
    from scipy.special import stdtrit

    gain = statistics.fmean(differences) * (1 if mode == "max" else -1)
    half = stdtrit(len(differences) - 1, 0.975) * statistics.stdev(differences) / math.sqrt(len(differences))
    return bool(gain > half)


def verdict(scores: Sequence[PointScores], mode: Mode, usual: Point) -> str:
    """What the scores show of the chosen point, in a sentence: it may be within noise of others, and not the simplest.
    ``usual``: the recipe's own values of the options: the simplest point changes the fewest of them."""
    best = by_mean(scores, mode)
    others = [point for point in scores if point.values and point is not best]
    if best is None or not others:
        return ""
    n = len(best.values)
    how = f"95 % intervals over seeds, paired; n = {n}" if n > 1 else "one seed a point tests nothing"
    equal = [point for point in others if not is_better(best, point, mode)]
    if not equal:
        return f"On this development set it is better than each of the {len(others)} other points ({how})."
    simplest = min([best, *equal], key=lambda point: (_changed(point.point, usual), _order(point)))
    named = (
        "it is itself the simplest of them"
        if simplest is best
        else f"the simplest of them is {text_of(simplest.point)}"
    )
    return f"It is within noise of {len(equal)} of the {len(others)} other points ({how}): no difference is shown; {named}."


def _changed(point: Point, usual: Point) -> int:
    return sum(value != usual.get(key) for key, value in point.items())


def table(
    scores: Sequence[PointScores], metric: RunMetric, usual: Point, untrained: float | None = None, most: int = 60
) -> str:
    """One line per point, best first beyond ``most`` lines, else in the space's order; what is chosen, and what that shows.

    ``untrained``: what the backbone itself scores.
    """
    mean, best = by_mean(scores, metric.mode), by_best_run(scores, metric.mode)
    shown = sorted(scores, key=_order)
    if len(shown) > most:
        shown = sorted(scores, key=lambda point: -rank(point.mean, metric.mode))[:most]
    several = any(point.seeds > 1 for point in scores)
    head = ["point", metric.label, "std", "best run", "seeds", ""] if several else ["point", metric.label, ""]
    lines = [head]
    for point in shown:
        note = "; ".join(part for part in ("<- chosen" if point is mean else "", point.remark) if part)
        top = max(point.values, key=lambda value: rank(value, metric.mode), default=None)
        cells = [text_of(point.point), metric.text(point.mean)]
        cells += [metric.text(point.std), metric.text(top), f"{len(point.values)}"] if several else []
        lines.append([*cells, note])
    text = aligned(lines, (0, len(head) - 1))
    if len(scores) > len(shown):
        text.append(f"... and {len(scores) - len(shown)} more points")
    if untrained is not None:
        text.append(f"the backbone, before any training: {metric.text(untrained)}")
    if mean is not None:
        text.append(f"by mean over seeds: {text_of(mean.point)} ({metric.text(mean.mean)})")
    if best is not None and several:
        text.append(f"by best run:        {text_of(best.point)} ({metric.text(best.value)}, seed {best.seed})")
    text += [said] if (said := verdict(scores, metric.mode, usual)) else []
    return "\n".join(text)


def _order(point: PointScores) -> tuple[tuple[bool, float, str], ...]:
    def rank(value: object) -> tuple[bool, float, str]:
        number = isinstance(value, (int, float))
        return not number, float(value) if number else 0.0, str(value)  # type: ignore[arg-type]

    return tuple(rank(value) for value in point.point.values())
