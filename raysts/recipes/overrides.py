"""Overrides ``a.b=value`` of a pipeline, and pipelines as YAML."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from raysts.errors import InputError, nearest
from raysts.recipes.catalog import CATALOG
from raysts.recipes.recipe import DEFAULTS, Pipeline
from raysts.recipes.tree import Misfit, build, get_path, has_path, load_yaml, parse_value, paths, set_path, to_plain
from raysts.storage.foreign import check_ordinary

MOST_BYTES = 1 << 18
"""Of a recipe file."""

COMMON = to_plain(DEFAULTS["centre"])
"""A recipe whose settings are those of every objective."""


def apply_overrides(pipeline: Pipeline, overrides: Mapping[str, Any]) -> Pipeline:
    """Return a pipeline with values replaced.

    A key is a dotted path of the tree (``seed``, ``evaluation.tasks``), a path below a stage (``nli.batch``) or below its
    settings (``sed.target``), or a path inside a recipe, which then holds for every stage that has it (``batch``,
    ``optim.lr``, ``train.max_steps``).

    Raises:
        InputError: unknown keys (the nearest is named), values of the wrong type or out of range; all in one message.
    """
    plain: dict[str, Any] = to_plain(pipeline)
    recipes, problems = plain["recipes"], []
    # What objective it is says which settings there are.
    for key, value in sorted(to_plain(overrides).items(), key=lambda item: not item[0].endswith("objective")):
        targets = targets_of(plain, key)
        for target in targets:
            stage, _, option = target.rpartition(".")
            if option == "objective" and value != get_path(plain, target) and str(value) in CATALOG:
                set_path(plain, f"{stage}.settings", to_plain(CATALOG[value].settings()))
            set_path(plain, target, value)
        # Options of a training run are options of every pipeline, also of one that trains nothing.
        if not targets and isinstance(plain["recipes"], dict) and (recipes or not has_path(COMMON, key)):
            names = [path for tree in (plain, *recipes.values()) for path in paths(tree)]
            names += [path for path in paths(recipes) if "." in path]
            problems.append(f"unknown option '{key}'{nearest(key, names)}; 'raysts show {pipeline.name}' lists all")
    try:
        changed = build(Pipeline, plain)
    except Misfit as misfit:
        problems += [f"{before}{path.removeprefix('recipes.')}{after}" for before, path, after in misfit.words]
    if problems:
        raise InputError(list(dict.fromkeys(problems)))
    return changed


def has_option(pipeline: Pipeline, key: str) -> bool:
    """Return True if the key of an override names something that the pipeline has."""
    return bool(targets_of(to_plain(pipeline), key))


def targets_of(plain: dict[str, Any], key: str) -> list[str]:
    """Return the paths in a plain pipeline that the key of an override stands for, none of an unknown one."""
    if has_path(plain, key):
        return [key]
    stage, _, rest = key.partition(".")
    recipes = plain["recipes"] if isinstance(plain["recipes"], dict) else {}  # an override may have put anything there
    if stage not in recipes:
        return [f"recipes.{name}.{key}" for name, recipe in recipes.items() if has_path(recipe, key)]
    options = [f"recipes.{stage}.{path}" for path in (rest, f"settings.{rest}")]
    return [option for option in options if rest and has_path(plain, option)][:1]


def parse_overrides(items: list[str]) -> dict[str, Any]:
    """Return ``["a.b=value", ...]`` as a mapping."""
    overrides: dict[str, Any] = {}
    for item in items:
        key, equals, text = item.partition("=")
        if not equals or not key:
            raise InputError(f"--set {item}: must look like a.b=value, for example --set nli.batch=32")
        overrides[key.strip()] = parse_value(text)
    return overrides


def read_yaml(path: Path) -> Any:
    """Return the content of a YAML file."""
    check_ordinary(path, MOST_BYTES)
    try:
        return load_yaml(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"recipe file '{path}' is not there; 'raysts init {path}' writes one") from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InputError(
            f"recipe file '{path}' cannot be read ({error}); it must be YAML as 'raysts show NAME' prints it"
        ) from None


def load_pipeline(path: Path) -> Pipeline:
    """Return the pipeline in a YAML file (what ``raysts show`` prints)."""
    return build(Pipeline, read_yaml(path), f"{path}: ")


def dump(pipeline: Pipeline) -> str:
    """Return the resolved tree as YAML for ``load_pipeline``."""
    return yaml.safe_dump(to_plain(pipeline), sort_keys=False, allow_unicode=True)
