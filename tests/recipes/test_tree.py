from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from raysts.ids import later
from raysts.recipes.tree import build, has_path, parse_value, paths, set_path, to_plain


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    size: int = 3
    rate: float = 0.5
    name: Literal["first", "second"] = "first"
    flag: bool = True
    limit: int | None = None
    numbers: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.size <= 0:
            raise ValueError(f"size={self.size} must be positive")


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    title: str
    leaf: Leaf = field(default_factory=Leaf)
    leaves: dict[str, Leaf] = field(default_factory=dict)


def made(plain: Any) -> tuple[Branch | None, list[str]]:
    problems: list[str] = []
    return build(Branch, plain, problems), problems


def test_plain_and_back() -> None:
    tree = Branch(title="t", leaf=Leaf(numbers=(1, 2), limit=4), leaves={"a": Leaf(name="second")})
    plain = to_plain(tree)
    assert plain["leaf"]["numbers"] == [1, 2] and plain["leaves"]["a"]["name"] == "second"
    assert made(plain) == (tree, [])


def test_a_field_that_came_later_is_no_part_of_an_id_until_it_says_something() -> None:
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Grown(Leaf):
        chunk: int | None = later(None)

    assert Grown().chunk is None and to_plain(Grown())["chunk"] is None
    assert to_plain({"a": Grown()}, identity=True) == {"a": to_plain(Leaf())}
    assert to_plain((Grown(chunk=4),), identity=True) == [to_plain(Leaf()) | {"chunk": 4}]


def test_defaults_fill_what_is_not_said() -> None:
    assert made({"title": "t"}) == (Branch(title="t"), [])


@pytest.mark.parametrize(
    ("plain", "expected"),
    [
        ({"size": 4.0}, Leaf(size=4)),
        ({"rate": 1}, Leaf(rate=1.0)),
        ({"rate": "2e-5"}, Leaf(rate=2e-5)),
        ({"limit": None}, Leaf(limit=None)),
        ({"numbers": [3, 4]}, Leaf(numbers=(3, 4))),
        ({"numbers": 3}, Leaf(numbers=(3,))),
    ],
)
def test_values_that_mean_the_type(plain: dict[str, Any], expected: Leaf) -> None:
    tree, problems = made({"title": "t", "leaf": plain})
    assert problems == [] and tree is not None
    assert tree.leaf == expected
    assert [type(value) for value in to_plain(tree.leaf).values()] == [type(v) for v in to_plain(expected).values()]


@pytest.mark.parametrize(
    ("plain", "message"),
    [
        ({"size": 2.5}, "leaf.size=2.5: must be a whole number"),
        ({"size": True}, "leaf.size=True: must be a whole number"),
        ({"size": "many"}, "leaf.size='many': must be a whole number"),
        ({"size": None}, "leaf.size=None: must be a whole number"),
        ({"rate": "fast"}, "leaf.rate='fast': must be a number"),
        ({"rate": True}, "leaf.rate=True: must be a number"),
        ({"flag": 1}, "leaf.flag=1: must be true or false"),
        ({"name": "frist"}, "leaf.name='frist': must be one of first, second (did you mean 'first'?)"),
        ({"numbers": [1, "x"]}, "leaf.numbers[1]='x': must be a whole number"),
        ({"numbers": {"a": 1}}, "leaf.numbers={'a': 1}: must be a list"),
        ({"sise": 1}, "unknown option 'leaf.sise' (did you mean 'size'?)"),
        (3, "leaf is 3: must be a mapping with the fields of Leaf"),
        ({"size": -1}, "leaf.size=-1 must be positive"),
    ],
)
def test_a_wrong_value_is_named_with_its_path(plain: Any, message: str) -> None:
    tree, problems = made({"title": "t", "leaf": plain})
    assert tree is None and problems == [message]


def test_all_problems_come_together() -> None:
    _, problems = made({"leaf": {"size": "x", "flag": "maybe"}, "leaves": {"a": {"rate": []}}, "more": 1})
    assert len(problems) == 5
    assert any("'title' is missing" in problem for problem in problems)
    assert any(problem.startswith("leaves.a.rate=") for problem in problems)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3), ("2e-5", "2e-5"), ("0.5", 0.5), ("none", None), ("None", None), ("null", None), ("true", True),
        ("[1, 2]", [1, 2]), ("nli/train", "nli/train"), ("a: [", "a: ["), ("", None),
    ],
)  # fmt: skip
def test_values_on_a_command_line(text: str, value: Any) -> None:
    assert parse_value(text) == value


def test_paths() -> None:
    plain = {"a": {"b": 1, "c": {"d": 2}}, "e": None}
    assert paths(plain) == ["a", "a.b", "a.c", "a.c.d", "e"]
    assert (
        has_path(plain, "a.c.d") and has_path(plain, "e") and not has_path(plain, "a.x") and not has_path(plain, "e.f")
    )
    set_path(plain, "a.c.d", 3)
    assert plain["a"] == {"b": 1, "c": {"d": 3}}
