"""``raysts claims`` end to end, and what it refuses."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from golden.golden import Golden, shape
from run_commands import listening
from run_commands import plan_of as plan
from small_runs import write_backbone

from raysts.commands.claims import claims
from raysts.errors import InputError
from raysts.papers.claims import CLAIMS
from raysts.papers.experiments import EXPERIMENTS
from raysts.papers.measured import every_row
from raysts.papers.verdicts import LONGER

QUICK: dict[str, Any] = {
    "gausscse.train.max_steps": 2, "train.max_length": 24, "data.sample": 64,
    "evaluation.resamples": 50, "evaluation.layers": [1], "evaluation.tasks": ["snli-2way", "snli-direction"],
}  # fmt: skip


def run(paper: str | None, data: Path, storage: Path, **more: Any) -> dict[str, Any]:
    return claims(paper, data=data, storage=storage, address="none", **{"overrides": QUICK, **more})


@pytest.mark.whole
def test_claims_end_to_end(small_world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden) -> None:
    """With two of the five systems, and the claims that are about them."""
    systems = ("gausscse-ent", "gausscse-ent+rev")
    whole = EXPERIMENTS["claims-gausscse"]
    two = whole._replace(points=[point for point in whole.points if point.system in systems])
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
    assert by_claim["The reversed set gives the direction on SICK"]["why"].startswith("not among evaluation")
    sim, var = (by_claim[f"The reversed set gives the direction{by}: ent"] for by in ("", " by variance"))
    assert (sim["a_value"], sim["b_value"]) != (var["a_value"], var["b_value"]) and var["verdict"]
    every = [each.row for each in every_row(tmp_path)]
    rows = [row for row in every if row["dataset"] == "snli-direction" and row["subset"] is None]
    for side, system in (("a", "gausscse-ent+rev"), ("b", "gausscse-ent")):
        of = [row["value"] for row in rows if (row["system"], row["similarity"]) == (system, "variance")]
        assert len(of) == 2 and var[f"{side}_value"] == pytest.approx(sum(of) / 2)
    golden.check("json/claims", shape({name: value for name, value in found.items() if name != "text"}))
    verdicts = {row["claim"]: [row["verdict"], row["a_value"]] for row in found["claims"]}
    golden.check("verdicts", verdicts, tolerance=0.02)
    assert Path(found["reports"][0]).is_file() and "sed" not in {row["paper"] for row in found["claims"]}
    again = run("gausscse", small_world, tmp_path, seeds=2)
    assert again["claims"] == found["claims"]
    assert {node["status"] for node in run("gausscse", small_world, tmp_path, seeds=2, plan=True)["nodes"]} == {"done"}
    on_stand_ins(small_world, tmp_path, found["claims"])


@pytest.mark.whole
def test_claims_about_two_encoders(few_world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a second one they are not measured, and nothing of the first is made again for them."""
    experiment = EXPERIMENTS["claims-latte-mix"]
    points = [point for point in experiment.points if point.name in ("nli", "nli.larger")]
    monkeypatch.setitem(EXPERIMENTS, "claims-latte-mix", experiment._replace(points=points))
    about = [
        claim
        for claim in CLAIMS["latte-mix"]
        if {claim.a.point, claim.b.point} <= {"nli", "nli.larger", "word overlap"}
    ]
    (claim,) = about
    itself = claim._replace(says="self", a=claim.b, b=claim.b._replace(role="backbone"))
    monkeypatch.setitem(CLAIMS, "latte-mix", [claim, itself])
    sizes = {depth: str(write_backbone(tmp_path / str(depth), "bert", depth=depth)) for depth in (2, 3)}
    overrides = {"nli.train.max_steps": 2, "train.max_length": 16, "data.sample": 300, "evaluation.resamples": 50,
                 "evaluation.tasks": ["sts12"]}  # fmt: skip
    one = run("latte-mix", few_world, tmp_path / "s", seeds=2, overrides=overrides | {"backbone": sizes[2]})
    assert [row["why"] for row in one["claims"]] == ["needs two encoders, --set backbone=[SMALLER,LARGER]", None]
    two = run("latte-mix", few_world, tmp_path / "s", seeds=2, overrides=overrides | {"backbone": [*sizes.values()]})
    first, second = two["claims"]
    assert (
        second == one["claims"][1]
        and first["why"] is None
        and first["b_value"] == second["a_value"] != first["a_value"]
    )
    assert f"2 seeds from {sizes[2]} and {sizes[3]}" in two["text"]


def on_stand_ins(whole: Path, storage: Path, before: list[dict[str, Any]]) -> None:
    """On data whose SNLI test set is XNLI's: nothing is trained, and the same is found, marked."""
    data = Path(shutil.copytree(whole, storage / "data"))
    (data / "nli" / "snli_test.parquet").rename(data / "nli" / "xnli_en_test.parquet")
    overrides = {**QUICK, "evaluation.tasks": ["stsb"]}
    with pytest.raises(InputError, match=r"--stand-ins' holds 4 of them: on xnli-2way in place of snli-2way \(1\), on"):
        run("gausscse", data, storage, seeds=2, overrides=overrides)
    said: list[str] = []
    trained = {path: path.stat().st_mtime_ns for path in (storage / "runs").rglob("*.safetensors")}
    with listening(said.append):
        found = run("gausscse", data, storage, seeds=2, overrides=overrides, stand_ins=True)
    assert trained == {path: path.stat().st_mtime_ns for path in (storage / "runs").rglob("*.safetensors")}
    assert said[1] == (
        "gausscse: 4 claims are held on other sets than the paper's: on xnli-2way in place of snli-2way (1), "
        "on xnli-direction in place of snli-direction (3)"
    )
    marked = [row for row in found["claims"] if row["in_place_of"]]
    assert [(row["on"], row["in_place_of"]) for row in marked] == [
        ((name.replace("snli", "xnli"),), (name,)) for name in ("snli-2way", *["snli-direction"] * 3)
    ]
    values = {row["claim"]: (row["a_value"], row["b_value"]) for row in before}
    assert all((row["a_value"], row["b_value"]) == values[row["claim"]] for row in marked)
    page = Path(found["reports"][0])
    for shown in (found["text"], page.read_text(), page.with_name("claims.md").read_text()):
        assert shown.count("(on xnli-2way in place of snli-2way)") == 1
        assert shown.count("(on xnli-direction in place of snli-direction)") == 3
    assert "†: held on another set" in page.read_text() and "gives the direction: ent †</text>" in page.read_text()


def test_systems_that_no_claim_needs_are_not_run(few_world: Path, tmp_path: Path) -> None:
    """What is left are the nodes of the system by its own name: what is done of them is not done again."""
    data = Path(shutil.copytree(few_world, tmp_path / "data"))
    shutil.rmtree(data / "sick")
    overrides = {**QUICK, "evaluation.tasks": ["stsb"], "simcse-sup.train.max_steps": 2}
    del overrides["gausscse.train.max_steps"]
    found = run("gausscse", data, tmp_path / "storage", seeds=2, overrides=overrides, plan=True)
    alone = plan("simcse-sup@small", {**overrides, "members": 2}, data, tmp_path / "storage")
    assert [node["id"] for node in found["nodes"]] == [node.id for node in alone.steps]


def test_what_is_refused(few_world: Path, tmp_path: Path) -> None:
    for arguments, reason in (
        ({"paper": "latte"}, r"paper 'latte' \(did you mean 'latte-mix'\?\): must be one of"),
        ({"seeds": 1}, "--seeds 1: must be at least 2"), ({"overrides": {"members": 3}}, "members: --seeds sets it"),
        ({"scale": "smal"}, r"'smal' is not a scale \(did you mean 'small'\?\)"),
        ({"overrides": {"nli.bach": 3}}, "unknown option 'nli.bach'"),
        ({"overrides": {"evaluation.tasks": ["stsbb"]}}, "unknown task 'stsbb'"),
        ({"paper": "gausscse", "overrides": {"evaluation.tasks": ["sts12"]}},
         r"20 of 20 claims cannot be measured with .*: not among evaluation.tasks: snli-2way \(7\).*at least one must be"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=reason):
            run(**{"paper": "sed", "data": few_world, "storage": tmp_path / "storage", **arguments})
    assert not (tmp_path / "storage").exists()
