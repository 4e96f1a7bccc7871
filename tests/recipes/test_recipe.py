from __future__ import annotations

import dataclasses
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from raysts.errors import InputError
from raysts.recipes.catalog import CATALOG, GaussCSESettings, NLISettings, Settings, SimCSESettings
from raysts.recipes.names import RECIPES, pipeline
from raysts.recipes.overrides import apply_overrides, dump, load_pipeline, parse_overrides
from raysts.recipes.recipe import Data, Optim, Pipeline, Recipe, Train
from raysts.schema import TABLES, TEST_TABLES


def problems_of(name: str, overrides: dict[str, Any] | None = None) -> list[str]:
    with pytest.raises(InputError) as caught:
        pipeline(name, overrides)
    return caught.value.problems


# -- names ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "stages", "combine", "members"),
    [
        ("raw", [], None, 1),
        ("nli", ["nli"], None, 1),
        ("ct", ["ct"], None, 1),
        ("sts", ["sts"], None, 1),
        ("nli-ct", ["nli", "ct"], None, 1),
        ("ct-nli", ["ct", "nli"], None, 1),
        ("nli-ct-sts", ["nli", "ct", "sts"], None, 1),
        ("ct-ensemble", ["ct"], "ensemble", 10),
        ("nli-ct-sed", ["nli", "ct"], "sed", 10),
        ("sts-sed", ["sts"], "sed", 10),
        ("quickstart", ["nli", "ct"], "sed", 4),
        ("best", ["simcse-sup", "sts"], "sed", 9),
    ],
)
def test_a_name_is_a_recipe(name: str, stages: list[str], combine: str | None, members: int) -> None:
    found = pipeline(name)
    assert (list(found.stages), found.combine, found.members) == (stages, combine, members)
    assert (found.sed is not None) == (combine == "sed")
    assert found.name == name


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "is no stage"),
        ("nil", "did you mean 'nli'?"),
        ("nli-ctt", "did you mean 'ct'?"),
        ("NLI", "is no stage"),
        ("quikstart", "did you mean 'quickstart'?"),
        ("nli--ct", "is no stage"),
        ("sed", "needs members to combine, for example nli-sed"),
        ("ensemble", "needs members to combine, for example nli-ensemble"),
        ("sed-nli", "'sed' must come after the member stages"),
        ("nli-sed-ct", "'sed' must come after the member stages"),
        ("nli-sed-ensemble", "'sed' must come after the member stages"),
        ("nli-sed-sed", "'sed' must come after the member stages"),
        ("raw-sed", "'raw' is the bare backbone and stands alone"),
        ("nli-raw", "'raw' is the bare backbone and stands alone"),
        ("nli-nli", "stage 'nli' stands twice"),
        ("best@paper", "'best' is no paper's system"),
        ("no/such/file.yaml", "cannot be read"),
    ],
)
def test_a_senseless_name_is_refused_with_the_reason(name: str, reason: str) -> None:
    assert reason in "\n".join(problems_of(name))


def test_everything_wrong_with_a_name_is_said_at_once() -> None:
    text = "\n".join(problems_of("nli-nli-raw-foo-sed"))
    assert "stands twice" in text and "stands alone" in text and "'foo' is no stage" in text


def test_defaults_are_those_of_the_papers() -> None:
    found = pipeline("nli-ct-sed")
    nli, ct, sed = found.recipes["nli"], found.recipes["ct"], found.recipes["sed"]
    assert (nli.optim.name, nli.optim.lr, nli.optim.schedule, nli.optim.warmup) == ("adamw", 2e-5, "linear", 0.1)
    assert (nli.optim.weight_decay, nli.optim.clip, nli.batch, nli.train.epochs) == (0.01, 1.0, 16, 1.0)
    assert (ct.optim.name, ct.optim.clip, ct.train.dropout, ct.train.max_steps) == ("rmsprop", None, False, 50_000)
    assert (ct.batch, ct.train.keep, ct.train.eval_every) == (16, "second", 500)
    assert (sed.optim.name, sed.optim.lr, sed.optim.schedule, sed.batch) == ("adam", 2e-5, "constant", 32)
    assert (sed.data.sample, sed.train.keep, sed.train.patience) == (100_000, "last", None)
    sts = pipeline("sts-sed")
    assert (sts.recipes["sts"].train.epochs, sts.recipes["sts"].train.keep) == (4.0, "best")
    assert sts.sed is not None and sts.sed.train.keep == "best" and sts.sed.train.patience
    assert {recipe.train.max_length for recipe in found.recipes.values()} == {75}


def test_the_best_is_chosen_among_models_that_saw_different_labels() -> None:
    best, small = pipeline("best"), pipeline("best@small")
    assert (best.deliver, best.student_start, small.deliver) == ("best", "average", "best")
    assert {tuple(best.stages_of(member)) for member in range(3)} == {("simcse-sup", "sts"), ("sts",)}
    assert (
        small.members == 4
        and small.stages["simcse-sup"].train.max_steps
        and not best.stages["simcse-sup"].train.max_steps
    )
    # What is taught on are sentences of both kinds; no label of a test set is near.
    assert best.sed is not None and best.sed.table == "sentences"


# -- YAML ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*RECIPES, "sts-nli-ct-sed"])
def test_yaml_round_trip(name: str, tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    made = pipeline(name)
    path.write_text(dump(made), encoding="utf-8")
    assert load_pipeline(path) == made == pipeline(str(path))
    assert pipeline(str(path), {"members": 3}) == pipeline(name, {"members": 3})


def test_a_wrong_file_names_itself_and_everything_wrong_in_it(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    plain = yaml.safe_load(dump(pipeline("nli-ct")))
    plain["membres"] = 3
    plain["stages"]["nli"]["optim"]["lr"] = "fast"
    plain["stages"]["ct"]["objective"] = "tc"
    path.write_text(yaml.safe_dump(plain), encoding="utf-8")
    with pytest.raises(InputError) as caught:
        load_pipeline(path)
    text = str(caught.value)
    assert all(problem.startswith(str(path)) for problem in caught.value.problems)
    assert "did you mean 'members'?" in text and "stages.nli.optim.lr='fast'" in text


@pytest.mark.parametrize("text", ["", "- 1\n", "name: [", "3\n", "name: a\nseed: 1\nname: a\n"])
def test_a_file_that_holds_no_recipe(text: str, tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match="recipe.yaml"):
        load_pipeline(path)


# -- overrides -----------------------------------------------------------------------------------------------------------


def test_a_global_override_holds_for_every_stage() -> None:
    found = pipeline("nli-ct-sed", {"train.max_steps": 7, "optim.lr": 3e-4, "batch": 8, "seed": 5, "members": 2})
    assert {recipe.train.max_steps for recipe in found.recipes.values()} == {7}
    assert {recipe.optim.lr for recipe in found.recipes.values()} == {3e-4}
    assert {recipe.batch for recipe in found.recipes.values()} == {8}
    assert (found.seed, found.members) == (5, 2)


def test_an_override_of_one_stage_leaves_the_others() -> None:
    found = pipeline("nli-ct-sed", {"nli.batch": 32, "ct.train.max_steps": 9, "sed.optim.lr": 1e-4})
    before = pipeline("nli-ct-sed")
    assert [found.recipes[name].batch for name in ("nli", "ct", "sed")] == [32, before.stages["ct"].batch, 32]
    assert found.stages["ct"].train.max_steps == 9 and found.stages["nli"].train.max_steps is None
    assert found.sed is not None and found.sed.optim.lr == 1e-4 and found.stages["nli"].optim.lr == 2e-5


def test_values_of_numpy_and_paths_are_what_they_say() -> None:
    plain = {"members": 3, "optim.lr": 0.5, "train.dropout": False, "backbone": "/a/b", "sed.matryoshka": [8, 4]}
    given = {
        "members": np.int64(3), "optim.lr": np.float32(0.5), "train.dropout": np.bool_(False), "backbone": Path("/a/b"),
        "sed.matryoshka": (np.int32(8), 4),
    }  # fmt: skip
    assert dump(pipeline("nli-sed", given)) == dump(pipeline("nli-sed", plain))


def test_the_later_override_wins() -> None:
    assert pipeline("nli-ct", {"batch": 8, "nli.batch": 32}).stages["nli"].batch == 32
    assert pipeline("nli-ct", {"nli.batch": 32, "batch": 8}).stages["nli"].batch == 8


def test_a_setting_that_one_objective_has_goes_there_alone() -> None:
    found = pipeline("nli-sts", {"settings.lower_bound": 0.25})
    assert found.stages["sts"].settings.lower_bound == 0.25  # type: ignore[attr-defined]
    assert found.stages["nli"] == pipeline("nli-sts").stages["nli"]


def test_another_objective_comes_with_its_settings() -> None:
    found = pipeline("nli", {"nli.lower_bound": 0.25, "nli.objective": "sts"}).stages["nli"]
    assert found.settings == replace(pipeline("sts").stages["sts"].settings, lower_bound=0.25)
    small = pipeline("latte@small")
    assert apply_overrides(small, {"latte.objective": "latte"}) == small  # the same one keeps those of the scale


def test_overrides_do_not_change_the_pipeline_they_start_from() -> None:
    base = pipeline("nli")
    text = dump(base)
    apply_overrides(base, {"batch": 4, "optim.lr": 1.0})
    assert dump(base) == text


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("bacth", "batch"), ("optim.rl", "optim.lr"), ("nli.optim.lrr", "nli.optim.lr"), ("membrs", "members"),
        ("nil.batch", "nli.batch"), ("train.max_step", "train.max_steps"), ("seeed", "seed"),
    ],
)  # fmt: skip
def test_an_unknown_key_names_the_nearest(key: str, nearest: str) -> None:
    (problem,) = problems_of("nli-ct", {key: 1})
    assert f"unknown option '{key}'" in problem and f"did you mean '{nearest}'?" in problem


@pytest.mark.parametrize(
    ("overrides", "messages"),
    [
        ({"nli.batch": "many"}, ["nli.batch='many': must be a whole number"]),
        ({"ct.batch": 12}, ["ct.batch=12 must be a multiple of 8"]),
        ({"optim.lr": -1}, ["nli.optim.lr=-1.0 must be positive", "ct.optim.lr=-1.0 must be positive"]),
        ({"nli.train.keep": "second"}, ["nli.train.keep='second' must be one of last, best for nli"]),
        ({"members": 0}, ["members=0 must be at least 1"]),
        ({"select_top": 5, "members": 3}, ["select_top=5 must be from 1 to"]),
        ({"evaluation.layers": [3], "evaluation.compare": 2}, ["evaluation.compare=2 must be one of layers"]),
        ({"nli.pooling": "sum"}, ["nli.pooling='sum': must be one of mean, cls, max"]),
        ({"nli.optim.schedule": "steps"}, ["nli.optim.factors: schedule 'steps' needs one factor more"]),
        ({"sed": None}, []),
    ],
)
def test_a_wrong_value_is_refused(overrides: dict[str, Any], messages: list[str]) -> None:
    if not messages:
        assert pipeline("nli-ct", overrides) == pipeline("nli-ct")
        return
    text = "\n".join(problems_of("nli-ct", overrides))
    assert all(message in text for message in messages), text


def test_a_wrong_objective_is_named() -> None:
    assert any("objective='nil' must be one of" in problem for problem in problems_of("nli", {"nli.objective": "nil"}))


def test_all_wrong_overrides_come_in_one_message() -> None:
    found = problems_of("nli-ct", {"bach": 1, "nli.batch": "x", "members": 0, "ct.optim.lr": -1})
    text = "\n".join(found)
    for part in ("unknown option 'bach'", "nli.batch='x'", "members=0", "ct.optim.lr=-1.0"):
        assert part in text
    assert len(found) == 4


def test_a_wrong_branch_does_not_hide_the_checks_above_it() -> None:
    """optim.lr is checked in Optim, batch in the Recipe that is not built when Optim is wrong."""
    for key in ("nli.batch", "batch"):
        text = "\n".join(problems_of("nli", {key: 0, "nli.optim.lr": -1}))
        assert "nli.batch=0" in text and "nli.optim.lr=-1.0" in text, key


def test_parse_overrides() -> None:
    assert parse_overrides(["a.b=3", "lr=2e-5", "x=", "t=[a, b]"]) == {
        "a.b": 3,
        "lr": "2e-5",
        "x": None,
        "t": ["a", "b"],
    }
    for wrong in ("a.b", "=3"):
        with pytest.raises(InputError, match="must look like"):
            parse_overrides([wrong])


# -- what a recipe refuses -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("table", sorted(TEST_TABLES))
def test_test_sets_cannot_be_trained_on(table: str) -> None:
    with pytest.raises(ValueError, match="is a test set"):
        Recipe(
            objective="sts",
            settings=CATALOG["sts"].settings(),
            data=Data(table=table),
            train=Train(keep="best"),
        )


def test_every_set_that_results_are_reported_on_is_a_test_set() -> None:
    assert {f"sts/sts{year}" for year in range(12, 17)} | {"sts/stsb_test", "sick/sick_test"} <= TEST_TABLES
    assert {"nli/snli_test", "nli/xnli_en_test", "senteval/trec_test", "senteval/mrpc_test"} <= TEST_TABLES
    assert not {"sts/stsb_train", "sts/stsb_dev", "nli/train", "wikipedia/sentences"} & TEST_TABLES
    # These have no split: results come from cross-validation over all of their rows.
    assert {f"senteval/{name}" for name in ("mr", "subj")} <= TEST_TABLES


def test_all_cross_validated_sets_are_test_sets() -> None:
    assert {f"senteval/{name}" for name in ("mr", "cr", "mpqa", "subj")} <= TEST_TABLES


def test_embeddings_alone_are_cached() -> None:
    (problem,) = problems_of("flow", {"flow.settings.grad_cache": 4})
    assert "flow: it is no loss of sentence vectors" in problem
    (problem,) = problems_of("sts", {"sts.settings.grad_cache": 0})
    assert "grad_cache=0 must be" in problem


def test_what_is_spread_over_workers() -> None:
    (problem,) = problems_of("nli", {"resources.shard": True})
    assert problem.startswith("resources.workers=1: shard spreads")
    spread = {"resources.shard": True, "resources.workers": 2}
    assert pipeline("nli-ct", spread).resources.shard
    for system, more in (("nli-flow", {}), ("mlm", {}), ("nli", {"nli.settings.grad_cache": 4})):
        (problem,) = problems_of(system, spread | more)
        assert "only losses of sentence vectors are spread" in problem


def test_a_table_must_be_canonical() -> None:
    (problem,) = problems_of("nli", {"nli.data.table": "nli/trian"})
    assert "did you mean 'nli/train'?" in problem


@pytest.mark.parametrize("name", CATALOG)
def test_a_table_must_have_the_objectives_columns(name: str) -> None:
    kind = CATALOG[name]
    needed = {*kind.texts, *kind.values} - {"teacher"}
    foreign = next(
        t for t, columns in TABLES.items() if t not in TEST_TABLES and not needed <= {c.name for c in columns}
    )
    with pytest.raises(ValueError, match="column"):
        Recipe(objective=name, settings=kind.settings(), data=Data(table=foreign), train=Train(keep=kind.keeps[0]))


@pytest.mark.parametrize(
    ("cls", "wrong"),
    [
        (Optim, {"lr": 0.0}), (Optim, {"lr": float("nan")}), (Optim, {"warmup": 1.1}), (Optim, {"warmup": -0.1}),
        (Optim, {"clip": 0.0}), (Optim, {"weight_decay": -0.1}), (Train, {"epochs": 0.0}), (Train, {"max_steps": 0}),
        (Train, {"max_length": 2}), (Train, {"patience": 0}), (Train, {"eval_every": -1}), (Data, {"sample": 0}),
        (Optim, {"schedule": "steps", "milestones": (5,), "factors": (1.0,)}),
    ],
)  # fmt: skip
def test_values_out_of_range(cls: type, wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong)) if "schedule" not in wrong else "factors"):
        cls(**wrong)


@pytest.mark.parametrize(("cls", "wrong"), [(Train, {"epochs": float("inf")}), (Optim, {"lr": float("inf")})])
def test_infinite_values(cls: type, wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        cls(**wrong)


@pytest.mark.parametrize(
    ("objective", "settings", "message"),
    [
        ("gausscse", GaussCSESettings(loss="x"), "settings.loss='x': must be one of ent, ent.con"),  # type: ignore[arg-type]
        ("simcse-sup", SimCSESettings(head="relu"), "settings.head='relu': must be one of tanh, none"),  # type: ignore[arg-type]
        ("simcse-sup", SimCSESettings(grad_cache=2.5), "settings.grad_cache=2.5: must be a whole number"),  # type: ignore[arg-type]
        ("gausscse", SimCSESettings(), "settings=.* must be GaussCSESettings, those of gausscse"),
    ],
)
def test_settings_made_by_hand_are_checked_as_those_of_a_file(objective: str, settings: Settings, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Recipe(objective=objective, settings=settings)
    with pytest.raises(ValueError, match=r"optim.name='sgd': must be one of adamw.*pooling='x'"):
        Recipe(objective="nli", settings=NLISettings(), optim=Optim(name="sgd"), pooling="x")  # type: ignore[arg-type]


def test_rmsprop_has_no_weight_decay() -> None:
    with pytest.raises(ValueError, match="weight_decay"):
        Optim(name="rmsprop", weight_decay=0.01)


def test_trees_are_frozen() -> None:
    found = pipeline("nli")
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.members = 3  # type: ignore[misc]
    assert isinstance(found, Pipeline)
