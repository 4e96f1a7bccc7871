"""Commands that look before a run and start nothing: ``recipes``, ``show``, ``plan``, ``schema``."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from collections.abc import Sequence
from typing import Annotated, Any, Unpack

from cyclopts import Parameter

from raysts.commands import options as opt
from raysts.commands.options import LOOK, Command, Result
from raysts.commands.run import DISTILL, flow_text, open_run
from raysts.errors import InputError


def recipes() -> Result:
    """List the named recipes (source, purpose, cost) and the commands of the papers' tables.

    Returns:
        status, recipes, tables (paper, table and the command that fills it).
    """
    from raysts.papers.experiments import EXPERIMENTS, commands
    from raysts.recipes.names import RECIPES

    tables = [{"paper": paper, "table": number, "command": command} for (paper, number), command in commands().items()]
    return {"status": "done", "recipes": [*RECIPES, *EXPERIMENTS], "tables": tables}


def _recipes_text(result: Result) -> str:
    from raysts.evaluation.standings import align_columns
    from raysts.papers.experiments import EXPERIMENTS
    from raysts.recipes.names import RECIPES

    entries = RECIPES | {name: experiment.entry for name, experiment in EXPERIMENTS.items()}
    names = max(map(len, entries)) + 2
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize  # a pipe gets a line per recipe
    lines = [
        textwrap.fill(
            f"{name:<{names}}{e.source}; shows: {e.shows}; cost: {e.cost}", width, subsequent_indent=" " * names
        )
        for name, e in entries.items()
    ]
    lines.append(
        "\nAny stages joined by '-' make a name (nli, ct, sts), then -sed or -ensemble; 'raysts show NAME' prints it."
    )
    lines.append("\nThe papers' tables, each by one command:")
    lines += align_columns(
        [(f"{table['paper']} {table['table']}", table["command"]) for table in result["tables"]], (0, 1)
    )
    return "\n".join(lines)


def show(
    recipe: opt.RecipeName,
    overrides: opt.Overrides = None,
    *,
    yaml: bool = False,
) -> Result:
    """Print the resolved recipe tree as YAML.

    Args:
        yaml: a file for 'raysts run', each option below its meaning.

    Returns:
        status, recipe (of an experiment: every pipeline by its label; after a search: search and then), notes (assumptions
        about a backbone that is not on this machine).
    """
    from raysts.recipes.tree import to_plain

    notes = list[str]()
    recipe, settings, _ = open_run(recipe, overrides)
    if isinstance(recipe, str):
        from raysts.commands import experiment  # late, because a tree needs no such imports

        tree, notes = experiment.show_pipelines(recipe, settings)
    else:
        tree = to_plain(recipe)
        if yaml:
            return {"status": "done", "recipe": tree, "notes": [], "yaml": "\n".join(_comment_lines(recipe))}
    return {"status": "done", "recipe": tree, "notes": notes}


def _comment_lines(tree: Any, pad: str = "") -> list[str]:
    """Return a tree as lines of YAML, each field below its description."""
    from raysts.recipes.tree import Tree, to_plain

    lines = []
    for name, field in type(tree).model_fields.items():
        value = getattr(tree, name)
        lines += textwrap.wrap(field.description or "", 110, initial_indent=f"{pad}# ", subsequent_indent=f"{pad}# ")
        if isinstance(value, Tree):
            lines += [f"{pad}{name}:", *_comment_lines(value, f"{pad}  ")]
        elif value and isinstance(value, dict) and all(isinstance(part, Tree) for part in value.values()):
            lines.append(f"{pad}{name}:")
            for key, part in value.items():
                lines += [f"{pad}  {key}:", *_comment_lines(part, f"{pad}    ")]
        else:
            lines.append(f"{pad}{name}: {flow_text(to_plain(value))}")
    return lines


def _show_text(result: Result) -> str:
    from yaml import safe_dump

    if "yaml" in result:
        return str(result["yaml"])
    notes = "".join(f"# {note}\n" for note in result["notes"])
    return notes + safe_dump(result["recipe"], sort_keys=False, allow_unicode=True).rstrip()


@opt.takes(opt.PlanOptions)
def plan(
    recipe: opt.RecipeName,
    overrides: opt.Overrides = None,
    data: opt.Data = None,
    storage: opt.StoragePlace = None,
    *,
    models: Annotated[Sequence[str], Parameter(metavar="MODEL")] = (),
    slots: Annotated[int | None, Parameter(metavar="N")] = None,
    texts: Annotated[int | None, Parameter(metavar="N")] = None,
    verify: bool = False,
    probe: bool = False,
    price: opt.PriceOption = None,
    **options: Unpack[opt.PlanOptions],
) -> Result:
    """Print every step, its price and what is done. Starts nothing.

    Seconds come from rates that finished steps of this storage have measured on this device, else from assumed ones.

    'raysts plan distill A B --text FILE' shows what 'raysts distill A B --text FILE' does, with its options. An experiment
    that begins with a search shows the search, and after its end also the ids of what follows.

    Args:
        models: teachers of distill, as 'raysts distill' takes them.
        verify: read the finished artifacts in full. Quarantine damaged ones, which wait to be made again.
        slots: devices that work at once (default: those of this machine).
        texts: price the run as if --text had so many texts.
        probe: first measure a few training steps of each stage, in this process, for the rates.

    Returns:
        status, storage, name, backbone (name, id, layers if not all), text (what a text of your own holds), skipped, nodes
        (id, kind, title, status, resources, sentences, bytes that it writes, seconds_expected on one device, seconds that it
        took, needs), price (of what is left: seconds by the clock, device_seconds, bytes, moved, objects, requests, measured:
        the share by measured rates, slots, money); of an experiment about claims notes: claims that cannot be
        measured and are not run.
    """
    arguments: dict[str, Any] = {"data": data, "storage": storage, "verify": verify, "price": price, **options}
    of_teachers = {name: arguments.pop(name, None) for name in opt.TeacherOptions.__annotations__}
    teachers = {name: value for name, value in of_teachers.items() if value is not None}
    named = [*models, *(f"--{name.replace('_', '-')}" for name in teachers)]
    if named and recipe != DISTILL:
        raise InputError(f"plan {recipe}: {named[0]}: only 'plan distill' takes teachers. Remove {', '.join(named)}")
    run = open_run(recipe, {**(overrides or {}), "teachers": models} if models else overrides, **teachers, **arguments)
    from raysts.commands import experiment  # late, because a wrong name needs no torch

    if slots is not None and slots < 1:
        raise InputError(f"--slots {slots}: must be at least 1 device; without it those of this machine count")
    checked = experiment.plan_experiment(*run)
    has_text = any(plan.corpus.text for plan in checked.plans.values())
    if texts is not None and (texts < 1 or not has_text):
        raise InputError(f"--texts {texts}: must be at least 1, and --text must name a sample of the text")
    if probe:
        experiment.probe(checked)
    return {"status": "done", **experiment.describe_experiment(checked, slots, texts)}


def plan_text(result: Result) -> str:
    """Return the plan as text."""
    from raysts.data.checks import skipped_line
    from raysts.evaluation.standings import align_columns
    from raysts.log import duration
    from raysts.pipeline.price import Price

    backbone = result["backbone"]
    layers = f", layers {', '.join(map(str, backbone['layers']))} of it" if "layers" in backbone else ""
    lines = [f"{result['name']}: backbone {backbone['name']} ({backbone['id']}{layers})"]
    rows = []
    for node in result["nodes"]:
        needs = node["resources"]
        gpus = ", GPU if any" if needs["gpus"] is None else ""
        if needs["gpus"]:
            gpus = f", {needs['gpus']:g} GPU"
        memory = f", {needs['memory']:g} GB" if needs.get("memory") else ""
        sentences, seconds = f"{node['sentences']:,} sentences", duration(node["seconds_expected"])
        workers = f"{needs['workers']:g} x ({needs['cpus']:g} CPU{gpus}{memory})"
        rows.append((f"  {node['id']}", node["status"], node["title"], sentences, seconds, workers))
    lines += align_columns(rows, (0, 1, 2, 5))
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
    lines.append(Price(**result["price"]).text)
    return "\n".join(lines)


def schema() -> Result:
    """Print the JSON schema of a recipe file.

    It has every option with its type, bounds, default and description.

    Returns:
        status, schema.
    """
    from raysts.recipes.recipe import Pipeline

    dialect = "https://json-schema.org/draft/2020-12/schema"
    return {"status": "done", "schema": {"$schema": dialect, **Pipeline.model_json_schema()}}


def _schema_text(result: Result) -> str:
    return json.dumps(result["schema"], indent=2, ensure_ascii=False)


COMMANDS = (
    Command("recipes", recipes, _recipes_text, "raysts recipes", LOOK),
    Command("show", show, _show_text, "raysts show nli-ct-sed --set members=4", LOOK, ("recipe",)),
    Command("plan", plan, plan_text, "raysts plan quickstart", LOOK, ("recipe", "models")),
    Command("schema", schema, _schema_text, "raysts schema", LOOK),
)
