"""Recipes that begin with a search.

This module does not import the searches, which import the evaluation, so that looking up a recipe name stays cheap.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeGuard

from raysts.recipes.names import Entry
from raysts.search.space import Point


class Composed(NamedTuple):
    """A recipe of a search and of the system that uses its best point.

    Attributes:
        system: name of the pipeline that follows. It has the stage that the search varies.
        overrides: converts the best point to overrides of the system.
    """

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
"""Names for ``raysts run``, ``plan`` and ``show``."""


def is_composed(recipe: object) -> TypeGuard[str]:
    """Return True if ``recipe`` names a recipe that begins with a search, at any scale."""
    return isinstance(recipe, str) and recipe.partition("@")[0] in COMPOSED
