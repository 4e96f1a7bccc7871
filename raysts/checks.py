"""What would stop a pipeline later, found before it starts and said in one message."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from raysts.data.world import tiny_config, unknown_fraction
from raysts.errors import InputError
from raysts.evaluation import harness
from raysts.models import store
from raysts.models.store import tokenizer_id
from raysts.schema import TABLES

if TYPE_CHECKING:
    from raysts.pipeline import Plan

TINY = "tiny"
DEV_TABLE = "sts/stsb_dev"
MOST_UNKNOWN = 0.05
"""Share of unknown words above which the tiny backbone's vocabulary does not fit the text."""


def check(plan: Plan) -> None:
    """Raise one InputError with everything that would stop the pipeline later."""
    pipeline, problems = plan.pipeline, []
    problems += _backbone_problems(plan)
    tables = list(dict.fromkeys(recipe.table for recipe in pipeline.recipes.values()))
    by_dev = [name for name, recipe in pipeline.recipes.items() if recipe.train.by_dev or recipe.train.patience]
    if by_dev or pipeline.select_top is not None:
        tables.append(DEV_TABLE)
    try:
        plan.corpus.check([*tables, *([DEV_TABLE] if plan.corpus.files(DEV_TABLE) else [])])
    except InputError as error:
        problems += error.problems
    try:
        harness.check_tasks(plan.corpus, list(pipeline.evaluation.tasks) or None)
    except InputError as error:
        problems += error.problems
    if problems:
        raise InputError(list(dict.fromkeys(problems)))
    for name, recipe in pipeline.recipes.items():
        try:
            if plan.steps(recipe) == 0:
                problems.append(
                    f"{name}.batch={recipe.batch}: table '{recipe.table}' has too few rows for one batch; lower it"
                )
        except InputError as error:
            problems += [f"{name}: {problem}" for problem in error.problems]
    if pipeline.backbone == TINY:
        problems += _foreign_text(plan, tables)
    problems += _teacher_problems(plan)
    if problems:
        raise InputError(problems)


def _backbone_problems(plan: Plan) -> list[str]:
    if plan.pipeline.backbone == TINY:
        config = tiny_config().to_dict()
    else:
        try:
            config = store.check(plan.backbone)
        except InputError as error:
            return error.problems
    most = store.most_tokens(config)
    problems = [
        f"{name}.train.max_length={recipe.train.max_length}: the backbone '{plan.pipeline.backbone}' has positions for "
        f"{most} tokens; take at most that many"
        for name, recipe in plan.pipeline.recipes.items()
        if recipe.train.max_length > most
    ]
    depth = config.get("num_hidden_layers") or config.get("n_layers") or 0
    asked = {
        "student_pooling": plan.pipeline.student_pooling if plan.pipeline.sed else 1,
        "evaluation.layers": max(plan.pipeline.evaluation.layers),
        **{f"{name}.layers": recipe.layers for name, recipe in plan.pipeline.recipes.items()},
    }
    return problems + [
        f"{option}={value}: the backbone '{plan.pipeline.backbone}' has {depth} layers; pool at most that many"
        for option, value in asked.items()
        if value > depth
    ]


def _teacher_problems(plan: Plan) -> list[str]:
    if not plan.pipeline.teachers:
        return []
    if plan.pipeline.backbone == TINY:
        return [
            "backbone=tiny: a student of models that are there needs their backbone; --set backbone=DIRECTORY_OR_NAME"
        ]
    problems = []
    width = _width(store.check(plan.backbone))
    for name, node in zip(plan.pipeline.teachers, plan.teacher_models, strict=True):
        try:
            theirs = _width(store.check(node.model))
        except InputError as error:
            problems += error.problems
            continue
        if theirs != width:
            problems.append(
                f"model '{name}' gives {theirs} dimensions and the student's backbone '{plan.pipeline.backbone}' {width}: "
                f"members and student must be of one width; choose another backbone or leave the model out"
            )
        elif tokenizer_id(node.model) != plan.tokenizer_id:
            problems.append(
                f"model '{name}' has another tokenizer than the student's backbone '{plan.pipeline.backbone}': members "
                f"and student must read the same tokens"
            )
        if plan.pipeline.select_top is not None and not (node.record.get("dev") or {}).get("kept"):
            problems.append(f"--top: model '{name}' has no score on STS-B dev on record; leave --top out to take all")
    return problems


def _width(config: dict[str, Any]) -> int | None:
    return config.get("hidden_size") or config.get("dim")


def _foreign_text(plan: Plan, tables: list[str]) -> list[str]:
    problems = []
    read = [table for task in plan.tasks for table in harness.TASKS[task].tables(plan.corpus, harness.SPLITS)]
    for table in dict.fromkeys([*tables, *read]):
        column = next(column.name for column in TABLES[table] if column.kind == "text")
        share = unknown_fraction(plan.corpus.head(table, column, 500))
        if share > MOST_UNKNOWN:
            problems.append(
                f"backbone=tiny knows only the words of the embedded world, and {share:.0%} of the words in "
                f"{plan.corpus.root / table} are unknown to it; give an encoder that reads your text: "
                f"--set backbone=DIRECTORY_OR_NAME"
            )
    return problems
