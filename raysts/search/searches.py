"""The named searches, which `searches.yaml` beside this file holds."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from raysts.errors import InputError, nearest
from raysts.recipes import names
from raysts.recipes.tree import load_yaml
from raysts.search.search import Search, configured
from raysts.search.space import Dimension

SEARCHES: dict[str, dict[str, Any]] = load_yaml(Path(__file__).with_name("searches.yaml").read_text(encoding="utf-8"))
"""Commands, help and jobs take the names of searches from here."""


def find_search(name: str, overrides: Mapping[str, Any] | None = None) -> Search:
    """Return the search called ``name``, with overrides applied.

    The name may have a scale (``lower-bound@small``). A system (``simcse-sup``, a YAML file) gives
    the search of the space in the overrides.

    Raises:
        InputError: unknown name or scale, unknown or wrong overrides.
    """
    plain, separator, scale = name.partition("@")
    unscaled = _named_search(plain, f"{separator}{scale}") if plain in SEARCHES else _search_system(name)
    most = names.SCALES.get(scale, {}).get("members", unscaled.seeds)
    return configured(unscaled.updated(seeds=min(unscaled.seeds, most)), overrides or {})


def _named_search(name: str, scale: str) -> Search:
    fields = dict(SEARCHES[name])
    pipeline = names.pipeline(f"{fields.pop('system')}{scale}")
    space = {key: Dimension.of(value) for key, value in fields.pop("space").items()}
    first = [fields.pop("first")] if "first" in fields else []
    varied = fields.pop("vary", {})
    first += [{**first[0], key: value} for key, values in varied.items() for value in values]
    return Search(name=name, pipeline=pipeline, space=space, first=tuple(first), **fields)


def _search_system(name: str) -> Search:
    try:
        system = names.pipeline(name)
    except InputError as error:
        options = f"{', '.join(SEARCHES)}, and any system that ends in one training run, with a space that you give"
        near = nearest(name.partition("@")[0], SEARCHES)
        why = "" if near else f": {error.problems[0]}"
        raise InputError(f"unknown search '{name}'{near}; searches are {options}{why}") from None
    try:
        return Search(name=system.name, pipeline=system, space={})
    except InputError as error:
        raise InputError([f"search '{name}': {problem}" for problem in error.problems]) from None
