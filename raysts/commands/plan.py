"""``raysts plan``: the steps of a run, their costs, and their states."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from raysts.commands import options as opt
from raysts.commands.options import Command, Result, RunOptions

if TYPE_CHECKING:
    from raysts.pipeline.plan import Plan


def plan(
    recipe: opt.RecipeName,
    overrides: opt.Overrides = None,
    data: opt.Data = None,
    storage: opt.StoragePlace = None,
    skip_bad: opt.SkipBad = False,
    verify: bool = False,
    *,
    text: opt.Text = None,
    column: opt.TextColumn = None,
    dev: opt.Dev = None,
    test: opt.Test = None,
) -> Plan:
    """Return the checked plan of a pipeline: its steps and their states. Start nothing.

    The arguments are those of :func:`raysts.run`. With ``verify``, artifacts are read in full, and a step with a damaged
    artifact is not done.

    Raises:
        InputError: all problems that would stop the pipeline later, in one message.
    """
    from raysts.commands.context import checked_plan
    from raysts.recipes.names import pipeline_of

    places = {"text": text, "column": column, "dev": dev, "test": test, "data": data, "storage": storage}
    recipe, settings, options = _open_run(recipe, overrides, places, skip_bad, verify)
    return checked_plan(pipeline_of(recipe, settings), options)


def _open_run(
    recipe: Any, overrides: Mapping[str, Any] | None, places: dict[str, Any], skip_bad: bool, verify: bool
) -> tuple[Any, dict[str, Any], RunOptions]:
    """Return the recipe, the overrides and the options of a plan, with those of its file."""
    from raysts.commands.run_file import read_run
    from raysts.data.user import UserData

    recipe, settings, chosen = read_run(recipe, overrides, **places, name=None)
    user_data = UserData.of(*(chosen[place] for place in ("text", "column", "dev", "test")))
    options = RunOptions(
        chosen["data"], chosen["storage"], chosen["name"], skip_bad=skip_bad, own=user_data, verify=verify
    )
    return recipe, settings, options


def described(
    recipe: opt.RecipeName,
    overrides: opt.Overrides = None,
    data: opt.Data = None,
    storage: opt.StoragePlace = None,
    skip_bad: opt.SkipBad = False,
    verify: bool = False,
    *,
    text: opt.Text = None,
    column: opt.TextColumn = None,
    dev: opt.Dev = None,
    test: opt.Test = None,
) -> Result:
    """Print every step, its cost and what is done. Starts nothing.

    An experiment that begins with a search shows the search, and after its end also the ids of what follows.

    Args:
        verify: read the finished artifacts in full. Quarantine damaged ones, which wait to be made again.

    Returns:
        status, storage, name, backbone (name, id, layers if not all), text (what a text of your own holds), skipped, nodes
        (id, kind, title, status, resources, sentences, needs); of an experiment about claims notes: claims that cannot be
        measured and are not run.
    """
    from raysts.papers.experiments import is_experiment
    from raysts.recipes.names import pipeline_of

    places = {"text": text, "column": column, "dev": dev, "test": test, "data": data, "storage": storage}
    recipe, settings, options = _open_run(recipe, overrides, places, skip_bad, verify)
    # A wrong name is reported before torch is imported.
    subject = recipe if is_experiment(recipe) else pipeline_of(recipe, settings)
    from raysts.commands import experiment

    return {"status": "done", **experiment.described(experiment.planned(subject, settings, options))}


def plan_text(result: Result) -> str:
    """Return the plan as text."""
    from raysts.data.parquet import skipped_line

    backbone = result["backbone"]
    layers = f", layers {', '.join(map(str, backbone['layers']))} of it" if "layers" in backbone else ""
    lines = [f"{result['name']}: backbone {backbone['name']} ({backbone['id']}{layers})"]
    for node in result["nodes"]:
        needs = node["resources"]
        gpus = ", GPU if any" if needs["gpus"] is None else f", {needs['gpus']:g} GPU" if needs["gpus"] else ""
        memory = f", {needs['memory']:g} GB" if needs.get("memory") else ""
        lines.append(
            f"  {node['id']}  {node['status']:<7}  {node['title']:<34}  {node['sentences']:>13,} sentences  "
            f"{needs['workers']:g} x ({needs['cpus']:g} CPU{gpus}{memory})"
        )
    if text := result.get("text"):
        lines.append(
            f"  text {text['name']}: {text['rows']:,} texts; {text['empty']:,} empty rows left out; {text['repeated']:,} rows "
            f"repeat an earlier text; {text['held_out']:,} texts held out"
        )
    lines += map(skipped_line, result["skipped"])
    lines += result.get("notes", [])
    waiting = [node for node in result["nodes"] if node["status"] != "done"]
    sentences = sum(node["sentences"] for node in waiting)
    lines.append(f"{len(result['nodes'])} steps, {len(waiting)} left, {sentences:,} sentences to process")
    return "\n".join(lines)


COMMANDS = (Command("plan", described, plan_text, "raysts plan quickstart", opt.LOOK, ("recipe",)),)
