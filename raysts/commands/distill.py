"""``raysts distill``: a student of trained models, of the members of a run, or of a study."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Unpack

from cyclopts import Parameter

from raysts.commands import options as opt
from raysts.commands.options import Command, Result, RunOptions
from raysts.commands.result import run_text
from raysts.errors import InputError

if TYPE_CHECKING:
    from raysts.recipes.recipe import Pipeline
    from raysts.search.search import Search
    from raysts.storage.store import Store


@opt.takes(opt.DistillOptions)
def distill(
    models: Annotated[Sequence[str], Parameter(metavar="MODEL")] = (),
    overrides: opt.Overrides = None,
    data: opt.Data = None,
    storage: opt.StoragePlace = None,
    **options: Unpack[opt.DistillOptions],
) -> Result:
    """Distil a student from trained models, a run's members, or a study's best (SED section 4).

    A study of members by points (``lower-bound``) gives ``top`` seeds of its point with the best mean. Missing members are
    trained first. Any other study gives the best ``top`` checkpoints that it keeps. The student stops early on STS-B dev. The
    labels of that set have already chosen its teachers.

    With ``combine=ensemble``, ``soup`` or ``greedy-soup`` the models are combined as they are, and no student is trained. The
    record of a run ``--from-study`` names the trial of each teacher (``pipeline.trials``).

    The student is delivered, unless ``deliver=best`` asks for the best of it, the teachers, their weight average and the
    starting model on the development set. Its starting model, ``backbone``, defaults to that of the members, if their records
    name it. ``sed.target`` combines the teachers. It defaults to their mean if they have one starting model and the width of
    the student, else to ``concat``, the concatenation of unit vectors. A student with another starting model than its teachers
    learns directions (``sed.loss=cosine``) at 3e-4, of a target turned to its axes (``sed.axes=student``).

    Args:
        models: teachers: run ids, directories (with model.onnx too), Hugging Face names, or Parquet with a 'text' and its
            'embedding' a row; of any width and tokenizer (docs/teachers.md).

    Returns:
        as :func:`raysts.run`.
    """
    from raysts.commands import experiment

    return experiment.run(
        experiment.plan_experiment(*open_distillation(models, overrides, data=data, storage=storage, **options))
    )


def open_distillation(
    models: Sequence[str],
    overrides: Mapping[str, Any] | None,
    *,
    from_run: str | None = None,
    from_study: str | None = None,
    top: int | None = None,
    prompt: str | None = None,
    keep_index: str | None = None,
    teacher_url: str | None = None,
    teacher_model: str | None = None,
    **options: Any,
) -> tuple[Pipeline, dict[str, Any], RunOptions]:
    """Return the pipeline of a distillation, its overrides and its options, as ``open_run`` does.

    Raises:
        InputError: no teachers, or those of several places.
    """
    from raysts.commands.context import run_record, store_of
    from raysts.models.endpoint import name_of
    from raysts.recipes.names import pipeline_of

    if from_study is not None and (models or from_run):
        raise InputError("distill: --from-study NAME names the teachers. Remove MODEL and --from-run")
    models = [str(models)] if isinstance(models, str | Path) else models
    if teacher_url is not None or teacher_model is not None:
        models = [*models, name_of(teacher_url, teacher_model)]
    if keep_index is not None:
        if from_run or from_study or any(model != keep_index for model in models):
            raise InputError(
                f"--keep-index {keep_index}: the student learns this model's space alone; name no other teacher"
            )
        models, overrides = [keep_index], {**(overrides or {}), "keep_index": True}
    if prompt is not None:
        overrides = {**(overrides or {}), "teacher_prompt": prompt}
    source, result = from_run or from_study, (overrides or {}).get("combine", "distilled") or "members"
    name = options.pop("name", None) or (f"{source}-{result}" if source else result)
    options.setdefault("command", f"raysts.distill({list(models)!r}, {dict(overrides or {})!r})")
    opened = RunOptions.from_arguments(name=name, **options)
    store = store_of(opened.storage)
    if from_study is not None:
        pipeline, record = _study_pipeline(from_study, top, overrides, opened)
    elif bool(models) == bool(from_run):
        raise InputError(
            "distill needs teachers, from one place: MODEL arguments (teachers: [A, B] of a run file), --from-run NAME (the "
            "members of a run), or --from-study NAME (the best of a search)"
        )
    else:
        record = run_record(store, from_run) if from_run else {}
        models = record["pipeline"]["teachers"] or _finished_members(record, store) if record else models
        pipeline = _models_pipeline(models, top, overrides, record.get("pipeline", {}), opened)
    return pipeline_of(pipeline, overrides), {}, opened.after(record)


def student_search(models: Sequence[str], overrides: Mapping[str, Any], options: RunOptions) -> Search:
    """Return the search over students of ``models``, without a space.

    Raises:
        InputError: no models, or none of a name.
    """
    from raysts.recipes.names import pipeline_of
    from raysts.search.search import Search, pipeline_overrides
    from raysts.search.space import Dimension

    if not models:
        raise InputError("tune distill needs teachers: name them behind it, as 'raysts distill' takes them")
    fixed = pipeline_overrides(overrides)
    varied = {key: overrides[f"space.{key}"] for key in ("backbone", "backbone_layers") if f"space.{key}" in overrides}
    dimensions = {key: Dimension.of(values) for key, values in varied.items()}
    start = {key: dimension.ends[0] for key, dimension in dimensions.items() if dimension.only is None}
    named = replace(options, name=options.name or "distill")
    pipeline = _models_pipeline(models, None, {**fixed, **start}, {}, named)
    chosen = {key: value for key, value in start.items() if key == "backbone"}
    return Search(name="distill", pipeline=pipeline_of(pipeline, {**fixed, **chosen}), space={})


def _models_pipeline(
    models: Sequence[str],
    top: int | None,
    overrides: Mapping[str, Any] | None,
    before: Mapping[str, Any],
    options: RunOptions,
) -> Pipeline:
    """Return the pipeline that distils ``models``.

    ``before`` is the pipeline of the run that trained them, which gives the settings. It is empty or partial without one.
    """
    from raysts.commands.context import store_of
    from raysts.commands.models import locate
    from raysts.data.corpora import corpus_of
    from raysts.data.spans import are_documents
    from raysts.ids import folder_id
    from raysts.models import pretrained
    from raysts.models.embedders import find_embedder, open_embedder
    from raysts.pipeline.inputs import TINY
    from raysts.pipeline.validate import fitting_target, starts_of
    from raysts.recipes.catalog import STATIC, DistillationSettings, Start, student_defaults, text_defaults
    from raysts.recipes.names import pipeline_of
    from raysts.recipes.recipe import DEFAULTS, DISTILLATION, Pipeline
    from raysts.recipes.tree import build, to_plain

    if top is not None and not 1 <= top <= len(models):
        raise InputError(f"--top {top}: must be from 1 to the number of teachers, {len(models)}")
    store = store_of(options.storage)
    folders = [find_embedder(model, lambda name: locate(name, store)) for model in models]
    static = (overrides or {}).get("student") == "static"
    encoders = [m for m, folder in zip(models, folders, strict=True) if open_embedder(folder).kind == "encoder"]
    backbone = next(map(str, encoders), None) if static else _common_backbone(folders, store)
    if backbone is None and "backbone" not in (overrides or {}):
        raise InputError(
            f"distill: which encoder becomes the student? The records of the teachers name no common starting model. Give one: "
            f"--set backbone=MODEL, or some layers of a teacher: --set backbone={models[0]} --set backbone_layers=3"
        )
    combine = (overrides or {}).get("combine", DISTILLATION)
    student = before.get("recipes", {}).get(DISTILLATION) or to_plain(DEFAULTS[DISTILLATION])
    plain = {
        "name": options.name,
        "backbone": backbone or "",
        "combine": combine,
        "recipes": {DISTILLATION: student} if combine == DISTILLATION else {},
        "teachers": list(models),
        "select_top": top,
        "evaluation": {"layers": [1]},  # the teachers and the student give vectors of one choice of layers
        **{key: before[key] for key in ("student_pooling", "evaluation", "resources") if key in before},
    }
    pipeline = build(Pipeline, plain)
    if "recipes" in before or pipeline.sed is None:
        return pipeline
    student_pipeline = pipeline_of(pipeline, overrides)
    start, recipe = student_pipeline.backbone, student_pipeline.sed
    assert recipe is not None and isinstance(recipe.settings, DistillationSettings)
    settings, target = recipe.settings, recipe.settings.target
    width = pretrained.width(locate(start, store)) if start != TINY else 0
    if static and start != TINY:
        width = open_embedder(locate(start, store)).dim
    if student_pipeline.keep_index and (dim := open_embedder(folders[0], device="cpu").dim) != width:
        settings = settings.replace(projection=dim)
    if not {"sed.target", "sed.settings.target"} & set(overrides or {}):
        target = fitting_target(folders, width, settings)
    elsewhere = (
        start not in (TINY, backbone)  # by name; the ids below compare copies by content
        and student_pipeline.student_start == "backbone"
        and recipe.train.init == "given"
        and starts_of(folders) != {folder_id(locate(start, store))}
    )
    text = corpus_of(options.data, user_data=options.user_data).text if options.user_data else None
    documents = text is not None and are_documents(text.sample)
    within: Start | None = None
    if elsewhere and folder_id(locate(start, store)) in {folder_id(folder) for folder in folders if folder.is_dir()}:
        if student_pipeline.backbone_layers is not None:
            within = "some" if documents else "sentences"
        else:
            within = "all" if documents else None
    settings = settings.replace(target=target)
    defaults = STATIC if static and target != "gaussian" else student_defaults(settings, elsewhere, within)
    if student_pipeline.keep_index:
        defaults = {**defaults, "settings.axes": "teachers", "settings.projection": settings.projection}
    if text is not None:
        has_vectors = any(open_embedder(folder).kind == "vectors" for folder in folders)  # of texts, not of pieces
        defaults = {**defaults, **text_defaults(not static and not has_vectors and documents)}
    return pipeline_of(pipeline, {"sed.target": target, **{f"sed.{key}": value for key, value in defaults.items()}})


def _finished_members(record: Mapping[str, Any], store: Store) -> list[str]:
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
    """Return the starting model that all records of the models agree on, or None."""
    from raysts.pipeline.inputs import made_backbone
    from raysts.storage.runs import record_of

    records = [record_of(folder) for folder in folders]
    backbones = {(r.get("backbone"), r.get("backbone_id"), "backbone_layers" in r, "student" in r) for r in records}
    if len(backbones) != 1:
        return None
    backbone, backbone_id, has_layers, is_static = backbones.pop()
    folder = made_backbone(backbone or "", backbone_id or "", has_layers, is_static)
    return str(store.path(folder)) if folder else backbone


def _study_pipeline(
    study: str, top: int | None, overrides: Mapping[str, Any] | None, options: RunOptions
) -> tuple[Pipeline, dict[str, Any]]:
    from raysts.commands.context import store_of
    from raysts.recipes.names import pipeline_of
    from raysts.recipes.recipe import DISTILLATION, Pipeline, TrialMember
    from raysts.recipes.tree import build
    from raysts.search.study import best_point, best_trials, study_record

    store = store_of(options.storage)
    record, trials = study_record(store, study)
    # Students are teachers, no members, and so are models with a fitted head.
    trained = build(Pipeline, record["pipeline"])
    if record["by"] == "point" and trained.combine is None and not any(r.spec.head for r in trained.recipes.values()):
        combine = (overrides or {}).get("combine", DISTILLATION)
        return best_point(record, trials, top, combine).replace(name=str(options.name)), record
    best = best_trials(record, trials, store, top)
    pipeline = _models_pipeline([trial.id for trial in best], None, overrides, {}, options)
    members = tuple(TrialMember(point=trial.point, seed=trial.seed) for trial in best)
    by_dev = {"sed.train.keep": "best", "sed.train.patience": 5} if pipeline.sed else {}
    return pipeline_of(pipeline.replace(trials=members), by_dev), record


EXAMPLE = "raysts distill TEACHER_A TEACHER_B --set backbone=STUDENT --text docs.csv --column text"
COMMANDS = (Command("distill", distill, run_text, EXAMPLE, opt.MAKE, ("models",)),)
