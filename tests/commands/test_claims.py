"""``raysts claims`` end to end, and what it refuses."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from raysts.commands.claims import claims
from raysts.errors import InputError
from raysts.evaluation.baselines import LONGER
from raysts.recipes.claims import CLAIMS
from raysts.recipes.experiments import EXPERIMENTS

QUICK: dict[str, Any] = {
    "gausscse.train.max_steps": 2, "train.max_length": 24, "data.sample": 64,
    "evaluation.resamples": 50, "evaluation.layers": [1], "evaluation.tasks": ["snli-2way", "snli-direction"],
}  # fmt: skip


def run(paper: str | None, data: Path, storage: Path, **more: Any) -> dict[str, Any]:
    return claims(
        paper, data=data, storage=storage, address="none", **{"overrides": QUICK, "say": lambda text: None, **more}
    )


def test_claims_from_nothing_and_from_what_is_there(
    small_world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With two of the five systems, and the claims that are about them."""
    systems = ("gausscse-ent", "gausscse-ent+rev")
    whole = EXPERIMENTS["claims-gausscse"]
    two = whole._replace(points=lambda depth: [point for point in whole.points(depth) if point.system in systems])
    monkeypatch.setitem(EXPERIMENTS, "claims-gausscse", two)
    about = [claim for claim in CLAIMS["gausscse"] if {claim.a.point, claim.b.point} <= {*systems, LONGER}]
    monkeypatch.setitem(CLAIMS, "gausscse", about)
    planned = run("gausscse", small_world, tmp_path, seeds=2, plan=True)
    assert {node["status"] for node in planned["nodes"]} == {"waiting"} and not (tmp_path / "runs").exists()
    found = run("gausscse", small_world, tmp_path, seeds=2)
    by_claim = {row["claim"]: row for row in found["claims"]}
    direction = by_claim["The reversed set gives the direction: ent"]
    assert (direction["a_models"], direction["b_models"], direction["on"]) == (2, 2, ("snli-direction",))
    assert direction["low"] <= direction["difference"] <= direction["high"] and direction["verdict"]
    longer = by_claim["ent+rev is above calling the longer sentence the premise"]
    assert longer["b_models"] == 1 and 0.3 < longer["b_value"] <= 1
    assert by_claim["The reversed set gives the direction on SICK"]["why"].startswith("no data")
    assert Path(found["reports"][0]).is_file() and "sed" not in {row["paper"] for row in found["claims"]}
    again = run("gausscse", small_world, tmp_path, seeds=2)
    assert again["claims"] == found["claims"]
    assert {node["status"] for node in run("gausscse", small_world, tmp_path, seeds=2, plan=True)["nodes"]} == {"done"}


def test_what_the_data_cannot_measure_is_said_before_anything_starts(small_world: Path, tmp_path: Path) -> None:
    data = Path(shutil.copytree(small_world, tmp_path / "data"))
    shutil.rmtree(data / "sick")
    said: list[str] = []
    run("gausscse", data, tmp_path / "storage", plan=True, say=said.append)
    without = sum(all(task.startswith("sick-") for task in claim.on) for claim in CLAIMS["gausscse"])
    assert said[0] == (
        f"gausscse: {without} of {len(CLAIMS['gausscse'])} claims cannot be measured, for {data} has no test set of "
        f"sick-2way, sick-direction"
    )


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"paper": "latte"}, r"paper 'latte' \(did you mean 'latte-mix'\?\): must be one of"),
        ({"seeds": 1}, "--seeds 1: must be at least 2"),
        ({"overrides": {"members": 3}}, "members: is what --seeds says"),
        ({"scale": "smal"}, r"'smal' is no scale \(did you mean 'small'\?\)"),
        ({"overrides": {"nli.bach": 3}}, "unknown option 'nli.bach'"),
    ],
)
def test_what_is_refused(arguments: dict[str, Any], reason: str, small_world: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=reason):
        run(**{"paper": "sed", "data": small_world, "storage": tmp_path / "storage", **arguments})
    assert not (tmp_path / "storage").exists()
