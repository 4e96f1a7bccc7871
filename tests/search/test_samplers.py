"""Samplers by name, ranges as people write them, the race of seeds, and the Pareto front of two measures."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from raysts.search.record import Record
from raysts.search.sampler import Sampler, importance
from raysts.search.scores import PointScores, front, group_by_point
from raysts.search.search import Search, find_search
from raysts.search.space import Point, contains, key_of

SPACE = {"space.optim.lr": "1e-6..1e-3 log", "space.batch": "8..64"}


def search(**more: Any) -> Search:
    return find_search("simcse-sup", {**SPACE, "num_samples": 24, "backbone": "tiny", **more})


def scored(point: Point, value: float, cost: float | None = None, seed: int = 0) -> Record:
    ended = {"id": f"{sorted(point.items())}{seed}", "finished_at": f"2026-01-01T{seed:02}"}
    return Record(point=point, seed=seed, status="finished", value=value, cost=cost, **ended)


@pytest.mark.parametrize(
    ("name", "sampler_class"),
    [("random", "RandomSampler"), (None, "TPESampler"), ("gp", "GPSampler"), ("two measures", "NSGAIISampler")],
)
def test_every_sampler_proposes_untried_points_and_most_learn(name: str | None, sampler_class: str) -> None:
    """The first point is the given one. Options have conditions, and a choice may be a list."""
    made = find_search("ct-sed", {
        "num_samples": 24, "space.sed.optim.lr": "1e-6..1e-3 log", "space.sed.loss": "mse,similarity",
        "space.sed.bank": "0.1,0.5 if sed.loss=mse", "space.sed.weights": "[1, 1],[2, 1] if sed.loss=similarity",
        **({"cost": "bytes"} if name == "two measures" else {"sampler": name}),
    })  # fmt: skip
    first = {"sed.optim.lr": 1e-6, "sed.settings.loss": "similarity", "sed.settings.weights": [2, 1]}
    sampler, values, tried = Sampler(made.replace(first=(first,)), [first], 3), list[float](), set[str]()
    assert type(sampler.study.sampler).__name__ == sampler_class
    for number in range(24):
        point = sampler.propose(tried)
        assert point is not None and contains(made.space, point) and key_of(point) not in tried
        assert number or point == first
        tried.add(key_of(point))
        values.append(-abs(math.log10(point["sed.optim.lr"]) + 4.5))
        sampler.report(point, values[-1], 1)
        sampler.complete(PointScores(1, [scored(point, values[-1], 1.0, number)]))
    if sampler_class in ("TPESampler", "GPSampler"):
        assert sampler.study.sampler._n_startup_trials == 10 + 1
        assert np.mean(values[16:]) > -0.6, "of points at random it is -0.75"
    again = Sampler(made, [], 4)
    again.complete(PointScores(1, [scored(point, values[-1], 1.0)]))  # a point of another session
    assert again.propose(tried) is not None


def test_a_space_of_whole_numbers_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """More samples than points are all points once; a range of others has as many points as samples. Where the sampler
    repeats itself, the rest of the space comes as the dice fall."""
    made = search(**{"space.optim.lr": "1e-5,1e-4", "space.batch": "8..11"})
    assert made.points == 8 and search(num_samples=3, **{"space.optim.lr": "1e-5", "space.batch": "8..64"}).points == 3
    assert search().points == 24
    every = [(rate, batch) for rate in (1e-5, 1e-4) for batch in range(8, 12)]
    for repeats in (20, 0):
        monkeypatch.setattr("raysts.search.sampler.REPEATS", repeats)
        sampler, found = Sampler(made, [], 3), list[Point]()
        while (point := sampler.propose({key_of(point) for point in found})) is not None:
            found.append(point)
        in_order = [tuple(point.values()) for point in found]
        assert sorted(in_order) == every != in_order


def test_the_front_is_that_of_a_direct_comparison() -> None:
    records = [scored({"x": n}, (7 * n) % 6 / 10, float((5 * n) % 13)) for n in range(12)]
    lacking = [PointScores(2, [scored({"x": 12}, 2.0, -1.0)]), PointScores(1, [scored({"x": 13}, 2.0)])]
    found = [each.point for each in front([*group_by_point(records, 1), *lacking], "max")]  # a seed lacks, and a cost
    by_cost = sorted(records, key=lambda record: record.cost or 0.0)  # which are all different
    direct = [a.point for n, a in enumerate(by_cost) if all(b.value < a.value for b in by_cost[:n])]  # type: ignore[operator]
    assert found == direct and len(found) > 1


def test_importance_has_an_interval() -> None:
    made = search(num_samples=60)
    rate, batch = made.space
    points = [{rate: 10 ** (-6 + n / 20), batch: 8 + (37 * n) % 56} for n in range(60)]
    found = importance(made, group_by_point([scored(p, math.log10(p[rate])) for p in points], 1))
    (first, (share, low, high)), *_ = found.items()
    assert first == rate and low - 0.01 < share < high + 0.01 and share > 0.5


def test_importance_needs_points_that_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    """It leaves a twentieth of its draws out at both ends."""
    made = search(num_samples=60)
    rate, batch = made.space
    every = [scored({rate: 1e-4, batch: 8 + n}, 0.5 + 0.1 * (n > 3)) for n in range(8)]
    shares = iter([{rate: float(n), batch: 0.0} for n in range(40)] + [{rate: 7.0, batch: 0.0}])
    monkeypatch.setattr("optuna.importance.get_param_importances", lambda *_, **__: next(shares))
    assert importance(made, group_by_point(every[:7], 1)) == {}, "four points for each option"
    assert importance(made, group_by_point([replace(each, value=0.5) for each in every], 1)) == {}
    assert importance(search(num_samples=60, **{"space.batch": None}), group_by_point(every, 1)) == {}
    assert importance(made, group_by_point(every, 1)) == {rate: (7.0, 2.0, 37.0), batch: (0.0, 0.0, 0.0)}
