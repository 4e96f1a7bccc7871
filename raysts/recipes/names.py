"""Pipelines by name: systems of the papers' grammar, ``best``, ``quickstart``, YAML files.

A system's name is its recipe: stages joined by '-', then what is made of the members.

One or more member stages, then optionally ``-sed`` (a student distilled from the members), ``-ensemble`` (the mean of
their embeddings), ``-soup`` (the mean of their weights), ``-greedy-soup`` (of those that do it good on the development set)
or ``-boom`` (a soup of members on bootstrap samples of the data), then optionally what is fitted on the result:
``-flow``, ``-whiten``, ``-latte`` and its baselines. ``raw`` is the bare backbone; on it, what is fitted stands alone
(``flow``).
"""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from raysts.errors import InputError, nearest
from raysts.recipes.overrides import apply_overrides, has_option, load_pipeline
from raysts.recipes.recipe import DEFAULTS, DISTILLATION, SOUPS, Pipeline, Recipe
from raysts.recipes.tree import read_data

_WORDS: dict[str, Recipe] = {
    f"{name}{suffix}": recipe.replace(settings=recipe.settings.replace(**settings))
    for name, recipe in DEFAULTS.items()
    for suffix, settings in recipe.spec.suffixes.items()
}

STAGES = {
    word: recipe for word, recipe in _WORDS.items() if not recipe.spec.head and "teacher" not in recipe.spec.values
}
"""Recipes of member stages by their word in a system's name."""

POST = {word: recipe for word, recipe in _WORDS.items() if recipe.spec.head}
"""Recipes that are fitted on a finished model, by their word in a system's name."""

BOOM = "boom"
"""A soup of members on bootstrap samples of the data: bagging of models, then merging."""

COMBINE = ("sed", "ensemble", *SOUPS, BOOM)
VOCABULARY = {*STAGES, *POST, *COMBINE, "raw"}


class NameParts(NamedTuple):
    """The parts of a system's name."""

    stages: tuple[str, ...]
    combine: str | None
    post: str | None


def parse(name: str) -> NameParts:
    """Return the parts of ``name``, which is not ``raw``.

    Raises:
        InputError: it makes no sense, with every reason.
    """
    words = _split(name)
    members, combines, fitted = ([word for word in words if word in kind] for kind in (STAGES, COMBINE, POST))
    combine, post = next(iter(combines), None), next(iter(fitted), None)
    unknown = dict.fromkeys(word for word in words if word not in VOCABULARY)
    endings, posts = (", ".join(f"-{word}" for word in kind) for kind in (COMBINE, POST))
    problems = [
        f"unknown recipe '{name}': '{word}' is no stage{nearest(word, VOCABULARY) or nearest(name, RECIPES)}; stages are "
        f"{', '.join(STAGES)}, then one of {endings}, then one of {posts}; 'raysts recipes' lists examples"
        for word in unknown
    ]
    if "raw" in words:
        problems.append(f"recipe '{name}': 'raw' is the bare backbone and stands alone")
    if post and words[-1] != post:
        problems.append(
            f"recipe '{name}': '{post}' is fitted on a finished model, whose encoder it leaves as it is: it must be the last "
            f"word"
        )
    if len(fitted) > 1:
        problems.append(f"recipe '{name}': {' and '.join(map(repr, fitted))}: one of them, at the end")
    order = [2 * (word in POST) + (word in COMBINE) for word in words]
    if combine and (len(combines) > 1 or order != sorted(order)) and not problems:
        problems.append(f"recipe '{name}': '{combine}' must come after the member stages, once")
    if combine and not members:
        problems.append(f"recipe '{name}': '{combine}' needs members to combine, for example nli-{combine}")
    if post and combine in (*SOUPS, BOOM):
        problems.append(
            f"recipe '{name}': '{post}' after '{combine}': a {combine} is one encoder, and {post} is fitted on it as on any "
            f"other: run '{name.removesuffix(f'-{post}')}', then 'raysts run {post} --set backbone=MODEL'"
        )
    if repeated := sorted({word for word in members if members.count(word) > 1}):
        problems.append(f"recipe '{name}': stage '{repeated[0]}' stands twice; a member goes through a stage once")
    losses = Counter(STAGES[word].objective for word in dict.fromkeys(members))
    for objective in (objective for objective, count in losses.items() if count > 1):
        problems.append(f"recipe '{name}': a member is trained with one loss of {objective}, not several")
    if problems:
        raise InputError(problems)
    return NameParts(tuple(members), combine, post)


def _split(name: str) -> list[str]:
    words, parts = [], name.split("-")
    while parts:
        taken = next((n for n in range(len(parts), 1, -1) if "-".join(parts[:n]) in VOCABULARY), 1)
        words.append("-".join(parts[:taken]))
        parts = parts[taken:]
    return words


class SystemEntry(NamedTuple):
    """Line of ``raysts recipes``."""

    source: str
    shows: str
    cost: str


_SYSTEMS = read_data(__file__, "systems.yaml")
RECIPES: dict[str, SystemEntry] = {name: SystemEntry(*fields) for name, fields in _SYSTEMS["recipes"].items()}
PRESETS: dict[str, dict[str, Any]] = _SYSTEMS["presets"]

SCALES: dict[str, dict[str, Any]] = {
    "paper": {"backbone": "bert-large-uncased"}, "paper-text": {}, "small": {"members": 4}
}  # fmt: skip
"""What a scale changes in a pipeline, beside what each objective says of its own recipe (``ObjectiveSpec.scales``) and of the
pipeline (``pipeline_scales``: another paper's backbone).

``paper`` is that of the papers' tables (SED 5.1 and B; labels choose CT's checkpoint, as in its official code), ``paper-text``
the same as the papers' texts have it where the official code differs, ``small``
ends in an hour or so on a few CPU cores with a small encoder; of members and students it has at most so many.
"""


def pipeline(name: str, overrides: Mapping[str, Any] | None = None) -> Pipeline:
    """Return the pipeline of a name with overrides applied.

    Args:
        name: a system name, perhaps at a scale (``nli-ct-sed@small``), ``quickstart``, or a YAML file.
        overrides: ``{"nli.batch": 32, ...}``. They come after those of the scale.

    Raises:
        InputError: an unknown or senseless name, with the reason; unknown or wrong overrides.
    """
    system, separator, scale = name.partition("@")
    if name.endswith((".yaml", ".yml")):
        base = load_pipeline(Path(name))
    elif preset := PRESETS.get(system):
        base = apply_overrides(_compose(preset["system"]), {"name": system, **preset["changes"]})
        scales = preset.get("scales", {})
        if separator and scale in SCALES and scale not in scales:
            choices = f"'{system}'" + "".join(f" or '{system}@{scale}'" for scale in scales)
            raise InputError(f"recipe '{name}': '{system}' belongs to no paper and has its own sizes; take {choices}")
        base = apply_overrides(apply_scale(base, name, scale), scales[scale]) if separator else base
    else:
        base = apply_scale(_compose(system), name, scale) if separator else _compose(system)
    return apply_overrides(base, overrides) if overrides else base


def pipeline_of(recipe: str | Pipeline, overrides: Mapping[str, Any] | None) -> Pipeline:
    """Return the pipeline that a recipe names, or is, with overrides applied.

    Raises:
        InputError: as :func:`pipeline`; it is neither a name nor a pipeline.
    """
    if isinstance(recipe, str | Path):
        return pipeline(str(recipe), overrides)
    if not isinstance(recipe, Pipeline):
        raise InputError(
            f"recipe {recipe!r:.40}: must be the name of a system, a YAML file or a Pipeline; 'raysts recipes' lists names"
        )
    return apply_overrides(recipe, overrides) if overrides else recipe


def apply_scale(base: Pipeline, name: str, scale: str) -> Pipeline:
    """Return a pipeline at a scale. ``name`` is the user's."""
    if scale not in SCALES:
        raise InputError(
            f"recipe '{name}': '{scale}' is not a scale{nearest(scale, SCALES)}; scales are {', '.join(SCALES)}"
        )
    base = apply_scale(base, name, "paper") if scale == "paper-text" else base
    changes = {key: value for key, value in SCALES[scale].items() if key != "members"}
    for stage, recipe in base.recipes.items():
        changes |= {f"{stage}.{key}": value for key, value in recipe.spec.scales.get(scale, {}).items()}
    most = SCALES[scale].get("members", base.members)
    changes |= {"members": min(base.members, most), "students": min(base.students, most)}
    for recipe in base.recipes.values():
        pipeline_changes = recipe.spec.pipeline_scales.get(scale, {})
        changes |= {key: value for key, value in pipeline_changes.items() if has_option(base, key)}
    scaled = _pool_as_trained(apply_overrides(base, changes))
    return apply_overrides(scaled, papers_pooling(scaled)) if scale == "paper" else scaled


def _pool_as_trained(base: Pipeline) -> Pipeline:
    """Return a pipeline in which fitted heads read embeddings with the pooling of their model's training."""
    changes: dict[str, Any] = {}
    before: Recipe | None = None
    for stage, recipe in base.recipes.items():
        if recipe.spec.head == "pooled" and before is not None:
            changes |= {f"{stage}.layers": before.layers, f"{stage}.pooling": before.pooling}
        before = before if recipe.spec.head else recipe
    return apply_overrides(base, changes)


def papers_pooling(base: Pipeline) -> dict[str, Any]:
    """Return the overrides by which a pipeline pools as in SED's tables.

    Tuned models are trained on the last layer. They are measured, delivered and fitted with two, a bare backbone with one.
    """
    recipes = {**base.stages, **base.post}
    tuned = [recipe for recipe in base.stages.values() if not recipe.spec.head]
    reads_tokens = any(recipe.spec.head == "tokens" for recipe in recipes.values())
    if not tuned or any(recipe.pooling != "mean" for recipe in tuned) or reads_tokens:
        return {}
    fitted = {f"{stage}.layers": 2 for stage, recipe in recipes.items() if recipe.spec.head}
    return {"evaluation.compare": 2, **fitted, **({"student_pooling": 2} if base.sed else {})}


def student_recipe(members: Mapping[str, Recipe]) -> Recipe:
    """Return the recipe of a student of members with these stages."""
    sed = DEFAULTS[DISTILLATION]
    if any("score" in recipe.spec.values for recipe in members.values()):
        # The members saw labels, and so may what chooses the student.
        sed = sed.replace(train=sed.train.replace(keep="best", patience=5, eval_first=True))
    return sed


def _compose(name: str) -> Pipeline:
    if name == "raw":
        return Pipeline(name=name, members=1)
    parsed = parse(name)
    members = {STAGES[word].objective: STAGES[word] for word in parsed.stages}
    post = {parsed.post: POST[parsed.post]} if parsed.post else {}
    student: dict[str, Recipe] = {}
    if parsed.combine == DISTILLATION:
        student = {DISTILLATION: student_recipe(members), **post}
    else:
        members |= post  # on every member
    if parsed.combine == BOOM:
        members = {stage: recipe.replace(data=recipe.data.replace(bootstrap=True)) for stage, recipe in members.items()}
    count = max((recipe.spec.members for recipe in members.values()), default=1)
    return _pool_as_trained(
        Pipeline(
            name=name,
            members=10 if parsed.combine else count,
            recipes={**members, **student},
            combine="soup" if parsed.combine == BOOM else parsed.combine,  # type: ignore[arg-type]
        )
    )
