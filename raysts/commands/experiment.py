"""The papers' ablations and stability studies: the pipelines of an experiment, one after the other."""

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
from raysts.pipeline.plan import Plan, describe
from raysts.recipes import experiments
from raysts.recipes.recipe import Pipeline
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
    """Run the pipelines of an experiment in turn, and write the paper's tables that they fill.

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
    entry = experiments.EXPERIMENTS[experiment]
    report = write_report(report_data(entry.paper, store.root, entry.tables), store.path(f"reports/{name}"))
    if failures:
        raise RunFailed("\n".join(failures))
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
    first = next(iter(plans.values()))
    return {
        "storage": Store.of(first.storage).uri,
        **describe(first, []),
        "name": recipe.partition("@")[0],
        "skipped": _skipped(plans),
        "nodes": list(nodes.values()),
    }
