"""Checks that run before a pipeline starts. One error reports all problems."""

import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from raysts.data.windows import text_windows
from raysts.data.world import unknown_fraction
from raysts.errors import InputError, Problems
from raysts.evaluation import harness
from raysts.models import static
from raysts.models.embedders import Embedder, open_embedder
from raysts.models.families import family_of
from raysts.models.layers import Layers, layer_indices
from raysts.models.modules import describe
from raysts.models.weights import adapters_problem
from raysts.ops.ensemble import Target
from raysts.pipeline.inputs import TINY, Inputs
from raysts.pipeline.outcome import STSB_DEV, members_dev
from raysts.recipes.catalog import AGREEMENT, BY_DEV, CATALOG, DistillationSettings
from raysts.recipes.recipe import SOUPS
from raysts.schema import table_columns
from raysts.storage.parquet import READ_ROWS
from raysts.storage.runs import record_of

MOST_UNKNOWN = 0.05
"""Share of unknown words above which the tiny backbone's vocabulary does not fit the text."""


def check(inputs: Inputs) -> None:
    """Raise one InputError with every problem that would stop the pipeline later."""
    pipeline, problems = inputs.pipeline, Problems()
    problems += _backbone_problems(inputs)
    tables = list(dict.fromkeys(recipe.table for recipe in pipeline.recipes.values()))
    for recipe in pipeline.recipes.values():
        if (recipe.uses_dev_labels or recipe.train.patience) and not (inputs.uses_agreement and recipe == pipeline.sed):
            tables.append(recipe.spec.dev)
    if pipeline.select_top is not None:
        tables.append(STSB_DEV)
    if pipeline.combine == "greedy-soup" or (pipeline.deliver == "best" and not inputs.uses_agreement):
        tables.append(members_dev(pipeline))
    with problems.collect():
        inputs.corpus.check([*tables, STSB_DEV] if inputs.corpus.files(STSB_DEV) else tables)
    if inputs.corpus.text is None or inputs.tasks:
        with problems.collect():
            harness.check_tasks(inputs.corpus, inputs.tasks or None, heavy=False)
            inputs.model_sets  # noqa: B018 (refuses data that show a model no words)
    problems.raise_any()
    for name, recipe in pipeline.recipes.items():
        if recipe.train.lora is not None and (missing := adapters_problem()):
            problems.append(f"{name}.train.lora={recipe.train.lora}: {missing}")
        if recipe.train.compile and not shutil.which(compiler := os.environ.get("CXX", "g++")):
            problems.append(
                f"{name}.train.compile=true: needs a C++ compiler on every node, and '{compiler}' is not there; install one, "
                f"name it by CXX, or leave compile out"
            )
        with problems.collect(name):
            if inputs.optimiser_steps(recipe) == 0:
                problems.append(
                    f"{name}.batch={recipe.batch}: table '{inputs.corpus.title(recipe.table)}' has too few rows for one "
                    f"batch; lower it"
                )
    for table in {members_dev(pipeline), *(recipe.spec.dev for recipe in pipeline.recipes.values())}:
        with problems.collect():
            inputs.dev(table)
    problems += _side_problems(inputs)
    problems += _width_misfits(inputs)
    if pipeline.backbone == TINY:
        problems += _unknown_text(inputs, tables)
    if inputs.distillation is not None:
        problems += _distillation_problems(inputs, inputs.distillation)
    if pipeline.combine in SOUPS:
        problems += unmergeable(inputs)
    problems.raise_any()


# -- the backbone --------------------------------------------------------------------------------------------------------


def _side_problems(inputs: Inputs) -> Iterator[str]:
    """Yield the models that cannot learn or teach queries beside documents."""
    names, pipeline = [*inputs.pipeline.teachers, inputs.pipeline.backbone], inputs.pipeline
    models = [*(open_embedder(path).prompts for path in inputs.teacher_folders), inputs.prompts]
    named = [pipeline.teacher_prompt] * len(pipeline.teachers) + [pipeline.prompt]
    for recipe in pipeline.recipes.values() if inputs.corpus.text and inputs.corpus.text.queries else ():
        for name, prompts, prompt in zip(names, models, named, strict=True):
            if not prompts.pooled and len({*inputs.sides(recipe, prompts, prompt).values()}) > 1:
                yield (
                    f"--queries: model '{name}' leaves the tokens of its prompts out of its vectors, and those of queries and "
                    f"documents differ; name one for both with --prompt or --set prompt=TEXT"
                )


def _width_misfits(inputs: Inputs) -> Iterator[str]:
    """Yield the settings of stages that do not fit the width of the vectors which they read."""
    pipeline, width, distilled = inputs.pipeline, inputs.hidden_width, inputs.distillation
    after = (distilled.projection if distilled and distilled.keeps_projection else None) or width
    for stage, recipe in pipeline.recipes.items():
        if problem := recipe.spec.settings_problem(recipe.settings, after if stage in pipeline.post else width):
            yield f"{stage}.settings.{problem}"
        if (rank := recipe.train.lora or 0) > width:
            yield f"{stage}.train.lora={rank}: is the rank of matrices of {width} rows; it must be at most that"


def _backbone_problems(inputs: Inputs) -> list[str]:
    pipeline, backbone = inputs.pipeline, inputs.pipeline.backbone
    try:
        config = inputs.backbone_config
        inputs.prompt  # noqa: B018 (refuses an unknown name)
    except InputError as error:
        return error.problems
    family = family_of(config["model_type"])
    most, depth = family.most_tokens(config), config[family.depth]
    if problem := _kept_layers_problem(inputs, config, depth):
        return [problem]
    depth = len(inputs.kept_layers or range(inputs.depth))
    lengths = {f"{name}.train.max_length": recipe.train.max_length for name, recipe in pipeline.recipes.items()}
    problems = [
        f"{option}={length}: the backbone '{backbone}' has positions for {most} tokens; take at most that many"
        for option, length in {**lengths, "max_seq_length": pipeline.max_seq_length or 0}.items()
        if length != "auto" and length > most
    ]
    if config.get("model_type") == static.MODEL_TYPE:
        problems += _word_vector_problems(inputs)
    pooled: list[tuple[str, Layers]] = [("evaluation.layers", layers) for layers in pipeline.evaluation.layers]
    pooled += [("student_pooling", pipeline.student_pooling)] if pipeline.student_pooling else []
    pooled += [(f"{name}.layers", recipe.layers) for name, recipe in pipeline.recipes.items()]
    for option, layers in pooled:
        try:
            layer_indices(layers, depth)
        except ValueError:
            problems.append(f"{option}={layers}: the backbone '{backbone}' has {depth} layers; pool at most that many")
    return problems


def _kept_layers_problem(inputs: Inputs, config: Mapping[str, Any], depth: int) -> str | None:
    """Return why training cannot start from the layers that the pipeline names, or None."""
    layers, backbone = inputs.pipeline.backbone_layers, inputs.pipeline.backbone
    if layers is None:
        return None
    if config["model_type"] == static.MODEL_TYPE:
        return (
            f"backbone_layers={layers}: the backbone '{backbone}' is word vectors, which have no layers; leave it out"
        )
    named = f"backbone_layers={list(layers) if isinstance(layers, tuple) else layers}"
    if (layers if isinstance(layers, int) else layers[-1] + 1) > depth:
        return f"{named}: the backbone '{backbone}' has {depth} layers, 0 to {depth - 1}; keep at most that many"
    if family_of(config["model_type"]).alone and inputs.kept_layers and inputs.kept_layers[0] != 0:
        return f"{named}: layer 0 of the backbone '{backbone}' holds the positions of all layers; keep it too"
    return None


def _word_vector_problems(inputs: Inputs) -> Iterator[str]:
    fitted = ", ".join(name for name, spec in CATALOG.items() if spec.head)
    for name, recipe in inputs.pipeline.recipes.items():
        if not recipe.spec.head:
            yield (
                f"{name}: trains the encoder, and the backbone '{inputs.pipeline.backbone}' is word vectors, which are "
                f"frozen; run raw or what is fitted on a frozen encoder ({fitted}), or take a transformer with "
                f"--set backbone=MODEL"
            )
        elif problem := static.pooling_problem(recipe.pooling):
            yield f"{name}.{problem}"


def _unknown_text(inputs: Inputs, tables: list[str]) -> Iterator[str]:
    """Yield the tables with words that the tiny backbone does not know."""
    for table in dict.fromkeys([*tables, *inputs.test_tables]):
        column = next((column.name for column in table_columns(table) if column.kind == "text"), None)
        if column is None:  # judgements
            continue
        share = unknown_fraction(inputs.corpus[table].head(column, 500))
        place = inputs.own_title(table) or f"{inputs.corpus.where}/{table}"
        if share > MOST_UNKNOWN:
            yield (
                f"backbone=tiny knows only the words of the embedded world, and {share:.0%} of the words in {place} are "
                f"unknown to it; give an encoder that reads your text: --set backbone=DIRECTORY_OR_NAME"
            )


# -- teachers ------------------------------------------------------------------------------------------------------------


def _distillation_problems(inputs: Inputs, settings: DistillationSettings) -> list[str]:
    pipeline, problems = inputs.pipeline, Problems(_misfit_distillation(inputs, settings))
    if not pipeline.teachers:
        return [*problems, *_width_problems(inputs, settings, [inputs.student_width] * pipeline.members)]
    before = len(problems)
    dims = _teacher_widths(inputs, problems) if pipeline.backbone != TINY else []
    if len(problems) > before or pipeline.backbone == TINY:
        return problems
    return [*problems, *_common_start_problems(inputs, settings), *_width_problems(inputs, settings, dims)]


def _misfit_distillation(inputs: Inputs, settings: DistillationSettings) -> Iterator[str]:
    """Yield the settings that do not fit the members, the start or the batch of a distillation."""
    pipeline, weights, start = inputs.pipeline, settings.weights, inputs.pipeline.student_start
    count = len(pipeline.teachers) or pipeline.members
    if isinstance(weights, tuple) and len(weights) != count:
        yield f"sed.weights={list(weights)}: there are {count} teachers; give one weight for each, in their order"
    if weights == BY_DEV and not inputs.corpus.files(members_dev(pipeline)):
        yield "sed.weights=dev: needs a development set; give --dev NAME=FILE, or take sed.weights=agreement"
    if weights and (pipeline.min_members or (pipeline.select_top and weights != AGREEMENT)):
        yield "sed.weights: with select_top or min_members nobody knows yet which teachers count; leave either out"
    if settings.axes == "student" and start != "backbone":
        begin = f"a student that starts from its teachers (student_start={start}) has their axes"
        yield f"sed.axes=student: {begin}; leave it out"
    if settings.axes == "student" and pipeline.sed and pipeline.sed.train.init == "random":
        yield "sed.axes=student: the axes of random weights (sed.train.init=random) say nothing; leave it out"
    if pipeline.keep_index and (settings.target != "mean" or settings.axes != "teachers" or settings.compares_cosines):
        yield (
            "keep_index: the student learns the teacher's own vectors (sed.target=mean, sed.axes=teachers), by any loss but "
            "similarity; leave the others out"
        )
    gaussian = pipeline.teachers or [recipe.objective for recipe in pipeline.stages.values()][-1:] == ["gausscse"]
    if settings.target == "gaussian" and not (gaussian and (pipeline.select_top or count) == 1):
        yield "sed.target=gaussian: takes one GaussCSE model, because each has other axes; name one, or set members=1"
    in_batch = next((name for name in settings.terms if name in ("similarity", "infonce")), None)
    if in_batch and pipeline.sed and pipeline.sed.batch == 1:
        yield f"sed.batch=1: loss={in_batch} compares the sentences of a batch; take more of them"
    if pipeline.teachers and pipeline.backbone == TINY:
        yield "backbone=tiny: a student of models that are there needs their backbone; --set backbone=DIRECTORY_OR_NAME"


def _teacher_widths(inputs: Inputs, problems: Problems) -> list[int]:
    """Return the dimensions of the named teachers, and add what is wrong with them."""
    dims = []
    for name, path in zip(inputs.pipeline.teachers, inputs.teacher_folders, strict=True):
        with problems.collect():
            embedder = open_embedder(path, prompt=inputs.pipeline.teacher_prompt, device="cpu")
            embedder.check()
            dims.append(embedder.dim)
            if inputs.target == "gaussian" and not any(name.startswith("gauss") for name in embedder.similarities):
                problems.append(f"sed.target=gaussian: model '{name}' gives no variance; take a GaussCSE model")
            embedder.prompt  # noqa: B018 (refuses an unknown name)
            if embedder.kind == "vectors":
                _check_every_text(inputs, embedder)
            dev = record_of(path).get("dev") or {}
            if inputs.pipeline.select_top is not None and not dev.get("kept"):
                problems.append(
                    f"--top: model '{name}' has no score on STS-B dev on record; leave --top out to take all"
                )
    return dims


def _check_every_text(inputs: Inputs, vectors: Embedder) -> None:
    """Raise InputError unless every sentence of the distillation and every held-out text has a vector."""
    assert inputs.pipeline.sed is not None
    spec, text = inputs.store_spec(inputs.pipeline.sed), inputs.corpus.text
    begin = f"teacher '{vectors.path}' has no vector of"
    if inputs.uses_agreement and text and (number := vectors.find_missing(text.held_out)) is not None:
        raise InputError(f"{begin} {text.held_out[number]!r:.70}; embed all of the text")
    table = inputs.corpus.table_with_spans(spec.table, spec.data)
    derived = table.read(spec.texts[:1]).column(0) if table.content else None
    for group in inputs.groups(spec):
        if derived is not None:
            part = derived.slice(group.row_group * READ_ROWS, READ_ROWS)
            parts: Iterable[tuple[int, Any]] = [(0, part if group.rows is None else part.take(pa.array(group.rows)))]
        else:
            parts = ((first, columns[spec.texts[0]]) for first, columns in text_windows(group, spec))
        for first, column in parts:
            texts = column.to_pylist()
            if (number := vectors.find_missing(texts)) is not None:
                raise InputError(
                    f"{begin} row {group.first + first + number:,} of {spec.table} ({texts[number]!r:.70}); embed all of the "
                    f"text, or take less of it with --set sed.data.sample=N"
                )


def _width_problems(inputs: Inputs, settings: DistillationSettings, dims: list[int]) -> list[str]:
    """Return the reasons why the widths of teachers and student do not match, or an empty list."""
    projection, width = settings.projection, inputs.student_width
    named = inputs.pipeline.teachers or ["the members"]
    if settings.target == "concat":
        if projection not in (None, sum(dims)):
            return [
                f"sed.projection={projection}: the teachers' vectors have {sum(dims)} dimensions one after the other; set it to "
                f"that, or leave it out to reduce them to the student's {width}"
            ]
        return []
    if settings.target == "similarity":
        return []
    required, gives = projection or width, "is projected to" if projection else "has"
    if settings.compares_cosines:
        required, gives = dims[0], "has that of the others"
    return [
        f"model '{name}' gives {dim} dimensions and the student, which starts from '{inputs.pipeline.backbone}', {gives} "
        f"{required}: for sed.target={settings.target} they must be of one width; take --set sed.target=concat, which needs "
        f"none, choose another backbone, or give the student a linear layer with --set sed.projection={dim}"
        for name, dim in zip(named, dims, strict=False)
        if dim != required
    ]


def _common_start_problems(inputs: Inputs, settings: DistillationSettings) -> Iterator[str]:
    """Yield the reasons why teachers need a common starting model."""
    pipeline = inputs.pipeline
    if len(pipeline.teachers) < 2:
        return
    if settings.target == "mean" and not common_start(inputs.teacher_folders):
        yield (
            f"sed.target=mean: it is not on record that {', '.join(pipeline.teachers)} began with one encoder, and the mean of "
            f"vectors of different spaces means nothing; take --set sed.target=concat, or unit-mean for models of one space"
        )
    if pipeline.student_start != "backbone":
        yield from (f"student_start={pipeline.student_start}: {problem}" for problem in unmergeable(inputs))


def fitting_target(folders: Sequence[Path], width: int, settings: DistillationSettings) -> Target:
    """Return the default target of a student with these teachers.

    It is their mean, if they share a starting model and their width is the student's, or that has a projection.
    """
    if (len(folders) == 1 or common_start(folders)) and (
        settings.projection or {open_embedder(folder, device="cpu").dim for folder in folders} == {width}
    ):
        return "mean"
    return "similarity" if settings.loss == "similarity" else "concat"


def common_start(folders: Sequence[Path]) -> bool:
    """Return True if the models' records name the same starting model."""
    return len(starts := starts_of(folders)) == 1 and None not in starts


def starts_of(folders: Sequence[Path]) -> set[str | None]:
    """Return the ids of the models' starting models. A model without a record gives None."""
    return {record_of(folder).get("backbone_id") for folder in folders}


def unmergeable(inputs: Inputs) -> list[str]:
    """Return the reasons why the members' weights cannot be averaged, or an empty list."""
    remedy = "leave their weights apart: -ensemble averages what they give, -sed distils it"
    for stage, recipe in list(inputs.pipeline.stages_of(0).items())[-1:]:
        if recipe.has_head:
            begin = f"{stage}: every member has a head of its own that began with other random weights"
            return [f"{begin}, and the mean of such heads is none; {remedy}"]
    modules, problem = [describe(folder) for folder in inputs.teacher_folders], ""
    if inputs.teacher_folders and not common_start(inputs.teacher_folders):
        problem = "it is not on record that they began with one encoder"
    elif any(module.heads for module in modules) or len({(module.pooling, module.layers) for module in modules}) > 1:
        problem = "they have heads, or do not pool alike"
    return [f"models {', '.join(inputs.pipeline.teachers)}: {problem}; {remedy}"] if problem else []
