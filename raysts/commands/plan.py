"""``raysts plan``: the steps of a run, their costs, and their states."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

from raysts.commands import options as opt
from raysts.commands.options import Command, Result

if TYPE_CHECKING:
    from raysts.pipeline.plan import Plan


@opt.takes(opt.UserOptions)
def plan(
    recipe: opt.RecipeName,
    overrides: opt.Overrides = None,
    data: opt.Data = None,
    storage: opt.StoragePlace = None,
    *,
    verify: bool = False,
    **options: Unpack[opt.UserOptions],
) -> Plan:
    """Return the checked plan of a pipeline: its steps and their states. Start nothing.

    The arguments are those of :func:`raysts.run`. With ``verify``, artifacts are read in full, and a step with a damaged
    artifact is not done.

    Raises:
        InputError: all problems that would stop the pipeline later, in one message.
    """
    from raysts.commands.context import checked_plan
    from raysts.commands.run_file import open_run
    from raysts.recipes.names import pipeline_of

    subject, settings, opened = open_run(recipe, overrides, data=data, storage=storage, verify=verify, **options)
    return checked_plan(pipeline_of(subject, settings if isinstance(subject, str) else {}), opened)


@opt.takes(opt.UserOptions)
def described(
    recipe: opt.RecipeName,
    overrides: opt.Overrides = None,
    data: opt.Data = None,
    storage: opt.StoragePlace = None,
    *,
    verify: bool = False,
    **options: Unpack[opt.UserOptions],
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
    from raysts.commands.run_file import open_run

    run = open_run(recipe, overrides, data=data, storage=storage, verify=verify, **options)
    from raysts.commands import experiment

    return {"status": "done", **experiment.described(experiment.planned(*run))}


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
