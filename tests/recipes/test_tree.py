from __future__ import annotations

import pickle
from typing import Any, Literal

import pytest
import yaml
from pydantic import Field, ValidationError

from raysts.errors import InputError
from raysts.recipes.tree import Tree, build, load_yaml, parse_value, to_plain


class Leaf(Tree):
    size: int = Field(3, gt=0)
    rate: float = 0.5
    part: float = Field(0.5, gt=0, lt=1)
    name: Literal["first", "second"] = "first"
    flag: bool = True
    limit: int | None = Field(None, ge=2, le=9_999)
    numbers: tuple[int, ...] = ()
    text: str = ""

    def misfits(self) -> Any:
        if self.size > 100 * self.part:
            yield f"size={self.size} must be at most 100 times part, {self.part}"


class Branch(Tree):
    title: str
    leaf: Leaf = Leaf()
    leaves: dict[str, Leaf] = {}


def problems_of(plain: Any) -> list[str]:
    with pytest.raises(InputError) as caught:
        build(Branch, plain)
    return caught.value.problems


def test_yaml_has_each_name_once() -> None:
    with pytest.raises(yaml.YAMLError, match="line 3 has 'a' again"):
        load_yaml("a: 1\nb: 2\na: 3")


def test_plain_and_back() -> None:
    tree = Branch(title="t", leaf=Leaf(numbers=(1, 2), limit=4), leaves={"a": Leaf(name="second")})
    plain = to_plain(tree)
    assert plain["leaf"]["numbers"] == [1, 2] and plain["leaves"]["a"]["name"] == "second"
    assert build(Branch, plain) == tree == pickle.loads(pickle.dumps(tree)) != tree.replace(title="u")
    assert build(Branch, {"title": "t"}) == Branch(title="t")


def test_trees_are_frozen_and_their_copies_checked() -> None:
    with pytest.raises(ValidationError):
        Leaf().size = 4  # type: ignore[misc]
    assert Leaf().replace(size=4) == Leaf(size=4)
    for wrong in (lambda: Leaf().replace(size=0), lambda: Leaf(size=0)):
        with pytest.raises(InputError, match="^size=0 must be above 0$"):
            wrong()


@pytest.mark.parametrize(
    ("plain", "expected"),
    [
        ({"size": 4.0}, Leaf(size=4)), ({"rate": 1}, Leaf(rate=1.0)), ({"rate": "2e-5"}, Leaf(rate=2e-5)),
        ({"limit": None}, Leaf(limit=None)), ({"numbers": [3, 4]}, Leaf(numbers=(3, 4))), ({"numbers": 3}, Leaf(numbers=(3,))),
        ({"numbers": "3,4"}, Leaf(numbers=(3, 4))), ({"text": 3}, Leaf(text="3")), ({"rate": 2**62}, Leaf(rate=2.0**62)),
    ],
)  # fmt: skip
def test_values_that_mean_the_type(plain: dict[str, Any], expected: Leaf) -> None:
    leaf = build(Branch, {"title": "t", "leaf": plain}).leaf
    assert leaf == expected
    assert [type(value) for value in to_plain(leaf).values()] == [type(value) for value in to_plain(expected).values()]


@pytest.mark.parametrize(
    ("plain", "message"),
    [
        ({"size": 2.5}, "leaf.size=2.5: must be a whole number"),
        ({"size": True}, "leaf.size=True: must be a whole number"),
        ({"size": "many"}, "leaf.size='many': must be a whole number"),
        ({"size": 10**400}, "leaf.size=a number of 1,329 bits: must have 63 bits at most"),
        ({"size": -1}, "leaf.size=-1 must be above 0"),
        ({"size": 60}, "leaf.size=60 must be at most 100 times part, 0.5"),
        ({"part": 1}, "leaf.part=1.0 must be between 0 and 1"),
        ({"limit": 10_000}, "leaf.limit=10000 must be from 2 to 9,999, or none"),
        ({"rate": "fast"}, "leaf.rate='fast': must be a number"),
        ({"rate": "inf"}, "leaf.rate=inf: must be finite"),
        ({"flag": 1}, "leaf.flag=1: must be true or false"),
        ({"text": []}, "leaf.text=[]: must be text"),
        ({"name": "frist"}, "leaf.name='frist': must be one of first, second (did you mean 'first'?)"),
        ({"numbers": [1, "x"]}, "leaf.numbers[1]='x': must be a whole number"),
        ({"numbers": {"a": 1}}, "leaf.numbers={'a': 1}: must be a list"),
        ({"numbers": "x" * 300}, f"leaf.numbers[0]='{'x' * 199}...: must be a whole number"),
        ({"sise": 1}, "unknown option 'leaf.sise' (did you mean 'size'?)"),
        ({3: 1}, "unknown option 'leaf.3'"),
        (3, "leaf is 3: must be a mapping with the fields of Leaf"),
    ],
)
def test_a_wrong_value_is_named_with_its_path(plain: Any, message: str) -> None:
    assert problems_of({"title": "t", "leaf": plain}) == [message]
    below = message.replace("leaf", "leaves.a", 1)
    assert problems_of({"title": "t", "leaves": {"a": plain}}) == [below]


def test_all_problems_come_together() -> None:
    wrong = {"leaf": {"size": "x", "flag": "maybe"}, "leaves": {"a": {"rate": []}}, "more": 1}
    assert sorted(problems_of(wrong)) == [
        "leaf.flag='maybe': must be true or false", "leaf.size='x': must be a whole number",
        "leaves.a.rate=[]: must be a number", "option 'title' is missing; it has no default", "unknown option 'more'",
    ]  # fmt: skip
    assert problems_of(3) == ["the recipe is 3: must be a mapping with the fields of Branch"]
    assert problems_of({"title": "t", "leaves": []}) == ["leaves=[]: must be a mapping"]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3), ("2e-5", "2e-5"), ("0.5", 0.5), ("none", None), ("None", None), ("null", None), ("true", True),
        ("[1, 2]", [1, 2]), ("nli/train", "nli/train"), ("a: [", "a: ["), ("", ""),
        ("0123", "0123"), ("12:30", "12:30"), ("1_000", 1000),
        ("query: ", "query: "), ("{a: 1}", {"a": 1}), ("2026-11-27", "2026-11-27"),
    ],
)  # fmt: skip
def test_values_on_a_command_line(text: str, value: Any) -> None:
    assert parse_value(text) == value
