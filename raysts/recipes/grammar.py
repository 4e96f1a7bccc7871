"""A system's name is its recipe: stages joined by '-', then what is made of the members.

One or more member stages, then optionally ``-sed`` (a student distilled from the members), ``-ensemble`` (the mean of
their embeddings), ``-soup`` (the mean of their weights), ``-greedy-soup`` (of those that do it good on the development set)
or ``-boom`` (a soup of members on bootstrap samples of the data), then optionally what is fitted on the result:
``-flow``, ``-whiten``, ``-latte`` and its baselines. ``raw`` is the bare backbone; on it, what is fitted stands alone
(``flow``).
"""

from typing import NamedTuple

from raysts.errors import InputError, nearest
from raysts.recipes.recipe import DEFAULTS, SOUPS, Recipe

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
"""What is fitted on a finished model."""

BOOM = "boom"
"""A soup of members on bootstrap samples of the data: bagging of models, then merging."""

COMBINE = ("sed", "ensemble", *SOUPS, BOOM)


class NameParts(NamedTuple):
    """The parts of a system's name."""

    stages: tuple[str, ...]
    combine: str | None
    post: str | None


def parse(name: str, examples: tuple[str, ...] = ()) -> NameParts:
    """Return the parts of ``name``, which is not ``raw``.

    Raises:
        InputError: it makes no sense, with every reason.
    """
    words = _split(name)
    vocabulary = {*STAGES, *POST, *COMBINE, "raw"}
    problems = []
    for word in words:
        if word == "raw":
            problems.append(f"recipe '{name}': 'raw' is the bare backbone and stands alone")
        elif word not in vocabulary:
            near = nearest(word, vocabulary) or nearest(name, examples)
            problems.append(
                f"unknown recipe '{name}': '{word}' is no stage{near}; stages are "
                f"{', '.join(STAGES)}, then one of {', '.join(f'-{word}' for word in COMBINE)}, then one of "
                f"{', '.join(f'-{post}' for post in POST)}; "
                f"'raysts recipes' lists examples"
            )
    members = [word for word in words if word in STAGES]
    combine = [word for word in words if word in COMBINE]
    post = [word for word in words if word in POST]
    for word in post[:1]:
        if words[-1] != word:
            problems.append(
                f"recipe '{name}': '{word}' is fitted on a finished model, whose encoder it leaves as it is: it must be the "
                f"last word"
            )
    if len(post) > 1:
        problems.append(f"recipe '{name}': {' and '.join(repr(word) for word in post)}: one of them, at the end")
    order = [2 * (word in POST) + (word in COMBINE) for word in words]
    if combine and (len(combine) > 1 or order != sorted(order)) and not problems:
        problems.append(f"recipe '{name}': '{combine[0]}' must come after the member stages, once")
    if combine and not members:
        problems.append(f"recipe '{name}': '{combine[0]}' needs members to combine, for example nli-{combine[0]}")
    for word in combine[:1] if post else []:
        if word in (*SOUPS, BOOM):
            problems.append(
                f"recipe '{name}': '{post[0]}' after '{word}': a {word} is one encoder, and {post[0]} is fitted on it as on "
                f"any other: run '{name.removesuffix(f'-{post[0]}')}', then 'raysts run {post[0]} --set backbone=MODEL'"
            )
    repeated = sorted({word for word in members if members.count(word) > 1})
    if repeated:
        problems.append(f"recipe '{name}': stage '{repeated[0]}' stands twice; a member goes through a stage once")
    objectives = [STAGES[word].objective for word in dict.fromkeys(members)]
    for objective in dict.fromkeys(objectives):
        if objectives.count(objective) > 1:
            problems.append(f"recipe '{name}': a member is trained with one loss of {objective}, not several")
    if problems:
        raise InputError(list(dict.fromkeys(problems)))
    return NameParts(tuple(members), combine[0] if combine else None, post[0] if post else None)


def _split(name: str) -> list[str]:
    words, parts, vocabulary = [], name.split("-"), {*STAGES, *POST, *COMBINE}
    while parts:
        taken = next((n for n in range(len(parts), 1, -1) if "-".join(parts[:n]) in vocabulary), 1)
        words.append("-".join(parts[:taken]))
        parts = parts[taken:]
    return words
