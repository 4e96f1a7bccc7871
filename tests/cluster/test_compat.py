"""The private parts of Ray: few, in one place, and nothing stops without them."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import house
import pytest
import ray
import ray.experimental.internal_kv  # a driver has it; a process that only imports Ray need not

from raysts.cluster import compat
from raysts.recipes.recipe import Resources


def test_private_parts_are_reached_in_one_file() -> None:
    names = house.private_ray_names()
    assert 0 < len(names) <= 3
    parts = {name.rpartition(".")[2] for name in names}
    reached = {path.name for path in house.python_files() if any(part in path.read_text() for part in parts)}
    assert reached == {"compat.py"}


@pytest.mark.parametrize(("report", "grows"), [
    (None, True),
    ("no such part", True),  # of a Ray that no longer has it
    ({}, True), ({"autoscaler_report": {"node_type_mapping": {}}}, True),
    ({"autoscaler_report": {"node_type_mapping": {"a": "node_a"}}}, False),
    ({"autoscaler_report": {"node_type_mapping": {"a": "node_a", "b": "gpu"}}}, True),
])  # fmt: skip
def test_the_monitors_report(report: Any, grows: bool, monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert labels.startswith(f"resources.label_selector: Ray {ray.__version__} does not have it, Ray 2.55 does;")
    assert workers.startswith("resources.min_workers: ")
