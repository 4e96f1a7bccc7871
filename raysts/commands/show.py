"""``raysts show``: the resolved tree of a recipe."""

from raysts.commands.options import MAKE, Command, Overrides, RecipeName, Result


def show(recipe: RecipeName, overrides: Overrides = None) -> Result:
    """Print the resolved recipe tree as YAML.

    Returns:
        status, recipe (of an experiment: every pipeline by its label; after a search: search and then), notes (assumptions
        about a backbone that is not on this machine).
    """
    from raysts.papers.experiments import is_experiment
    from raysts.recipes import names
    from raysts.recipes.tree import to_plain

    settings, notes = overrides or {}, list[str]()
    if is_experiment(recipe):
        from raysts.commands import experiment  # late, because a tree needs no such imports

        tree, notes = experiment.shown(recipe, settings)
    else:
        tree = to_plain(names.pipeline_of(recipe, settings))
    return {"status": "done", "recipe": tree, "notes": notes}


def _text(result: Result) -> str:
    import yaml

    notes = "".join(f"# {note}\n" for note in result["notes"])
    return notes + yaml.safe_dump(result["recipe"], sort_keys=False, allow_unicode=True).rstrip()


COMMANDS = (Command("show", show, _text, "raysts show nli-ct-sed --set members=4", MAKE, ("recipe",)),)
