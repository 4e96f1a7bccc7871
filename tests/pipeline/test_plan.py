from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from run_commands import EVALUATION, EVERY, overrides, plan_of, raysts, result
from small_runs import write_backbone, write_vectors

from raysts.data.corpora import Corpus
from raysts.errors import InputError
from raysts.pipeline import validate
from raysts.pipeline.plan import Plan
from raysts.recipes.names import pipeline
from raysts.recipes.overrides import load_pipeline
from raysts.recipes.recipe import DEFAULTS, Pipeline

# -- a plan starts nothing -----------------------------------------------------------------------------------------------

COMMON = {"backbone": "tiny", "members": 3, "seed": 5, "train.max_steps": 7, "optim.lr": 3e-4, "batch": 24}
"""Overrides that every pipeline has."""


@pytest.mark.parametrize("name", EVERY)
def test_a_plan_writes_nothing_and_what_show_prints_runs(name: str, small_world: Path, tmp_path: Path) -> None:
    arguments, file = overrides(EVALUATION, COMMON), tmp_path / f"{name}.yaml"
    tree = result("show", name, *arguments)["recipe"]
    assert (tree["name"], tree["backbone"], tree["members"], tree["seed"]) == (name, "tiny", 3, 5)
    for stage in tree["recipes"].values():
        assert (stage["train"]["max_steps"], stage["optim"]["lr"], stage["batch"]) == (7, 3e-4, 24)
    place = ["--data", small_world, "--storage", tmp_path / "new"]
    found = result("plan", name, *place, *arguments)
    assert not list(tmp_path.iterdir())
    assert found["storage"] == str(tmp_path / "new") and found["name"] == name and found["backbone"]["name"] == "tiny"
    nodes = found["nodes"]
    ids = [node["id"] for node in nodes]
    assert len({*ids}) == len(ids) and {node["status"] for node in nodes} == {"waiting"}
    for number, node in enumerate(nodes):
        assert {*node["resources"]} - {"memory"} == {"workers", "cpus", "gpus"} and node["sentences"] > 0
        assert {*node["needs"]} <= {*ids[:number]}, "a node stands after those it needs"
    file.write_text(raysts("show", name, *arguments).out, encoding="utf-8")
    assert load_pipeline(file).name == name and result("plan", file, *place) == found


# -- what is refused before anything starts ------------------------------------------------------------------------------

FITS = {"backbone": "tiny", "members": 2}
"""Two members of 2 layers and 128 dimensions."""


@pytest.mark.parametrize(
    ("fits", "misfits", "why"),
    [
        ({"sed.weights": [1, 2]}, {"sed.weights": [1, 2, 3]}, "there are 2 teachers; give one weight for each"),
        ({"sed.weights": "agreement"}, {"sed.weights": "agreement", "min_members": 1}, "nobody knows yet which teachers"),
        ({"sed.weights": "agreement", "select_top": 1}, {"sed.weights": "dev", "select_top": 1}, "nobody knows yet which"),
        ({"student_start": "member"}, {"student_start": "member", "sed.axes": "student"}, "student_start=member. has their axes"),
        ({"sed.axes": "student"}, {"sed.axes": "student", "sed.train.init": "random"}, "random weights"),
        ({"sed.loss": "mse", "sed.batch": 1}, {"sed.loss": "similarity", "sed.batch": 1}, "compares the sentences of a batch"),
        ({"sed.target": "concat", "sed.projection": 256}, {"sed.target": "concat", "sed.projection": 128}, "have 256 dimensions"),
        ({"sed.projection": 128}, {"sed.projection": 7}, "model 'the members' gives 128 .* is projected to 7"),
        ({}, {"sed.target": "gaussian", "members": 1}, "takes one GaussCSE model"),
        ({"backbone_layers": 2}, {"backbone_layers": 3}, "has 2 layers, 0 to 1; keep at most"),
        ({"backbone_layers": [0, 1]}, {"backbone_layers": [0, 2]}, "has 2 layers, 0 to 1; keep at most"),
        ({"nli.layers": 2}, {"nli.layers": 3}, "nli.layers=3: the backbone 'tiny' has 2 layers"),
        ({"nli.train.max_length": 40}, {"nli.train.max_length": 1000}, "has positions for"),
        ({}, {"student": "static", "sed.target": "gaussian"}, "a table of tokens has no variance"),
        ({"nli.batch": 400}, {"nli.batch": 20_000, "nli.train.drop_last": True}, "too few rows for one batch"),
    ],
)  # fmt: skip
def test_settings_that_do_not_fit_each_other_are_refused(
    fits: dict[str, Any], misfits: dict[str, Any], why: str, few_world: Path, tmp_path: Path
) -> None:
    assert plan_of("nli-sed", FITS | fits, few_world, tmp_path).steps
    with pytest.raises(InputError, match=why):
        plan_of("nli-sed", FITS | misfits, few_world, tmp_path)


@pytest.fixture(scope="module")
def teachers(tmp_path_factory: pytest.TempPathFactory, few_world: Path) -> dict[str, Path]:
    """Two models of 32 dimensions, and files of vectors of 48: of all sentences, and of every other one."""
    folder = tmp_path_factory.mktemp("teachers")
    texts = Corpus(few_world).read("wikipedia/sentences")["sentence"].to_pylist()
    found = {name: write_backbone(folder / name, "bert", seed=seed) for seed, name in enumerate("ab", 1)}
    for name, few in (("wide", texts), ("half", texts[::2])):
        found[name] = write_vectors(folder / f"{name}.parquet", few, np.ones((len(few), 48), np.float32))
    return found


UNSHARED = "it is not on record that .*a, .*b began with one encoder"


@pytest.mark.parametrize(
    ("names", "settings", "fields", "why"),
    [
        ("a", {"target": "mean"}, {}, None),
        ("a b", {"target": "mean"}, {}, UNSHARED),
        ("a b", {"target": "unit-mean"}, {}, None),
        ("a b", {"target": "unit-mean"}, {"student_start": "average"}, "student_start=average: models .* it is not on record"),
        ("wide", {"target": "mean"}, {}, "gives 48 dimensions and the student, .*, has 32: .* --set sed.projection=48"),
        ("wide", {"target": "mean", "projection": 48}, {}, None),
        ("a wide", {"target": "unit-mean", "projection": 32}, {}, "wide.* gives 48 dimensions .* is projected to 32"),
        ("a wide", {"target": "unit-mean", "loss": "similarity"}, {}, "wide.* gives 48 dimensions .* has that of the others 32"),
        ("a wide", {"target": "similarity", "loss": "similarity"}, {}, None),
        ("a wide", {"target": "concat"}, {}, None),
        ("a wide", {"target": "concat", "projection": 80}, {}, None),
        ("a wide", {"target": "concat", "projection": 48}, {}, "have 80 dimensions one after the other; .* the student's 32"),
        ("a", {"target": "gaussian"}, {}, "gives no variance; take a GaussCSE model"),
        ("a b", {"target": "gaussian"}, {}, "sed.target=gaussian: takes one GaussCSE model"),
        ("a b", {"target": "concat"}, {"select_top": 1}, "--top: model .*a' has no score .*\n.*b' has no score"),
        ("a", {"target": "mean"}, {"keep_index": True}, None),
        ("a", {"target": "concat"}, {"keep_index": True}, "keep_index: the student learns the teacher's own vectors"),
        ("half", {"target": "concat"}, {}, "has no vector of row 1 of wikipedia/sentences .*; embed all of the text"),
        ("a", {"target": "mean"}, {"backbone": "tiny"}, "backbone=tiny: a student of models that are there needs their backbone"),
    ],
)  # fmt: skip
def test_teachers_that_do_not_fit_are_refused(
    names: str, settings: dict[str, Any], fields: dict[str, Any], why: str | None, teachers: dict[str, Path],
    tiny_backbone: Path, few_world: Path, tmp_path: Path,
) -> None:  # fmt: skip
    sed = DEFAULTS["sed"]
    recipe = sed.replace(settings=sed.settings.replace(**settings), train=sed.train.replace(keep="last"))
    given = {"backbone": str(tiny_backbone), "teachers": tuple(str(teachers[name]) for name in names.split()), **fields}
    made = Plan(
        pipeline=Pipeline(name="d", combine="sed", recipes={"sed": recipe}, **given), corpus=Corpus(few_world), storage=tmp_path
    )  # fmt: skip
    if why is None:
        validate.check(made)
        assert made.steps
    else:
        with pytest.raises(InputError, match=f"(?s){why}"):
            validate.check(made)


def test_a_development_set_is_needed_where_it_chooses(few_world: Path, tmp_path: Path) -> None:
    data = Path(shutil.copytree(few_world, tmp_path / "data"))
    (data / "sts/stsb_dev.parquet").unlink()
    assert plan_of("nli-sed", FITS, data, tmp_path).steps
    chosen: dict[str, dict[str, Any]] = {"sts": {}, "nli": {"nli.train.patience": 2}, "nli-greedy-soup": {}}
    for more in ({"select_top": 1}, {"deliver": "best"}, {"sed.train.patience": 2}):
        chosen |= {f"nli-sed {more}": more}
    for name, more in chosen.items():
        made = Plan(pipeline=pipeline(name.split()[0], FITS | more), corpus=Corpus(data), storage=tmp_path)
        with pytest.raises(InputError, match="sts/stsb_dev"):
            validate.check(made)
    with pytest.raises(InputError, match="sed.weights=dev: needs a development set"):
        plan_of("nli-sed", FITS | {"sed.weights": "dev"}, data, tmp_path)


# -- where the data and the backbone come from ---------------------------------------------------------------------------


def test_the_environment_names_the_data_except_for_quickstart(
    few_world: Path, small_world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def folder(name: str, data: Path | None = None) -> object:
        return plan_of(name, FITS, data, tmp_path).corpus.root

    monkeypatch.setattr("raysts.data.corpora.world_path", lambda: small_world)
    assert folder("nli-ct-sed") == folder("quickstart") == small_world, "the generated sentences"
    monkeypatch.setenv("RAYSTS_DATA", str(few_world))
    assert (folder("nli-ct-sed"), folder("quickstart")) == (few_world, small_world)
    assert folder("quickstart", few_world) == few_world
    monkeypatch.setenv("RAYSTS_DATA", str(tmp_path / "gone"))
    with pytest.raises(InputError, match=str(tmp_path / "gone")):
        folder("nli")


def test_a_run_id_is_a_backbone(few_world: Path, tiny_backbone: Path, tmp_path: Path) -> None:
    """A member of one system is what another starts from: by its id, by the beginning of it, or by its folder."""
    run = "0123456789abcdef"
    model = shutil.copytree(tiny_backbone, tmp_path / "runs" / run / "model")
    plans = [plan_of("ct", {"backbone": str(name)}, few_world, tmp_path) for name in (run, run[:12], model, "tiny")]
    assert [plan.backbone for plan in plans[:3]] == [model] * 3
    assert [len({plan.steps[-1].id for plan in some}) for some in (plans[:3], plans)] == [1, 2]
