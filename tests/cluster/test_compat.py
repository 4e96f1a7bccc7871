"""The private parts of Ray: few, in one place, and nothing stops without them."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
import ray.experimental.internal_kv  # a driver has it; a process that only imports Ray need not

import raysts
from raysts.cluster import compat
from raysts.recipes.recipe import Resources

MOST = 3


def private(tree: ast.AST) -> list[str]:
    """What is reached of a package's private parts: attributes, imports and names of variables in strings aside."""
    found = []
    for node in ast.walk(tree):
        match node:
            case ast.Attribute() if ast.unparse(node).startswith("ray.") and node.attr.startswith("_"):
                found.append(ast.unparse(node))
            case ast.ImportFrom(module=str() as module) if module.split(".")[0] == "ray":
                names = [*module.split("."), *(alias.name for alias in node.names)]
                found += [module] if any(name.startswith("_") for name in names) else []
            case ast.Import():
                found += [alias.name for alias in node.names if alias.name.startswith("ray.") and "._" in alias.name]
    return found


def test_private_parts_are_reached_in_one_file() -> None:
    by_file = {path.name: private(ast.parse(path.read_text())) for path in Path(raysts.__file__).parent.rglob("*.py")}
    assert private(ast.parse("from ray._private import x\nimport ray.a._b\nray.c._d()")) == [
        "ray._private", "ray.a._b", "ray.c._d"
    ]  # fmt: skip
    assert {name for name, found in by_file.items() if found} == {"compat.py"}
    assert 0 < len(by_file["compat.py"]) <= MOST, by_file["compat.py"]


@pytest.mark.anyray
@pytest.mark.parametrize(
    ("report", "grows"),
    [
        (None, None),
        ("no such part", None),  # of a Ray that no longer has it
        ({}, None),
        ({"autoscaler_report": {"node_type_mapping": {}}}, None),
        ({"autoscaler_report": {"node_type_mapping": {"a": "node_a"}}}, False),
        ({"autoscaler_report": {"node_type_mapping": {"a": "node_a", "b": "gpu"}}}, True),
    ],
)
def test_the_monitors_report(report: Any, grows: bool | None, monkeypatch: pytest.MonkeyPatch) -> None:
    status = None if report is None else json.dumps(report).encode()
    parts = {} if report == "no such part" else {"_internal_kv_get": lambda key: status}
    monkeypatch.setattr(ray.experimental, "internal_kv", SimpleNamespace(**parts))
    assert compat.has_autoscaler() is grows


@pytest.mark.anyray
def test_what_this_ray_cannot_do_is_said_with_the_ray_that_can(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = Resources(workers=2, min_workers=1, label_selector=("zone=a",))
    recent = tuple(map(int, ray.__version__.split(".")[:2])) >= (2, 55)
    assert (compat.lacks(wanted) == []) is recent and compat.lacks(Resources(workers=2)) == []
    monkeypatch.setattr(compat, "scales_with", lambda field: False)
    labels, workers = compat.lacks(wanted)
    assert labels.startswith(
        f"resources.label_selector: Ray {ray.__version__} does not have it, Ray 2.55 does; install"
    )
    assert workers.startswith("resources.min_workers: ")
