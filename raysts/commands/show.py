"""``raysts show``: the resolved tree of a recipe."""

from raysts.commands.options import MAKE, Command, Overrides, RecipeName, Result, RunOptions


def show(recipe: RecipeName, overrides: Overrides = None) -> Result:
    """Print the resolved recipe tree as YAML.

    Returns:
        status, recipe: of a recipe that begins with a search that and the system that follows, of an experiment every
        pipeline by its point; notes: what is assumed of a backbone that is not on this machine.
    """
    from raysts.papers.experiments import is_experiment
    from raysts.recipes import names
    from raysts.recipes.tree import to_plain
    from raysts.search.composed import is_composed

    given, notes = overrides or {}, list[str]()
    if is_experiment(recipe):  # what runs something imports for longer than a tree takes
        from raysts.commands import experiment

        tree = to_plain(experiment.pipelines(recipe, given, RunOptions(), unknown=notes))
    elif is_composed(recipe):
        from raysts.commands import composed

        tree = composed.shown(recipe, given)
    else:
        tree = to_plain(names.pipeline_of(recipe, given))
    return {"status": "done", "recipe": tree, "notes": notes}


def _text(result: Result) -> str:
    import yaml

    notes = "".join(f"# {note}\n" for note in result["notes"])
    return notes + yaml.safe_dump(result["recipe"], sort_keys=False, allow_unicode=True).rstrip()


COMMANDS = (Command("show", show, _text, "raysts show nli-ct-sed --set members=4", MAKE, ("recipe",)),)
