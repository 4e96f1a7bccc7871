"""The simulation of many slots: its clock, and that the real driver gets to its end on it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from run_commands import plan_of as plan

from raysts.pipeline.executor import LocalExecutor
from raysts.pipeline.run import Driver

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
pytestmark = pytest.mark.skipif(not BENCHMARKS.is_dir(), reason="needs a checkout")


@pytest.fixture(scope="module")
def simulate() -> Iterator[ModuleType]:
    sys.path.insert(0, str(BENCHMARKS))
    import simulate

    yield simulate
    sys.path.remove(str(BENCHMARKS))


def test_deaths_cost_time_and_a_seed_gives_one_result(simulate: ModuleType) -> None:
    def play(seed: int, nodes: float, deaths: float = 0.0) -> float:
        slots = simulate.Slots(20, simulate.Outages(seed, nodes, deaths))
        tasks = iter([simulate.Task(number, 600.0, 10.0) for number in range(200)])
        ended = [task.key for _, task in slots.play(lambda: next(tasks, None))]
        assert sorted(ended) == [*range(200)], "each task ends once, however often it died"
        assert slots.work == pytest.approx(200 * 600)
        assert bool(slots.deaths) == bool(nodes or deaths) == bool(slots.lost)
        assert slots.lost <= 10.0 * slots.deaths, "training loses what came after its last checkpoint"
        return slots.now

    assert play(1, 0) == 6000, "without deaths the slots are always busy"
    assert play(1, 50) == play(1, 50) != play(2, 50)
    assert 6000 < play(1, 10) < play(1, 100)
    assert play(1, 0, deaths=200) > 6000


class Refusing(LocalExecutor):
    """An executor for which nothing may be left to do."""

    def map(self, worker: Any, args: Any, units: Any, resources: Any) -> Iterator[Any]:
        raise AssertionError(worker)

    def train(self, chains: Any, resources: Any) -> list[str | None]:
        raise AssertionError(chains)


def test_the_real_driver_runs_to_its_end_and_finds_all_done(
    simulate: ModuleType, few_world: Path, tmp_path: Path
) -> None:
    changes = {"backbone": "tiny", "members": 2, "evaluation.resamples": 0, "evaluation.tasks": ["stsb"]}
    slots = simulate.Slots(2, simulate.Outages(0, nodes=500, deaths=0))
    executor = simulate.SimulatedExecutor(slots, simulate.Meter())
    simulate.play_run(plan("nli-ct", changes, few_world, tmp_path), executor)
    assert slots.deaths and slots.now > 0
    assert len([*tmp_path.glob("runs/*/model/config.json")]) == 4, "two members of two stages"
    again = plan("nli-ct", changes, few_world, tmp_path)
    assert Driver(again, Refusing(), "simulated", "again").run()["status"] == "done"
