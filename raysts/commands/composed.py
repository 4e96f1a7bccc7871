"""Recipes that begin with a search: the search, its best point, and the system with it."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from raysts.commands.context import checked_plan, run_plan
from raysts.commands.options import Result, RunOptions
from raysts.commands.study import planned, run_study
from raysts.pipeline.plan import describe
from raysts.pipeline.steps.tokens import tokens_step
from raysts.recipes.names import pipeline_of
from raysts.recipes.recipe import Pipeline
from raysts.recipes.tree import to_plain
from raysts.search import named, scores
from raysts.search.composed import COMPOSED, Composed
from raysts.search.search import OWN
from raysts.search.space import Point, grid, text_of
from raysts.search.study import Study

_OF_THE_SYSTEM = ("members", "sed", "evaluation", "student_pooling", "student_start", "select_top", "combine",
    "deliver", "routes")  # fmt: skip
"""Options of a pipeline about the use of trained members, which a trial does not need."""


def run(recipe: str, overrides: Mapping[str, Any], options: RunOptions) -> Result:
    """Run the search, then the system with the point of the best mean over seeds."""
    entry, search, system = _parts(recipe)
    name = options.name or system.name
    before, after = split_overrides(overrides)
    checked_plan(pipeline_of(system, after), options)  # check both halves before the first one starts
    options = replace(options, name=name)
    study = run_study(planned(search, before, options), options)
    options.say(study["table"])
    options.say(f"{name}: {text_of(study['best']['overrides'])}, then {entry.then}")
    chosen = pipeline_of(system, {**after, **entry.overrides(study["best"]["overrides"])})
    result = run_plan(checked_plan(chosen, replace(options, strict_contamination=False)), options)
    return {**result, **{key: study[key] for key in ("study", "best", "best_run", "points")}}


def described(recipe: str, overrides: Mapping[str, Any], options: RunOptions) -> dict[str, Any]:
    """Return the plan of the search and of the system, with the best point once it is known."""
    entry, search, system = _parts(recipe)
    before, after = split_overrides(overrides)
    study = planned(search, before, replace(options, name=system.name))
    result, best = described_search(study)
    chosen = {**after, **(entry.overrides(best) if best else {})}
    ids = {node["id"] for node in result["nodes"]}
    later = [
        node for node in describe(checked_plan(pipeline_of(system, chosen), options))["nodes"] if node["id"] not in ids
    ]
    if best is None:
        later = undecided(later)
    return {"storage": study.store.uri, **result, "name": system.name, "nodes": [*result["nodes"], *later]}


def described_search(study: Study) -> tuple[dict[str, Any], Point | None]:
    """Return the plan of a search as plain data, and its best point, or None before its end."""
    study.read()
    steps = [tokens_step(study.plan, spec) for spec in study.plan.specs.values()]
    for point in grid(study.search.space) or []:
        for seed in range(study.search.seeds):
            steps.append(replace(study.step(point, seed), title=f"{text_of(point)} seed {seed}"))
    result = describe(study.plan, steps)
    for node in result["nodes"]:
        node["status"] = "done" if node["id"] in study.records else node["status"]
    best = scores.by_mean(study.scores(), study.search.objective.mode) if study.complete else None
    return result, best.point if best else None


def undecided(nodes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the nodes after an unfinished search with placeholders for their ids.

    Their costs are known, their ids are not.
    """
    return [{**node, "id": f"(after the grid) {i}", "needs": []} for i, node in enumerate(nodes)]


def shown(recipe: str, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return the search and the system that follows as plain data."""
    _, search, system = _parts(recipe)
    before, after = split_overrides(overrides)
    resolved = named.search(search, before)
    space = {key: dimension.text for key, dimension in resolved.space.items()}
    return {"search": {**to_plain(resolved), "space": space}, "then": to_plain(pipeline_of(system, after))}


def split_overrides(overrides: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split overrides into those of the search and those of the system. Most apply to both."""
    of_system = {key for key in overrides if key.split(".")[0] in _OF_THE_SYSTEM}
    of_search = {key for key in overrides if key in OWN or key.split(".")[0] in ("space", "asha")}
    return (
        {key: value for key, value in overrides.items() if key not in of_system},
        {key: value for key, value in overrides.items() if key not in of_search},
    )


def _parts(recipe: str) -> tuple[Composed, str, Pipeline]:
    name, separator, scale = recipe.partition("@")
    entry = COMPOSED[name]
    return (
        entry,
        f"{entry.search}{separator}{scale}",
        pipeline_of(f"{entry.system}{separator}{scale}", None).updated(name=name),
    )
