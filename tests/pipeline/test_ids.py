from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from golden.golden import Golden
from small_runs import distillation

from raysts.data.corpora import Corpus
from raysts.data.user import UserData
from raysts.data.world import EMBEDDED
from raysts.ids import content_id, derive_seed, folder_id
from raysts.models import pretrained
from raysts.models.pretrained import load
from raysts.models.weights import token_table
from raysts.pipeline import inputs
from raysts.pipeline.plan import Plan
from raysts.pipeline.price import Rates, price
from raysts.pipeline.step import Step
from raysts.recipes.catalog import BANK_TEMPERATURE, CATALOG
from raysts.recipes.names import RECIPES, pipeline
from raysts.recipes.tree import paths, to_plain

Planner = Callable[..., Plan]


@pytest.fixture(scope="module")
def plan(small_corpus: Corpus, tiny_backbone: Path, tmp_path_factory: pytest.TempPathFactory) -> Planner:
    """plan(name, overrides, corpus=..., storage=...) on the small world with the tiny backbone."""
    places = {"corpus": small_corpus, "storage": tmp_path_factory.mktemp("planned")}

    def made(name: str, overrides: dict[str, Any] | None = None, **options: Any) -> Plan:
        found = pipeline(name, {"backbone": str(tiny_backbone), "members": 2} | (overrides or {}))
        return Plan(pipeline=found, **(places | options))

    return made


@pytest.fixture(scope="module")
def of_nli(plan: Planner) -> list[list[str]]:
    """The ids of ``nli`` as it is."""
    return ids(plan("nli"))


def ids(plan: Plan) -> list[list[str]]:
    return [[node.id for node in chain] for chain in plan.chains]


def student(plan: Plan) -> Step:
    return plan.student_chains[0][0]


CHANGED: dict[str, Any] = {
    "settings.bias": False, "settings.matryoshka": [16], "settings.grad_cache": 8, "data.table": "nli/xnli_en_dev",
    "data.sources": ["world"], "data.sample": 100, "data.sample_seed": 1, "data.span_tokens": [2, 8], "data.bootstrap": True,
    "batch": 24, "optim.name": "adam", "optim.lr": 1e-4, "optim.schedule": "constant", "optim.warmup": 0.2,
    "optim.milestones": [5], "optim.factors": [0.5], "optim.weight_decay": 0.02, "optim.clip": None, "optim.eps": 1e-6,
    "optim.floor": 1e-6, "optim.decay_all": True, "train.epochs": 2.0, "train.max_steps": 3, "train.min_steps": 40,
    "train.max_length": 20, "train.dropout": False, "train.precision": "fp32", "train.keep": "best", "train.eval_every": 2,
    "train.patience": 4, "train.eval_first": True, "train.drop_last": True, "train.init": "random", "train.lora": 4,
    "train.attention_dropout": "on", "train.compile": True, "pooling": "cls", "layers": 2,
}  # fmt: skip
"""Another value for every field of an nli recipe but ``ELSEWHERE``."""
ELSEWHERE = {"objective", "data.spans", "train.checkpoint_every", "train.gradient_checkpointing"}
"""Another objective has other settings, spans are of single texts, and the others change no number: tests of their own."""


def test_the_table_above_has_every_field_of_a_recipe() -> None:
    plain = to_plain(pipeline("nli").stages["nli"])
    branches = {path.rpartition(".")[0] for path in paths(plain)}
    assert CHANGED.keys() | ELSEWHERE == set(paths(plain)) - branches


@pytest.mark.parametrize("field", CHANGED)
def test_a_run_id_changes_with_every_field(
    field: str, plan: Planner, of_nli: list[list[str]], small_corpus: Corpus, small_world: Path, tmp_path: Path
) -> None:
    if field == "data.table":  # the world has one table of pairs to train on
        copy = shutil.copytree(small_world, tmp_path / "world")
        shutil.copyfile(copy / "nli/snli_dev.parquet", copy / f"{CHANGED[field]}.parquet")
        changed = plan("nli", {f"nli.{field}": CHANGED[field]}, corpus=Corpus(copy))
    elif field == "data.sources":
        sources = small_corpus.read("nli/train").column("source").unique().to_pylist()
        changed = plan("nli", {f"nli.{field}": sources})
    else:
        changed = plan("nli", {f"nli.{field}": CHANGED[field]})
    assert ids(changed)[0] != of_nli[0]


def test_spans_and_the_temperature_of_a_bank_are_in_the_ids_that_have_them(plan: Planner) -> None:
    assert ids(plan("simcse-unsup", {"data.spans": 4}))[0] != ids(plan("simcse-unsup"))[0]
    assert "spans" not in plan("simcse-unsup").pipeline.stages["simcse-unsup"].identity["data"]
    bank = {"sed.bank": 0.1}
    for given, temperature in (({}, None), (bank, BANK_TEMPERATURE), (bank | {"sed.bank_temperature": 0.4}, 0.4)):
        settings = plan("nli-sed", given).pipeline.recipes["sed"].identity["settings"]
        assert settings.get("bank_temperature") == temperature


def test_a_run_id_is_without_what_changes_no_number(plan: Planner, of_nli: list[list[str]]) -> None:
    """So a run that has too little memory, or too few checkpoints, goes on where it was with another value."""
    saving = plan("nli", {"train.checkpoint_every": 2, "train.gradient_checkpointing": True})
    assert ids(saving) == of_nli
    identity = saving.pipeline.stages["nli"].identity["train"]
    assert {"checkpoint_every": None, "gradient_checkpointing": False}.items() <= identity.items()
    assert ids(plan("nli", {"seed": 1}))[0] != of_nli[0] != of_nli[1]


def test_a_run_id_does_not_change_with_place_or_resources(plan: Planner, small_world: Path, tmp_path: Path) -> None:
    before = plan("nli-ct-sed")
    elsewhere = Corpus(shutil.copytree(small_world, tmp_path / "world"))
    for other in (
        plan("nli-ct-sed", storage=tmp_path / "other"),
        plan("nli-ct-sed", corpus=elsewhere),
        plan("nli-ct-sed", {"resources.workers": 2, "resources.cpus": 3, "resources.gpus": 0.5}),
        plan("nli-ct-sed", {"resources.workers": 2, "resources.min_workers": 1, "min_members": 1}),
        plan("nli-ct-sed", {"name": "another", "evaluation.resamples": 10, "evaluation.layers": [2, 1]}),
    ):
        assert ids(other) == ids(before) and student(other).id == student(before).id
        assert set(other.specs) == set(before.specs)


def test_a_run_id_changes_with_the_backbones_content_not_its_path(
    plan: Planner, of_nli: list[list[str]], tiny_backbone: Path, copy_of: Callable[[Path, str], Path]
) -> None:
    copy = copy_of(tiny_backbone, "copy")
    (copy / "README.md").write_text("a model card")
    assert ids(plan("nli", {"backbone": str(copy)})) == of_nli
    weights = bytearray((copy / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (copy / "model.safetensors").write_bytes(weights)
    assert all(a != b for a, b in zip(ids(plan("nli", {"backbone": str(copy)})), of_nli, strict=True))


def test_a_run_id_changes_with_the_data(plan: Planner, small_world: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(small_world, tmp_path / "world"))
    table = pq.read_table(copy / "nli" / "train.parquet")
    pq.write_table(table.slice(0, table.num_rows - 1), copy / "nli" / "train.parquet")
    before, after = plan("nli-ct"), plan("nli-ct", corpus=Corpus(copy))
    assert ids(before)[0][0] != ids(after)[0][0], "nli"
    assert ids(before)[0][1] != ids(after)[0][1], "ct, whose data did not change, but whose parent did"
    assert ids(plan("ct"))[0] == ids(plan("ct", corpus=Corpus(copy)))[0]


def test_dev_counts_where_it_selects(plan: Planner, of_nli: list[list[str]], small_world: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(small_world, tmp_path / "world"))
    table = pq.read_table(copy / "sts" / "stsb_dev.parquet")
    pq.write_table(table.slice(1), copy / "sts" / "stsb_dev.parquet")
    assert of_nli == ids(plan("nli", corpus=Corpus(copy)))
    assert ids(plan("sts")) != ids(plan("sts", corpus=Corpus(copy)))
    stops = {"nli.train.patience": 2}  # it keeps the last step, and dev says which that is
    assert ids(plan("nli", stops)) != ids(plan("nli", stops, corpus=Corpus(copy)))
    assert plan("nli-sed").teacher.vectors.id == plan("nli-sed", corpus=Corpus(copy)).teacher.vectors.id
    top = {"select_top": 1}
    assert plan("nli-sed", top).teacher.vectors.id != plan("nli-sed", top, corpus=Corpus(copy)).teacher.vectors.id


def test_what_is_trained_decides_and_not_how_it_was_asked_for(plan: Planner) -> None:
    """Members of a small ensemble are those of a large one, and of a route those of the system with its stages."""
    assert ids(plan("nli-ct", {"members": 4})) == ids(plan("nli-ct-ensemble", {"members": 10}))[:4]
    assert student(plan("nli-sed", {"members": 4})).id != student(plan("nli-sed", {"members": 10})).id
    routed = plan("nli-ct-sed", {"members": 3, "routes": [["nli", "ct"], ["ct"], ["nli"]]})
    alone = [plan(name, {"members": 3}) for name in ("nli-ct", "ct", "nli")]
    assert ids(routed) == [ids(one)[member] for member, one in enumerate(alone)]
    assert set(routed.specs) == set(plan("nli-ct-sed").specs)


def test_a_stage_changes_what_comes_after_it_alone(plan: Planner) -> None:
    before, after = plan("nli-ct-sed"), plan("nli-ct-sed", {"ct.optim.lr": 2e-5})
    assert [chain[0] for chain in ids(before)] == [chain[0] for chain in ids(after)]
    assert all(a[1] != b[1] for a, b in zip(ids(before), ids(after), strict=True))
    assert student(before).id != student(after).id
    assert set(before.specs) == set(after.specs), "no table is tokenised again"
    assert len(plan("ct-sed", {"sed.data.sample": None}).specs) == 1
    assert len(plan("ct-sed", {"sed.data.sample": None, "ct.train.max_length": 30}).specs) == 2


def test_the_tiny_backbone_has_an_id_before_it_is_written(plan: Planner, tmp_path: Path) -> None:
    small = {"backbone": "tiny", "train.max_steps": 1}
    made = plan("nli", small)
    assert not made.backbone.exists() and ids(made) == ids(plan("nli", small, storage=tmp_path / "other"))
    assert made.backbone_id != plan("nli", small | {"seed": 1}).backbone_id


def test_a_student_exported_with_other_layers_is_another_run(plan: Planner) -> None:
    """It is the same training, but another model: what an id stands for must hold the layers that it pools."""
    for layers in (1, 2):  # a member pools those of its training
        assert {node.training.export_layers for node in plan("sts", {"sts.layers": layers}).members} == {layers}
    one, two = (plan("nli-ct-sed", {"student_pooling": layers}) for layers in (1, 2))
    assert student(one).id != student(two).id
    assert ids(one) == ids(two) and one.teacher.vectors.id == two.teacher.vectors.id
    assert [student(made).training.export_layers for made in (one, two)] == [1, 2]


def test_a_probe_counts_where_something_is_probed(plan: Planner, embedded: Corpus) -> None:
    def measured(**evaluation: Any) -> str:
        asked = {f"evaluation.{key}": value for key, value in evaluation.items()}
        return plan("nli", asked, corpus=embedded).evaluations[0].single[0].file.stem

    probed, other = {"tasks": ["transfer"]}, {"tasks": ["stsb"], "also": ["transfer"]}
    assert measured(**probed) != measured(**probed, probe="senteval")
    assert measured(**other) == measured(**other, probe="senteval")


# -- what is planned on ---------------------------------------------------------------------------------------------------


def test_slow_tasks_need_their_files(plan: Planner, embedded: Corpus, few_world: Path, tmp_path: Path) -> None:
    data = Path(shutil.copytree(few_world, tmp_path / "data"))
    shutil.rmtree(data / "web", ignore_errors=True)
    also = {"evaluation.also": ["words", "nothing"]}
    assert plan("nli", also, corpus=embedded).tasks[-3:] == ("sick-direction", "words", "nothing"), "which is refused"
    assert plan("nli", also, corpus=Corpus(data)).tasks[-2:] == ("sick-direction", "nothing")
    assert plan("nli", also | {"evaluation.tasks": ["stsb"]}, corpus=embedded).tasks == ("stsb",)


def test_sentences_show_words_to_models(plan: Planner, embedded: Corpus, tiny_backbone: Path, tmp_path: Path) -> None:
    """Word vectors need none."""
    token_table(load(tiny_backbone, device="cpu")).save(tmp_path / "static")
    asked = [{"backbone": name, "evaluation.tasks": ["words"]} for name in (str(tmp_path / "static"), "tiny")]
    assert [bool(plan("raw", each, corpus=embedded).model_sets[0].sentences) for each in asked] == [False, True]


def test_rows_that_select_and_report_are_counted(plan: Planner, few_world: Path, tmp_path: Path) -> None:
    """In whatever order their sentences stand, and of the files of a user's own where those select."""
    data, mine, columns = tmp_path / "data", tmp_path / "mine.parquet", ["sentence1", "sentence2", "score"]
    shutil.copytree(few_world, data)
    tested, pairs = (pq.read_table(data / f"sts/{name}.parquet").select(columns) for name in ("sts12", "stsb_dev"))
    both = pa.table({"sentence1": tested["sentence2"], "sentence2": tested["sentence1"], "score": tested["score"]})
    more = pa.concat_tables([pairs, both.slice(0, 7)], promote_options="permissive")
    pq.write_table(more, data / "sts/stsb_dev.parquet")
    pq.write_table(both.slice(0, 5), mine)
    of_tasks = {"evaluation.tasks": ["sts12", "sick-2way"]}
    assert plan("nli", of_tasks, corpus=Corpus(data)).dev_overlaps == {"sts12": (7, 60)}
    own = UserData.of(dev={"mine": mine})
    assert plan("nli", of_tasks, corpus=Corpus(data, user=own)).dev_overlaps == {"sts12": (5, 60)}
    assert plan("nli", of_tasks, corpus=Corpus(few_world)).dev_overlaps == {}


def test_a_backbone_as_it_is_distributed(plan: Planner, tiny_backbone: Path, tmp_path: Path) -> None:
    load(tiny_backbone, pooling="cls", layers=2, device="cpu").save(tmp_path / "cls")
    folder = str(tmp_path / "cls")
    distilled = distillation(folder, folder, student="static")
    plans = [plan("nli", {"backbone": folder}), plan("nli", {"backbone": "tiny"})]
    plans.append(replace(plans[0], pipeline=distilled))
    pooled = [made.distributed_pooling for made in plans]
    assert pooled == [("cls", 2), ("mean", 1), ("mean", 1)], "a table of tokens has nothing to pool but them"


def test_half_the_layers(plan: Planner, tiny_backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the layers go through half of the weights; the embeddings stay."""
    monkeypatch.setattr(inputs, "SMALLEST", 1.0)
    for backbone in (str(tiny_backbone), "tiny"):
        whole, half = (plan("nli", {"backbone": backbone, "backbone_layers": count}) for count in (None, 1))
        assert half.size == whole.size / 2 and whole.model_bytes - half.model_bytes == 4 * half.size
    weights = pretrained.weight_bytes(tiny_backbone)
    assert plan("nli").model_bytes == weights + inputs.OTHER_FILES and plan("nli").size < weights / 4
    made = plan("nli", {"backbone_layers": 1}, storage=tmp_path)
    written = []
    for _ in range(2):
        made.write_backbone()
        written.append((made.start / "config.json").stat().st_mtime_ns)
    assert written[0] == written[1], "it is there"


# -- the functions behind them -------------------------------------------------------------------------------------------


def test_seeds_are_the_same_on_every_machine() -> None:
    assert derive_seed(0, "nli", 0) == 5510899144284117469  # sha256 of the text [0, "nli", 0]
    assert derive_seed(0, "nli", 1) != derive_seed(0, "nli", 0) != derive_seed(1, "nli", 0)
    assert derive_seed(0, "a", 12) != derive_seed(0, "a", 1, 2) != derive_seed(0, "a1", 2)
    assert all(0 <= derive_seed(0, i) < 2**63 for i in range(100))


def test_content_ids_do_not_depend_on_the_order_of_keys() -> None:
    assert content_id({"a": 1, "b": [1, 2]}) == content_id({"b": [1, 2], "a": 1})
    for one, other in (([1, 2], [2, 1]), (1, "1"), (None, [])):
        assert content_id(one) != content_id(other)
    assert len(content_id("ü")) == 16


def test_a_folder_id_sees_names_and_bytes(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder / "sub").mkdir(parents=True)
        (tmp_path / folder / "a").write_text("1")
        (tmp_path / folder / "sub" / "b").write_text("2")
    (tmp_path / "one" / ".cache" / "huggingface").mkdir(parents=True)
    (tmp_path / "one" / ".cache" / "huggingface" / "config.json.metadata").write_text("when it was fetched")
    assert folder_id(tmp_path / "one") == folder_id(tmp_path / "two")
    (tmp_path / "two" / "a").rename(tmp_path / "two" / "c")
    assert folder_id(tmp_path / "one") != folder_id(tmp_path / "two")
    (tmp_path / "two" / "c").rename(tmp_path / "two" / "a")
    (tmp_path / "two" / "sub" / "b").write_text("3")
    assert folder_id(tmp_path / "one") != folder_id(tmp_path / "two")
    (tmp_path / "one" / os.fsdecode(b"caf\xe9.txt")).touch()  # a name that is no UTF-8
    assert folder_id(tmp_path / "one") != folder_id(tmp_path / "two")


def test_objective_versions_count(plan: Planner, of_nli: list[list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CATALOG, "nli", replace(CATALOG["nli"], version=2))
    assert ids(plan("nli")) != of_nli


@pytest.fixture(scope="module")
def embedded() -> Corpus:
    return Corpus(EMBEDDED)


@pytest.mark.parametrize("name", RECIPES)
def test_plans_are_those_of_the_golden_record(name: str, embedded: Corpus, tmp_path: Path, golden: Golden) -> None:
    """On the embedded tables: if an id moves, everything that anybody has trained is trained again."""
    settings = {"backbone": "tiny", "resources.gpus": 0}
    made = Plan(pipeline=pipeline(name, settings), corpus=embedded, storage=tmp_path)
    golden.check(f"ids/{name}", {step.title: step.id for step in made.steps})
    rates, left = Rates(made.store), {}
    for step in made.steps:
        left[step.id] = rates.predict(step)
    steps = {step.title: [step.sentences, step.bytes, round(left[step.id].seconds, 1)] for step in made.steps}
    cost = price(made.steps, left, made.store, 2, {"cpu-hour": 10.0, "1000-requests": 1.0})
    golden.check(f"plans/{name}", {"title: sentences, bytes, seconds": steps, "price": cost.text})
