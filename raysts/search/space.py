"""Space of a search: the choices or the range of each option."""

from __future__ import annotations

import contextlib
import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from raysts.ids import content_id
from raysts.recipes.tree import parse_value

Point = dict[str, Any]
"""Point of a space: a value per option, in the order of the space."""

RANGE = re.compile(r"(uniform|log|int|logint)\(([^,()]+),([^,()]+)\)")
SPAN = re.compile(r"(\S+)\.\.(\S+)(\s+log)?")
FORMS = "a list of choices (0.1,0.2), or a range: 0.1..0.5, '1e-6..1e-4 log', or of whole numbers 2..12"


@dataclass(frozen=True, slots=True, kw_only=True)
class Dimension:
    """Values that one option may take: ``choices``, or the range from ``low`` to ``high``.

    ``choices`` has every value once, and is empty for a range.
    """

    choices: tuple[Any, ...] = ()
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    integer: bool = False

    def __post_init__(self) -> None:
        twice = [value for i, value in enumerate(self.choices) if value in self.choices[:i]]
        if twice:
            raise ValueError(f"{self.text} has {twice[0]!r} twice: a point is tried once, name each value once")
        if self.choices:
            return
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise ValueError(f"{self.text} must be a range from a number to a larger one, or a list of choices")
        if self.log and self.low <= 0:
            raise ValueError(f"{self.text} is a log range and must begin above 0")

    @classmethod
    def of(cls, value: Any) -> Dimension:
        """Return the dimension of a list of choices, a single value, or text (``log(1e-5,1e-2)``).

        Raises:
            ValueError: the value describes no dimension, or an empty one.
        """
        if isinstance(value, Dimension):
            return value
        text = value.strip() if isinstance(value, str) else ""
        if matched := RANGE.fullmatch(text) or SPAN.fullmatch(text):
            if matched.re is RANGE:
                kind, *ends = matched.groups()
            else:
                *ends, log = matched.groups()
                kind = "log" if log else "uniform"
            numbers = [_scalar(end) for end in ends]
            if not numeric(numbers):
                raise ValueError(f"{text}: low and high must be numbers")
            integer = kind.endswith("int") or (matched.re is SPAN and all(isinstance(n, int) for n in numbers))
            if integer and any(n != int(n) for n in numbers):
                raise ValueError(f"{text}: low and high must be whole numbers")
            return cls(low=numbers[0], high=numbers[1], log=kind.startswith("log"), integer=integer)
        if "(" in text:
            raise ValueError(f"{text!r} must be {FORMS}")
        if text:
            value = [_scalar(part) for part in text.strip("[]").split(",") if part.strip()]
        values = tuple(value) if isinstance(value, (list, tuple)) else (value,)
        values = tuple(_scalar(v) if isinstance(v, str) else v for v in values)
        if not values or isinstance(value, str):
            raise ValueError(f"{value!r} is empty: it must be {FORMS}")
        return cls(choices=values)

    @property
    def text(self) -> str:
        if self.choices:
            return ",".join(f"{value}" for value in self.choices)
        kind = ("logint" if self.integer else "log") if self.log else ("int" if self.integer else "uniform")
        return f"{kind}({self.low},{self.high})"

    @property
    def ends(self) -> tuple[Any, ...]:
        """The values that a check of the space tries: the choices, or both ends of a range."""
        if self.choices:
            return self.choices
        return (int(self.low), int(self.high)) if self.integer else (self.low, self.high)

    def holds(self, value: Any) -> bool:
        if self.choices:
            return value in self.choices
        return numeric([value]) and self.low <= value <= self.high and (not self.integer or value == int(value))

    def distribution(self) -> Any:
        from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

        if self.choices:
            return CategoricalDistribution(self.choices)
        if self.integer:
            return IntDistribution(int(self.low), int(self.high), log=self.log)
        return FloatDistribution(self.low, self.high, log=self.log)

    def axis(self) -> Any:
        """Return the dimension for Optuna's plots, with numeric choices on a scale."""
        if len(self.choices) < 2 or not numeric(self.choices):
            return self.distribution()
        low, high, integer = min(self.choices), max(self.choices), all(isinstance(value, int) for value in self.choices)
        return Dimension(low=low, high=high, log=low > 0 and high >= 10 * low, integer=integer).distribution()


Space = Mapping[str, Dimension]


def grid(space: Space) -> list[Point] | None:
    """Return every point of a space of choices, or None if an option has a range.

    The last option varies fastest.
    """
    if not all(dimension.choices for dimension in space.values()):
        return None
    values = itertools.product(*(dimension.choices for dimension in space.values()))
    return [dict(zip(space, combination, strict=True)) for combination in values]


def corners(space: Space) -> list[Point]:
    """Return points that cover every choice and both ends of every range.

    They vary one option at a time. The other options have their first value.
    """
    first = {key: dimension.ends[0] for key, dimension in space.items()}
    return [first] + [{**first, key: value} for key, d in space.items() for value in d.ends[1:]]


def contains(space: Space, point: Point) -> bool:
    """Return True if a point has a value of each option."""
    return point.keys() == space.keys() and all(space[key].holds(value) for key, value in point.items())


def key_of(point: Point) -> str:
    """Return the id of a point, a hash of its values."""
    return content_id(point)


def text_of(point: Point) -> str:
    """Return a point as text: last names of options, behind their stages where two are equal, and values."""
    names = [key.rsplit(".", 1)[-1] for key in point]
    stages = [
        f"{key.partition('.')[0]}." if names.count(name) > 1 else "" for key, name in zip(point, names, strict=True)
    ]
    return " ".join(f"{s}{n}={_short(value)}" for s, n, value in zip(stages, names, point.values(), strict=True))


def numeric(values: Sequence[Any]) -> bool:
    """Return True if all values are numbers."""
    return all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values)


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _scalar(text: str) -> Any:
    value = parse_value(text.strip())
    if isinstance(value, str):  # YAML 1.1 reads 2e-5 as text
        with contextlib.suppress(ValueError):
            return float(value)
    return value
