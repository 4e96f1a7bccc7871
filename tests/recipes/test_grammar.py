from __future__ import annotations

import pytest

from raysts.errors import InputError
from raysts.recipes.names import RECIPES, SCALES, NameParts, parse, pipeline
from raysts.recipes.overrides import apply_overrides


@pytest.mark.parametrize(
    ("name", "parsed"),
    [
        ("nli", (("nli",), None, None)),
        ("flow", ((), None, "flow")),
        ("nli-latte", (("nli",), None, "latte")),
        ("nli-ct-sed-flow", (("nli", "ct"), "sed", "flow")),
        ("mlm-simcse-unsup-nli-sed-whiten", (("mlm", "simcse-unsup", "nli"), "sed", "whiten")),
        ("gausscse-ent+con+rev", (("gausscse-ent+con+rev",), None, None)),
        ("ct-ensemble-flow", (("ct",), "ensemble", "flow")),
        ("simcse-sup-boom", (("simcse-sup",), "boom", None)),
        ("simcse-unsup-greedy-soup", (("simcse-unsup",), "greedy-soup", None)),
    ],
)
def test_parts_of_a_name(name: str, parsed: tuple) -> None:
    assert parse(name) == NameParts(*parsed)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("flow-ct", "'flow' is fitted on a finished model.*must be the last word"),
        ("nli-flow-sed", "'flow' is fitted on a finished model"),
        ("nli-flow-whiten", "'flow' and 'whiten'.*one of them"),
        ("sed", "'sed' needs members"),
        ("sed-nli", "'sed' must come after the member stages"),
        ("nli-sed-ensemble", "must come after the member stages, once"),
        ("nli-nli", "'nli' stands twice"),
        ("nli-boom-whiten", "'whiten' after 'boom'"),
        ("nli-soup-flow", "'flow' after 'soup'.*run 'nli-soup', then 'raysts run flow"),
        ("nli-greedy", "'greedy' is no stage"),
        ("gausscse-ent-gausscse-ent+con", "one loss of gausscse"),
        ("raw-flow", "'raw' is the bare backbone"),
        ("nli-cd", "'cd' is no stage.*did you mean 'ct'"),
        ("gausscse-con", "'con' is no stage"),
    ],
)
def test_a_senseless_name_is_refused_with_the_reason(name: str, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        pipeline(name)


def test_where_what_is_fitted_belongs() -> None:
    """On the student of a distillation; otherwise on every member, so that an ensemble is the mean of their outcomes."""
    student, members, bare = pipeline("nli-sed-flow"), pipeline("nli-ensemble-flow"), pipeline("flow")
    assert list(student.post) == ["flow"] and list(student.stages) == ["nli"]
    assert list(members.stages) == ["nli", "flow"] and not members.post
    assert list(bare.stages) == ["flow"] and bare.members == 1
    assert student.post["flow"].layers == student.sed.layers == 1 and bare.stages["flow"].layers == 1  # type: ignore[union-attr]


def test_one_pooling() -> None:
    """What is trained is what is delivered and compared; at the scale of the papers it is theirs."""
    for name in ("nli-sed", "nli-sed-flow", "ct-ensemble-flow", "simcse-sup", "latte", "raw"):
        made = pipeline(name)
        assert (made.student_pooling, made.compared_layers, made.measured_layers) == (None, 1, (1, 2))
    two = pipeline("nli-sed-flow", {"layers": 2})
    assert two.compared_layers == 2 and {recipe.layers for recipe in two.recipes.values()} == {2}
    assert pipeline("nli-sed", {"layers": 3}).measured_layers == (1, 2, 3)
    trained = pipeline("nli", {"layers": 2}), pipeline("nli-sed-flow", {"flow.layers": 2}), pipeline("nli-sed@paper")
    assert [each.delivered_layers for each in trained] == [2, 2, 2]
    paper = pipeline("nli-sed-flow@paper")
    assert (paper.student_pooling, paper.compared_layers, paper.post["flow"].layers) == (2, 2, 2)
    assert paper.sed is not None and paper.sed.layers == 1
    for name in ("flow", "simcse-sup", "latte", "nli-latte"):
        made = pipeline(f"{name}@paper")
        assert made.compared_layers == 1 and {recipe.layers for recipe in made.recipes.values()} == {1}
    assert pipeline("latte").members == 3 and pipeline("gausscse-ent").members == 5


def test_bagging_is_a_soup_of_members_with_rows_of_their_own() -> None:
    boom, soup = pipeline("nli-ct-boom"), pipeline("nli-ct-soup")
    assert boom.combine == "soup" and all(recipe.data.bootstrap for recipe in boom.stages.values())
    plain = {f"{stage}.data.bootstrap": False for stage in boom.stages}
    assert apply_overrides(boom, {**plain, "name": "nli-ct-soup"}) == soup


def test_scales() -> None:
    paper, small = pipeline("nli-ct-sed@paper"), pipeline("nli-ct-sed@small", {"members": 3})
    assert (paper.backbone, paper.members, paper.stages["ct"].train.keep) == ("bert-large-uncased", 10, "dev")
    assert (small.members, small.stages["ct"].train.max_steps, small.name) == (3, 500, "nli-ct-sed")
    assert pipeline("ct@small").members == 1
    text = pipeline("nli-ct-sed-flow@paper-text")
    assert text.stages["ct"].train.keep == "second" and text.stages["nli"].optim.name == "adam"
    assert text.post["flow"].data.sources == ("sts12", "sts13", "sts14", "sts15", "sts16")
    assert (text.backbone, text.members, text.student_pooling) == (paper.backbone, paper.members, 2)
    assert pipeline("latte@paper-text") == pipeline("latte@paper")
    with pytest.raises(InputError, match=r"'smal' is not a scale \(did you mean 'small'\?\)"):
        pipeline("nli@smal")
    for name in RECIPES:
        for scale in {"quickstart": (), "best": ("small",)}.get(name, tuple(SCALES)):
            assert pipeline(f"{name}@{scale}").name == name
