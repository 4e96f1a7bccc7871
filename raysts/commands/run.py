"""``raysts run``: a pipeline or an experiment, to its end."""

from __future__ import annotations

from pathlib import Path
from typing import Unpack

from raysts.commands import options as opt
from raysts.commands.options import Command, Result
from raysts.commands.result import run_text
from raysts.log import screen


@opt.takes(opt.RunGroup)
def run(
    recipe: opt.RecipeName,
    overrides: opt.Overrides = None,
    data: opt.Data = None,
    storage: opt.StoragePlace = None,
    *,
    tasks: opt.Tasks = None,
    **options: Unpack[opt.RunGroup],
) -> Result:
    """Run a pipeline to its end. Finished steps are not repeated.

    Args:
        recipe: a system's name (``nli-ct-sed``), ``quickstart``, a YAML file (:func:`raysts.commands.run_file.read_run`), or a
            pipeline; or the name of an experiment
            (``sed-stability``), which may begin with a search (``sts-grid-sed``). A system with a
            space (``space.optim.lr=1e-5,3e-5``) begins with a search over its members (docs/search.md).
        name: name of the run in the storage (default: the recipe's name).

    Returns:
        status, storage, name, model (path or None), delivered (what ``model`` is, compared with the backbone as distributed:
        :class:`raysts.pipeline.verdict.Delivered`), report (path), results (rows), contamination (one per model and task,
        see ``evaluation.contamination``), notes (contamination and other facts as text: texts that were cut, stages that
        ended below their start), left_out (failed members that ``min_members`` allows: number and reason), skipped (files
        that ``skip_bad`` left out: table, file, rows, reason), and of a distillation teachers: names in tables of teachers,
        by the run ids in their rows (teachers that run ids name are members). After a search also study, best, best_run and
        points, as :func:`raysts.tune`. An experiment has the page of its tables as ``report`` and None as ``model``, and its
        rows and ``left_out`` members name their point.
    """
    from raysts.commands.run_file import open_run

    called = str(recipe) if isinstance(recipe, Path) else getattr(recipe, "name", recipe)
    options.setdefault("command", f"raysts.run({called!r}, {dict(overrides or {})!r})")
    settings = {**(overrides or {}), **({"evaluation.tasks": list(tasks)} if tasks else {})}
    subject, settings, opened = open_run(recipe, settings, data=data, storage=storage, **options)
    from raysts.commands import experiment

    with screen.working():
        return experiment.run(experiment.plan_experiment(subject, settings, opened))


EXAMPLE = "raysts run nli-ct-sed --data DATA --set backbone=bert-base-uncased"
COMMANDS = (Command("run", run, run_text, EXAMPLE, opt.MAKE, ("recipe",)),)
