"""Several students of one ensemble, and the papers' ablations, end to end."""

from __future__ import annotations

import re
import statistics
from pathlib import Path
from typing import Any

import pytest

import raysts
from raysts.commands.experiment import ExperimentPlan, _shorten
from raysts.commands.look import show as show_recipe
from raysts.commands.options import RunOptions
from raysts.commands.run import run as run_recipe
from raysts.data.corpora import Corpus
from raysts.errors import InputError
from raysts.papers import experiments
from raysts.papers.measured import report_data
from raysts.papers.published import PAPERS
from raysts.pipeline.plan import Plan
from raysts.recipes.names import pipeline
from raysts.search.search import find_search

STS = ["sts12", "sts13", "sts14", "sts15", "sts16"]
QUICK: dict[str, Any] = {
    "members": 2, "train.max_steps": 2, "train.eval_every": 2, "train.max_length": 24, "data.sample": 64,
    "evaluation.resamples": 0,
}  # fmt: skip


def run(recipe: str, overrides: dict[str, Any], data: Path, storage: Path) -> dict[str, Any]:
    return run_recipe(recipe, overrides, data, storage, address="none")


def cells(paper: str, number: int, storage: Path) -> dict[tuple[str | None, str, str], Any]:
    """What was measured, by group, row and column of a table; of each cell the only measurement."""
    (table,) = [table for table in report_data(paper, storage).as_plain()["tables"] if table["number"] == number]
    found = {(c["group"], c["row"], c["column"]): c["measured"] for c in table["cells"] if c["measured"]}
    assert all(len(measured) == 1 for measured in found.values())
    return {where: measured[0] for where, measured in found.items()}


def test_students_differ_by_their_seed_alone(small_corpus: Corpus, tiny_backbone: Path, tmp_path: Path) -> None:
    given = {"backbone": str(tiny_backbone), "members": 2}
    made = (pipeline("nli-sed-flow", {**given, "students": count}) for count in (1, 3, 4))
    one, three, four = (Plan(pipeline=each, corpus=small_corpus, storage=tmp_path) for each in made)
    ids = [[[node.id for node in chain] for chain in each.student_chains] for each in (one, three, four)]
    assert ids[0] == ids[1][:1] and ids[1] == ids[2][:3]
    assert len({name for chain in ids[2] for name in chain}) == 8
    jobs = [chain[0].training for chain in three.student_chains]
    assert len({job.seed for job in jobs}) == 3
    assert len({(job.recipe, job.parent, job.store, job.teacher) for job in jobs}) == 1
    assert one.teacher.vectors.id == four.teacher.vectors.id, "teacher means are computed once"
    assert [node.title for node in three.steps if node.kind == "train"][2:] == [
        f"student {k}: {stage}" for k in range(3) for stage in ("sed", "flow")
    ]
    assert len({node.id for node in three.steps}) == len(three.steps)
    assert {node.id for node in one.steps} - {node.id for node in three.steps} == {one.evaluations[-1].step.id}


@pytest.mark.whole
def test_spread_over_students(few_world: Path, tiny_backbone: Path, tmp_path: Path) -> None:
    """Table 3 of SED from one run, its numbers by hand; then with the first student alone, trained no more."""
    settings = {**QUICK, "backbone": str(tiny_backbone), "evaluation.tasks": STS}
    found = run("ct-sed", {**settings, "students": 2}, few_world, tmp_path)
    runs = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "runs").glob("*/run.json")}

    def means(role: str) -> list[float]:
        of_member: dict[int | None, list[float]] = {}
        for row in found["results"]:
            if (row["role"], row["metric"], row["aggregation"], row["layers"]) == (role, "spearman", "mean", "2"):
                of_member.setdefault(row["member"], []).append(row["value"])
        return [statistics.fmean(values) for values in of_member.values()]

    members, students, (ensemble,) = means("member"), means("student"), means("ensemble")
    assert (len(members), len(students), len(set(students))) == (2, 2, 2)
    ids = {row["member"]: row["run_id"] for row in found["results"] if row["role"] == "student"}
    assert {*ids} == {0, 1} and ids[0] == Path(found["model"]).parent.name
    of_table = {where: each["value"] for where, each in cells("sed", 3, tmp_path).items()}
    expected = {("Full Ensemble", "BERT-L-CT", "Max"): ensemble}
    for group, name, values in (
        ("Ensemble Models", "BERT-L-CT", members),
        ("Distillation Learners", "BERT-L-CT-SED", students),
    ):
        mean = sum(values) / len(values)
        expected[group, name, "Max"], expected[group, name, "Mean"] = max(values), mean
        expected[group, name, "STD"] = (sum((value - mean) ** 2 for value in values) / (len(values) - 1)) ** 0.5
    assert of_table == pytest.approx(expected), "nothing else was measured"

    page = Path(found["report"]).read_text()
    assert "Students (2), mean ± std" in page and "Best student" in page and "student 1" in page
    alone = run("ct-sed", settings, few_world, tmp_path)
    assert {path.name: path.stat().st_mtime_ns for path in (tmp_path / "runs").glob("*/run.json")} == runs
    assert alone["model"] == found["model"]
    assert {row["member"] for row in alone["results"] if row["role"] == "student"} == {None}


def test_what_is_shown_needs_no_backbone() -> None:
    for recipe, overrides, points, notes in (
        ("latte-layers@paper", {}, 13 + 25, 0),
        ("sed-main@paper", {}, 12, 0),
        ("latte-layers", {"backbone": "./none"}, 13, 1),
    ):
        found = show_recipe(recipe, overrides)
        assert (len(found["recipe"]), len(found["notes"])) == (points, notes), recipe
    alone = show_recipe("sts-grid-sed")["recipe"]
    assert alone["search"]["name"] == "lower-bound" and alone["then"]["name"] == "sts-grid-sed"
    for recipe in ("sed-supervised", "sts-grid-sed"):
        several = show_recipe(recipe, {"backbone": ["tiny", "bert-base-uncased"]})["recipe"]
        assert [*several["search"]] == ["tiny.lower-bound", "bert-base-uncased.lower-bound"]
        assert several["search"]["tiny.lower-bound"]["pipeline"]["backbone"] == "tiny"
    assert [*several["then"]] == ["tiny", "bert-base-uncased"]


def test_an_experiment_has_the_name_of_its_recipe_and_its_own_protocol() -> None:
    for recipe, name, expected in (
        ("sed-stability@paper", None, "sed-stability"), ("sed-stability@paper-text", None, "sed-stability-text"),
        ("sed-stability@paper-text", "mine", "mine"), (pipeline("ct"), None, "ct"),
    ):  # fmt: skip
        plan = ExperimentPlan(recipe=recipe, overrides={}, options=RunOptions(name=name), plans={})
        assert plan.name == expected


def test_a_probe_takes_a_few_steps_on_rows_enough_for_them() -> None:
    """Eight batches at least, and no more than the recipe has. Each probe keeps its last checkpoint, which needs no labels."""
    recipe = pipeline("sts-sed").recipes["sts"]
    for steps, sample, rows in ((1, None, 8 * recipe.batch), (40, None, 40 * recipe.batch), (40, 10, 10)):
        short = _shorten(recipe.replace(data=recipe.data.replace(sample=sample)), steps)
        assert (short.data.sample, short.train.max_steps, short.train.eval_every) == (rows, steps, steps)
        assert short.train.keep == "last" and (short.train.patience, short.train.min_steps) == (None, None)


@pytest.mark.whole
def test_every_layer_alone(few_world: Path, tiny_backbone: Path, tmp_path: Path) -> None:
    """Tables 7 and 9 of Latte-Mix: planned, run, shared with the system by its own name, run again for nothing."""
    overrides = {**QUICK, "backbone": str(tiny_backbone), "evaluation.tasks": ["sts12", "stsb"], "settings.hidden": 8}
    before = raysts.plan("latte-layers", overrides, few_world, tmp_path)
    assert set(before) == {"status", "storage", "name", "backbone", "skipped", "nodes", "price"}
    assert not any(tmp_path.iterdir())
    assert [node["title"] for node in before["nodes"] if node["kind"] == "train"] == [
        f"latte.layers=only-{layer}: member {member}: latte" for layer in (1, 2) for member in (0, 1)
    ]
    overrides |= {"members": 1}  # two tell this test nothing more
    found = run("latte-layers", overrides, few_world, tmp_path)
    assert found["left_out"] == []  # what the command line prints of a run it prints of an experiment
    page = Path(found["report"])
    assert found["model"] is None and page == tmp_path / "reports" / "latte-layers" / "index.html"
    assert "Table 8" in page.read_text() and "Table 6" not in page.read_text()
    assert "Table 7: 8 of 168 cells are filled" in found["notes"]
    # The backbone is measured as it was distributed too.
    rows = [row for row in found["results"] if row["trial"] != "raw" and row["layers"] != "1"]
    assert {(row["study"], row["trial"], row["layers"]) for row in rows} == {
        ("latte-layers", f"latte.layers=only-{layer}", f"only-{layer}") for layer in (1, 2)
    }
    for table, backbone in ((7, "Base"), (9, "Large")):
        filled = cells("latte-mix", table, tmp_path)
        assert set(filled) == {
            (None, f"BERT-{backbone}, Layer {layer} + {how} + Cosine", column)
            for layer in (1, 2) for how in ("Mean", "Latte-Mix") for column in ("STS12", "STSb")
        }  # fmt: skip
        assert len({each["value"] for each in filled.values()}) == len(filled)
        noted = filled[None, f"BERT-{backbone}, Layer 1 + Latte-Mix + Cosine", "STSb"]["remarks"][-1]
        assert "latte.settings.hidden=8" in noted and "latte.layers" not in noted, "the table is about the layers"
    after = raysts.plan("latte-layers", overrides, few_world, tmp_path)
    assert {node["status"] for node in after["nodes"]} == {"done"}
    files = {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").rglob("*.safetensors")}
    assert run("latte-layers", overrides, few_world, tmp_path)["results"] == found["results"]
    own = run("latte", {**overrides, "latte.layers": "only-1"}, few_world, tmp_path)
    assert {r["run_id"] for r in own["results"]} < {r["run_id"] for r in found["results"]} | {None}
    assert {path: path.stat().st_mtime_ns for path in files} == files, "no model was written again"


def test_wrong_input_of_one_point_stops_all(few_world: Path, tiny_backbone: Path, tmp_path: Path) -> None:
    overrides = {**QUICK, "backbone": str(tiny_backbone)}
    with pytest.raises(InputError, match=r"latte.layers: is what"):
        run("latte-layers", {**overrides, "latte.layers": "only-1"}, few_world, tmp_path / "storage")
    with pytest.raises(InputError, match=r"nli\.train\.max_length=500"):
        run("sed-stability", {**overrides, "nli.train.max_length": 500}, few_world, tmp_path / "storage")
    assert not (tmp_path / "storage").exists()


def test_options_of_a_search_reach_it_and_those_of_its_pipelines_do_not(few_world: Path, tmp_path: Path) -> None:
    overrides = {
        **QUICK, "backbone": "tiny", "seeds": 3, "space.lower_bound": "0,0.6", "sed.data.sample": 40,
        "evaluation.tasks": ["stsb"],
    }  # fmt: skip
    nodes = raysts.plan("sed-supervised", overrides, few_world, tmp_path)["nodes"]
    trials = [node["title"] for node in nodes if node["title"].endswith(("seed 0", "seed 1", "seed 2"))]
    points = [f"lower_bound={bound} seed {seed}" for bound in ("0", "0.6") for seed in range(3)]
    assert trials == [f"sed-supervised.lower-bound: {point}" for point in points]
    assert [node["id"] for node in nodes if "student" in node["title"]][0].startswith("(after the grid)")
    shown = show_recipe("sed-supervised", overrides)["recipe"]
    assert shown["search"]["lower-bound"]["space"] == {"sts.settings.lower_bound": "0.0,0.6"}
    student = shown["then"]["sts-sed"]
    assert student["members"] == 2 and student["recipes"]["sed"]["data"]["sample"] == 40
    for key, reason in (("sed.nothing", "unknown option 'sed.nothing'"), ("seedss", "did you mean 'seed'")):
        with pytest.raises(InputError, match=reason):
            raysts.plan("sts-grid-sed", {**overrides, key: 1}, few_world, tmp_path)


@pytest.mark.whole
@pytest.mark.parametrize("planned", [1, pytest.param(None, marks=pytest.mark.slow)])
def test_commands_of_tables_stand_in_the_docs_and_plan(planned: int | None, few_world: Path, tmp_path: Path) -> None:
    """Each names what there is; one of each paper is planned always."""
    text = (Path(__file__).parents[2] / "docs" / "papers.md").read_text(encoding="utf-8")
    lines = re.findall(r"^\| (SED|GaussCSE|Latte-Mix) ([\d, ]+) \| `(raysts .*)` \|$", text, re.MULTILINE)
    listed = {(paper.lower(), int(n)): command for paper, numbers, command in lines for n in numbers.split(", ")}
    assert listed == experiments.commands()
    assert {paper: sum(key[0] == paper for key in listed) for paper in PAPERS} == {
        "sed": 8, "gausscse": 3, "latte-mix": 10,
    }  # fmt: skip
    for paper in PAPERS:
        recipes = []
        for command in dict.fromkeys(command for (of, _), command in listed.items() if of == paper):
            _, verb, recipe = command.split(" ")
            if verb == "tune":
                assert find_search(recipe).space
            else:
                assert show_recipe(recipe)["recipe"]
                recipes.append(recipe)
        for recipe in recipes[:planned]:
            overrides = {"backbone": "tiny", "members": 2, "train.max_length": 24, "evaluation.tasks": ["stsb"]}
            overrides |= {"seeds": 1} if recipe == "sed-supervised@paper" else {"data.sources": []}
            nodes = raysts.plan(recipe, overrides, few_world, tmp_path)["nodes"]
            assert len(nodes) > 5 and {node["status"] for node in nodes} == {"waiting"}
