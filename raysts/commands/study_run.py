"""Recipes of more than one pipeline from Python, and what is made of a study's best: ``distill --from-study``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeGuard

from raysts.commands import context as api
from raysts.commands import experiment as api_experiment
from raysts.commands.tune import planned, study_record, tune
from raysts.errors import InputError
from raysts.evaluation.run_metric import rank
from raysts.pipeline import overlap
from raysts.pipeline.plan import describe
from raysts.recipes import names
from raysts.recipes.experiments import is_experiment
from raysts.recipes.overrides import apply_overrides
from raysts.recipes.recipe import Pipeline
from raysts.recipes.tree import build, to_plain
from raysts.search import named, scores
from raysts.search.record import Record
from raysts.search.search import OWN
from raysts.search.space import grid, text_of
from raysts.storage.manifests import has_folder
from raysts.storage.store import location

GRID_SED = "sts-grid-sed"
"""The recipe that is a search and what follows from it: grid, choice, ensemble, SED, evaluation."""

_AFTER = ("members", "sed", "evaluation", "student_pooling", "student_start", "select_top", "combine")


def distill(
    models: Sequence[str] = (),
    overrides: Mapping[str, Any] | None = None,
    data: str | Path | None = None,
    storage: str | Path | None = None,
    *,
    from_run: str | None = None,
    from_study: str | None = None,
    top: int | None = None,
    **options: Any,
) -> dict[str, Any]:
    """:func:`raysts.commands.context.distill`, whose members may also be the best of a study (``from_study``).

    Of a study by points (``lower-bound``) the members are the best point by its mean, with as many seeds as ``top``
    (default: those of the study); what is missing is trained first. Of any other, the best ``top`` checkpoints that it
    keeps. The student stops early on STS-B dev, whose labels have chosen its teachers already.
    """
    if from_study is None:
        return api.distill(models, overrides, data, storage, from_run=from_run, top=top, **options)
    if models or from_run:
        raise InputError("distill: --from-study NAME says whose models to take; leave MODEL and --from-run out")
    folder = api.storage_of(storage)
    known, records = study_record(folder, from_study)
    name = options.pop("name", None) or f"{from_study}-distilled"
    data = data if data is not None else known["data"]
    if known["by"] == "point":
        made = _best_point(known, records, name, top)
        made = apply_overrides(made, overrides) if overrides else made
        return api.run(made, None, data, folder, name=name, **options)
    chosen = _best_models(known, records, folder, top)
    early = {"sed.train.keep": "best", "sed.train.patience": 5}
    return api.distill(chosen, {**early, **(overrides or {})}, data, folder, name=name, **options)


def _best_point(known: dict[str, Any], records: list[Record], name: str, top: int | None) -> Pipeline:
    """The system that distils a student from the best point of a study."""
    best = scores.by_mean(scores.grouped(records, known["seeds"]), known.get("mode", "max"))
    if best is None or not best.whole:
        raise InputError(
            f"--from-study {known['name']}: no point of it has all its {known['seeds']} seeds yet; finish it first with: "
            f"{known['command']}"
        )
    if top is not None and top < 1:
        raise InputError(f"--top {top}: must be at least 1")
    problems: list[str] = []
    before = build(Pipeline, known["pipeline"], problems)
    if before is None:
        raise InputError(problems)
    system = names.pipeline(f"{before.name}-sed")
    return replace(
        system,
        name=name,
        backbone=before.backbone,
        seed=before.seed,
        resources=before.resources,
        stages=apply_overrides(before, best.point).stages,
        members=top or known["seeds"],
    )


def _best_models(known: dict[str, Any], records: list[Record], storage: Path, top: int | None) -> list[str]:
    """Run ids of the best trials of a study that it keeps."""
    finished = sorted(
        (r for r in records if r.status == "finished"), key=lambda r: -rank(r.value, known.get("mode", "max"))
    )
    kept = [record.id for record in finished if has_folder(storage / "runs" / record.id / "model")]
    if not kept:
        raise InputError(f"--from-study {known['name']}: it keeps no model; go on with it: {known['command']}")
    if top is not None and not 1 <= top <= len(kept):
        raise InputError(
            f"--top {top}: must be from 1 to the number of models that study '{known['name']}' keeps, {len(kept)}"
        )
    return kept[:top]


def run(
    recipe: str | Pipeline,
    overrides: Mapping[str, Any] | None = None,
    data: str | Path | None = None,
    storage: str | Path | None = None,
    *,
    name: str | None = None,
    command: str | None = None,
    strict_contamination: bool = False,
    skip_bad: bool = False,
    **options: Any,
) -> dict[str, Any]:
    """:func:`raysts.run`, for which ``sts-grid-sed`` and the experiments are names too.

    An experiment: :func:`raysts.commands.experiment.run`. ``sts-grid-sed`` searches the lower bound (overrides of ``raysts tune
    lower-bound`` hold for it), takes the bound with the best mean over its seeds, and runs ``sts-sed`` with it: an ensemble
    (``members``, default 10, of which the search has trained some), a student, an evaluation on the test sets.
    """
    options["skip_bad"] = skip_bad
    if is_experiment(recipe):
        options["strict_contamination"] = strict_contamination
        return api_experiment.run(recipe, overrides, data, storage, name=name, command=command, **options)
    if not _is_grid_sed(recipe):
        options["strict_contamination"] = strict_contamination
        return api.run(recipe, overrides, data, storage, name=name, command=command, **options)
    name, given, say = name or GRID_SED, dict(overrides or {}), options.get("say", api.say_on_stderr)
    before, after = grid_sed_overrides(given)
    made = _grid_system(recipe)
    second = api.plan(made, after, data, storage, skip_bad)  # both halves are checked before the first one starts
    if strict_contamination:
        overlap.refuse(second)
    shown = command or f"raysts.run({recipe!r}, {given!r})"
    found = tune(_grid_search(recipe), before, data, storage, name=name, command=shown, **options)
    say(found["table"])
    say(f"{name}: {text_of(found['best']['overrides'])}, then the ensemble and its student")
    chosen = {**after, **found["best"]["overrides"]}
    ended = api.run(made, chosen, data, storage, name=name, command=shown, **options)
    return {**ended, **{key: found[key] for key in ("study", "best", "best_run", "points")}}


def described(
    recipe: str,
    overrides: Mapping[str, Any] | None = None,
    data: str | Path | None = None,
    storage: str | Path | None = None,
    skip_bad: bool = False,
) -> dict[str, Any]:
    """The plan of a recipe as plain data; of ``sts-grid-sed`` the grid, and once that is done what follows from it."""
    if is_experiment(recipe):
        return api_experiment.described(recipe, overrides, data, storage, skip_bad)
    if not _is_grid_sed(recipe):
        made = api.plan(recipe, overrides, data, storage, skip_bad)
        return {"storage": location(made.storage), **describe(made)}
    before, after = grid_sed_overrides(overrides or {})
    study = planned(_grid_search(recipe), before, data, storage, GRID_SED, skip_bad)
    study.read()
    nodes = list(study.plan.token_nodes)
    for point in grid(study.search.space) or []:
        for seed in range(study.search.seeds):
            node = study.node(point, seed)
            nodes.append(replace(node, title=f"{text_of(point)} seed {seed}"))
    found = describe(study.plan, nodes)
    for node in found["nodes"]:
        node["status"] = "done" if node["id"] in study.records else node["status"]
    best = scores.by_mean(study.scores(), study.search.objective.mode) if study.complete else None
    chosen = {**after, **best.point} if best else after
    rest = api.plan(_grid_system(recipe), chosen, data, storage, skip_bad)
    known = {node["id"] for node in found["nodes"]}
    later = [node for node in describe(rest)["nodes"] if node["id"] not in known]
    if best is None:  # which runs, the grid decides: what they cost is known, their ids are not
        later = [{**node, "id": f"(after the grid) {i}", "needs": []} for i, node in enumerate(later)]
    return {"storage": location(study.plan.storage), **found, "name": GRID_SED, "nodes": [*found["nodes"], *later]}


def shown(recipe: str, overrides: Mapping[str, Any] | None = None) -> Any:
    """The resolved tree of a recipe as plain data; of ``sts-grid-sed`` its search and the system that follows, of an
    experiment every pipeline by its point."""
    if is_experiment(recipe):
        return to_plain(api_experiment.pipelines(recipe, overrides, None))
    if not _is_grid_sed(recipe):
        return to_plain(names.pipeline(recipe, overrides))
    before, after = grid_sed_overrides(overrides or {})
    search = named.search(_grid_search(recipe), before)
    space = {key: dimension.text for key, dimension in search.space.items()}
    return {
        "search": {**to_plain(search), "space": space},
        "then": to_plain(apply_overrides(_grid_system(recipe), after)),
    }


def _is_grid_sed(recipe: str | Pipeline) -> TypeGuard[str]:
    return isinstance(recipe, str) and recipe.partition("@")[0] == GRID_SED


def _grid_search(recipe: str) -> str:
    return recipe.replace(GRID_SED, "lower-bound")


def _grid_system(recipe: str) -> Pipeline:
    return replace(names.pipeline(recipe.replace(GRID_SED, "sts-sed")), name=GRID_SED)


def grid_sed_overrides(overrides: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Overrides of ``sts-grid-sed`` as those of the search and those of the system that follows."""
    after_only = {key for key in overrides if key.split(".")[0] in _AFTER}
    before_only = {key for key in overrides if key in OWN or key.split(".")[0] in ("space", "asha")}
    return (
        {key: value for key, value in overrides.items() if key not in after_only},
        {key: value for key, value in overrides.items() if key not in before_only},
    )
