from __future__ import annotations

from typing import Any

import pytest

from raysts.errors import InputError
from raysts.recipes.experiments import EXPERIMENTS, is_experiment, pipelines
from raysts.recipes.grammar import STAGES
from raysts.recipes.recipe import Pipeline
from raysts.report.paper.published import Value, load


def made(recipe: str, depth: int = 12, **overrides: Any) -> dict[str, Pipeline]:
    return pipelines(recipe, {key.replace("__", "."): v for key, v in overrides.items()}, lambda backbone: depth)


def measures(found: dict[str, Pipeline]) -> set[tuple[str, str]]:
    """(system, layers) of every measurement that these pipelines end with."""
    pairs: set[tuple[str, str]] = set()
    for each in found.values():
        fitted = {stage: recipe.layers for stage, recipe in each.recipes.items() if stage not in STAGES}
        at = [fitted[stage] for stage in fitted if stage != "sed"] or each.evaluation.layers
        encoders = [("raw", each.evaluation.layers), (each.name, at)]
        if each.combine == "sed":
            members = "-".join(each.stages)
            encoders += [(members, each.evaluation.layers), (f"{members}-ensemble", each.evaluation.layers)]
        if each.combine == "ensemble":
            encoders += [("-".join(each.stages), at)]
        pairs |= {(system, str(layers)) for system, several in encoders for layers in several}
    return pairs


@pytest.mark.parametrize("name", [name for name, experiment in EXPERIMENTS.items() if experiment.paper])
def test_an_experiment_measures_every_system_of_its_tables(name: str) -> None:
    """At the pooled layers of the cell, with the settings of the cell, at the depth of the paper's backbone."""
    experiment = EXPERIMENTS[name]
    for number in experiment.tables:
        (table,) = [table for table in load(experiment.paper).tables if table.number == number]
        found = made(name, 24 if number == 9 else 12)
        there = measures(found)
        for row in table.rows:
            values = [value for cell in row.cells for value in cell if value is not None]
            assert values and row.system is not None
            for value in values:
                layers = {measure.layers for measure in value.measures}
                assert {(row.system, str(each)) for each in layers} <= there, (name, row.name, layers)
                assert any(has(each, value) for each in found.values() if each.name == row.system) or not value.settings


def has(pipeline: Pipeline, value: Value) -> bool:
    found = {}
    for path in value.settings:
        stage, *rest = path.split(".")
        found[path] = pipeline.recipes[stage]
        for part in rest:
            found[path] = getattr(found[path], part)
    return found == dict(value.settings)


def test_counts_scales_and_backbones() -> None:
    stability, small = made("sed-stability"), made("sed-stability@small")
    assert {p.members for p in stability.values()} == {10} and {p.members for p in small.values()} == {4}
    assert {p.students for p in stability.values() if p.sed} == {10} and {p.students for p in small.values()} == {4, 1}
    few = made("sed-stability", members=3, students=2)
    assert {(p.members, p.students) for p in few.values()} == {(3, 2), (3, 1)}
    assert {p.members for name, p in made("sed-pooling").items() if name.startswith("flow")} == {1}
    assert {p.backbone for p in made("latte-settings@paper").values()} == {"bert-base-uncased"}
    assert {p.backbone for p in made("latte-settings@paper", backbone="other").values()} == {"other"}
    assert {p.backbone for p in made("latte-layers@paper", 24).values()} == {"bert-large-uncased"}
    assert list(made("latte-layers", 2)) == ["latte.layers=only-1", "latte.layers=only-2"]
    assert made("sed-pooling", 2)["ct-sed"].evaluation.layers == (1, 2)
    assert is_experiment("latte-layers@small") and not is_experiment("latte")


def test_an_override_holds_for_the_points_that_have_it() -> None:
    found = made("sed-pooling", nli__batch=32, train__max_steps=7)
    assert {p.stages["nli"].batch for p in found.values() if "nli" in p.stages} == {32}
    assert {recipe.train.max_steps for p in found.values() for recipe in p.recipes.values()} == {7}


@pytest.mark.parametrize(
    "recipe, overrides, reason",
    [
        ("latte-settings", {"latte.settings.tau": 0.5}, "^latte.settings.tau: is what 'latte-settings' varies"),
        ("latte-settings", {"settings.tau": 0.5}, "latte.settings.tau: is what 'latte-settings' varies"),
        ("latte-layers", {"layers": 2}, "latte.layers: is what 'latte-layers' varies"),
        ("sed-pooling", {"evaluation.layers": [1]}, "^evaluation.layers: is what 'sed-pooling' varies"),
        ("sed-pooling", {"nli.bach": 3}, "^unknown option 'nli.bach'.*'nli.batch'"),
        ("sed-stability", {"students": 0}, "students=0 must be at least 1"),
        ("sed-stability@smal", {}, "'smal' is no scale"),
    ],
)
def test_what_is_refused(recipe: str, overrides: dict[str, Any], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        pipelines(recipe, overrides, lambda backbone: 4)


def test_the_regimes_of_merging() -> None:
    """Every regime has its members twice: for a student from the start of the members, and for one from their soup."""
    found = made("merge-rules")
    assert len(found) == 18 and len({p.seed for p in found.values()}) == 3
    for name, one in found.items():
        soup = found.get(f"{name}.from-soup")
        if soup is None:
            assert one.student_start == "average" and one.recipes["sed"].train.init == "given"
            continue
        assert (soup.stages, soup.seed, one.student_start, one.deliver) == (one.stages, one.seed, "backbone", "best")
        assert one.recipes["sed"].train.init == one.stages["simcse-sup"].train.init
    assert {p.members for p in made("merge-rules", members=5).values()} == {5}
