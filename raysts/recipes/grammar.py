"""A system's name is its recipe: stages joined by '-', then what is made of the members.

One or more member stages, then optionally ``-sed`` (a student distilled from the members) or ``-ensemble`` (the mean of
their embeddings), then optionally what is fitted on what came out: ``-flow``, ``-whiten``, ``-latte`` and its baselines.
``raw`` is the bare backbone; on it, what is fitted stands alone (``flow``).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal, NamedTuple

from raysts.errors import InputError, nearest
from raysts.recipes import flow_stages, gaussian_stages, latte_stages, simcse_stages, stages
from raysts.recipes.recipe import Recipe

GAUSSCSE_LOSSES: tuple[Literal["ent", "ent+con", "ent+rev", "ent+con+rev"], ...] = (
    "ent",
    "ent+con",
    "ent+rev",
    "ent+con+rev",
)

STAGES: dict[str, Callable[[], Recipe]] = {
    "mlm": simcse_stages.mlm,
    "nli": stages.nli,
    "ct": stages.ct,
    "sts": stages.sts,
    "simcse-sup": simcse_stages.simcse_sup,
    "simcse-unsup": simcse_stages.simcse_unsup,
    **{f"gausscse-{loss}": partial(gaussian_stages.gausscse, loss) for loss in GAUSSCSE_LOSSES},
}
"""Member stages by the name that they have in a system's name."""

POST: dict[str, Callable[[], Recipe]] = {
    "flow": flow_stages.flow,
    "whiten": flow_stages.whiten,
    "latte": latte_stages.latte,
    "latte-ae": latte_stages.latte_ae,
    "latte-normal": latte_stages.latte_normal,
}
"""What is fitted on a finished model."""

COMBINE = ("sed", "ensemble")


class Parsed(NamedTuple):
    """The parts of a system's name."""

    stages: tuple[str, ...]
    combine: str | None
    post: str | None


def parse(name: str, examples: tuple[str, ...] = ()) -> Parsed:
    """The parts of ``name``, which is not ``raw``.

    Raises:
        InputError: it makes no sense, with every reason.
    """
    words = _words(name)
    known = {*STAGES, *POST, *COMBINE, "raw"}
    problems = []
    for word in words:
        if word == "raw":
            problems.append(f"recipe '{name}': 'raw' is the bare backbone and stands alone")
        elif word not in known:
            near = nearest(word, known) or nearest(name, examples)
            problems.append(
                f"unknown recipe '{name}': '{word}' is no stage{near}; stages are "
                f"{', '.join(STAGES)}, then -sed or -ensemble, then {', '.join(f'-{post}' for post in POST)}; "
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
    order = [0 if word in STAGES else 1 if word in COMBINE else 2 for word in words]
    if combine and (len(combine) > 1 or order != sorted(order)) and not problems:
        problems.append(f"recipe '{name}': '{combine[0]}' must come after the member stages, once")
    if combine and not members:
        problems.append(f"recipe '{name}': '{combine[0]}' needs members to combine, for example nli-{combine[0]}")
    repeated = sorted({word for word in members if members.count(word) > 1})
    if repeated:
        problems.append(f"recipe '{name}': stage '{repeated[0]}' stands twice; a member goes through a stage once")
    if sum(word.startswith("gausscse-") for word in members) > 1:
        problems.append(f"recipe '{name}': a member is trained with one loss of gausscse, not several")
    if problems:
        raise InputError(list(dict.fromkeys(problems)))
    return Parsed(tuple(members), combine[0] if combine else None, post[0] if post else None)


def key_of(word: str) -> str:
    """The stage's name in the recipe tree: ``gausscse`` for every loss of it."""
    return "gausscse" if word.startswith("gausscse-") else word


def _words(name: str) -> list[str]:
    """The words of a name; some have a hyphen."""
    words: list[str] = []
    for part in name.split("-"):
        longer = f"{words[-1]}-{part}" if words else part
        if words and (longer in STAGES or longer in POST):
            words[-1] = longer
        else:
            words.append(part)
    return words
