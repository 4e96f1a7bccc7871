"""Overrides ``a.b=value`` of a pipeline, and pipelines as YAML."""

import copy
from collections.abc import Mapping
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

import yaml

from raysts.errors import InputError, nearest
from raysts.recipes.catalog import CATALOG
from raysts.recipes.recipe import Pipeline, Recipe
from raysts.recipes.tree import (
    build,
    built,
    field_types,
    get_path,
    has_path,
    load_yaml,
    parse_value,
    paths,
    set_path,
    to_plain,
)
from raysts.storage.foreign import check_ordinary

MOST_BYTES = 1 << 18
"""Of a recipe file."""


def apply_overrides(pipeline: Pipeline, overrides: Mapping[str, Any]) -> Pipeline:
    """A pipeline with values replaced.

    A key is a dotted path of the tree (``seed``, ``evaluation.tasks``), a path below a stage (``nli.batch``) or below its
    settings (``sed.target``), or a path inside a recipe, which then holds for every stage that has it (``batch``,
    ``optim.lr``, ``train.max_steps``).

    Raises:
        InputError: unknown keys (the nearest is named), values of the wrong type or out of range; all in one message.
    """
    problems: list[str] = []
    found = _overridden(pipeline, overrides, problems)
    if problems:
        # A wrong branch hides the checks of the tree above it: ask about every override alone as well.
        for key, value in overrides.items():
            alone: list[str] = []
            _overridden(pipeline, {key: value}, alone)
            problems += [problem for problem in alone if f"{key}=" in problem]
        named = [problem.removeprefix("stages.").removeprefix("post.") for problem in problems]
        raise InputError(list(dict.fromkeys(named)))
    assert found is not None
    return found


def _overridden(pipeline: Pipeline, overrides: Mapping[str, Any], problems: list[str]) -> Pipeline | None:
    plain: dict[str, Any] = copy.deepcopy(to_plain(pipeline))
    # What objective it is says which settings there are.
    for key, value in sorted(to_plain(overrides).items(), key=lambda item: not item[0].endswith("objective")):
        targets = _targets(plain, key)
        for target in targets:
            stage, _, option = target.rpartition(".")
            if option == "objective" and value != get_path(plain, target) and str(value) in CATALOG:
                set_path(plain, f"{stage}.settings", to_plain(CATALOG[value].settings()))
            set_path(plain, target, value)
        # Options of a training run are options of every pipeline, also of one that trains nothing.
        if not targets and (_recipes(plain) or not _in_recipe(key)):
            known = [*paths(plain), *(p for recipe in _recipes(plain).values() for p in paths(recipe))]
            known += [f"{stage}.{path}" for stage, recipe in _recipes(plain).items() for path in paths(recipe)]
            problems.append(f"unknown option '{key}'{nearest(key, known)}; 'raysts show {pipeline.name}' lists all")
    return build(Pipeline, plain, problems)


def has_option(pipeline: Pipeline, key: str) -> bool:
    """Whether the key of an override names something that the pipeline has."""
    return bool(_targets(to_plain(pipeline), key))


def parse_overrides(items: list[str]) -> dict[str, Any]:
    """``["a.b=value", ...]`` as a mapping."""
    found: dict[str, Any] = {}
    for item in items:
        key, equals, text = item.partition("=")
        if not equals or not key:
            raise InputError(f"--set {item}: must look like a.b=value, for example --set nli.batch=32")
        found[key.strip()] = parse_value(text)
    return found


def load_pipeline(path: Path) -> Pipeline:
    """The pipeline in a YAML file (what ``raysts show`` prints)."""
    check_ordinary(path, MOST_BYTES)
    try:
        plain = load_yaml(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InputError(
            f"recipe file '{path}' cannot be read ({error}); it must be YAML as 'raysts show NAME' prints it"
        ) from None
    return built(Pipeline, plain, f"{path}: ")


def dump(pipeline: Pipeline) -> str:
    """The resolved tree as YAML; ``load_pipeline`` reads it back."""
    return yaml.safe_dump(to_plain(pipeline), sort_keys=False, allow_unicode=True)


def _recipes(plain: dict[str, Any]) -> dict[str, Any]:
    return {**plain["stages"], **({"sed": plain["sed"]} if plain.get("sed") else {}), **plain.get("post", {})}


def _in_recipe(key: str) -> bool:
    kind: Any = Recipe
    for part in key.split("."):
        known = field_types(kind, {}) if isinstance(kind, type) and is_dataclass(kind) else {}
        if part not in known:
            return False
        kind = known[part]
    return True


def _targets(plain: dict[str, Any], key: str) -> list[str]:
    if has_path(plain, key):
        return [key]
    stage, _, rest = key.partition(".")
    places = {name: f"post.{name}" if name in plain.get("post", {}) else f"stages.{name}" for name in _recipes(plain)}
    places |= {"sed": "sed"} if "sed" in places else {}
    if stage in places and rest and has_path(_recipes(plain)[stage], rest):
        return [f"{places[stage]}.{rest}"]
    if stage in places and rest and has_path(_recipes(plain)[stage], f"settings.{rest}"):
        return [f"{places[stage]}.settings.{rest}"]
    if key in field_types(Recipe, {}) or "." in key:
        return [f"{places[name]}.{key}" for name, recipe in _recipes(plain).items() if has_path(recipe, key)]
    return []
