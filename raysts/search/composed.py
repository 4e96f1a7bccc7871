"""The recipes that begin with a search. They stand apart from the searches, which import what evaluates, since whoever looks for
a recipe's name asks here."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeGuard

from raysts.recipes.names import Entry
from raysts.search.space import Point


class Composed(NamedTuple):
    """A recipe that is a search, and the system that is made with its best point. ``system``: name of the pipeline that
    follows; it has the stage that is searched. ``overrides``: the best point as overrides of the system."""

    entry: Entry
    search: str
    system: str
    then: str
    overrides: Callable[[Point], Mapping[str, Any]] = dict


COMPOSED: dict[str, Composed] = {
    "sts-grid-sed": Composed(
        Entry(
            "SED 5.5 and Table 4: lower bounds, the best one's ensemble, its student",
            "88.50 for the grid and 88.29 for the student on STS-B test, RoBERTa-L",
            "20 bounds x 10 x sts, then 100,000 sentences",
        ),
        search="lower-bound",
        system="sts-sed",
        then="the ensemble and its student",
    )
}
"""Every one is a name for ``raysts run``, ``plan`` and ``show``."""


def is_composed(recipe: object) -> TypeGuard[str]:
    """Whether this is the name of a recipe that begins with a search, perhaps at a scale."""
    return isinstance(recipe, str) and recipe.partition("@")[0] in COMPOSED
