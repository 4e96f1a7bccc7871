from __future__ import annotations

import functools
import re
from typing import Any

import pytest

from raysts.errors import InputError
from raysts.papers.experiments import DEPTHS, EXPERIMENTS, SEARCHED, commands, is_experiment, pipelines
from raysts.papers.published import BACKBONES, PrintedValue, load
from raysts.recipes.names import STAGES
from raysts.recipes.recipe import Pipeline
from raysts.search.search import Search, find_search


@functools.cache
def made(recipe: str, depth: int = 12, **overrides: Any) -> dict[str, Pipeline]:
    return pipelines(recipe, {key.replace("__", "."): v for key, v in overrides.items()}, lambda backbone: depth)


def measures(made: Pipeline) -> set[tuple[str, str]]:
    """(system, layers) of every measurement that a pipeline ends with."""
    fitted = {stage: recipe.layers for stage, recipe in made.recipes.items() if stage not in STAGES}
    at = [fitted[stage] for stage in fitted if stage != "sed"] or made.evaluation.layers
    encoders = [("raw", made.evaluation.layers), (made.name, at)]
    members = "-".join(made.stages)
    if made.combine == "sed":
        encoders += [(members, made.evaluation.layers), (f"{members}-ensemble", made.evaluation.layers)]
    if made.combine == "ensemble":
        encoders += [(members, at)]
    return {(system, str(layers)) for system, several in encoders for layers in several}


@functools.cache
def at_paper(experiment: str, scale: str) -> list[tuple[Pipeline, set[tuple[str, str]]]]:
    """Every pipeline of an experiment at a scale of the papers, on the papers' backbones, and what it measures."""
    made = pipelines(f"{experiment}@{scale}", {}, DEPTHS.__getitem__).values()
    return [(one, measures(one)) for one in made]


@pytest.mark.parametrize(("paper", "number"), commands())
def test_every_published_row_is_made_by_the_command_of_its_table(paper: str, number: int) -> None:
    """On the row's backbone, with its settings, at its pooled layers; or the row says why no system makes it."""
    (table,) = [table for table in load(paper).tables if table.number == number]
    if (paper, number) in SEARCHED:
        assert {row.scale for row in table.rows} == {"paper", "paper-text"}
        for row in table.rows:
            found = find_search(f"gausscse@{row.scale}")
            assert (found.pipeline.backbone, found.pipeline.name) == ("bert-base-uncased", row.system)
            assert found.name == {"paper": "gausscse", "paper-text": "gausscse-text"}[row.scale]
            for value in (value for cell in row.cells for value in cell if value):
                searched = dict(set_of(found, value))
                assert len(searched) == 2
                settings = {key: at for key, at in value.settings.items() if key not in searched}
                assert has(found.pipeline, value._replace(settings=settings))
        return
    (experiment,) = [name for name, one in EXPERIMENTS.items() if one.paper == paper and number in one.tables]
    for row in table.rows:
        if row.system is None:
            assert row.unmade and not row.backbone
            continue
        assert row.backbone is not None
        names, pairs = BACKBONES[row.backbone].names, at_paper(experiment, row.scale)
        on = [pair for pair in pairs if re.fullmatch(names, pair[0].backbone.lower())]
        for value in (value for cell in row.cells for value in cell if value):
            for layers in {measure.layers for measure in value.measures}:
                fits = [one for one, there in on if has(one, value) and (row.system, str(layers)) in there]
                assert fits, (row.name, layers, dict(value.settings))


def set_of(search: Search, value: PrintedValue) -> set[tuple[str, Any]]:
    """The settings of a value that a search goes through."""
    space = search.space
    return {(key, at) for key, at in value.settings.items() if key in space and at in (space[key].choices or ())}


def has(pipeline: Pipeline, value: PrintedValue) -> bool:
    found = {}
    for path in value.settings:
        stage, *rest = path.split(".")
        if stage not in pipeline.recipes:
            return False
        found[path] = pipeline.recipes[stage]
        for part in rest:
            found[path] = getattr(found[path], part)
    return {key: list(v) if isinstance(v, tuple) else v for key, v in found.items()} == dict(value.settings)


def test_counts_scales_and_backbones() -> None:
    stability, small = made("sed-stability"), made("sed-stability@small")
    assert {p.members for p in stability.values()} == {10} and {p.members for p in small.values()} == {4}
    assert {p.students for p in stability.values() if p.sed} == {10} and {p.students for p in small.values()} == {4, 1}
    few = made("sed-stability", members=3, students=2)
    assert {(p.members, p.students) for p in few.values()} == {(3, 2), (3, 1)}
    assert {p.members for name, p in made("sed-pooling").items() if name.startswith("flow")} == {1}
    batches = {p.stages["nli"].batch for p in made("sed-pooling", nli__batch=32).values() if "nli" in p.stages}
    assert batches == {32}, "an override holds for the points that have it"
    assert {p.backbone for p in made("latte-settings@paper").values()} == {"bert-base-uncased"}
    assert {p.backbone for p in made("latte-settings@paper", backbone="other").values()} == {"other"}
    assert {p.backbone for p in made("latte-layers@paper", 24).values()} == {"bert-base-uncased", "bert-large-uncased"}
    assert "bert-base-uncased.latte.layers=only-1" in made("latte-layers@paper", 24)
    assert [*made("latte-distances", 0)] == ["latte"] and [*made("latte-distances")] == ["latte", "nli", "nli-latte"]
    with pytest.raises(InputError, match="backbone=words.txt: word vectors"):
        made("gausscse-main", 0, backbone="words.txt")
    searched = pipelines("sed-supervised", {}, lambda backbone: 12, {None: {"sts.settings.lower_bound": 0.55}})
    bounds = {name: one.stages["sts"].settings.lower_bound for name, one in searched.items() if "sts" in one.stages}  # type: ignore[attr-defined]
    assert bounds == {"sts.one-layer": 0.0, "sts-flow": 0.55, "sts-sed": 0.55, "sts-sed-flow": 0.55}
    layers = made("latte-layers", 2)
    assert list(layers) == ["latte.layers=only-1", "latte.layers=only-2", "raw"]
    assert layers["raw"].evaluation.layers == ("only-1", "only-2"), "the words of all layers come from one pass"
    assert [name for name, p in layers.items() if p.evaluation.also] == ["raw"]
    transfer = {name: p.evaluation.probe for name, p in made("sed-main").items() if p.evaluation.also == ("transfer",)}
    assert transfer == dict.fromkeys(("ct-sed", "ct-sed-flow", "nli", "nli-ct-sed", "nli-ct-sed-flow"), "senteval")
    assert made("sed-pooling", 2)["ct-sed"].evaluation.layers == (1, 2)
    assert is_experiment("latte-layers@small") and not is_experiment("latte")


def test_several_backbones() -> None:
    """Of an experiment about claims the second one makes the points of the larger encoder alone."""
    two = pipelines("latte-distances", {"backbone": ["some/a", "b"]}, lambda backbone: 4)
    assert (two["a.latte"].backbone, two["b.latte"].backbone) == ("some/a", "b")
    claims = pipelines("claims-latte-mix", {"backbone": ["a", "b"]}, lambda backbone: 4)
    larger = {label for label, one in claims.items() if one.backbone == "b"}
    assert larger == {"latte.larger", "nli.larger", "nli-latte.larger"}
    at_paper = pipelines("claims-latte-mix@paper", {}, lambda backbone: 4)
    papers = {"latte": "bert-base-uncased", "latte.larger": "bert-large-uncased"}
    assert {label: at_paper[label].backbone for label in papers} == papers
    alone = {label: one for label, one in claims.items() if one.backbone == "a"}
    assert alone == pipelines("claims-latte-mix", {"backbone": "a"}, lambda backbone: 4)


@pytest.mark.whole
def test_tables_of_sed_have_the_labels_of_the_papers_protocol_at_every_scale() -> None:
    for name in (name for name, one in EXPERIMENTS.items() if one.paper == "sed"):
        scales = {scale: [one for one, _ in at_paper(name, scale)] for scale in ("paper", "paper-text")}
        for scale, found in {"": [*made(name).values()], **scales}.items():
            keep = "second" if scale == "paper-text" else "dev"
            assert {p.recipes["ct"].train.keep for p in found if "ct" in p.recipes} == {keep}, (name, scale)


@pytest.mark.parametrize(
    "recipe, overrides, reason",
    [
        ("latte-settings", {"latte.settings.tau": 0.5}, "^latte.settings.tau: is what 'latte-settings' varies"),
        ("latte-layers", {"layers": 2}, "latte.layers: is what 'latte-layers' varies"),
        ("sed-pooling", {"evaluation.layers": [1]}, "^evaluation.layers: is what 'sed-pooling' varies"),
        ("sed-pooling", {"nli.bach": 3}, "^unknown option 'nli.bach'.*'nli.batch'"),
        ("sed-stability", {"students": 0}, "students=0 must be from 1 to 10,000"),
        ("sed-stability@smal", {}, "'smal' is not a scale"),
        ("claims-latte-mix", {"backbone": ["a", "b", "c"]}, "'claims-latte-mix' compares at most 2; name fewer"),
        ("ct@small", {"backbone": ["a", "b"]}, r"'ct@small' takes one; --set space.backbone=a,b searches over them"),
    ],
)
def test_what_is_refused(recipe: str, overrides: dict[str, Any], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        pipelines(recipe, overrides, lambda backbone: 4)
