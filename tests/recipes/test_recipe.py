from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from run_commands import result

from raysts.errors import InputError
from raysts.recipes import catalog
from raysts.recipes.catalog import CATALOG, STSRegressionSettings, student_defaults
from raysts.recipes.names import RECIPES, pipeline
from raysts.recipes.overrides import apply_overrides, dump, load_pipeline, parse_overrides
from raysts.recipes.recipe import Data, Optim, Pipeline, Recipe, Resources, Train
from raysts.recipes.tree import Tree, to_plain
from raysts.schema import TABLES, TEST_TABLES


def problems_of(name: str, overrides: dict[str, Any] | None = None) -> list[str]:
    with pytest.raises(InputError) as caught:
        pipeline(name, overrides)
    return caught.value.problems


# -- names ---------------------------------------------------------------------------------------------------------------


def test_everything_wrong_with_a_name_is_said_at_once() -> None:
    text = "\n".join(problems_of("nli-nli-raw-foo-sed"))
    assert "stands twice" in text and "stands alone" in text and "'foo' is no stage" in text
    assert "is not there" in problems_of("no/such/file.yaml")[0]


def test_defaults_are_those_of_the_papers() -> None:
    made, sts = pipeline("nli-ct-sed"), pipeline("sts-sed").recipes
    nli, ct, sed = made.recipes.values()
    assert (nli.optim.name, nli.optim.lr, nli.optim.schedule, nli.optim.warmup) == ("adamw", 2e-5, "linear", 0.1)
    assert (nli.optim.weight_decay, nli.optim.clip, nli.batch, nli.train.epochs) == (0.01, 1.0, 16, 1.0)
    assert (ct.optim.name, ct.optim.clip, ct.train.dropout, ct.train.max_steps) == ("rmsprop", None, False, 50_000)
    assert (ct.batch, ct.train.keep, ct.train.eval_every) == (16, "second", 500)
    assert (sed.optim.name, sed.optim.lr, sed.optim.schedule, sed.batch) == ("adam", 2e-5, "constant", 32)
    assert (sed.data.sample, sed.train.keep, sed.train.patience) == (100_000, "last", None)
    assert (sts["sts"].train.epochs, sts["sts"].train.keep, sts["sed"].train.keep) == (4.0, "best", "best")
    assert sts["sed"].train.patience and {recipe.train.max_length for recipe in made.recipes.values()} == {75}


# -- files ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*RECIPES, "sts-nli-ct-sed"])
def test_yaml_round_trip(name: str, tmp_path: Path) -> None:
    path, made = tmp_path / "recipe.yaml", pipeline(name)
    path.write_text(dump(made), encoding="utf-8")
    assert load_pipeline(path) == made == pipeline(str(path))
    assert pipeline(str(path), {"members": 3}) == pipeline(name, {"members": 3})


def test_every_recipe_fits_the_schema_and_what_is_refused_does_not() -> None:
    schema = result("schema")["schema"]
    jsonschema.Draft202012Validator.check_schema(schema)
    fits = jsonschema.Draft202012Validator(schema)
    for name in RECIPES:
        fits.validate(to_plain(pipeline(name)))
    wrong = {"members": 0, "batch": 0, "nli.settings": {"tau": 1.0}, "nli.objective": "nil", "more": 1}
    for key, value in wrong.items():
        plain = to_plain(pipeline("nli"))
        target = plain if key in plain or key == "more" else plain["recipes"]["nli"]
        target[key.removeprefix("nli.")] = value
        assert not fits.is_valid(plain), key


def test_every_option_is_described() -> None:
    trees = [*Tree.__subclasses__()]
    for tree in trees:
        trees += tree.__subclasses__()
        if tree.__module__.startswith("raysts.recipes"):
            assert all(field.description for field in tree.model_fields.values()), tree
    assert {Pipeline, Recipe, catalog.GaussCSESettings} <= {*trees}


# -- overrides -----------------------------------------------------------------------------------------------------------


def test_an_override_holds_for_every_stage_that_has_it_or_for_the_one_it_names() -> None:
    made = pipeline("nli-ct-sed", {"train.max_steps": 7, "optim.lr": 3e-4, "batch": 8, "seed": 5, "members": 2})
    assert {(r.train.max_steps, r.optim.lr, r.batch) for r in made.recipes.values()} == {(7, 3e-4, 8)}
    assert (made.seed, made.members) == (5, 2)
    changes = {"nli.batch": 32, "sed.optim.lr": 1e-4, "flow.depth": 2}
    before, one = (pipeline("nli-ct-sed-flow", more) for more in ({}, changes))
    assert (one.stages["nli"].batch, one.recipes["sed"].optim.lr) == (32, 1e-4)
    assert one.post["flow"].settings == before.post["flow"].settings.replace(depth=2)
    assert one.stages["ct"] == before.stages["ct"] and one.recipes["sed"].batch == before.recipes["sed"].batch
    lower = pipeline("nli-sts", {"settings.lower_bound": 0.25})
    assert lower.stages["sts"].settings == STSRegressionSettings(lower_bound=0.25)
    assert lower.stages["nli"] == pipeline("nli-sts").stages["nli"]
    assert pipeline("nli", {"precision": "fp16", "train.precision": "fp32"}).precision == "fp16", "members embed in it"
    assert pipeline("raw", {"optim.lr": 1e-4}) == pipeline("raw")  # an option of every pipeline
    later = ({"batch": 8, "nli.batch": 32}, {"nli.batch": 32, "batch": 8})
    assert [pipeline("nli-ct", more).stages["nli"].batch for more in later] == [32, 8]


def test_values_of_numpy_and_paths_are_what_they_say() -> None:
    plain = {"members": 3, "optim.lr": 0.5, "train.dropout": False, "backbone": "/a/b", "sed.matryoshka": [8, 4]}
    given = {
        "members": np.int64(3), "optim.lr": np.float32(0.5), "train.dropout": np.bool_(False), "backbone": Path("/a/b"),
        "sed.matryoshka": (np.int32(8), 4),
    }  # fmt: skip
    assert dump(pipeline("nli-sed", given)) == dump(pipeline("nli-sed", plain))


def test_another_objective_comes_with_its_settings() -> None:
    recipe = pipeline("nli", {"nli.lower_bound": 0.25, "nli.objective": "sts"}).stages["nli"]
    assert recipe.settings == STSRegressionSettings(lower_bound=0.25)
    small = pipeline("latte@small")
    assert apply_overrides(small, {"latte.objective": "latte"}) == small  # the same one keeps those of the scale


SPREAD = {"resources.shard": True, "resources.workers": 2}


def of_sed(name: str, message: str, **settings: Any) -> tuple[str, dict[str, Any], list[str]]:
    return name, {f"sed.settings.{key}": value for key, value in settings.items()}, [f"sed.settings.{message}"]


def nested(name: str, stage: str, message: str, dims: tuple[int, ...] = (8,)) -> tuple[str, dict[str, Any], list[str]]:
    return name, {f"{stage}.matryoshka": [*dims]}, [f"{stage}.settings.matryoshka={[*dims]}{message}"]


SETTINGS = [
    ("gausscse-ent", {"gausscse.loss": "con", "gausscse.similarity": "js", "gausscse.activation": "relu"},
     ["loss='con': must be one of ent, ent+con, ent+rev, ent+con+rev", "similarity='js': must be one of per_dimension, paper",
      "activation='relu': must be one of tanh, identity"]),
    ("gausscse-ent", {"gausscse.temperature": 0.0}, ["gausscse.settings.temperature=0.0 must be above 0"]),
    ("simcse-sup", {"simcse-sup.head": "relu", "simcse-sup.false_negatives": "relu", "simcse-sup.temperature": 0.0},
     ["head='relu': must be one of tanh, none", "false_negatives='relu': must be one of kept, masked", "temperature=0.0 must"]),
    ("simcse-sup", {"simcse-sup.temperature": float("nan")}, ["simcse-sup.settings.temperature=nan: must be finite"]),
    ("ct", {"ct.reduction": "max", "ct.negatives": "max"}, ["must be one of mean, sum", "must be one of fresh, anchored"]),
    ("sts", {"sts.lower_bound": 1.0}, ["sts.settings.lower_bound=1.0 must be at least 0 and below 1"]),
    ("mlm", {"mlm.rate": 1.0}, ["mlm.settings.rate=1.0 must be between 0 and 1"]),
    ("flow", {"flow.levels": 0, "flow.depth": 0, "flow.width": 0}, ["levels=0 must", "depth=0 must", "width=0 must be from 1"]),
    ("whiten", {"whiten.dimensions": 0}, ["whiten.settings.dimensions=0 must be at least 1, or none"]),
    ("latte-ae", {"latte-ae.dims": 0, "latte-ae.encoder_layers": 4}, ["dims=0 must", "encoder_layers=4 must be from 1 to 3"]),
    ("latte-normal",
     {f"latte-normal.{key}": value for key, value in
      {"hidden": 0, "encoder_layers": 0, "free_bits": -0.1, "beta_warmup_fraction": 1.5}.items()},
     ["hidden=0 must", "encoder_layers=0 must", "free_bits=-0.1 must", "beta_warmup_fraction=1.5 must be from 0 to 1"]),
    ("latte", {f"latte.{key}": value for key, value in
               {"dims": 0, "free_bits": -1.0, "classes": 1, "tau": 0.0, "tau_test": -1.0}.items()},
     ["dims=0 must", "free_bits=-1.0 must", "classes=1 must be at least 2", "tau=0.0 must", "tau_test=-1.0 must be above 0"]),
    of_sed("nli-sed", "target='median': must be one of mean, unit-mean, concat, similarity", target="median"),
    of_sed("nli-sed", "loss=mse: target=similarity is the cosines of a batch", target="similarity", loss="mse"),
    of_sed("nli-sed", "projection=8: loss=similarity compares cosines", loss="similarity", projection=8),
    of_sed("nli-sed", "temperature=0.1 is of loss=infonce alone", temperature=0.1),
    of_sed("nli-sed", "bank_temperature=0.4 is of a bank; set bank", bank_temperature=0.4),
    of_sed("nli-sed", "bank=0.1: loss=similarity leaves the student a space of its own", loss="similarity", bank=0.1),
    of_sed("nli-sed", "temperature=0.0 must be above 0", loss="infonce", temperature=0.0),
    of_sed("nli-sed", "loss={'cosine': 0}: must be one of mse, cosine, similarity, infonce, nll, kl", loss={"cosine": 0}),
    of_sed("nli-sed", "weights='equal': must be one number above 0 for each teacher", weights="equal"),
    *(of_sed("nli-sed", f"weights={none}: must be one number above 0 for each", weights=none) for none in ([], [0])),
    of_sed("nli-sed", "loss={}: must be one of mse", loss={}),
    of_sed("nli-sed", "axes=student: loss=similarity compares cosines, and a projection", axes="student", projection=8),
    of_sed("gausscse-ent-sed", "loss=mse: kl is the loss of target=gaussian", target="gaussian", loss="mse"),
    of_sed("gausscse-ent-sed", "loss=kl: kl is the loss of target=gaussian, which has no other; leave loss out", loss="kl"),
    of_sed("gausscse-ent-sed", "loss={'kl': 1.0, 'cosine': 1.0}: kl", target="gaussian", loss={"kl": 1.0, "cosine": 1.0}),
    of_sed("gausscse-ent-sed", "target=gaussian: takes no bank", target="gaussian", bank=0.1),
    of_sed("ct-sed", "matryoshka=[8]: sed: the projection reads all", matryoshka=[8], projection=64, target="concat"),
    *(nested("ct-sed", "sed", " must be numbers of dimensions, each once", dims) for dims in ((8, 8), (0,))),
    nested("mlm-ct-sed", "mlm", ": mlm: it is no loss of sentence vectors"),
    nested("nli-sed-flow", "flow", ": flow: it is no loss of sentence vectors"),
    nested("latte", "latte", ": latte: it is no loss of sentence vectors"),
    nested("gausscse-ent", "gausscse", ": gausscse: its similarity is of Gaussians in all their dimensions"),
    nested("simcse-unsup@paper", "simcse-unsup", ": simcse-unsup: head=tanh reads all dimensions"),
]  # fmt: skip
"""Settings of objectives, as they are typed; several of one message in a row."""


@pytest.mark.parametrize(
    ("name", "overrides", "messages"),
    [
        ("nli-ct", {"bacth": 1}, ["unknown option 'bacth' (did you mean 'batch'?)"]),
        ("nli-ct", {"nil.batch": 1}, ["unknown option 'nil.batch' (did you mean 'nli.batch'?)"]),
        ("nli-ct", {"nli.optim.lrr": 1}, ["unknown option 'nli.optim.lrr' (did you mean 'nli.optim.lr'?)"]),
        ("nli", {"nli.objective": "nil"}, ["nli.objective='nil': must be one of mlm, nli, ct"]),
        ("nli", {"nli.data.table": "nli/trian"}, ["nli.data.table='nli/trian' is no canonical", "did you mean 'nli/train'?"]),
        ("nli", {"nli.optim": {"lrr": 1}}, ["unknown option 'nli.optim.lrr' (did you mean 'lr'?)"]),
        ("nli", {"data.spans": 4}, ["data.spans=4: nli trains on premise, hypothesis, not on single texts"]),
        ("simcse-unsup", {"data.spans": 4, "data.sources": ["a"]}, ["spans=4: pieces of texts have no source"]),
        ("simcse-unsup", {"data.span_tokens": [64, 4]}, ["span_tokens=[64, 4] must be two numbers, the smaller one first"]),
        ("simcse-unsup", {"data.span_tokens": [4, 8, 64]}, ["span_tokens=[4, 8, 64] must be two numbers"]),
        *(("nli", {"train.max_length": length}, ["must be a number of at least 3, or auto"]) for length in ("all", 2)),
        *(("nli", {"backbone_layers": layers}, [f"{layers}: must be a number of layers"]) for layers in (0, [2, 0], [-1])),
        ("nli", {"nli.train.keep": "second"}, ["nli.train.keep='second' must be one of last, best for nli"]),
        ("nli", {"nli.pooling": "sum"}, ["nli.pooling='sum': must be one of mean, cls, max"]),
        ("nli", {"nli.layers": True}, ["nli.layers=True: must be a number of last layers (2), 'first_last'"]),
        ("nli", {"nli.layers": "two"}, ["nli.layers='two': must be a number of last layers (2), 'first_last'"]),
        ("nli", {"nli.layers": "weights-0,0"}, ["nli.layers='weights-0,0': the weights must be finite"]),
        ("nli", {"nli.optim.schedule": "steps"}, ["nli.optim.factors: schedule 'steps' needs one factor more"]),
        ("nli", {"optim.eps": 0}, ["nli.optim.eps=0.0 must be above 0, or none"]),
        ("nli", {"optim.floor": 1.0}, ["nli.optim.floor=1.0 must be from 0 to lr, 2e-05"]),
        ("nli", {"train.precision": "fp16"}, ["nli.train.precision=fp16 is for embedding alone"]),
        ("nli", {"precision": "fp16"}, ["precision=fp16 is for embedding alone", "set nli.train.precision too"]),
        ("nli-ct", {"ct.batch": 12}, ["ct.batch=12 must be a multiple of 8"]),
        ("simcse-unsup", {"simcse-unsup.batch": 1}, ["simcse-unsup.batch=1 must be at least 2"]),
        ("ct", {"ct.optim.weight_decay": 0.1}, ["ct.optim.weight_decay: rmsprop has none here"]),
        ("nli", {"nli.optim.lr": -1, "batch": 0}, ["nli.batch=0 must be above 0", "nli.optim.lr=-1.0 must be above 0"]),
        ("nli-ct", {"bach": 1, "nli.batch": "x", "members": 0, "ct.optim.lr": -1},
         ["unknown option 'bach'", "nli.batch='x'", "members=0 must be from 1 to 10,000", "ct.optim.lr=-1.0"]),
        ("nli", {"select_top": 5, "members": 3}, ["select_top=5 must be from 1 to the number of members, 3"]),
        ("nli", {"min_members": 2}, ["min_members=2 must be from 1 to members, 1"]),
        ("nli-sed", {"min_members": 2, "select_top": 3}, ["min_members=2 must be at least select_top, 3"]),
        ("nli", {"students": 2}, ["students=2: 'nli' distils no student"]),
        ("nli", {"members": 2, "trials": [{"point": {}}]}, ["members=2: 1 trials are the members"]),
        ("raw", {"combine": "ensemble"}, ["combine: there are no members to combine"]),
        ("raw", {"bacth": 1}, ["unknown option 'bacth'"]),
        ("nli-sed", {"student": "static", "keep_index": True}, ["static: it is of distillation by named", "that one named"]),
        ("quickstart@small", {}, ["'quickstart' belongs to no paper and has its own sizes; take 'quickstart'"]),
        ("nli", {"teacher_prompt": "q"}, ["teacher_prompt='q': no models are named as teachers"]),
        ("nli", {"teachers": "a,b"}, ["teachers: models that are there, or stages"]),
        ("nli", {"combine": "sed"}, ["sed: needed with combine=sed and only then"]),
        ("nli-sed", {"nli.objective": "sed"}, ["nli: a member has no teacher"]),
        ("nli-sed", {"sed.objective": "nli"}, ["sed.objective: must be sed"]),
        ("nli-sed-flow", {"flow.objective": "nli"}, ["flow: nli is no stage of a finished model"]),
        ("nli-ct", {"nli.objective": "flow"}, ["nli: flow is fitted on a finished model and must be the last stage"]),
        ("nli", {"evaluation.layers": 3, "evaluation.compare": 2}, ["evaluation.compare=2 must be one of layers (3,)"]),
        ("nli", {"evaluation.layers": []}, ["evaluation.layers=() must name one choice"]),
        ("mlm", {"mlm.grad_cache": 4}, ["mlm.settings.grad_cache=4: mlm: it is no loss of sentence vectors"]),
        ("sts", {"data.table": "sts/stsb_dev"}, ["sts.data.table='sts/stsb_dev' is a dev set, which selects"]),
        ("sts", {"sts.grad_cache": 0}, ["sts.settings.grad_cache=0 must be at least 1, or none"]),
        ("flow", {"flow.train.lora": 2}, ["flow.train.lora=2: flow is fitted on a finished model"]),
        ("nli", {"resources.shard": True}, ["resources.workers=1: shard spreads"]),
        ("nli-flow", SPREAD, ["resources.shard: flow: only losses of sentence vectors are spread"]),
        ("nli", SPREAD | {"nli.grad_cache": 4}, ["resources.shard: nli: only losses of sentence vectors are spread"]),
        ("simcse-sup", SPREAD | {"train.compile": True}, ["resources.shard: not together with simcse-sup.train.compile"]),
        ("nli", {"resources.min_workers": 2}, ["resources.min_workers=2 must be from 1 to workers, 1, or none"]),
        ("nli", {"resources.gpus": 0, "resources.accelerator_type": "L4"}, ["resources.accelerator_type=L4: workers without"]),
        ("nli", {"resources.label_selector": "a=b,c"}, ["resources.label_selector='c' must be key=value"]),
        ("nli-ct", {"routes": [["nli"], ["nli", "tc"]]}, ["routes[1]=['nli', 'tc'] must be stages of a member", ": nli, ct"]),
        ("nli-ct", {"routes": [["nli"], []]}, ["routes[1]=[] must be stages"]),
        ("nli-ct", {"routes": [["nli"], ["ct"]], "ct.pooling": "cls"}, ["their last stages differ in pooling: mean, cls"]),
        ("nli-gausscse-ent", {"routes": [["nli"], ["gausscse"]]}, ["differ in development set: sts/stsb_dev, nli/snli_dev"]),
        ("nli", {"recipes": None, "optim.lr": 1}, ["recipes=None: must be a mapping"]),
        *SETTINGS,
    ],
)  # fmt: skip
def test_what_is_wrong_is_said(name: str, overrides: dict[str, Any], messages: list[str]) -> None:
    text = "\n".join(problems_of(name, overrides))
    assert all(message in text for message in messages), text
    assert "Input should be" not in text and "pydantic" not in text


def test_what_is_at_the_edge_of_a_rule_is_taken() -> None:
    edges = {
        "name": "sts", "backbone_layers": [0, 2], "members": 2, "min_members": 2, "select_top": 2, "sed.matryoshka": [1],
        "trials": [{"point": {}}, {"point": {}, "seed": 1}], "train.max_length": 3, "train.compile": True,
        "optim.floor": 2e-5, "optim.schedule": "steps", "optim.milestones": [5], "optim.factors": [1.0, 0.5],
        "resources.workers": 2, "resources.min_workers": 2, "resources.gpus": 0,
    }  # fmt: skip
    made = pipeline("nli-sed", edges)
    assert (made.name, made.backbone_layers, made.resources.least, made.resources.device) == ("sts", (0, 2), 2, "cpu")
    assert made.resources.bundle == {"CPU": 1.0}
    asked = Resources(cpus=2, gpus=0.5, memory=3.0, accelerator_type="L4")
    assert asked.bundle == {"CPU": 2.0, "GPU": 0.5, "memory": 3e9, "accelerator_type:L4": 0.001}
    assert asked.device is None, "what the machine has"
    # Two levels of a flow halve the dimensions twice; the others are as many as the model has.
    halved, others = ("flow", {"levels": 2}, 6), [("whiten", {"dimensions": 8}, 7), ("ct", {"matryoshka": (8,)}, 7)]
    for objective, option, wrong in (halved, *others):
        problem, settings = CATALOG[objective].settings_problem, CATALOG[objective].settings(**option)
        assert problem(settings, 8) is None and problem(settings, wrong)
    assert CATALOG["whiten"].settings_problem(CATALOG["whiten"].settings(), 7) is None


def test_what_a_student_learns_follows_from_its_target_and_its_start() -> None:
    of = catalog.DistillationSettings
    reduced, wide = of(target="concat"), of(target="concat", projection=8)
    for settings, expected in (
        (reduced, (True, True, False)), (wide, (False, False, False)), (of(projection=8), (False, False, True)),
        (of(target="concat", loss="similarity"), (False, False, False)), (of(axes="student"), (False, True, False)),
    ):  # fmt: skip
        assert (settings.is_reduced, settings.learns_map, settings.keeps_projection) == expected, settings
    turned = [(of(), None), (reduced, "some"), (of(), "some"), (wide, None), (of(matryoshka=(8,)), None)]
    axes = ["settings.axes" in student_defaults(settings, True, within) for settings, within in turned]
    assert axes == [True, True, False, False, False]
    assert student_defaults(of(), False) == {}
    assert student_defaults(of(loss="mse"), True) == {"settings.axes": "student"}
    assert student_defaults(of(loss="similarity"), True) == {"optim.lr": 1e-4}
    directions = {"optim.lr": 3e-4, "optim.schedule": "linear"}
    assert student_defaults(of(target="gaussian"), True) == directions
    assert student_defaults(of(projection=8), True) == {"settings.loss": "cosine", **directions}
    assert student_defaults(of(projection=8, loss="nll"), True) == {"settings.loss": "nll", **directions}


def test_parse_overrides() -> None:
    given = ["a.b=3", "lr=2e-5", "x=", "t=[a, b]"]
    assert parse_overrides(given) == {"a.b": 3, "lr": "2e-5", "x": "", "t": ["a", "b"]}
    for wrong in ("a.b", "=3"):
        with pytest.raises(InputError, match="must look like"):
            parse_overrides([wrong])


# -- what may be trained on, and trees made by hand ----------------------------------------------------------------------


def test_test_sets_cannot_be_trained_on() -> None:
    for table in TEST_TABLES:
        with pytest.raises(InputError, match="is a test set"):
            Recipe(objective="sts", settings=STSRegressionSettings(), data=Data(table=table), train=Train(keep="best"))
    assert {f"sts/sts{year}" for year in range(12, 17)} | {"sts/stsb_test", "sick/sick_test"} <= TEST_TABLES
    assert {"nli/snli_test", "nli/xnli_en_test", "senteval/trec_test", "senteval/mrpc_test"} <= TEST_TABLES
    assert not {"sts/stsb_train", "sts/stsb_dev", "nli/train", "wikipedia/sentences"} & TEST_TABLES
    # These have no split: results come from cross-validation over all of their rows.
    assert {f"senteval/{name}" for name in ("mr", "cr", "mpqa", "subj")} <= TEST_TABLES


@pytest.mark.parametrize("name", CATALOG)
def test_a_table_must_have_the_objectives_columns(name: str) -> None:
    spec = CATALOG[name]
    needed = {*spec.texts, *spec.values} - {"teacher"}
    foreign = next(t for t, cs in TABLES.items() if t not in TEST_TABLES and not needed <= {c.name for c in cs})
    with pytest.raises(InputError, match="column"):
        Recipe(objective=name, settings=spec.settings(), data=Data(table=foreign), train=Train(keep=spec.keeps[0]))


def test_trees_made_by_hand_are_checked_as_those_of_a_file() -> None:
    with pytest.raises(InputError, match="^settings=SimCSESettings.*: must be GaussCSESettings, those of gausscse"):
        Recipe(objective="gausscse", settings=catalog.SimCSESettings())
    with pytest.raises(InputError, match="^head='relu': must be one of tanh, none"):
        catalog.SimCSESettings(head="relu")  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"(?s)^name='sgd': must be one of adamw.*lr=nan: must be finite"):
        Optim(name="sgd", lr=float("nan"))  # type: ignore[arg-type]


def test_an_empty_prompt_is_no_prompt_and_none_is_that_of_the_backbone() -> None:
    """As ``--prompt ''`` of the other commands."""
    asked = {"prompt=": "", "prompt=none": None, "prompt=query": "query"}
    assert {item: pipeline("nli", parse_overrides([item])).prompt for item in asked} == asked
    with pytest.raises(InputError, match=r"train.max_steps='': must be a whole number"):
        pipeline("nli", parse_overrides(["train.max_steps="]))
