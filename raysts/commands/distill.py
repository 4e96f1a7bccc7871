"""``raysts distill``: a student from trained models, from the members of a run, or from the best of a study."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raysts.commands.options import Command, Result, RunOptions, add, say_on_stderr
from raysts.commands.run import text
from raysts.errors import InputError

if TYPE_CHECKING:
    from raysts.recipes.recipe import Pipeline
    from raysts.search.record import Record
    from raysts.storage.store import Store


HELP = "distil a student from trained models"
EXAMPLE = "raysts distill --from-run quickstart --top 3"


def _arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "models", nargs="*", metavar="MODEL", help="members: run ids, directories or Hugging Face names"
    )
    command.add_argument("--from-run", metavar="NAME", help="take the members of this run")
    command.add_argument("--from-study", metavar="NAME", help="take the best of this study ('raysts tune')")
    command.add_argument("--top", type=int, metavar="K", help="the best K members on STS-B dev (default: all)")
    command.add_argument("--name", help="name of the run in the storage")
    add(command, "--set", "--data", "--storage", "--address", "--skip-bad")


def distill(
    models: Sequence[str] = (),
    overrides: Mapping[str, Any] | None = None,
    data: str | Path | None = None,
    storage: str | Path | None = None,
    *,
    from_run: str | None = None,
    from_study: str | None = None,
    top: int | None = None,
    name: str | None = None,
    address: str | None = None,
    command: str | None = None,
    skip_bad: bool = False,
    say: Callable[[str], None] = say_on_stderr,
) -> Result:
    """Distil a student from models that are there, from the members of a run, or from a study's best (SED section 4).

    Of a study by points (``lower-bound``) the members are the best point by its mean, with as many seeds as ``top``
    (default: those of the study); what is missing is trained first. Of any other, the best ``top`` checkpoints that it
    keeps. The student stops early on STS-B dev, whose labels have chosen its teachers already.

    Args:
        models: members: run ids, directories or Hugging Face names.
        overrides: as :func:`raysts.run`; ``backbone``, what the student starts from, is by default what the members
            started from, where that is on record.
        data: as :func:`raysts.run`; default that of the run or study.
        storage, address, command, skip_bad, say: as :func:`raysts.run`.
        from_run: take the members of this run in the storage instead.
        from_study: take the best of this study in the storage instead.
        top: the best so many on STS-B dev; default: all.
        name: name of the run; default ``distilled``, after the run or study ``<its name>-distilled``.

    Returns:
        as :func:`raysts.run`.
    """
    from raysts.commands.context import checked_plan, pipeline_of, run_plan, run_record, store_of

    if from_study is not None and (models or from_run):
        raise InputError("distill: --from-study NAME says whose models to take; leave MODEL and --from-run out")
    store, source = store_of(storage), from_run or from_study
    name = name or (f"{source}-distilled" if source else "distilled")
    line = command or f"raysts.distill({list(models)!r}, {dict(overrides or {})!r})"
    options = RunOptions(data, storage, name, address, line, skip_bad=skip_bad, say=say)
    if from_study is not None:
        pipeline, record = _of_study(from_study, top, overrides, options)
    elif bool(models) == bool(from_run):
        raise InputError("distill needs either MODEL arguments or --from-run NAME, which says whose members to take")
    else:
        record = run_record(store, from_run) if from_run else {}
        models = record["pipeline"]["teachers"] or _finished_members(record, store) if record else models
        pipeline = _of_models(models, top, overrides, record.get("pipeline", {}), options)
    if data is None:
        options = replace(options, data=record.get("data"))
    return run_plan(checked_plan(pipeline_of(pipeline, overrides), options), options)


def _of_models(
    models: Sequence[str],
    top: int | None,
    overrides: Mapping[str, Any] | None,
    before: Mapping[str, Any],
    options: RunOptions,
) -> Pipeline:
    """The pipeline that distils ``models``, with the settings of the run they are the members of, where there is one."""
    from raysts.commands.context import locate, store_of
    from raysts.recipes import stages
    from raysts.recipes.recipe import Pipeline
    from raysts.recipes.tree import build, to_plain

    if top is not None and not 1 <= top <= len(models):
        raise InputError(f"--top {top}: must be from 1 to the number of members, {len(models)}")
    store = store_of(options.storage)
    backbone = _common_backbone([locate(model, store) for model in models], store)
    if backbone is None and "backbone" not in (overrides or {}):
        raise InputError("distill: the members do not say what they started from; name it with --set backbone=MODEL")
    plain = {
        "name": options.name,
        "backbone": backbone or "",
        "combine": "sed",
        "sed": before.get("sed") or to_plain(stages.sed()),
        "teachers": list(models),
        "select_top": top,
        **{key: before[key] for key in ("student_pooling", "evaluation", "resources") if key in before},
    }
    problems: list[str] = []
    pipeline = build(Pipeline, plain, problems)
    if pipeline is None:
        raise InputError(problems)
    return pipeline


def _finished_members(record: Mapping[str, Any], store: Store) -> list[str]:
    """Run ids of a run's members."""
    members: list[str] = record["members"]
    if not members:
        raise InputError(f"--from-run {record['name']}: it has no members to distil from")
    waiting = [member for member in members if not store.exists(f"runs/{member}/model")]
    if waiting:
        raise InputError(
            f"--from-run {record['name']}: {len(waiting)} of its {len(members)} members are not finished; finish them "
            f"first with: {record['command']}"
        )
    return members


def _common_backbone(folders: Sequence[Path], store: Store) -> str | None:
    """What all of these models started from, where that is on record."""
    from raysts.pipeline.inputs import TINY
    from raysts.storage.runs import RunFolder

    records = [RunFolder(folder.parent).record() for folder in folders]
    backbones = {(record.get("backbone"), record.get("backbone_id")) for record in records}
    if len(backbones) != 1:
        return None
    backbone, backbone_id = backbones.pop()
    return str(store.path(f"backbones/tiny-{backbone_id}")) if backbone == TINY else backbone


def _of_study(
    study: str, top: int | None, overrides: Mapping[str, Any] | None, options: RunOptions
) -> tuple[Pipeline, dict[str, Any]]:
    """The pipeline that distils a study's best, and the record of the study."""
    from raysts.commands.context import pipeline_of, store_of
    from raysts.commands.study import study_record

    store = store_of(options.storage)
    record, trials = study_record(store, study)
    if record["by"] == "point":
        return replace(_best_point(record, trials, top), name=str(options.name)), record
    pipeline = _of_models(_best_models(record, trials, store, top), None, overrides, {}, options)
    return pipeline_of(pipeline, {"sed.train.keep": "best", "sed.train.patience": 5}), record


def _best_point(record: Mapping[str, Any], trials: Sequence[Record], top: int | None) -> Pipeline:
    """The system that distils a student from the best point of a study."""
    from raysts.recipes import names
    from raysts.recipes.overrides import apply_overrides
    from raysts.recipes.recipe import Pipeline
    from raysts.recipes.tree import build
    from raysts.search import scores

    best = scores.by_mean(scores.grouped(trials, record["seeds"]), record.get("mode", "max"))
    if best is None or not best.whole:
        raise InputError(
            f"--from-study {record['name']}: no point of it has all its {record['seeds']} seeds yet; finish it first with: "
            f"{record['command']}"
        )
    if top is not None and top < 1:
        raise InputError(f"--top {top}: must be at least 1")
    problems: list[str] = []
    searched = build(Pipeline, record["pipeline"], problems)
    if searched is None:
        raise InputError(problems)
    return replace(
        names.pipeline(f"{searched.name}-sed"),
        backbone=searched.backbone,
        seed=searched.seed,
        resources=searched.resources,
        stages=apply_overrides(searched, best.point).stages,
        members=top or record["seeds"],
    )


def _best_models(record: Mapping[str, Any], trials: Sequence[Record], store: Store, top: int | None) -> list[str]:
    """Run ids of the best trials of a study that it keeps."""
    from raysts.evaluation.run_metric import rank

    finished = [trial for trial in trials if trial.status == "finished"]
    finished.sort(key=lambda trial: -rank(trial.value, record.get("mode", "max")))
    models = [trial.id for trial in finished if store.exists(f"runs/{trial.id}/model")]
    if not models:
        raise InputError(f"--from-study {record['name']}: it keeps no model; go on with it: {record['command']}")
    if top is not None and not 1 <= top <= len(models):
        raise InputError(
            f"--top {top}: must be from 1 to the number of models that study '{record['name']}' keeps, {len(models)}"
        )
    return models[:top]


COMMANDS = (Command("distill", HELP, EXAMPLE, _arguments, distill, text),)
