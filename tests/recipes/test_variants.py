"""Members that differ in more than their seeds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from raysts.errors import InputError
from raysts.recipes.catalog import STSRegressionSettings
from raysts.recipes.names import pipeline
from raysts.recipes.overrides import apply_overrides, dump, load_pipeline
from raysts.recipes.recipe import Pipeline


def of(name: str, *variants: dict[str, Any], **changes: Any) -> Pipeline:
    return pipeline(name, {"members": 5, "variants": list(variants)} | changes)


def test_members_take_turns() -> None:
    made = of("nli-ct-sed", {}, {"nli.optim.lr": "1e-3"}, {"train.max_steps": 7})
    plain = pipeline("nli-ct-sed")
    assert made.stages_of(0) == made.stages_of(3) == plain.stages == made.stages
    assert made.stages_of(1) == made.stages_of(4) == apply_overrides(plain, {"nli.optim.lr": 1e-3}).stages
    assert {recipe.train.max_steps for recipe in made.stages_of(2).values()} == {7}
    assert list(made.recipes) == ["nli", "ct", "nli (variant 1)", "nli (variant 2)", "ct (variant 2)", "sed"]
    assert list(of("nli-ct-sed", {}, {"nli.batch": 8}, members=1).recipes) == ["nli", "ct", "sed"]
    assert plain.recipes == plain.stages | {"sed": plain.sed}


def test_an_override_of_a_stage_is_for_all_members() -> None:
    made = of("nli", {}, {"nli.optim.lr": 1e-3}, **{"nli.batch": 7, "optim.lr": 1e-4})
    assert [(made.stages_of(m)["nli"].batch, made.stages_of(m)["nli"].optim.lr) for m in (0, 1)] == [
        (7, 1e-4),
        (7, 1e-3),
    ]


def test_another_objective_brings_its_own_settings() -> None:
    made = of("nli", {"nli.settings.lower_bound": 0.1, "nli.objective": "sts"}, {}, **{"nli.batch": 8})
    recipe = made.stages_of(0)["nli"]
    assert (recipe.objective, recipe.table, recipe.batch) == ("sts", "sts/stsb_train", 8)
    assert recipe.settings == STSRegressionSettings(lower_bound=0.1)
    assert made.stages_of(1) == pipeline("nli", {"nli.batch": 8}).stages


def test_a_member_may_leave_a_stage_out() -> None:
    made = of("nli-sts", {"sts": None}, {})
    assert [list(made.stages_of(member)) for member in range(3)] == [["nli"], ["nli", "sts"], ["nli"]]
    assert list(made.recipes) == ["nli", "sts"]


def test_yaml_holds_them(tmp_path: Path) -> None:
    made = of("nli-ct-sed", {}, {"nli.optim.lr": 2e-5, "ct": None})
    (tmp_path / "recipe.yaml").write_text(dump(made), encoding="utf-8")
    assert load_pipeline(tmp_path / "recipe.yaml") == made


@pytest.mark.parametrize(
    ("variants", "reason"),
    [
        (
            [{"nli.optim.rl": 1e-3}],
            r"variants\[0\]: 'nli.optim.rl' is no option of the stages \(did you mean 'nli.optim.lr'",
        ),
        ([{}, {"sed.batch": 4}], r"variants\[1\]: 'sed.batch' is no option of the stages"),
        ([{"nli.optim.lr": -1}], r"variants\[0\].nli.optim.lr=-1"),
        ([{"nli.objective": "nil"}], r"objective='nil' must be one of"),
        ([{"nli.settings.lower_bound": 0.1}], "'nli.settings.lower_bound' is no option"),
        ([{}, {"nli.pooling": "cls"}], "come out alike, and their last stages differ in pooling: mean, cls"),
        ([{}, {"nli.layers": 2}], "differ in pooled layers: 1, 2"),
        ([{}, {"nli.objective": "gausscse"}], "differ in development set: sts/stsb_dev, nli/snli_dev"),
        ([{"nli": None}], "every member needs a stage that trains it"),
        ([{"nli.objective": "sed"}], "a member has no teacher"),
        ("nli.batch=3", "variants.*must be a mapping"),
    ],
)
def test_what_makes_no_members_is_refused(variants: Any, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        pipeline("nli-sed", {"variants": variants})
