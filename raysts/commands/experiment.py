"""The papers' ablations and stability studies: the pipelines of an experiment, one after the other."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import raysts.pipeline.run
from raysts.commands import context as api
from raysts.data.world.generate import tiny_config
from raysts.errors import InputError, RunFailed
from raysts.models import pretrained
from raysts.models.families import family_of
from raysts.pipeline import overlap
from raysts.pipeline.local import Say
from raysts.pipeline.plan import Plan, describe
from raysts.pipeline.validate import TINY
from raysts.recipes import experiments
from raysts.recipes.recipe import Pipeline, name_problem
from raysts.storage.store import location


def pipelines(recipe: str, overrides: Mapping[str, Any] | None, storage: str | Path | None) -> dict[str, Pipeline]:
    """The pipelines of an experiment by point; the backbone may be a run id of the storage."""

    def depth(backbone: str) -> int:
        if backbone == TINY:
            return tiny_config().num_hidden_layers
        config = pretrained.check(api.locate(backbone, api.storage_of(storage)))
        return int(config[family_of(config["model_type"]).depth])

    return experiments.pipelines(recipe, dict(overrides or {}), depth)


def planned(
    recipe: str,
    overrides: Mapping[str, Any] | None,
    data: str | Path | None,
    storage: str | Path | None,
    strict_contamination: bool = False,
    skip_bad: bool = False,
) -> dict[str, Plan]:
    """The checked plans of an experiment by point.

    Raises:
        InputError: anything that would stop one of them later, in one message.
    """
    plans: dict[str, Plan] = {}
    problems: list[str] = []
    for point, made in pipelines(recipe, overrides, storage).items():
        try:
            plans[point] = api.plan(made, None, data, storage, skip_bad)
            if strict_contamination:
                overlap.refuse(plans[point])
        except InputError as error:
            problems += error.problems
    if problems:
        raise InputError(list(dict.fromkeys(problems)))
    return plans


def run(
    recipe: str,
    overrides: Mapping[str, Any] | None = None,
    data: str | Path | None = None,
    storage: str | Path | None = None,
    *,
    name: str | None = None,
    address: str | None = None,
    command: str | None = None,
    strict_contamination: bool = False,
    skip_bad: bool = False,
    say: Say = api.say_on_stderr,
) -> dict[str, Any]:
    """Run the pipelines of an experiment in turn, and write the paper's tables that they fill.

    Each is a run of its own in the storage, ``<name>.<point>``, with its own report. One that fails does not stop the
    others. Arguments as :func:`raysts.run`.

    Returns:
        as :func:`raysts.run`: ``report`` is the page of the tables, ``model`` is None, and the rows of ``results``
        have the experiment and the point as ``study`` and ``trial``, and so have the members ``left_out`` the point.

    Raises:
        InputError: anything that would stop one of them later, in one message; nothing has started.
        RunFailed: some of them failed.
    """
    plans = planned(recipe, overrides, data, storage, strict_contamination, skip_bad)
    own = recipe.partition("@")[0]
    name = name or own
    for point in plans:
        if problem := name_problem(f"{name}.{point}"):
            raise InputError(f"--{problem}")
    folder = api.storage_of(storage)
    api.check_storage(folder)
    shown = command or f"raysts.run({recipe!r}, {dict(overrides or {})!r})"
    rows: list[dict[str, Any]] = []
    gone: list[dict[str, Any]] = []
    failures: list[str] = []
    with api.executor(address, *plans.values()) as chosen:
        for number, (point, plan) in enumerate(plans.items(), start=1):
            say(f"{name}: {point}, {number} of {len(plans)}")
            try:
                found = raysts.pipeline.run.run(plan, chosen, f"{name}.{point}", shown, say)
            except RunFailed as error:
                failures.append(f"{name}.{point}: {error}")
                continue
            rows += [{**row, "study": name, "trial": point} for row in found["results"]]
            gone += [{**each, "trial": point} for each in found["left_out"]]
    report = _report(own, name, folder)
    if failures:
        raise RunFailed("\n".join(failures))
    return {
        "status": "done",
        "storage": location(folder),
        "name": name,
        "model": None,
        "report": str(report),
        "results": rows,
        "left_out": gone,
        "skipped": _skipped(plans),
    }


def _skipped(plans: Mapping[str, Plan]) -> list[dict[str, Any]]:
    """What is left out of any of the plans, once."""
    return list({each["file"]: each for plan in plans.values() for each in plan.skipped}.values())


def _report(experiment: str, name: str, storage: Path) -> Path:
    from raysts.report.paper.data import report_data
    from raysts.report.paper.page import write_report

    found = experiments.EXPERIMENTS[experiment]
    return write_report(report_data(found.paper, storage, found.tables), storage / "reports" / name)


def described(
    recipe: str,
    overrides: Mapping[str, Any] | None = None,
    data: str | Path | None = None,
    storage: str | Path | None = None,
    skip_bad: bool = False,
) -> dict[str, Any]:
    """The plan of an experiment as plain data: every node of its pipelines once."""
    plans = planned(recipe, overrides, data, storage, skip_bad=skip_bad)
    nodes: dict[str, dict[str, Any]] = {}
    for point, plan in plans.items():
        for node in describe(plan)["nodes"]:
            nodes.setdefault(node["id"], {**node, "title": f"{point}: {node['title']}"})
    first = next(iter(plans.values()))
    return {
        "storage": location(first.storage),
        **describe(first, []),
        "name": recipe.partition("@")[0],
        "skipped": _skipped(plans),
        "nodes": list(nodes.values()),
    }
