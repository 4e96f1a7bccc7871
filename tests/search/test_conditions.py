"""Options that exist only where another one has a value: the notation, the points, the samplers, and a whole search."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import optuna
import pyarrow.parquet as pq
import pytest
from run_commands import overrides, raysts, result

from raysts.errors import InputError
from raysts.search.search import Search, find_search
from raysts.search.space import Dimension, contains, corners, grid, key_of, sort

LOSS, BANK, WARM = "sed.settings.loss", "sed.settings.bank", "sed.settings.temperature"
SPACE: dict[str, Any] = {
    "space.sed.bank": "0.1,0.5 if sed.loss=mse,cosine",
    "space.sed.temperature": "0.05..0.1 if loss=infonce",
    "space.sed.loss": "mse,cosine,infonce,similarity",
}


def search(**more: Any) -> Search:
    return find_search("ct-sed", {**SPACE, "num_samples": 30, **more})


def test_an_option_exists_where_its_condition_holds() -> None:
    space = search().space
    assert [*space] == [LOSS, BANK, WARM], "an option stands behind that of its condition"
    assert (
        space[BANK].text == "0.1,0.5 if sed.settings.loss=mse,cosine" and Dimension.of(space[BANK].text) == space[BANK]
    )
    assert contains(space, {LOSS: "mse", BANK: 0.5}) and contains(space, {LOSS: "similarity"})
    assert not contains(space, {LOSS: "similarity", BANK: 0.5}) and not contains(space, {LOSS: "mse"})
    ends = {(key, value) for point in corners(space) for key, value in point.items()}
    assert ends == {(key, value) for key, dimension in space.items() for value in dimension.ends}
    assert all(contains(space, point) for point in corners(space))


def test_a_grid_of_nested_conditions_is_that_of_a_direct_enumeration() -> None:
    texts = {"c": "7,8 if b=5", "b": "4,5 if a=x,y", "d": "[1, 2],[2, 1]", "a": "w,x,y"}
    space = sort({key: Dimension.of(text) for key, text in texts.items()})
    direct = {}
    for a, b, c, d in itertools.product("wxy", (4, 5), (7, 8), ([1, 2], [2, 1])):
        point = {"a": a, "d": d} | ({"b": b} if a in "xy" else {}) | ({"c": c} if a in "xy" and b == 5 else {})
        direct[key_of(point)] = point
    points = grid(space)
    assert points and {key_of(point) for point in points} == direct.keys() and len(points) == len(direct) == 14


def test_points_without_conditions_keep_their_ids() -> None:
    assert key_of({"sts.settings.lower_bound": 0.55}) == "182e4ebece0f22cc"
    assert key_of({"gausscse.batch": 64, "gausscse.optim.lr": 1e-05}) == "1d0cc01fc965218f"


@pytest.mark.parametrize(
    ("space", "why"),
    [
        (
            {"space.sed.bank": "0.1,0.5 if sed.loss=mse,msy"},
            "'if sed.settings.loss=mse,msy' must name choices of another option",
        ),
        ({"space.sed.bank": "0.1,0.5 if optim.lr=1e-4"}, "space.optim.lr is not in the space"),
        ({"space.sed.bank": "0.1,0.5 if sed.loss"}, "must be a list of choices"),
        ({"space.sed.bank": "0.1,0.5 if sed.loss=1..3"}, "must name choices of sed.loss, not a range"),
        ({"space.sed.loss": "mse,cosine if sed.bank=0.1"}, "that does not depend on this one"),
        ({"space.sed.loss": None}, "space.sed.loss is not in the space"),
        ({"space.sed.temperature": "0.05,0.1"}, "temperature"),  # refused without its condition
    ],
)
def test_a_condition_that_cannot_hold_is_refused_with_one_message(space: dict[str, Any], why: str) -> None:
    with pytest.raises(InputError) as caught:
        search(**space)
    assert why in str(caught.value) and len({p.partition(":")[0] for p in caught.value.problems}) == 1


def test_a_search_with_a_condition_and_the_latency_of_its_models(
    few_world: Path, tiny_backbone: Path, tmp_path: Path
) -> None:
    settings = {
        "backbone": tiny_backbone, "data.sample": 64,
        "space.backbone_layers": "1,2", "space.optim.lr": "1e-3,1e-2 if backbone_layers=2",
        "cost": "latency", "train.max_steps": 3, "batch": 16, "train.eval_every": 3, "keep": 1,
    }  # fmt: skip
    place = ["--data", few_world, "--storage", tmp_path, "--address", "none"]
    found = result("tune", "simcse-unsup", *place, *overrides(settings))
    rate = "simcse-unsup.optim.lr"
    points = [point["overrides"] for point in found["points"]]
    assert points == [{"backbone_layers": 1}] + [{"backbone_layers": 2, rate: value} for value in (1e-3, 1e-2)]
    assert all(point["cost"] > 0 for point in found["points"]) and found["front"]
    assert pq.read_table(Path(found["study"]) / "trials.parquet")[rate].to_pylist() == [None, 1e-3, 1e-2]
    page = Path(found["report"]).read_text()
    assert "Pareto front" in page and "latency" in page
    trials = optuna.load_study(study_name=found["name"], storage=f"sqlite:///{found['study']}/optuna.db").trials
    assert [trial.values for trial in trials] == [[point["value"], point["cost"]] for point in found["points"]]
    outcome = raysts("tune", "simcse-unsup", *place, *overrides({**settings, "space.optim.lr": "1e-3 if layers=9"}))
    assert outcome.code == 2 and "'if layers=9' must name choices" in outcome.err
