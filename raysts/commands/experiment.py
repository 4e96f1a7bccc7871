"""Experiments, the papers' and our own: their pipelines one after the other, and the report of all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from raysts.commands.context import check_name, checked_plan, executor, locate, run_on, store_of
from raysts.commands.options import Result, RunOptions
from raysts.data.world.backbone import tiny_config
from raysts.errors import InputError, RunFailed
from raysts.models import pretrained
from raysts.models.families import family_of
from raysts.pipeline.inputs import TINY
from raysts.pipeline.nodes.distances import DistancesNode
from raysts.pipeline.plan import Plan, describe
from raysts.recipes import experiments
from raysts.recipes.recipe import Pipeline
from raysts.report.merging import page as merging
from raysts.report.merging.data import merging_data
from raysts.report.paper.data import report_data
from raysts.report.paper.page import write_report
from raysts.storage.store import Store


def pipelines(recipe: str, overrides: Mapping[str, Any], options: RunOptions) -> dict[str, Pipeline]:
    """The pipelines of an experiment by point; the backbone may be a run id of the storage."""

    def depth(backbone: str) -> int:
        if backbone == TINY:
            return tiny_config().num_hidden_layers
        config = pretrained.check(locate(backbone, store_of(options.storage)))
        return int(config[family_of(config["model_type"]).depth])

    return experiments.pipelines(recipe, overrides, depth)


def planned(recipe: str, overrides: Mapping[str, Any], options: RunOptions) -> dict[str, Plan]:
    """The checked plans of an experiment by point.

    Raises:
        InputError: anything that would stop one of them later, in one message.
    """
    plans: dict[str, Plan] = {}
    problems: list[str] = []
    for point, pipeline in pipelines(recipe, overrides, options).items():
        try:
            plans[point] = checked_plan(pipeline, options)
        except InputError as error:
            problems += error.problems
    if problems:
        raise InputError(list(dict.fromkeys(problems)))
    return plans


def run(recipe: str, overrides: Mapping[str, Any], options: RunOptions) -> Result:
    """Run the pipelines of an experiment in turn, and write the tables that they fill: a paper's, or our own.

    Each is a run of its own in the storage, ``<name>.<point>``, with its own report. One that fails does not stop the
    others.

    Raises:
        InputError: anything that would stop one of them later, in one message; nothing has started.
        RunFailed: some of them failed.
    """
    plans = planned(recipe, overrides, options)
    experiment = recipe.partition("@")[0]
    name = options.name or experiment
    for point in plans:
        check_name(f"{name}.{point}")
    store = store_of(options.storage)
    store.check(writes=True)
    rows: list[dict[str, Any]] = []
    left_out: list[dict[str, Any]] = []
    failures: list[str] = []
    with executor(options.address, *plans.values()) as chosen:
        for number, (point, plan) in enumerate(plans.items(), start=1):
            options.say(f"{name}: {point}, {number} of {len(plans)}")
            try:
                result = run_on(chosen, plan, replace(options, name=f"{name}.{point}"))
            except RunFailed as error:
                failures.append(f"{name}.{point}: {error}")
                continue
            rows += [{**row, "study": name, "trial": point} for row in result["results"]]
            left_out += [{**member, "trial": point} for member in result["left_out"]]
        for node in [] if failures else _distances(experiment, plans):
            if not node.is_done(store):
                node.run(chosen, store, options.say)
    entry, folder = experiments.EXPERIMENTS[experiment], store.path(f"reports/{name}")
    if entry.paper:
        report = write_report(report_data(entry.paper, store.root, entry.tables), folder)
    if failures:
        raise RunFailed("\n".join(failures))
    if not entry.paper:
        report = merging.write_report(merging_data(plans, name, options.command or f"raysts run {recipe}"), folder)
    return {
        "status": "done",
        "storage": store.uri,
        "name": name,
        "model": None,
        "report": str(report),
        "results": rows,
        "left_out": left_out,
        "skipped": _skipped(plans),
    }


def _distances(experiment: str, plans: Mapping[str, Plan]) -> list[DistancesNode]:
    """Of an experiment about merging, how far the members of its pipelines are from each other."""
    if experiments.EXPERIMENTS[experiment].paper:
        return []
    found = (DistancesNode.of(plan, plan.members) for plan in plans.values())
    return list({node.id: node for node in found}.values())


def _skipped(plans: Mapping[str, Plan]) -> list[dict[str, Any]]:
    """What is left out of any of the plans, once."""
    return list({shard["file"]: shard for plan in plans.values() for shard in plan.skipped}.values())


def described(recipe: str, overrides: Mapping[str, Any], options: RunOptions) -> dict[str, Any]:
    """The plan of an experiment as plain data: every node of its pipelines once."""
    plans = planned(recipe, overrides, options)
    nodes: dict[str, dict[str, Any]] = {}
    for point, plan in plans.items():
        for node in describe(plan)["nodes"]:
            nodes.setdefault(node["id"], {**node, "title": f"{point}: {node['title']}"})
    for distances in _distances(recipe.partition("@")[0], plans):
        nodes[distances.id] = distances.describe(distances.inputs.store)
    first = next(iter(plans.values()))
    return {
        "storage": Store.of(first.storage).uri,
        **describe(first, []),
        "name": recipe.partition("@")[0],
        "skipped": _skipped(plans),
        "nodes": list(nodes.values()),
    }
