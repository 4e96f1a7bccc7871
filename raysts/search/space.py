"""Space of a search: the choices or the range of each option."""

from __future__ import annotations

import contextlib
import json
import math
import random
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from raysts.ids import content_id
from raysts.recipes.tree import parse_value

Point = dict[str, Any]
"""Point of a space: a value per option, in the order of the space."""

RANGE = re.compile(r"(?P<kind>uniform|log|int|logint)\((?P<low>[^,()]+),(?P<high>[^,()]+)\)")
SPAN = re.compile(r"(?P<low>\S+)\.\.(?P<high>\S+)(?P<kind>\s+log)?")
CONDITION = re.compile(r"(.*\S)\s+if\s+([\w.]+)=(.+)", re.DOTALL)
FORMS = (
    "a list of choices (0.1,0.2), or a range: 0.1..0.5, '1e-6..1e-4 log', or of whole numbers 2..12; behind either may stand "
    "' if OPTION=VALUE,VALUE'"
)


class Condition(NamedTuple):
    """Condition of an option: it exists at the points where another one has one of these values."""

    key: str
    values: tuple[Any, ...]

    @property
    def text(self) -> str:
        return f"{self.key}={_join(self.values)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Dimension:
    """Values that one option may take: ``choices``, or the range from ``low`` to ``high``."""

    choices: tuple[Any, ...] = ()  # every value once; empty for a range
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    integer: bool = False
    only: Condition | None = None  # where it does not hold, a point lacks the option

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
        """Return the dimension of a list of choices, a single value, or text (``1e-5..1e-2 log if loss=mse``).

        Raises:
            ValueError: the value describes no dimension, or an empty one.
        """
        if isinstance(value, Dimension):
            return value
        text = value.strip() if isinstance(value, str) else ""
        if condition := CONDITION.fullmatch(text):
            values, key, choices_text = condition.groups()
            if not (choices := cls.of(choices_text).choices):
                raise ValueError(f"'if {key}={choices_text}' must name choices of {key}, not a range")
            return replace(cls.of(values), only=Condition(key, choices))
        if matched := RANGE.fullmatch(text) or ("/" not in text and SPAN.fullmatch(text)):
            kind, numbers = (matched["kind"] or "").strip(), [_scalar(matched["low"]), _scalar(matched["high"])]
            if not numeric(numbers):
                raise ValueError(f"{text}: low and high must be numbers")
            integer = kind.endswith("int") or (matched.re is SPAN and all(isinstance(n, int) for n in numbers))
            if integer and any(n != int(n) for n in numbers):
                raise ValueError(f"{text}: low and high must be whole numbers")
            return cls(low=numbers[0], high=numbers[1], log=kind.startswith("log"), integer=integer)
        if "(" in text or " if " in text:
            raise ValueError(f"{text!r} must be {FORMS}")
        if text:
            value = parse_value(f"[{text}]")
            value = value if isinstance(value, list) else [part for part in text.split(",") if part.strip()]
            value = value[0] if len(value) == 1 else value
        values = tuple(value) if isinstance(value, (list, tuple)) else (value,)
        if not values or any(isinstance(v, str) and not v.strip() for v in values):
            raise ValueError(f"{value!r} is empty: it must be {FORMS}")
        values = tuple(_scalar(v) if isinstance(v, str) else v for v in values)
        return cls(choices=values)

    @property
    def text(self) -> str:
        condition = f" if {self.only.text}" if self.only else ""
        if self.choices:
            return f"{_join(self.choices)}{condition}"
        kind = f"{'log' if self.log else ''}{'int' if self.integer else ''}" or "uniform"
        return f"{kind}({self.low},{self.high}){condition}"

    def applies(self, point: Point) -> bool:
        """Return True if a point with the options before this one has this one too."""
        return self.only is None or (self.only.key in point and point[self.only.key] in self.only.values)

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

    @property
    def names(self) -> list[Any]:
        """The choices as Optuna stores them, which has no lists and mappings."""
        return [json.dumps(value) if isinstance(value, list | dict) else value for value in self.choices]

    def distribution(self) -> Any:
        from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

        if self.choices:
            return CategoricalDistribution(self.names)
        low, high = self.ends
        if self.integer:
            return IntDistribution(low, high, log=self.log)
        return FloatDistribution(low, high, log=self.log)

    def suggest(self, trial: Any, key: str) -> Any:
        if self.choices:
            return self.choices[self.names.index(trial.suggest_categorical(key, self.names))]
        return (trial.suggest_int if self.integer else trial.suggest_float)(key, *self.ends, log=self.log)

    def draw(self, dice: random.Random) -> Dimension:
        """Return the choices, of a range one random value."""
        if self.choices:
            return self
        low, high = (math.log(self.low), math.log(self.high)) if self.log else (self.low, self.high)
        drawn = dice.uniform(low, high)
        value = min(self.high, max(self.low, math.exp(drawn) if self.log else drawn))
        return replace(self, choices=(round(value) if self.integer else value,))

    def axis(self) -> Any:
        """Return the dimension for Optuna's plots, with numeric choices on a scale."""
        if len(self.choices) < 2 or not numeric(self.choices):
            return self.distribution()
        low, high, integer = min(self.choices), max(self.choices), all(isinstance(value, int) for value in self.choices)
        return Dimension(low=low, high=high, log=low > 0 and high >= 10 * low, integer=integer).distribution()


Space = Mapping[str, Dimension]
"""Options in the order in which a point has them: one with a condition stands behind that of its condition."""


def sort(space: Space) -> dict[str, Dimension]:
    """Return a space with each option behind that of its condition, and otherwise in its order.

    Raises:
        ValueError: a condition names no choices of the space.
    """
    ordered: dict[str, Dimension] = {}
    while waiting := [key for key in space if key not in ordered]:
        free = [key for key in waiting if (only := space[key].only) is None or only.key in ordered]
        key = (free or waiting)[0]
        if (only := space[key].only) and not (
            free and all(value in ordered[only.key].choices for value in only.values)
        ):
            values = space[only.key].text if only.key in space else "not in the space"
            raise ValueError(
                f"space.{key}: 'if {only.text}' must name choices of another option of the space that does not depend on this "
                f"one; space.{only.key} is {values}"
            )
        ordered[key] = space[key]
    return ordered


def select(space: Space, keys: Collection[str]) -> dict[str, Dimension]:
    """Return the part of a space with some options and those that their conditions name."""
    names = {*keys}
    for key, dimension in reversed([*space.items()]):
        if dimension.only and key in names:
            names.add(dimension.only.key)
    return {key: dimension for key, dimension in space.items() if key in names}


def grid(space: Space, most: int = 0) -> list[Point] | None:
    """Return every point of a space of choices, or None if an option has a range.

    The last option varies fastest. In a space of at most ``most`` points the numbers of a range of whole numbers are choices.
    """
    choices: dict[str, Sequence[Any]] = {
        key: range(int(d.low), int(d.high) + 1) if most and d.integer and not d.choices else d.choices
        for key, d in space.items()
    }
    if not all(choices.values()) or (most and math.prod(map(len, choices.values())) > most):
        return None
    points = [Point()]
    for key, d in space.items():
        points = [{**p, **v} for p in points for v in ([{key: v} for v in choices[key]] if d.applies(p) else [{}])]
    return points


def corners(space: Space) -> list[Point]:
    """Return points that cover every choice and both ends of every range.

    They vary one option at a time, with those that its condition names. The other options have their first value.
    """
    points = dict[str, Point]()
    for values in [{}, *({key: value} for key, dimension in space.items() for value in dimension.ends)]:
        for key in [*values]:
            while only := space[key].only:
                values[key := only.key] = only.values[0]
        point = complete(space, values)
        points[key_of(point)] = point
    return [*points.values()]


def complete(space: Space, values: Point) -> Point:
    """Return the point that has some values, and the first one of each other option that exists there."""
    point = Point()
    for key, dimension in space.items():
        if dimension.applies(point):
            point[key] = values.get(key, dimension.ends[0])
    return point


def contains(space: Space, point: Point) -> bool:
    """Return True if a point has a value of each option that exists there, and no other."""
    needed = {key for key, dimension in space.items() if dimension.applies(point)}
    return point.keys() == needed and all(space[key].holds(value) for key, value in point.items())


def as_stored(space: Space, point: Point) -> Point:
    """Return a point as Optuna stores it."""
    choices = {key: space[key].choices for key in point}
    return {key: space[key].names[choices[key].index(v)] if choices[key] else v for key, v in point.items()}


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


def _join(values: Sequence[Any]) -> str:
    return ",".join(json.dumps(value) if isinstance(value, list | dict) else f"{value}" for value in values)


def _scalar(text: str) -> Any:
    value = parse_value(text.strip())
    if isinstance(value, str):  # YAML 1.1 reads 2e-5 as text
        with contextlib.suppress(ValueError):
            return float(value)
    return value
