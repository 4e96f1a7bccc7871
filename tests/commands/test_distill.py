"""What a distillation is made of: teachers of a run, of a study or by name, and what follows from them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from small_runs import HIDDEN, write_backbone

from raysts.commands.distill import open_distillation, student_search
from raysts.commands.options import RunOptions
from raysts.errors import InputError
from raysts.models.head import Dense
from raysts.models.pretrained import load
from raysts.models.sentence_model import SentenceModel
from raysts.recipes.names import pipeline
from raysts.recipes.recipe import Pipeline
from raysts.recipes.tree import to_plain
from raysts.search.record import Record
from raysts.storage.store import Store

A, B = "a" * 16, "b" * 16


@pytest.fixture
def store(tmp_path: Path, tiny_backbone: Path) -> Store:
    """Two members from the tiny encoder, which a run and studies name."""
    store = Store.open(tmp_path / "storage")
    for run in (A, B):
        load(tiny_backbone, device="cpu").save(store.path(f"runs/{run}/model"))
        about = {"run_id": run, "status": "done", "backbone": str(tiny_backbone), "backbone_id": "0" * 16}
        store.write_json(f"runs/{run}/run.json", about)
    return store


def opened(store: Store, models: Any = (), overrides: Any = None, **options: Any) -> Pipeline:
    return open_distillation(models, overrides, storage=store.root, **options)[0]


def test_the_name_says_what_comes_of_what(store: Store, tiny_backbone: Path) -> None:
    record = {
        "name": "mine", "members": [A, B], "pipeline": {"teachers": []}, "command": "raysts run mine", "status": "done",
    }  # fmt: skip
    store.write_json("pipelines/mine.json", record)
    for overrides, combine, name in (
        ({}, "sed", "distilled"),
        ({"combine": "ensemble"}, "ensemble", "ensemble"),
        ({"combine": None, "members": 2}, None, "members"),
    ):
        made = opened(store, from_run="mine", overrides=overrides)
        assert (made.name, made.combine, made.teachers) == (f"mine-{name}", combine, (A, B))
        assert made.backbone == str(tiny_backbone), "that of the members"
        assert opened(store, [A, B], overrides).name == name and opened(store, [A], overrides, name="x").name == "x"
    assert opened(store, A).teachers == (A,), "one teacher may stand alone"
    assert opened(store, [A], prompt="query: ").teacher_prompt == "query: "
    with pytest.raises(InputError, match="no members"):
        store.write_json("pipelines/mine.json", {**record, "members": []})
        opened(store, from_run="mine")


def test_the_student_of_an_index_learns_its_space_alone(store: Store, tiny_backbone: Path, tmp_path: Path) -> None:
    """With its width, by a projection where the student has another one."""
    model = load(tiny_backbone, device="cpu")
    encoder = model.encoder.followed_by(Dense(HIDDEN, 8, "tanh"))
    SentenceModel(encoder, model.tokenizer, model.max_length, False).save(tmp_path / "narrow")
    for teacher, width in ((str(tmp_path / "narrow"), 8), (A, None)):
        made = opened(store, [teacher], {"backbone": str(tiny_backbone)}, keep_index=teacher)
        assert made.keep_index and made.teachers == (teacher,) and made.sed is not None
        settings = made.sed.settings.model_dump()
        assert (settings["target"], settings["axes"], settings["projection"]) == ("mean", "teachers", width)
    for more in ({"models": [B]}, {"from_run": "mine"}, {"from_study": "mine"}):
        with pytest.raises(InputError, match=f"--keep-index {A}: the student learns this model's space alone"):
            opened(store, **{"models": (), **more}, keep_index=A)


def test_members_of_other_starting_models_name_none_for_the_student(store: Store, tiny_backbone: Path) -> None:
    other = {"run_id": B, "status": "done", "backbone": str(tiny_backbone), "backbone_id": "1" * 16}
    store.write_json(f"runs/{B}/run.json", other)
    with pytest.raises(InputError, match=rf"name no common starting model.*--set backbone={A} --set backbone_layers=3"):
        opened(store, [A, B])
    assert opened(store, [A, B], {"backbone": A}).backbone == A
    for top in (0, 3):
        with pytest.raises(InputError, match=f"--top {top}: must be from 1 to the number of teachers, 2"):
            opened(store, [A, B], top=top)
    assert (opened(store, [A, A], top=1).select_top, opened(store, [A, A], top=2).select_top) == (1, 2)


def test_a_study_by_points_gives_seeds_and_others_the_best_trials(store: Store, tiny_backbone: Path) -> None:
    """Students and models with a fitted head are teachers, whatever the study goes by."""

    def best(of: str, overrides: Any = None, **about: Any) -> Pipeline:
        of_study = pipeline(of, {"backbone": str(tiny_backbone), "members": 1})
        record = {
            "name": "rates", "by": "point", "seeds": 2, "mode": "max", "command": "c", "pipeline": to_plain(of_study),
        }  # fmt: skip
        store.write_json("studies/rates/study.json", {**record, **about})
        for seed, (run, value) in enumerate(((A, 0.5), (B, 0.7))):
            point = {"sts.optim.lr": 1e-5} if of == "sts" else {}
            trial = Record(id=run, point=point, seed=seed, status="finished", value=value, finished_at=str(seed))
            store.write_json(f"studies/rates/trials/{run}.json", dict(trial.__dict__))
        return opened(store, (), overrides, from_study="rates", top=1)

    made = best("sts")
    assert (made.name, made.members, made.combine, made.teachers) == ("rates-distilled", 1, "sed", ())
    assert made.recipes["sts"].optim.lr == 1e-5 and best("sts", {"combine": "ensemble"}).combine == "ensemble"
    for made in (best("sts", by="trial"), best("nli-sed"), best("nli-whiten")):
        assert made.teachers == (B,) and made.sed is not None and [trial.seed for trial in made.trials] == [1]
        assert (made.sed.train.keep, made.sed.train.patience) == ("best", 5)
    made = best("sts", {"combine": "ensemble"}, by="trial", mode="min")
    assert made.teachers == (A,) and made.sed is None
    for more in ({"models": [A]}, {"from_run": "mine"}):
        with pytest.raises(InputError, match="--from-study NAME names the teachers. Remove MODEL and --from-run"):
            opened(store, **{"models": (), **more}, from_study="rates")


def test_a_search_over_students_starts_where_its_space_does(store: Store, tiny_backbone: Path, tmp_path: Path) -> None:
    """At the first starting model that it varies, unless that depends on another option."""
    options = RunOptions(storage=store.root)
    larger = str(write_backbone(tmp_path / "larger", "bert", depth=3))
    made = student_search([A, B], {"space.backbone": [larger, str(tiny_backbone)], "sed.batch": 8}, options)
    assert (made.name, made.pipeline.name, made.pipeline.backbone) == ("distill", "distill", larger)
    assert made.pipeline.sed is not None and made.pipeline.sed.batch == 8 and made.space == {}
    made = student_search([A], {"space.sed.optim.lr": "1e-4,5e-4"}, RunOptions(storage=store.root, name="mine"))
    assert made.pipeline.backbone == str(tiny_backbone) and made.pipeline.name == "mine"
    with pytest.raises(InputError, match="tune distill needs teachers"):
        student_search([], {}, options)
