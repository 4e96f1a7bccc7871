"""Frozen dataclass trees as plain data: checked construction from YAML or JSON, and typed overrides ``a.b=value``."""

import contextlib
import dataclasses
import functools
import math
import operator
import types
import typing
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import PurePath
from typing import Any, Literal, TypeVar

import numpy as np
import yaml

from raysts.errors import InputError, nearest
from raysts.ids import LATER

T = TypeVar("T")


def require(holds: bool, message: str) -> None:
    """Raise a ValueError with a message unless a rule holds."""
    if not holds:
        raise ValueError(message)


def limit(default: Any, holds: Callable[[Any], bool], rule: str, came_later: bool = False) -> Any:
    """Return a field whose values obey a rule, None aside (``came_later``: as of ``raysts.ids.later``)."""
    return dataclasses.field(default=default, metadata={"rule": (holds, rule)} | ({LATER: True} if came_later else {}))


class Tree:
    """Base of the dataclasses that check the rules of their fields (:func:`limit`)."""

    __slots__ = ()

    def __post_init__(self) -> None:
        for option in dataclasses.fields(self):  # type: ignore[arg-type]
            value, (holds, rule) = getattr(self, option.name), option.metadata.get("rule", (None, ""))
            require(value is None or holds is None or holds(value), f"{option.name}={value} {rule}")


def to_plain(value: Any, identity: bool = False) -> Any:
    """A tree as dicts, lists and scalars; paths are text and numpy's numbers are Python's.

    Args:
        identity: as ids are made of it: without the fields that came later (``raysts.ids.later``) and have their default,
            so that what was trained before they came is not trained again.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: to_plain(getattr(value, field.name), identity)
            for field in dataclasses.fields(value)
            if not (identity and LATER in field.metadata and getattr(value, field.name) == field.default)
        }
    if isinstance(value, Mapping):
        return {key: to_plain(item, identity) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [to_plain(item, identity) for item in value]
    return value.item() if isinstance(value, np.generic) else str(value) if isinstance(value, PurePath) else value


def build(cls: type[T], plain: Any, problems: list[str], path: str = "") -> T | None:
    """Construct ``cls`` from plain data; what is wrong is appended to ``problems`` with its dotted path."""
    if not isinstance(plain, Mapping):
        problems.append(f"{path or 'the recipe'} is {plain!r}: must be a mapping with the fields of {cls.__name__}")
        return None
    try:
        types_by_field = field_types(cls, plain)
    except ValueError as error:
        problems.append(f"{path + '.' if path else ''}{error}")
        return None
    before, values = len(problems), {}
    for key, item in plain.items():
        where = f"{path}.{key}" if path else str(key)
        if key not in types_by_field:
            problems.append(f"unknown option '{where}'{nearest(str(key), types_by_field)}")
        else:
            values[key] = convert(types_by_field[key], item, problems, where)
    for field in dataclasses.fields(cls):  # type: ignore[arg-type]
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if required and field.name not in plain:
            problems.append(f"option '{path + '.' if path else ''}{field.name}' is missing; it has no default")
    if len(problems) > before:
        return None
    try:
        return cls(**values)
    except ValueError as error:
        problems.append(f"{path + '.' if path else ''}{error}")
        return None


def built(cls: type[T], plain: Any, where: str = "") -> T:
    """As :func:`build`; ``where`` begins the messages.

    Raises:
        InputError: with everything that is wrong.
    """
    problems: list[str] = []
    found = build(cls, plain, problems)
    if problems or found is None:
        raise InputError([f"{where}{problem}" for problem in problems])
    return found


def convert(kind: Any, value: Any, problems: list[str], path: str) -> Any:
    """``value`` as the annotated type ``kind``."""
    if kind is Any:
        return value
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in arguments:
            return None
        inner = [argument for argument in arguments if argument is not type(None)]
        fits = [argument for argument in inner if isinstance(argument, type) and type(value) is argument]
        return convert((fits or inner)[0], value, problems, path)
    if origin is Literal:
        if value not in arguments:
            problems.append(
                f"{path}={value!r}: must be one of {', '.join(map(str, arguments))}"
                f"{nearest(str(value), map(str, arguments))}"
            )
        return value
    if origin is tuple:
        if isinstance(value, str):  # a,b on the command line
            value = [parse_value(part) for part in value.split(",")]
        elif isinstance(value, (int, float)):
            value = [value]
        if not isinstance(value, (list, tuple)):
            problems.append(f"{path}={value!r}: must be a list")
            return ()
        return tuple(convert(arguments[0], item, problems, f"{path}[{i}]") for i, item in enumerate(value))
    if origin is dict:
        if not isinstance(value, Mapping):
            problems.append(f"{path}={value!r}: must be a mapping")
            return {}
        return {str(key): convert(arguments[1], item, problems, f"{path}.{key}") for key, item in value.items()}
    if dataclasses.is_dataclass(kind):
        return (
            value
            if isinstance(value, typing.cast(type, kind))
            else build(typing.cast(type, kind), value, problems, path)
        )
    return _scalar(kind, value, problems, path)


def _scalar(kind: Any, value: Any, problems: list[str], path: str) -> Any:
    if isinstance(value, int) and value.bit_length() > 63:
        problems.append(f"{path}: is a number of {value.bit_length():,} bits; it must have 63 at most")
        return value
    if kind is float and isinstance(value, (int, str)) and not isinstance(value, bool):
        with contextlib.suppress(ValueError, OverflowError):  # YAML 1.1 reads 2e-5 as a string
            value = float(value)
    if isinstance(value, float) and not math.isfinite(value):
        problems.append(f"{path}={value!r}: must be finite")
        return value
    if kind is int and isinstance(value, float) and value.is_integer():
        return int(value)
    if kind is str and isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        names = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
        problems.append(f"{path}={value!r}: must be {names.get(kind, kind)}")
    return value


def field_types(cls: type, plain: Mapping[str, Any]) -> dict[str, Any]:
    """Field types of a tree class; a class may refine them by what the plain data says (``refine_types``).

    Raises:
        ValueError: the plain data names something that decides the types and does not exist.
    """
    found = dict(_hints(cls))
    refine = getattr(cls, "refine_types", None)
    return found | (refine(plain) if refine else {})


@functools.lru_cache(maxsize=256)
def _hints(cls: type) -> dict[str, Any]:
    hints = typing.get_type_hints(cls)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}


def misfits(tree: Any, path: str = "") -> list[str]:
    """What in a tree that was made by hand has not the type that its class says, each with its dotted path."""
    problems: list[str] = []
    for name, kind in field_types(type(tree), {}).items():
        value = getattr(tree, name)
        convert(kind, value, problems, f"{path}{name}")
        if dataclasses.is_dataclass(value):
            problems += misfits(value, f"{path}{name}.")
    return problems


def parse_value(text: str) -> Any:
    """The value in ``--set key=value``, read as YAML (``none`` and ``null`` are None)."""
    if text.strip().lower() == "none":
        return None
    try:
        return load_yaml(text)
    except yaml.YAMLError:
        return text


class _Plain(yaml.SafeLoader):
    """YAML without aliases, with which a kilobyte can stand for a gigabyte, and with each name once."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("an alias (*name): write out what it stands for")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        # What is no scalar is no name, and is refused below.
        names = Counter(key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode))
        if twice := [name for name, count in names.items() if count > 1]:
            raise yaml.YAMLError(f"'{twice[0]}' is there twice in{node.start_mark}: leave one of them")
        return super().construct_mapping(node, deep)


def load_yaml(text: str) -> Any:
    """The value in a YAML text without aliases, and without a name twice."""
    try:
        return yaml.load(text, _Plain)  # noqa: S506 (a SafeLoader)
    except (RecursionError, ValueError) as error:  # 2020-13-45 is a date to YAML
        raise yaml.YAMLError("nested too deeply" if isinstance(error, RecursionError) else str(error)) from None


def paths(plain: Any, prefix: str = "") -> list[str]:
    """Dotted paths of all leaves and branches of a plain tree."""
    if not isinstance(plain, Mapping):
        return []
    found = []
    for key, item in plain.items():
        path = f"{prefix}{key}"
        found += [path, *paths(item, f"{path}.")]
    return found


def leaves(plain: Any, prefix: str = "") -> dict[str, Any]:
    """The leaves of a plain tree by dotted path."""
    if not isinstance(plain, dict):
        return {prefix.rstrip("."): plain}
    return {path: value for key, item in plain.items() for path, value in leaves(item, f"{prefix}{key}.").items()}


def has_path(plain: Any, path: str) -> bool:
    """Whether the plain tree has a value at the dotted path."""
    for part in path.split("."):
        if not isinstance(plain, Mapping) or part not in plain:
            return False
        plain = plain[part]
    return True


def get_path(plain: Any, path: str) -> Any:
    """The value at a dotted path that exists."""
    return functools.reduce(operator.getitem, path.split("."), plain)


def set_path(plain: dict[str, Any], path: str, value: Any) -> None:
    """Set the value at a dotted path that exists."""
    *branches, leaf = path.split(".")
    for part in branches:
        plain = plain[part]
    plain[leaf] = value
