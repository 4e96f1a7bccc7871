"""``raysts show``: the resolved tree of a recipe."""

from __future__ import annotations

import textwrap
from typing import Annotated, Any

from raysts.commands.options import LOOK, Command, Overrides, RecipeName, Result, option
from raysts.commands.run_file import flow_text, read_run


def show(
    recipe: RecipeName,
    overrides: Overrides = None,
    *,
    yaml: Annotated[bool, option("a file for 'raysts run', each option below its meaning")] = False,
) -> Result:
    """Print the resolved recipe tree as YAML.

    Returns:
        status, recipe (of an experiment: every pipeline by its label; after a search: search and then), notes (assumptions
        about a backbone that is not on this machine).
    """
    from raysts.papers.experiments import is_experiment
    from raysts.recipes import names
    from raysts.recipes.tree import to_plain

    notes = list[str]()
    recipe, settings, _ = read_run(recipe, overrides)
    if is_experiment(recipe):
        from raysts.commands import experiment  # late, because a tree needs no such imports

        tree, notes = experiment.shown(recipe, settings)
    else:
        pipeline = names.pipeline_of(recipe, settings)
        tree = to_plain(pipeline)
        if yaml:
            return {"status": "done", "recipe": tree, "notes": [], "yaml": "\n".join(_comment_lines(pipeline))}
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


def _text(result: Result) -> str:
    import yaml

    if "yaml" in result:
        return str(result["yaml"])
    notes = "".join(f"# {note}\n" for note in result["notes"])
    return notes + yaml.safe_dump(result["recipe"], sort_keys=False, allow_unicode=True).rstrip()


COMMANDS = (Command("show", show, _text, "raysts show nli-ct-sed --set members=4", LOOK, ("recipe",)),)
