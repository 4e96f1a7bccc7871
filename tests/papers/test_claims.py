"""Verdicts by hand, that every claim has the pipelines it is about, and the page."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from evaluation_fakes import accurate, write_table
from golden.golden import Golden, lines

from raysts.data.corpora import Corpus
from raysts.data.derive import TARGETS
from raysts.evaluation import harness
from raysts.evaluation.dev import DEVS
from raysts.papers import verdicts
from raysts.papers.claims import BASELINES, CLAIMS, STAND_INS, Claim, Side
from raysts.papers.experiments import EXPERIMENTS, pipelines
from raysts.papers.published import BACKBONES
from raysts.papers.verdicts import AS_NO, CONTRADICTED, NOT_SEEN, SEEN, ClaimsData, ClaimVerdict, conclude, text
from raysts.schema import TEST_TABLES

CLAIM = Claim("SED 5.2, Table 1", "A <is> above B", Side("ct"), Side("flow"), ("stsb",), "1.00 -> 2.00")


NAMED = {"latte-mix": {"backbone": ["smaller", "larger"]}}
"""Encoders of claims about two of them."""


def found(difference: float, p: float | None, holds: bool = True, source: str = CLAIM.source) -> ClaimVerdict:
    low, high = (None, None) if p is None else (difference - 0.01, difference + 0.01)
    claim = CLAIM._replace(holds=holds, source=source)
    return ClaimVerdict(claim, 0.5 + difference, 0.5, (2, 3), ("stsb",), difference, low, high, p)


def page_of(verdicts: list[ClaimVerdict]) -> ClaimsData:
    known = {"command": "raysts claims sed", "created_at": "2026-01-01T00:00:00+00:00"}
    return ClaimsData("sed", **known, backbone="<tiny>", seeds=3, steps=60, verdicts=verdicts, environment={})


def plan_of(resamples: int) -> Any:
    evaluation = SimpleNamespace(resamples=resamples)
    return SimpleNamespace(pipeline=SimpleNamespace(evaluation=evaluation, stages={}, recipes={}))


@pytest.mark.parametrize(
    ("difference", "p", "holds", "expected"),
    [
        (0.05, 0.01, True, SEEN),
        (-0.05, 0.01, True, CONTRADICTED),
        (0.005, 0.4, True, NOT_SEEN),
        (0.05, 0.2, True, NOT_SEEN),  # the interval lies above 0, and p says no
        (-0.05, 0.2, True, NOT_SEEN),
        (0.005, 0.01, True, NOT_SEEN),  # p says yes, and the interval holds 0
        (0.01, 0.01, True, NOT_SEEN),  # which is one of its ends
        (-0.01, 0.01, True, NOT_SEEN),
        (0.05, 0.05, True, NOT_SEEN),
        (0.05, 0.01, False, CONTRADICTED),
        (-0.05, 0.01, False, AS_NO),
        (0.005, 0.4, False, AS_NO),
        (0.05, None, True, None),
    ],
)
def test_verdicts(difference: float, p: float | None, holds: bool, expected: str | None) -> None:
    (judged,) = conclude([found(difference, p, holds)])
    assert (judged.verdict, judged.p_holm) == (expected, p)


def test_p_is_adjusted_within_a_table_alone() -> None:
    of_table = [found(0.05, 0.03), found(0.05, 0.04), ClaimVerdict(claim=CLAIM, why="no data")]
    other = found(0.05, 0.03, source="SED 5.3, Table 2")
    judged = conclude([*of_table, other])
    assert [each.p_holm for each in judged] == pytest.approx([0.06, 0.06, None, 0.03])
    assert [each.verdict for each in judged] == [NOT_SEEN, NOT_SEEN, None, SEEN]


@pytest.mark.parametrize("holds", [True, False])
def test_two_systems_that_say_the_same_of_every_row_measure_nothing(
    holds: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Constants: each of the models calls every pair entailment, so none is above another, whatever the paper says."""
    said = np.tile([1.0, 0.0, 1.0], 20)
    rows = {"snli-2way": accurate("snli-2way", said)}
    monkeypatch.setattr(verdicts, "_models", lambda side, *_: [rows] * (3 if side is CLAIM.a else 2))
    claim = CLAIM._replace(on=("snli-2way",), holds=holds)
    (judged,) = conclude([verdicts._compare(claim, dict.fromkeys(("ct", "flow"), plan_of(100)), {})])
    assert judged.verdict is None and judged.why == verdicts.ALIKE and judged.difference == pytest.approx(0.0)
    data = page_of([judged])
    assert "\n  not measured  A <is> above B  +0.00 [" in text(data) and verdicts.ALIKE in text(data)
    assert f"not measured: {verdicts.ALIKE}" in verdicts.to_markdown(
        data
    ) and 'class="interval"' not in verdicts.render(data)


@pytest.mark.parametrize("paper", CLAIMS)
def test_every_claim_is_of_systems_that_its_command_runs_and_every_system_of_use(paper: str) -> None:
    counts = dict.fromkeys(EXPERIMENTS[f"claims-{paper}"].settings, 5)
    made = pipelines(f"claims-{paper}@small", counts | NAMED.get(paper, {}), lambda backbone: 3)
    sides = [side for claim in CLAIMS[paper] for side in claim.sides]
    assert {*made} == {side.point for side in sides} - {verdicts.OVERLAP, verdicts.LONGER}
    assert {made[side.point].members for side in sides if side.role not in ("model", "backbone")} <= {5}
    for claim in CLAIMS[paper]:
        assert claim.backbone is None or claim.backbone in BACKBONES
        assert bool(claim.printed) == (claim.source != BASELINES)
    assert {one.members for one in made.values()} <= {1, 5} and {one.students for one in made.values()} <= {1, 5}
    assert any(not claim.holds for claim in CLAIMS[paper])


def test_what_a_corpus_shows_of_a_paper_is_known_before_training(tmp_path: Path) -> None:
    """With STS-B, and pairs of XNLI, whose directions stand in for those of SNLI. The numbers are those of claims.yaml."""
    write_table(tmp_path, "sts/stsb_test", {"sentence1": ["a"], "sentence2": ["b"], "score": [1.0]})
    write_table(tmp_path, "nli/xnli_en_test", {"premise": ["a"], "hypothesis": ["b"], "label": ["entailment"]})
    corpus, made = Corpus(tmp_path), pipelines("claims-gausscse@small", {}, lambda backbone: 3)
    claims, needed, notes = verdicts.agenda("gausscse", made, corpus, False)
    where = f"cannot be measured with {tmp_path}: no test set: snli-2way (7), no test set: sick-2way (2)"
    assert needed == {"simcse-sup": made["simcse-sup"]} and notes[0] == (
        f"gausscse: 19 of 20 claims {where}, no test set: snli-direction (7), no test set: "
        "sick-direction (3); 'raysts claims gausscse --stand-ins' holds 7 of them: on xnli-direction in place of "
        "snli-direction (7)"
    )
    claims, needed, notes = verdicts.agenda("gausscse", made, corpus, True)
    assert Counter(claim.in_place_of for claim, why in claims.items() if why is None) == {(): 1, ("snli-direction",): 7}
    assert {pipeline.evaluation.tasks for pipeline in needed.values()} == {("stsb", "xnli-direction")}
    assert notes[0] == f"gausscse: 12 of 20 claims {where}, no test set: sick-direction (3)"
    assert [note.partition(": ")[2] for note in notes[1:]] == [
        "7 claims are held on other sets than the paper's: on xnli-direction in place of snli-direction (7)",
        "not run, for no claim that can be measured is about them: gausscse-ent+con.batch-64, gausscse-ent+con.lr-1e-5",
    ]
    made = pipelines("claims-sed@small", {"backbone": "distilbert-base-uncased"}, lambda backbone: 3)
    claims, _, _ = verdicts.agenda("sed", made, corpus, False)
    others = {backbone: f"the paper says it of {backbone}" for backbone in BACKBONES}
    assert all((why == others[c.backbone]) == (c.backbone != "BERT-distil") for c, why in claims.items() if c.backbone)


def test_a_side_of_a_claim_is_the_models_of_its_role_at_its_layers() -> None:
    def node(role: str, *models: str) -> Any:
        scores = {("mean", layers): {"stsb": layers} for layers in "12"} if models else {("cls", "3"): {"stsb": "3"}}
        given = [SimpleNamespace(id=model) for model in models or ("w",)]
        return SimpleNamespace(
            role=role, models=given, pooling="mean",
            row_scores=lambda model, _: {at: of | {"of": model} for at, of in scores.items()},
        )  # fmt: skip

    nodes = [node("backbone", "b"), node("member", "m0", "m1"), node("student", "s"), node("soup")]
    plan = SimpleNamespace(soups={}, outcomes=["s"], evaluations=nodes, pipeline=SimpleNamespace(compared_layers=2))

    def scored(role: str, layers: int | None = None, **changes: Any) -> list[Any]:
        plans: Any = {"ct": SimpleNamespace(**{**vars(plan), **changes})}
        models: list[Any] = verdicts._models(Side("ct", role, layers), plans, {})
        return [(of["of"], of["stsb"]) for of in models]

    assert scored("model") == [("s", "2")] and scored("members", 1) == [("m0", "1"), ("m1", "1")]
    assert scored("ensemble") == [("ensemble", "2")] and scored("backbone") == [("backbone", "2")]
    assert scored("best member", outcomes=[]) == scored("model", outcomes=[]) == [("m0", "2"), ("m1", "2")]
    assert scored("model", outcomes=[], soups={"soup": None}) == [("w", "3")], "of a model with a choice of its own"
    assert scored("members", 9) == []


def test_spread_is_of_several_models_and_the_best_member_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def answers(*shares: float) -> list[Any]:
        return [{"stsb": accurate("stsb", np.arange(100) < 100 * share)} for share in shares]

    systems = {"a": answers(0.9, 0.7), "b": answers(0.6, 0.8), "one": answers(0.5), "another": answers(0.6)}
    for (model,) in (systems["one"], systems["another"]):
        model["sts12"] = model["stsb"]
    monkeypatch.setattr(verdicts, "_models", lambda side, *_: systems[side.point])
    plans = dict.fromkeys(systems, plan_of(100))
    plans["a"] = plan_of(100)
    plans["a"].pipeline.recipes = {"flow": SimpleNamespace(table=TARGETS)}  # fitted on the student, not on members

    def compared(a: Side, b: Side, **fields: Any) -> ClaimVerdict:
        return verdicts._compare(CLAIM._replace(a=a, b=b, **fields), plans, {})

    spread = compared(Side("a"), Side("b"), measure="spread")
    assert (spread.a, spread.b) == (pytest.approx(0.1 * 2**0.5), pytest.approx(0.1 * 2**0.5))
    few = compared(Side("a"), Side("one"), measure="spread")
    assert few.why == "models of several seeds are needed: --seeds 2 or more"
    best = compared(Side("a"), Side("b", "best member"))
    assert (best.a, best.b, best.models) == (pytest.approx(0.8), pytest.approx(0.8), (2, 1))
    fitted = [compared(Side("a", role), Side("b")).transductive for role in ("model", "members", "backbone")]
    assert fitted == [True, False, False]
    p, of_two = (compared(Side("another"), Side("one"), on=on).p for on in (("stsb",), ("stsb", "sts12")))
    assert p == pytest.approx(2 / 2**10) != of_two, "of two models on one set: ten rows that one alone has right"
    absent = compared(Side("a"), Side("b"), on=("sts12", "sts13"))
    assert absent.why == "no scores at these layers: sts12, sts13"


def test_a_stand_in_is_of_the_same_task_and_selects_nothing() -> None:
    for name, other in STAND_INS.items():
        own, another = harness.TASKS[name], harness.TASKS[other]
        assert own.listed[0].read is another.listed[0].read and name.partition("-")[2] == other.partition("-")[2]
        assert another.listed[0].tables[0] in TEST_TABLES - {*DEVS} and not another.unasked


def test_the_page_its_markdown_and_its_json_say_the_same(tmp_path: Path, golden: Golden) -> None:
    judged = conclude([found(0.05, 0.01), found(-0.2, 0.01, False), ClaimVerdict(claim=CLAIM, why="no data: stsb")])
    data = page_of([judged[0]._replace(transductive=True), *judged[1:]])
    page = verdicts.render(data)
    assert (
        "say nothing about real text" in verdicts.render(data._replace(backbone="tiny")) and "nothing about" not in page
    )
    golden.check("pages/claims", [*text(data).splitlines(), *verdicts.to_markdown(data).splitlines(), *lines(page)])
    width = float(re.search(r'viewBox="0 0 (\d+)', page)[1])  # type: ignore[index]
    verdict = re.search(r'x="([\d.]+)" y="[\d.]+" class="number">no gain, as the paper says<', page)
    assert verdict and float(verdict[1]) + 6.4 * len("no gain, as the paper says") <= width
    plain = judged[0].as_plain()
    assert (plain["verdict"], plain["a"], plain["a_value"], plain["p_holm"]) == (SEEN, "ct", 0.55, 0.02)
    assert verdicts.write_report(data, tmp_path).parent == tmp_path and (tmp_path / "claims.md").exists()


def test_word_overlap_and_the_longer_sentence(tmp_path: Path) -> None:
    pairs = {"sentence1": ["a b c", "A b", "x"], "sentence2": ["b c d", "a B", "y z"], "score": [1.0, 5.0, 0.0]}
    labelled = {
        "premise": ["a b c d", "a b", "a b"], "hypothesis": ["a b", "a b c", "b a"], "label": ["entailment"] * 3,
        "source": ["snli"] * 3,
    }  # fmt: skip
    write_table(tmp_path, "sts/stsb_test", pairs)
    write_table(tmp_path, "nli/snli_test", labelled)
    found = verdicts.baseline_scores(Corpus(tmp_path), ["stsb", "snli-direction"])
    np.testing.assert_allclose(found[verdicts.OVERLAP]["stsb"].values, [2 / 4, 1.0, 0.0])
    np.testing.assert_array_equal(found[verdicts.LONGER]["snli-direction"].values, [1, 0, 0])  # a tie is wrong
    assert {*found[verdicts.OVERLAP]} == {"stsb"} and {*found[verdicts.LONGER]} == {"snli-direction"}


def test_how_far_two_systems_are_above_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """The difference of two differences on the same rows; of one that gives both the same there is none."""
    draws = np.random.default_rng(0)
    right = {side: draws.random(400) < share for side, share in (("a", 0.9), ("b", 0.7), ("base", 0.5))}
    systems = {side: [{"stsb": accurate("stsb", rows)}] for side, rows in right.items()}
    monkeypatch.setattr(verdicts, "_models", lambda side, *_: systems[side.point])
    plans = dict.fromkeys(systems, plan_of(200))
    claim = CLAIM._replace(a=Side("a"), b=Side("b"), a_over=Side("base"), b_over=Side("base"))
    (judged,) = conclude([verdicts._compare(claim, plans, {})])
    gains = [100 * (right[side].mean() - right["base"].mean()) for side in "ab"]
    assert [100 * (judged.a or 0), 100 * (judged.b or 0)] == pytest.approx(gains)
    assert judged.verdict == SEEN and 100 * (judged.difference or 0) == pytest.approx(gains[0] - gains[1])
    assert (judged.low or 0) < (judged.difference or 0) < (judged.high or 0)
    (equal,) = conclude([verdicts._compare(claim._replace(a=Side("b")), plans, {})])
    assert equal.why == verdicts.ALIKE and judged.as_plain()["a_over"] == "base"
