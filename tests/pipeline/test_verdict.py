"""The verdict on runs whose models and scores are written down: nothing is trained and nothing embedded."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from evaluation_fakes import accurate, correlated
from small_runs import distillation, write_backbone

from raysts.data.corpora import Corpus
from raysts.data.user import UserData
from raysts.evaluation import results, scores
from raysts.evaluation.scores import RowScores
from raysts.models.head import GaussianHead
from raysts.models.pretrained import load
from raysts.pipeline.deliver import write_model
from raysts.pipeline.inputs import ReadingLength, members_dev
from raysts.pipeline.plan import Plan
from raysts.pipeline.verdict import ABOUT_POINTS, ABOUT_TINY, Verdict, notes_before
from raysts.recipes.names import pipeline
from raysts.recipes.recipe import DEFAULTS, Pipeline
from raysts.storage.runs import record_of

GOLD = np.arange(30.0)
NOISE = np.random.default_rng(0).permutation(GOLD)


def of_set(dataset: str, quality: float, split: str = "test") -> RowScores:
    """Scores that rank the pairs as the gold ones where the quality is 1, and as noise where it is 0."""
    return replace(correlated(dataset, quality * GOLD + (1 - quality) * NOISE, GOLD), split=split)


Qualities = Mapping[str, Any]
"""By model (``backbone``, ``member 0``, ``ensemble``, ``soup``, ``student 0``) its quality on STS-B, or by test set."""


def write_down(plan: Plan, tested: Qualities, on_dev: Mapping[str, float], kept: Mapping[str, Any]) -> None:
    """Write what a run of the plan leaves: models equal to the backbone, with the scores that are given."""
    store, dev = plan.store, plan.dev_name(members_dev(plan.pipeline))
    runs = [step for chain in (*plan.chains, *plan.student_chains) for step in chain]
    for step in (*runs, *plan.soups.values()):
        with store.put_dir(step.output) as draft:
            shutil.copytree(plan.start, draft, dirs_exist_ok=True)
        record = {"run_id": step.id, "status": "done", **kept.get(step.title, {})}
        store.write_json(step.output.parent / "run.json", record)
    for evaluation in plan.evaluations:
        role, several = evaluation.role, evaluation.role in ("member", "student")
        named = {s.file: f"{role} {n}" if several else role for n, s in enumerate(evaluation.single)}
        named |= {evaluation.ensemble.file: "ensemble"} if evaluation.ensemble else {}
        for file, name in named.items():
            given = tested.get(name, {})
            sets = [of_set(*each) for each in (given if isinstance(given, dict) else {"stsb": given}).items()]
            sets += [of_set(dev, on_dev[name], "dev")] if name in on_dev else []
            scores.write(file, {("mean", "1"): sets})
        results.write(plan.storage, evaluation.step.id, [])


Written = Callable[..., Verdict]


@pytest.fixture
def written(few_world: Path, tiny_backbone: Path, tmp_path: Path) -> Written:
    """written(name, settings, tested, on_dev, kept) is the verdict on such a run."""

    def made(
        name: str | Pipeline, settings: Mapping[str, Any] | None = None, tested: Qualities | None = None,
        on_dev: Mapping[str, float] | None = None, kept: Mapping[str, Any] | None = None, **more: Any,
    ) -> Verdict:  # fmt: skip
        chosen = {"backbone": str(tiny_backbone), "members": 2, "student_pooling": 1, **EVALUATED, **(settings or {})}
        made = pipeline(name, chosen) if isinstance(name, str) else name
        plan = Plan(pipeline=made, corpus=Corpus(few_world, **more), storage=tmp_path / "storage")
        write_down(plan, tested or {}, on_dev or {}, kept or {})
        return Verdict(plan)

    return made


EVALUATED = {
    "evaluation.tasks": ["stsb"], "evaluation.resamples": 40, "evaluation.layers": [1], "evaluation.compare": 1,
}  # fmt: skip

START, MEMBERS = {"backbone": 0.2}, {"member 0": 0.6, "member 1": 0.9}
ALL = {**START, **MEMBERS, "ensemble": 0.8, "soup": 0.7, "greedy-soup": 0.75, "student 0": 0.5, "student 1": 0.55}
ONE, TWO = {"dev": {"kept": 0.1}, "selected_by": "snli-dev"}, {"dev": {"kept": 0.2}, "selected_by": "snli-dev"}
TAUGHT = {"students": 2, "deliver": "system"}
BEST = {"deliver": "best"}


@pytest.mark.parametrize(
    ("name", "settings", "on_dev", "kept", "model", "by"),
    [
        ("raw", {}, {}, {}, "backbone", "system"),
        ("nli", {"members": 1}, {}, {"member 0: nli": ONE}, "member 0", "system"),
        ("nli", {}, {}, {"member 0: nli": ONE, "member 1: nli": TWO}, "member 1", "snli-dev, stsb-dev"),
        ("nli-ensemble", {}, {}, {}, "ensemble", "system"),
        ("nli-soup", {}, {}, {}, "soup", "system"),
        ("nli-sed", {"students": 1}, {}, {"sed": ONE}, "student 0", "system"),
        ("nli-sed", TAUGHT, {}, {}, "student 0", "system"),
        ("nli-sed", TAUGHT, {}, {"student 0: sed": ONE, "student 1: sed": TWO}, "student 1", "snli-dev"),
        ("nli-sed", BEST, {"backbone": 0.5, "member 1": 0.9, "student 0": 0.9}, {}, "member 1", "stsb-dev"),
        ("nli-sed", BEST, {"backbone": 0.9, "soup": 0.9, "student 0": 0.1}, {}, "backbone", "stsb-dev"),
        ("nli-sed", BEST, {"backbone": 0.1, "soup": 0.8, "greedy-soup": 0.9}, {}, "greedy-soup", "stsb-dev"),
    ],
)  # fmt: skip
def test_what_is_delivered(
    name: str, settings: dict[str, Any], on_dev: dict[str, float], kept: dict[str, Any], model: str, by: str, written: Written
) -> None:  # fmt: skip
    told = written(name, settings, ALL, on_dev, kept).delivery
    assert told is not None and (told.what, told.by, told.on) == (model.partition(" ")[0], by, "stsb")
    assert (told.difference, told.ci_low) == (0, 0) if model == "backbone" else told.ci_low > 0
    assert (told.beats_input, told.within) == (model != "backbone", True), "in comparison with the start"
    apart = of_set("stsb", ALL[model]).value("spearman") - of_set("stsb", 0.2).value("spearman")
    assert told.difference == pytest.approx(apart) and (told.teacher, told.reference, told.layers) == (None, None, 1)


def test_nothing_is_delivered_before_all_is_measured(written: Written) -> None:
    unmeasured = written("nli-sed", BEST, ALL)
    assert unmeasured.delivery is None, "what would be the best is chosen by scores that are gone"
    verdict = written("nli", {}, ALL)
    assert verdict.delivery is not None and verdict.against and verdict.contamination is not None
    part = Verdict(verdict.plan)
    part.plan.evaluations[1].step.output.unlink()
    assert (part.delivery, part.against) == (None, {}) and part.contamination is not None, "the backbone is scored"
    part = Verdict(verdict.plan)
    part.plan.evaluations[0].step.output.unlink()
    assert (part.delivery, part.contamination) == (None, None)


def test_a_backbone_without_resamples_has_no_interval(written: Written) -> None:
    for name in ("raw", "nli-soup"):
        told = written(name, {"evaluation.resamples": 0}, ALL).delivery
        assert told is not None and (told.ci_low, told.beats_input, told.within) == (None, None, None)
        assert told.difference == 0 if name == "raw" else told.difference > 0
    told = written("nli", {}, MEMBERS).delivery
    assert told is not None, "no set is shared"
    assert (told.on, told.difference, told.beats_input, told.within) == (None,) * 4


def test_the_best_teacher_stands_beside_the_student(written: Written, tiny_backbone: Path, tmp_path: Path) -> None:
    folders = [write_backbone(tmp_path / name, "bert", seed=seed) for seed, name in enumerate("ab", 1)]
    made = distillation(tiny_backbone, *folders, evaluated=EVALUATED, student_pooling=1)
    tested = {**ALL, "ensemble": 0.85}
    verdict = written(made, None, tested)
    told = verdict.delivery
    assert told is not None and told.reference is not None and told.what == "student"
    values = {name: of_set("stsb", quality).value("spearman") for name, quality in tested.items()}
    best = {"model": "b", "value": values["member 1"], "delivered": values["student 0"], "on": "stsb", "n": len(GOLD)}
    assert best.items() <= told.reference.items() and told.reference["ci_high"] < -0.01
    assert told.reference["difference"] == pytest.approx(values["student 0"] - values["member 1"])
    assert told.within is False and told.beats_input, "better than the start, and more than a point below that teacher"
    assert [*verdict.against] == ["ensemble", "teacher a", "teacher b", "backbone"]
    note = next(note for note in verdict.notes if note.startswith("The ensemble is "))
    assert "below the best of its teachers, b on STS-B test" in note
    on_dev = {"backbone": 0.3, "member 1": 0.9, "student 0": 0.8}
    of_best = written(made.replace(deliver="best"), None, tested, on_dev)
    told = of_best.delivery
    assert told is not None and (told.what, told.by, told.teacher) == ("member", "stsb-dev", "b")
    folder, chosen = write_model(of_best.plan, of_best.plan.outcome)
    assert chosen is not None and (folder, chosen.kind) == (folders[1], "named"), "it is delivered where it lies"
    for evaluation in verdict.plan.evaluations:  # of an accuracy alone
        for number, subject in enumerate(evaluation.single):
            right = accurate("snli-2way", 10 * (number + (evaluation.role == "student")) <= GOLD)
            scores.write(subject.file, {("mean", "1"): [right]})
    told = Verdict(verdict.plan).delivery
    assert told is not None and told.reference is not None
    best = {"model": "a", "value": 1, "delivered": pytest.approx(2 / 3), "on": "snli-2way"}
    assert best == {key: told.reference[key] for key in best}


def test_the_set_on_which_two_are_compared(written: Written) -> None:
    """The user's own scored pairs come first, in the order of the options, then STS-B, the sets of the average, and any."""
    verdict = written("raw")
    pairs = ("sickr", "sts13", "sts12", "stsb", "mine", "more")
    a: dict[str, RowScores] = {name: of_set(name, 1.0) for name in pairs}
    a["snli-2way"] = accurate("snli-2way", GOLD > 5)

    def on(*names: str, asked: tuple[str, ...] = ()) -> str | None:
        verdict.plan.corpus.user = UserData(test=dict.fromkeys(asked, "a.csv"))
        return verdict.common_set({name: a[name] for name in names}, a)

    assert on("snli-2way", "sts13", "stsb", "mine", "more") == "mine"
    assert on("snli-2way", "mine", "more", asked=("gone", "more", "mine")) == "more"
    assert on("snli-2way", "sts13", "stsb") == "stsb"
    assert on("sickr", "snli-2way", "sts13", "sts12") == "sts12"
    assert on("snli-2way") == "snli-2way"
    assert verdict.common_set({"mine": a["mine"]}, {"more": a["more"]}) is None


def test_a_model_is_compared_by_its_scores_at_the_choice_or_by_its_only_ones(written: Written) -> None:
    verdict = written("raw")
    (subject, *_), stsb = verdict.plan.evaluations[0].subjects, [of_set("stsb", 1.0)]

    def scored(*choices: tuple[str, str]) -> tuple[bool, ...]:
        """Which of two choices have scores if a file has those of ``choices``."""
        scores.write(subject.file, dict.fromkeys(choices, stsb))
        return tuple(bool(verdict.scores("backbone", "backbone", c)) for c in (("mean", "1"), ("mean", "2")))

    assert scored(("mean", "1")) == scored(("cls", "only-3")) == (True, True), "a head belongs to its choice"
    assert scored(("cls", "1"), ("cls", "3")) == (True, False), "another pooling of the same layers"
    assert scored(("mean", "1"), ("mean", "2")) == (True, True) and scored() == (False, False)
    assert verdict.scores("student", "s") == {} and verdict.usual_choice("student") == ("mean", "1")


def test_the_first_role_is_compared_with_each_other_one(written: Written) -> None:
    """On the set of the comparison, and on the mean of the sets that all models of both have, if those are several."""
    both = {name: {"stsb": quality, "sts12": quality} for name, quality in ALL.items()}
    settings = {**BEST, "evaluation.tasks": ["stsb", "sts12"]}
    against = written("nli-sed", settings, both).against
    assert [*against] == ["soup", "greedy-soup", "ensemble", "member", "backbone"]
    for of_role in against.values():
        assert [*of_role] == ["stsb", "avg"] and of_role["stsb"].value == of_role["avg"].value
    signs = {role: of_role["stsb"].sign for role, of_role in against.items()}
    assert signs == {"soup": -1, "greedy-soup": -1, "ensemble": -1, "member": -1, "backbone": 1}
    value = {name: of_set("stsb", ALL[name]).value("spearman") for name in ALL}
    of_members = value["student 0"] - (value["member 0"] + value["member 1"]) / 2
    assert against["member"]["stsb"].value == pytest.approx(of_members)
    lacking = {**both, "member 0": {"stsb": 0.6}, "soup": {}, "ensemble": {"sts12": 0.8}}
    found = {role: " ".join(of_role) for role, of_role in written("nli-sed", settings, lacking).against.items()}
    assert found == {"greedy-soup": "stsb avg", "ensemble": "sts12", "member": "stsb", "backbone": "stsb avg"}
    assert [*written("nli", {}, ALL).against] == ["backbone"] and written("raw", {}, ALL).against == {}


def score(kept: float | None) -> dict[str, Any]:
    return {"dev": {"kept": kept}}


NLI = [f"member {number}: nli" for number in (0, 1)]
FALLEN = "Training made 1 of 2 worse on stsb-dev (stage nli): member 1 from 100.00 to 40.00."


@pytest.mark.parametrize(
    ("name", "settings", "tested", "on_dev", "kept", "note", "is_there"),
    [
        ("nli", {}, {}, {"backbone": 1}, {NLI[0]: score(1.0), NLI[1]: score(0.4)}, FALLEN, True),
        ("nli", {}, {}, {}, {NLI[1]: score(0.4)}, "Training made", False),
        ("nli", {}, {}, {"backbone": 1}, {NLI[1]: score(None)}, "Training made", False),
        ("nli-ct", {}, {}, {}, {NLI[0]: score(0.5), "member 0: ct": score(0.4)},
         "Training made 1 of 2 worse on stsb-dev (stage ct): member 0 from 50.00 to 40.00.", True),
        ("nli-ct", {"nli.layers": 2}, {}, {}, {NLI[0]: score(0.5), "member 0: ct": score(0.4)}, "Training made", False),
        ("nli-sed", {"students": 1}, {}, {"backbone": 1}, {"sed": score(0.7)},
         "Training made 1 of 1 worse on stsb-dev (stage sed): student from 100.00 to 70.00.", True),
        ("nli-sed", {"student_start": "average"}, {}, {"backbone": 1}, {"sed": score(0.7)}, "(stage sed)", False),
        ("nli-ensemble", {}, {"member 0": 0.6, "member 1": 0.9, "ensemble": 0.8}, {}, {}, "below the best of its members", True),
        ("nli-ensemble", {}, {"member 0": 0.8, "member 1": 0.7, "ensemble": 0.8}, {}, {}, "best of its members", False),
        ("nli-ensemble", {}, {"member 1": 0.9, "ensemble": 0.8}, {}, {}, "best of its members", False),
        ("nli", {"nli.data.sample": 901}, {}, {}, {}, "nli: the table has 900 rows, fewer than the 901 asked for", True),
        ("nli", {"nli.data.sample": 900}, {}, {}, {}, "asked for", False),
        ("nli", {"nli.settings.matryoshka": [8, 16]}, {}, {}, {}, "nli: the first 8, 16 dimensions were trained", True),
        ("nli-sed", {"nli.train.keep": "best"}, {}, {}, {}, "Labels of stsb-dev chose the kept checkpoint in: nli.", True),
        ("nli", {}, {}, {}, {NLI[0]: score(0.1), NLI[1]: score(0.2)}, "Of 2 members, member 1 is delivered", True),
        ("raw", {"backbone": "tiny"}, {}, {}, {}, ABOUT_TINY, True),
        ("raw", {}, {}, {}, {}, ABOUT_TINY, False),
    ],
)  # fmt: skip
def test_what_is_noted(
    name: str, settings: dict[str, Any], tested: Qualities, on_dev: dict[str, float], kept: dict[str, Any], note: str,
    is_there: bool, written: Written,
) -> None:  # fmt: skip
    notes = written(name, settings, tested, on_dev, kept).notes
    assert any(note in line for line in notes) == is_there, notes


def test_texts_that_were_cut_are_counted(written: Written) -> None:
    verdict = written("nli", {"nli.train.max_length": 16})
    plan = verdict.plan
    assert not any("cuts" in note for note in verdict.notes)
    (spec,) = plan.specs.values()
    parts = [{"cut": 3}, {}, {"cut": 4}]
    plan.store.write_json(plan.store_folder(spec) / "manifest.json", {"rows": 500, "parts": parts})
    assert "Stage nli cuts 7 of 1,000 texts after 16 tokens." in " ".join(Verdict(plan).notes)


def test_members_that_failed_are_noted_with_their_reason(written: Written) -> None:
    failed = {"status": "failed", "reason": "no memory"}
    plan = replace(written("nli-sed", {"members": 3}, {}, {}, {NLI[1]: failed}).plan, without=frozenset({1}))
    (note,) = (note for note in Verdict(plan).notes if "failed" in note)
    said = "Member 1 failed and is left out: ensemble and student are made of the 2 of 3 members that finished."
    assert note == f"{said} Its reason: no memory"


def test_a_student_without_the_variance_of_its_members_says_so(written: Written, tiny_backbone: Path) -> None:
    model, said = load(tiny_backbone, device="cpu"), []
    model.encoder = model.encoder.followed_by(GaussianHead(model.dim, model.dim))
    for name, settings in (
        ("gausscse-ent-sed", {}), ("gausscse-ent-sed", {"sed.target": "gaussian", "members": 1}), ("gausscse-ent-ensemble", {}),
    ):  # fmt: skip
        plan = written(name, settings).plan
        assert ABOUT_POINTS not in Verdict(plan).notes, "its models have no variance"
        with plan.store.put_dir(plan.members[0].output) as draft:
            model.save(draft)
        said.append(ABOUT_POINTS in Verdict(plan).notes)
    assert said == [True, False, False]


# -- what else is read of them -------------------------------------------------------------------------------------------


def test_the_share_that_is_left_to_measure(written: Written) -> None:
    """Of single models those without scores; an ensemble needs all of its members again."""

    def left(name: str, *gone: int) -> float:
        plan = written(name).plan
        evaluation = plan.evaluations[1]
        assert evaluation.step.left(plan.store) == 1, "a finished step that is damaged is done anew"
        files = [subject.file for subject in (*evaluation.single, evaluation.ensemble) if subject]
        for path in (evaluation.step.output, *(files[number] for number in gone)):
            path.unlink()
        return evaluation.step.left(plan.store)

    assert [left("nli"), left("nli", 0), left("nli", 0, 1)] == [0, 0.5, 1]
    assert [left("nli-ensemble"), left("nli-ensemble", 0), left("nli-ensemble", 2)] == [0, 1, 1]


def test_an_ensemble_costs_what_its_members_cost(written: Written) -> None:
    def costs(name: str, *parameters: int | None, **settings: Any) -> dict[str, Any]:
        plan = written(name, {key.replace("__", "."): value for key, value in settings.items()}).plan
        given = {"dimensions": 4, "tokens": 6.0, "texts_per_second": 10.0, "texts_per_cpu_second": 5.0}
        for subject, number in zip(plan.evaluations[1].subjects, parameters, strict=False):
            scores.write(subject.file, {}, {**given, "parameters": number, "bytes": 8})
            given |= {"tokens": 7.0, "texts_per_second": 30.0}
        found = {cost.pop("role"): cost for cost in plan.costs()}
        assert found["member"]["model"] == plan.members[len(parameters) - 1].id
        assert found.keys() <= {"member", "ensemble"}
        return found.get("ensemble", {})

    both = {"model": "ensemble", "parameters": 30, "bytes": 16, "dimensions": 4, "tokens": 6.5}
    both |= {"texts_per_second": pytest.approx(7.5), "texts_per_cpu_second": 2.5}
    assert costs("nli-ensemble", 10, 20) == both
    assert costs("nli-sed", 10, 20, sed__target="concat") == both | {"dimensions": 8}
    assert costs("nli-ensemble", 10, None) == both | {"parameters": None}
    assert costs("nli-ensemble", 10) == costs("nli-ensemble", 10, members=1) == costs("nli", 10, 20) == {}


def test_the_delivered_folder(written: Written) -> None:
    """A model is written again where it is delivered at another pooling than it has: as a run of its own."""
    for name, model in (("nli-ensemble", None), ("raw", "start"), ("nli", "member")):
        plan = written(name, {}, ALL, {}, {NLI[1]: score(0.9)}).plan
        folder, chosen = write_model(plan, plan.outcome)
        assert chosen is (plan.members[1] if model == "member" else None)
        assert folder == (chosen.output if chosen else {"start": plan.start}.get(model))
    part = written("raw", {"backbone_layers": 1}).plan
    assert write_model(part, part.outcome) == (part.start, None) and part.start != part.backbone
    for role in ("member", "backbone"):
        plan = written("nli-sed", BEST, ALL, {"backbone": 0.4, "member 1": 0.5, "student 0": 0.3}).plan
        evaluation = plan.evaluations[role == "member"]
        assert write_model(plan, plan.outcome) == (plan.members[1].output, plan.members[1]), "it pools so"
        scores.write(evaluation.subjects[-1].file, {("mean", "2"): [of_set("stsb-dev", 1.0, "dev")]})
        outcome = plan.outcome
        folder, _ = write_model(plan, outcome)
        assert folder is not None and outcome.chosen is not None and load(folder, device="cpu").layers == 2
        pooled = outcome.chosen.pooled_id
        assert folder == plan.storage / (f"runs/{pooled}/model" if role == "member" else f"backbones/pooled-{pooled}")
        record, written_at = folder.parent / "run.json", folder.stat().st_mtime_ns
        assert write_model(plan, outcome)[0] == folder and folder.stat().st_mtime_ns == written_at
        if role == "member":
            found = record_of(folder)
            assert (found["run_id"], found["pooled_again"]) == (pooled, plan.members[1].id)
            record.unlink()  # a kill came before it
            assert write_model(plan, outcome)[0] == folder and record_of(folder) == found
        assert record.exists() == (role == "member")


def test_what_is_noted_before_anything_runs(few_world: Path, tiny_backbone: Path, tmp_path: Path) -> None:
    folders = [str(write_backbone(tmp_path / name, "bert", seed=seed)) for seed, name in enumerate("ab", 1)]
    sed, backbone = DEFAULTS["sed"], str(tiny_backbone)

    def plan(
        target: str, teachers: int = 1, length: Any = 40, sample: int | None = None, spans: int = 0, **fields: Any
    ) -> Plan:
        settings, data = sed.settings.replace(target=target), sed.data.replace(sample=sample, spans=spans)
        recipe = sed.replace(settings=settings, train=sed.train.replace(max_length=length), data=data)
        made = distillation(backbone, *folders[:teachers], recipe=recipe, **fields)
        return Plan(pipeline=made, corpus=Corpus(few_world), storage=tmp_path / "storage")

    (apart,) = notes_before(plan("concat", 2))
    assert apart == (
        "The teachers have different starting models, or another width than the student, so their mean has no meaning: "
        "sed.target=concat."
    )
    assert notes_before(plan("unit-mean", 2)) == notes_before(plan("mean")) == notes_before(plan("concat")) == []
    layers = notes_before(plan("mean", backbone_layers=1))
    assert layers == [f"Training starts from 1 of the 2 layers of {backbone}: 0 (counted from 0)."]
    table, said = plan("unit-mean", student="static"), "Training starts from a table of token vectors, each what"
    assert notes_before(table)[0] == f"{said} {backbone} gives for it alone."
    assert (table.depth, table.size, table.hidden_width) == (1, 2e5, 32) and table.start.name.startswith("static-")
    assert table.backbone_id != plan("mean").backbone_id
    long, spans = notes_before(plan("mean", length="auto", sample=50, spans=3))
    assert long.startswith("sed: reads the first ") and long.endswith(": 95% of the texts have no more.")
    assert spans == "sed: trains on 50 texts and on 3 spans of each (4 to 64 words): 75% of its rows are spans."
    few, many = (ReadingLength(tokens=9, limit=9, at_limit=share).reason for share in (0.05, 0.06))
    assert few == "95% of the texts have no more." and many.startswith("backbone and teachers read no more, and 6%")
