"""Frozen, typed trees with plain messages: built from YAML or JSON, plain data, dotted paths."""

import contextlib
import dataclasses
import functools
import math
import operator
import re
import types
import typing
from collections.abc import Iterator, Mapping
from datetime import date
from pathlib import Path, PurePath
from typing import Any, Literal, Self, TypeVar

import numpy as np
import yaml
from pydantic import BaseModel, ConfigDict, ValidationError, ValidationInfo, field_validator, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from raysts.errors import InputError, nearest

T = TypeVar("T", bound="Tree")
Words = tuple[str, str, str]
"""A problem: the words before the dotted path, the path, and the words after it."""

LONGEST_VALUE = 200
"""Characters of a value that a message shows."""

KINDS = {
    "int_type": "a whole number",
    "float_type": "a number",
    "finite_number": "finite",
    "bool_type": "true or false",
    "string_type": "text",
    "tuple_type": "a list",
    "dict_type": "a mapping",
}
"""What a value must be, by pydantic's name of the error."""

# -- trees ---------------------------------------------------------------------------------------------------------------


class Misfit(InputError):  # noqa: N818
    """Wrong values of a tree. ``words`` has every problem without the path of the tree."""

    def __init__(self, words: list[Words]) -> None:
        self.words = words
        super().__init__([f"{before}{path or 'the recipe'}{after}" for before, path, after in words])

    def prefix_path(self, place: str) -> list[Words]:
        """Return the problems of the tree as those of a larger one, in which it has a dotted path."""
        return [(before, f"{place}.{path}" if path else place, after) for before, path, after in self.words]


class Tree(BaseModel):
    """A frozen value. Its class declares the fields with types and bounds."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise Misfit([words for line in error.errors(include_url=False) for words in self._words(line)]) from None

    @field_validator("*", mode="before")
    @classmethod
    def _read(cls, value: Any, about: ValidationInfo) -> Any:
        return _interpret(cls.model_fields[str(about.field_name)].annotation, value)

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if problems := [("", problem, "") for problem in self.misfits()]:
            raise Misfit(problems)
        return self

    @classmethod
    def _words(cls, line: ErrorDetails) -> list[Words]:
        kind, value, reason = line["type"], line["input"], line.get("ctx", {}).get("error")
        path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in line["loc"]).removeprefix(".")
        if isinstance(reason, Misfit):
            return reason.prefix_path(path) if path else reason.words
        if kind == "extra_forbidden":
            return [("unknown option '", path, f"'{nearest(path, cls.model_fields)}")]
        if kind == "missing":
            return [("option '", path, "' is missing; it has no default")]
        if kind == "model_type":
            return [("", path, f" is {_show(value)}: must be a mapping with the fields of {line['ctx']['class_name']}")]
        field = cls.model_fields[str(line["loc"][0])]
        if kind == "value_error":
            return [("", path, f"={_show(value)}: {reason}")]
        if choices := [str(choice) for choice in _choices(field.annotation)]:
            return [("", path, f"={_show(value)}: must be one of {', '.join(choices)}{nearest(str(value), choices)}")]
        if kind in KINDS:
            return [("", path, f"={_show(value)}: must be {KINDS[kind]}")]
        if bounds := _bounds(field):
            return [("", path, f"={value} must be {bounds}")]
        return [("", path, f"={_show(value)}: is no value that it takes")]

    def misfits(self) -> Iterator[str]:
        """Yield the rules that the fields break together."""
        yield from ()

    def replace(self, **changes: Any) -> Self:
        """Return the tree with other values in some fields, checked."""
        return type(self)(**{name: getattr(self, name) for name in type(self).model_fields} | changes)


def build(cls: type[T], plain: Any, place: str = "") -> T:
    """Return a tree from plain data. ``place`` begins the messages.

    Raises:
        InputError: with everything that is wrong.
    """
    try:
        if not isinstance(plain, Mapping):
            raise Misfit([("", "", f" is {_show(plain)}: must be a mapping with the fields of {cls.__name__}")])
        return cls(**{str(key): value for key, value in plain.items()})
    except Misfit as misfit:
        raise InputError([f"{place}{problem}" for problem in misfit.problems]) if place else misfit from None


def _interpret(kind: Any, value: Any) -> Any:
    """Return the value of a type that a value of another type stands for, or the value as it is."""
    kinds = typing.get_args(kind) if typing.get_origin(kind) in (typing.Union, types.UnionType) else (kind,)
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if int in kinds and isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, int) and value.bit_length() > 63:
        raise ValueError("must have 63 bits at most")
    if float in kinds and (number or isinstance(value, str)):
        with contextlib.suppress(ValueError):  # YAML 1.1 reads 2e-5 as text
            return float(value)
    if str in kinds and int not in kinds and number and math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return _name_keys(value)
    if typing.get_origin(kind) is tuple and (number or isinstance(value, (str, list, tuple))):
        items = [parse_value(part) for part in value.split(",")] if isinstance(value, str) else value
        return tuple(_interpret(typing.get_args(kind)[0], item) for item in ([items] if number else items))
    return value


def _name_keys(plain: Any) -> Any:
    """Return plain data with text as names."""
    return {str(key): _name_keys(item) for key, item in plain.items()} if isinstance(plain, Mapping) else plain


def _choices(kind: Any) -> list[Any]:
    """Return the values of the literals in a type."""
    arguments = typing.get_args(kind)
    if typing.get_origin(kind) is Literal:
        return list(arguments)
    return [choice for part in arguments for choice in _choices(part)]


def _bounds(field: FieldInfo) -> str:
    names = {"gt": "above", "ge": "at least", "lt": "below", "le": "at most"}
    limits = {name: getattr(rule, name) for rule in field.metadata for name in names if hasattr(rule, name)}
    if limits.keys() == {"ge", "le"}:
        text = f"from {limits['ge']:,} to {limits['le']:,}"
    elif limits.keys() == {"gt", "lt"}:
        text = f"between {limits['gt']:,} and {limits['lt']:,}"
    else:
        text = " and ".join(f"{names[name]} {limit:,}" for name, limit in limits.items())
    return f"{text}, or none" if text and type(None) in typing.get_args(field.annotation) else text


def _show(value: Any) -> str:
    if isinstance(value, int) and value.bit_length() > 63:
        return f"a number of {value.bit_length():,} bits"
    text = repr(value)
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}..."


# -- plain data ----------------------------------------------------------------------------------------------------------


def to_plain(value: Any) -> Any:
    """Return a tree as dicts, lists and scalars, with paths as text."""
    if isinstance(value, Tree):
        return value.model_dump(mode="json")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {key: to_plain(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [to_plain(item) for item in value]
    if isinstance(value, np.generic):
        return value.item()
    return str(value) if isinstance(value, PurePath) else value


def parse_value(text: str) -> Any:
    """Return the value in ``--set key=value``, read as YAML (``none`` and ``null`` are None).

    Nothing behind the sign is an empty text. What YAML takes for a date, for a number by another base (0123, 1:30), or without
    braces for a mapping, is text: ids begin with 0, and prompts end in a colon.
    """
    if not text.strip():  # a shell makes it of an unset variable, which must not mean none
        return text
    if text.strip().lower() == "none":
        return None
    try:
        value = load_yaml(text)
    except yaml.YAMLError:
        return text
    if isinstance(value, int | float) and re.search(r":|^[-+]?0\d", text.strip()):
        return text
    return text if isinstance(value, date) or (isinstance(value, dict) and not text.lstrip().startswith("{")) else value


class _Plain(yaml.SafeLoader):
    """YAML without aliases, with which a kilobyte can stand for a gigabyte, and with each name once."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("an alias (*name): write out what it stands for")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        # What is no scalar is no name, and is refused below.
        names = set[str]()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in names:
                raise yaml.YAMLError(f"line {key.start_mark.line + 1} has '{key.value}' again: leave one of them")
            names.add(key.value)
        return super().construct_mapping(node, deep)


def load_yaml(text: str) -> Any:
    """Return the value in a YAML text without aliases, and without a name twice."""
    try:
        return yaml.load(text, _Plain)  # noqa: S506 (a SafeLoader)
    except (RecursionError, ValueError) as error:  # 2020-13-45 is a date to YAML
        raise yaml.YAMLError("nested too deeply" if isinstance(error, RecursionError) else str(error)) from None


def read_data(file: str, name: str) -> Any:
    """Return the content of a YAML file of raysts, which lies beside the Python ``file``."""
    text = Path(file).with_name(name).read_text(encoding="utf-8")
    return yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # C is ten times as fast


# -- dotted paths --------------------------------------------------------------------------------------------------------


def paths(plain: Any, prefix: str = "") -> list[str]:
    """Return the dotted paths of all leaves and branches of a plain tree."""
    if not isinstance(plain, Mapping):
        return []
    return [path for key, item in plain.items() for path in (f"{prefix}{key}", *paths(item, f"{prefix}{key}."))]


def leaves(plain: Any, prefix: str = "") -> dict[str, Any]:
    """Return the leaves of a plain tree by dotted path."""
    if not isinstance(plain, dict):
        return {prefix.rstrip("."): plain}
    return {path: value for key, item in plain.items() for path, value in leaves(item, f"{prefix}{key}.").items()}


def has_path(plain: Any, path: str) -> bool:
    """Return True if the plain tree has a value at the dotted path."""
    for part in path.split("."):
        if not isinstance(plain, Mapping) or part not in plain:
            return False
        plain = plain[part]
    return True


def get_path(plain: Any, path: str) -> Any:
    """Return the value at a dotted path that exists."""
    return functools.reduce(operator.getitem, path.split("."), plain)


def set_path(plain: dict[str, Any], path: str, value: Any) -> None:
    """Set the value at a dotted path that exists."""
    *branches, leaf = path.split(".")
    for part in branches:
        plain = plain[part]
    plain[leaf] = value
