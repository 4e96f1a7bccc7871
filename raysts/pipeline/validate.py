"""What would stop a pipeline later, found before it starts and said in one message."""

from __future__ import annotations

from raysts.data.world.backbone import tiny_config, unknown_fraction
from raysts.errors import InputError
from raysts.evaluation import harness
from raysts.evaluation.tasks import ModelTask
from raysts.models import pretrained, static
from raysts.models.families import family_of
from raysts.models.layers import Layers, layer_indices
from raysts.models.modules import describe
from raysts.models.pretrained import tokenizer_id
from raysts.objectives import OBJECTIVES
from raysts.objectives.distillation import DistillationSettings
from raysts.pipeline.inputs import TINY, Inputs
from raysts.pipeline.outcome import STSB_DEV, members_dev
from raysts.recipes.recipe import SOUPS, Pipeline
from raysts.schema import table_columns
from raysts.storage.runs import RunFolder

MOST_UNKNOWN = 0.05
"""Share of unknown words above which the tiny backbone's vocabulary does not fit the text."""


def check(inputs: Inputs) -> None:
    """Raise one InputError with everything that would stop the pipeline later."""
    pipeline, problems = inputs.pipeline, []
    problems += _backbone_problems(inputs)
    tables = list(dict.fromkeys(recipe.table for recipe in pipeline.recipes.values()))
    for recipe in pipeline.recipes.values():
        if (recipe.by_dev or recipe.train.patience) and not (inputs.by_agreement and recipe == pipeline.sed):
            tables.append(OBJECTIVES[recipe.objective].dev)
    if pipeline.select_top is not None:
        tables.append(STSB_DEV)
    if pipeline.combine == "greedy-soup" or (pipeline.deliver == "best" and not inputs.by_agreement):
        tables.append(members_dev(pipeline))
    try:
        inputs.corpus.check([*tables, *([STSB_DEV] if inputs.corpus.files(STSB_DEV) else [])])
    except InputError as error:
        problems += error.problems
    try:
        if inputs.corpus.text is None or inputs.tasks:
            harness.check_tasks(inputs.corpus, list(pipeline.evaluation.tasks) or None, heavy=False)
    except InputError as error:
        problems += error.problems
    problems += [
        f"evaluation.tasks: '{name}' is measured on a model itself, not on vectors of texts, which is all that a pipeline "
        f"makes; leave it out, and run 'raysts evaluate MODEL --tasks {name}' on what comes out"
        for name in pipeline.evaluation.tasks
        if isinstance(harness.TASKS.get(name), ModelTask)
    ]
    if problems:
        raise InputError(list(dict.fromkeys(problems)))
    for name, recipe in pipeline.recipes.items():
        try:
            if inputs.steps(recipe) == 0:
                problems.append(
                    f"{name}.batch={recipe.batch}: table '{inputs.corpus.title(recipe.table)}' has too few rows for one "
                    f"batch; lower it"
                )
        except InputError as error:
            problems += [f"{name}: {problem}" for problem in error.problems]
    problems += _misfits(inputs)
    if pipeline.backbone == TINY:
        problems += _foreign_text(inputs, tables)
    problems += _teacher_problems(inputs)
    if pipeline.combine in SOUPS:
        problems += unmergeable(inputs)
    if problems:
        raise InputError(problems)


def _misfits(inputs: Inputs) -> list[str]:
    """Settings that do not fit the width of what they are fitted on."""
    pipeline = inputs.pipeline
    width = tiny_config().hidden_size if pipeline.backbone == TINY else pretrained.width(inputs.backbone)
    after = _projection(pipeline) or width
    found = [
        (stage, OBJECTIVES[recipe.objective].misfit(recipe.settings, after if stage in pipeline.post else width))
        for stage, recipe in pipeline.recipes.items()
    ]
    return [f"{stage}.settings.{problem}" for stage, problem in found if problem]


def _backbone_problems(inputs: Inputs) -> list[str]:
    if inputs.pipeline.backbone == TINY:
        config = tiny_config().to_dict()
    else:
        try:
            config = pretrained.check(inputs.backbone)
            describe(inputs.backbone).prompts.resolve(inputs.pipeline.prompt)
        except InputError as error:
            return error.problems
    family = family_of(config["model_type"])
    most, depth = family.most_tokens(config), config[family.depth]
    problems = [
        f"{name}.train.max_length={recipe.train.max_length}: the backbone '{inputs.pipeline.backbone}' has positions for "
        f"{most} tokens; take at most that many"
        for name, recipe in inputs.pipeline.recipes.items()
        if recipe.train.max_length > most
    ]
    if (inputs.pipeline.max_seq_length or 0) > most:
        problems.append(
            f"max_seq_length={inputs.pipeline.max_seq_length}: the backbone '{inputs.pipeline.backbone}' has positions for "
            f"{most} tokens; take at most that many"
        )
    if config.get("model_type") == static.MODEL_TYPE:
        problems += _word_vector_problems(inputs.pipeline)
    asked: list[tuple[str, Layers]] = [("evaluation.layers", layers) for layers in inputs.pipeline.evaluation.layers]
    asked += [("student_pooling", inputs.pipeline.student_pooling)] if inputs.pipeline.student_pooling else []
    asked += [(f"{name}.layers", recipe.layers) for name, recipe in inputs.pipeline.recipes.items()]
    for option, layers in asked:
        try:
            layer_indices(layers, depth)
        except ValueError:
            problems.append(
                f"{option}={layers}: the backbone '{inputs.pipeline.backbone}' has {depth} layers; pool at most that many"
            )
    return problems


def _word_vector_problems(pipeline: Pipeline) -> list[str]:
    """What cannot be done with word vectors, which are frozen."""
    trained = [name for name, recipe in pipeline.recipes.items() if not OBJECTIVES[recipe.objective].post]
    fitted = ", ".join(name for name, kind in OBJECTIVES.items() if kind.post)
    problems = [
        f"{name}: trains the encoder, and the backbone '{pipeline.backbone}' is word vectors, which are frozen; run raw "
        f"or what is fitted on a frozen encoder ({fitted}), or take a transformer with --set backbone=MODEL"
        for name in trained
    ]
    return problems + [
        f"{name}.{problem}"
        for name, recipe in pipeline.recipes.items()
        if name not in trained and (problem := static.pooling_problem(recipe.pooling))
    ]


def _teacher_problems(inputs: Inputs) -> list[str]:
    if not inputs.pipeline.teachers:
        asked = _projection(inputs.pipeline)
        width = tiny_config().hidden_size if inputs.pipeline.backbone == TINY else pretrained.width(inputs.backbone)
        if asked in (None, width):
            return []
        return [
            f"sed.settings.projection={asked}: the members give {width} dimensions; leave it out, or set it to that"
        ]
    if inputs.pipeline.backbone == TINY:
        return [
            "backbone=tiny: a student of models that are there needs their backbone; --set backbone=DIRECTORY_OR_NAME"
        ]
    problems = []
    asked, width = _projection(inputs.pipeline), pretrained.width(inputs.backbone)
    for name, folder in zip(inputs.pipeline.teachers, inputs.teacher_folders, strict=True):
        try:
            pretrained.check(folder)
            theirs = pretrained.dim(folder)
            describe(folder).prompts.resolve(inputs.pipeline.teacher_prompt)
        except InputError as error:
            problems += error.problems
            continue
        if theirs != (asked or width):
            gives = f"projects to {asked}" if asked else f"has {width}"
            problems.append(
                f"model '{name}' gives {theirs} dimensions and the student, which starts from "
                f"'{inputs.pipeline.backbone}', {gives}: they must be of one width; choose another backbone, leave the model "
                f"out, or give the student a linear layer with --set sed.settings.projection={theirs}"
            )
        elif tokenizer_id(folder) != inputs.tokenizer_id:
            problems.append(
                f"model '{name}' has another tokenizer than the student's backbone '{inputs.pipeline.backbone}': members "
                f"and student must read the same tokens"
            )
        dev = RunFolder(folder.parent).record().get("dev") or {}
        if inputs.pipeline.select_top is not None and not dev.get("kept"):
            problems.append(f"--top: model '{name}' has no score on STS-B dev on record; leave --top out to take all")
    return problems


def unmergeable(inputs: Inputs) -> list[str]:
    """Why the weights of the members cannot be averaged, or nothing."""
    pipeline = inputs.pipeline
    instead = "leave their weights apart: -ensemble averages what they give, -sed distils it"
    for stage, recipe in list(pipeline.stages_of(0).items())[-1:]:
        if OBJECTIVES[recipe.objective].adds_head(recipe.settings):
            return [
                f"{stage}: every member has a head of its own that began with other random weights, and the mean of such "
                f"heads is none; {instead}"
            ]
    starts = {RunFolder(folder.parent).record().get("backbone_id") for folder in inputs.teacher_folders}
    if inputs.teacher_folders and (len(starts) > 1 or None in starts):
        return [
            f"models {', '.join(pipeline.teachers)}: it is not on record that they began with one encoder; {instead}"
        ]
    asked = [describe(folder) for folder in inputs.teacher_folders]
    if any(each.heads for each in asked) or len({(each.pooling, each.layers) for each in asked}) > 1:
        return [f"models {', '.join(pipeline.teachers)}: they have heads, or do not pool alike; {instead}"]
    return []


def _projection(pipeline: Pipeline) -> int | None:
    """Dimensions that the student is projected to, if it is."""
    settings = pipeline.sed.settings if pipeline.sed else None
    return settings.projection if isinstance(settings, DistillationSettings) else None


def _foreign_text(inputs: Inputs, tables: list[str]) -> list[str]:
    problems = []
    for table in dict.fromkeys([*tables, *inputs.test_tables]):
        column = next((column.name for column in table_columns(table) if column.kind == "text"), None)
        if column is None:  # judgements
            continue
        share = unknown_fraction(inputs.corpus.head(table, column, 500))
        where = inputs.own_title(table) or f"{inputs.corpus.where}/{table}"
        if share > MOST_UNKNOWN:
            problems.append(
                f"backbone=tiny knows only the words of the embedded world, and {share:.0%} of the words in "
                f"{where} are unknown to it; give an encoder that reads your text: "
                f"--set backbone=DIRECTORY_OR_NAME"
            )
    return problems
