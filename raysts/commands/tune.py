"""``raysts tune``: a search, to its end."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Unpack

from cyclopts import Parameter

from raysts.commands import options as opt
from raysts.commands.options import Command, Result, RunOptions, option
from raysts.errors import InputError

if TYPE_CHECKING:
    from raysts.search.search import Search

    SearchName = str | Search
else:
    SearchName = Annotated[
        str,
        option(
            "lower-bound, latte-mix or gausscse; or any system that ends in one training run, or its YAML file, with a space "
            "of yours; or distill, with teachers",
            "NAME",
        ),
    ]


@opt.takes(opt.SearchOptions)
def tune(
    search: SearchName,
    overrides: opt.Overrides = None,
    data: opt.Data = None,
    storage: opt.StoragePlace = None,
    *,
    models: Annotated[Sequence[str], Parameter(metavar="MODEL")] = (),
    warm_start: Annotated[str | None, Parameter(metavar="STUDY")] = None,
    **options: Unpack[opt.SearchOptions],
) -> Result:
    """Search options on Ray Tune with Optuna. The same command continues a stopped search.

    Options of the search itself, by --set: seeds=3, num_samples=40, concurrency=2, keep=5 (models that stay, of the best
    trials, or with by=point of the best points), resources.gpus=0.25, metric=pearson (what trials are compared by: a dev
    score, or loss), sampler=tpe (grid, random, tpe, gp, nsga2), asha=true, asha.grace=0.3 or median=true (early stopping),
    race=true (no third seed of a point that is clearly worse), cost=seconds, cost=bytes or cost=latency (a second measure,
    with its Pareto front), and its space: space.optim.lr='1e-6..1e-4 log', space.batch=16..64, space.lower_bound=0,0.25,0.5,
    space.sed.bank='0.1,1 if sed.loss=cosine' (where the loss is that). A system has only the space in the options: raysts
    tune simcse-sup --set space.batch=32,64 --set space.optim.lr='1e-6..1e-4 log' --set num_samples=20

    A system may have several stages, and distil a student. The last training run is measured. What all points have in common
    is trained once: raysts tune nli-ct --set space.ct.optim.lr=1e-5,3e-5 trains its nli stage once for each seed. A search
    over students is raysts tune distill A B --text FILE --set space.sed.optim.lr=1e-4,5e-4; without labels it goes by
    agreement with the teachers on held-out text.

    Args:
        models: teachers of distill, as 'raysts distill' takes them.
        warm_start: learn from the points of this earlier study (searches that sample).

    Returns:
        status, storage, name, study (path), report (path), metric, mode (``max`` or ``min``), trials (number that
        finished), best (overrides, value: the point with the best mean over its seeds), best_run (overrides, seed,
        value), points (overrides, seed, value, status, run: one per trial that has ended; with a cost also that), front (with a
        cost: the points of the Pareto front, cheapest first), untrained (the value of the
        untrained backbone, if measured), table and next (text), skipped (as :func:`raysts.run`).

    Raises:
        InputError: a problem that would stop the search later, or a study of this name from another search.
        RunFailed: trials failed for reasons outside their points, or none finished.
    """
    from raysts.commands.distill import student_search
    from raysts.commands.run import DISTILL, read_run, take_teachers
    from raysts.commands.study import plan_study, run_study

    options.setdefault("command", f"raysts.tune({getattr(search, 'name', search)!r}, {dict(overrides or {})!r})")
    search, settings, places = read_run(search, overrides, data=data, storage=storage, **options)
    opened = RunOptions.from_arguments(**places)
    if search == DISTILL:
        search = student_search([*models, *take_teachers(settings)], settings, opened)
    elif models:
        raise InputError(f"tune {search}: {models[0]}: only 'tune distill' takes teachers. Remove the MODEL arguments")
    return run_study(plan_study(search, settings, opened), opened, warm_start=warm_start)


def _text(result: Result) -> str:
    lines = [result.pop("table"), f"study:  {result['study']}", f"report: {result['report']}"]
    database, curves = (shlex.quote(f"{place}/") for place in (f"sqlite:///{result['study']}", result["study"]))
    lines.append(f"dashboard: optuna-dashboard {database}optuna.db")
    lines.append(f"scalars: tensorboard --logdir {curves}tensorboard")
    lines.append(f"next:   {result.pop('next')}")
    return "\n".join(lines)


EXAMPLE = "raysts tune lower-bound --data DATA --set backbone=bert-base-uncased --set seeds=3"
COMMANDS = (Command("tune", tune, _text, EXAMPLE, opt.MAKE, ("search", "models")),)
