"""``raysts compare`` on small encoders, by the record of a run."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from run_commands import raysts, result
from small_runs import HIDDEN, write_backbone

from raysts.evaluation.statistics import spearman as correlation
from raysts.models.head import Dense
from raysts.models.pretrained import load
from raysts.models.sentence_model import SentenceModel
from raysts.ops.similarity import cosine
from raysts.storage.store import Store

NAME = "first"
RUNS = A, B, STUDENT = [letter * 16 for letter in "abc"]


@pytest.fixture(scope="module")
def options(few_world: Path, tmp_path_factory: pytest.TempPathFactory) -> list[object]:
    """``--data`` and ``--storage`` with the run ``first``: two members, and a student that pools two layers."""
    folder = tmp_path_factory.mktemp("compared")
    store = Store.open(folder / "storage")
    for seed, run in enumerate(RUNS):
        backbone = write_backbone(folder / run, "bert", seed=seed)
        load(backbone, layers=2 if run == STUDENT else 1, device="cpu").save(store.path(f"runs/{run}/model"))
    outcome = {"members": [A, B], "ensemble": [A, B], "students": [STUDENT], "selected": STUDENT}
    pipeline = {"name": "nli-sed", "combine": "sed", "teachers": [], "recipes": {"sed": {}}}
    record = {
        "name": NAME, "pipeline": pipeline, "members": [A, B], "outcome": outcome, "command": "raysts run nli-sed",
    }  # fmt: skip
    store.write_json(f"pipelines/{NAME}.json", record)
    return ["--data", few_world, "--storage", store.root]


def compared(options: list[object], a: object, b: object, *more: object) -> dict[str, Any]:
    return result("compare", a, b, *options, "--tasks", "sts12,stsb", "--resamples", 40, *more)


@pytest.fixture(scope="module")
def student_and_members(options: list[object]) -> dict[str, Any]:
    return compared(options, f"{NAME}:student", f"{NAME}:members")


def spearman(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["dataset"]: row for row in found["comparison"] if row["metric"] == "spearman"}


def test_the_values_are_those_of_the_models_or_of_the_mean_of_their_vectors(
    options: list[object], student_and_members: dict[str, Any]
) -> None:
    def expected(layers: int, *runs: str, table: str = "sts/sts12") -> float:
        pairs = pq.read_table(Path(str(options[1]), f"{table}.parquet"))
        sides = [pairs.column(side).to_pylist() for side in ("sentence1", "sentence2")]
        of_runs = [[models[run].represent_layers(side, (layers,))[layers]["vectors"] for side in sides] for run in runs]
        return correlation(cosine(*np.mean(of_runs, axis=0)), pairs.column("score").to_numpy())

    models = {run: load(Path(str(options[3]), "runs", run, "model"), device="cpu") for run in RUNS}
    found = student_and_members
    assert found["layers"] == "1", "the student pools two layers by itself and the members one"
    assert f"{NAME}:student" in found["conclusion"] and found["status"] == "done" and found["margins"] == []
    rows, student = spearman(found), {}
    for dataset, table in (("sts12", "sts/sts12"), ("stsb", "sts/stsb_test")):
        members = [expected(1, run, table=table) for run in (A, B)]
        row, student[dataset] = rows[dataset], expected(1, STUDENT, table=table)
        assert (row["a"], row["a_std"], row["b_models"]) == (pytest.approx(student[dataset], abs=1e-6), None, 2)
        assert row["b"] == pytest.approx(np.mean(members), abs=1e-6)
        assert row["b_std"] == pytest.approx(np.std(members, ddof=1), abs=1e-6)
    assert rows["overall"]["a"] == pytest.approx(np.mean([*student.values()]), abs=1e-6)
    for more, layers in ((["--layers", 2], 2), ([], 1)):
        row = spearman(told := compared(options, f"{NAME}:ensemble", NAME, *more))["sts12"]
        assert (told["layers"], row["test"]) == (str(layers), "williams")
        assert (row["a"], row["b"]) == pytest.approx((expected(layers, A, B), expected(layers, STUDENT)), abs=1e-6)


def test_both_have_the_layers_that_they_have_by_default_if_all_agree(options: list[object], tmp_path: Path) -> None:
    """Else one, and a model whose heads read another choice cannot be compared with it."""
    once = ["--tasks", "stsb", "--resamples", 0]
    torch.manual_seed(0)
    model = load(Path(str(options[3]), "runs", STUDENT, "model"), device="cpu")
    encoder = model.encoder.followed_by(Dense(HIDDEN, 8, "tanh"))
    SentenceModel(encoder, model.tokenizer, model.max_length, False).save(tmp_path / "headed")
    for other in (STUDENT, tmp_path / "headed"):
        assert result("compare", other, NAME, *options, *once)["layers"] == "2"
    for more, said in (
        ([], f"{tmp_path}/headed pools '2'; {NAME}:members pools '1': a comparison is made at equal layers"),
        (["--layers", 1], f"--layers 1: {tmp_path}/headed pools layers '2', on which its heads were trained"),
    ):
        refused = raysts("compare", tmp_path / "headed", f"{NAME}:members", *options, *once, *more)
        assert refused.code == 2 and said in refused.err


def test_people_get_a_table_and_a_sentence(options: list[object]) -> None:
    outcome = raysts("compare", NAME, f"{NAME}:members", *options, "--tasks", "sts12", "--resamples", 40)
    assert outcome.code == 0, outcome.err
    lines = outcome.out.splitlines()
    assert lines[0] == f"A: {NAME}" and lines[1] == f"B: {NAME}:members (2 models, mean ± std)"
    assert "pooled layers of both: 1" in lines and "the spearman on sts12 is" in lines[-1]
    sizes = [line.partition(" M parameters")[0].rsplit(": ", 1)[0] for line in lines if " M parameters" in line]
    assert sizes == [f"A: {NAME}", f"B: {A}", f"B: {B}"]
    same = raysts("compare", NAME, NAME, *options, "--tasks", "sts12", "--resamples", 40)
    assert f"No difference is shown between A ({NAME}) and B ({NAME})" in same.out


def test_a_margin_and_costs_in_words_and_numbers(options: list[object], student_and_members: dict[str, Any]) -> None:
    found = compared(options, NAME, f"{NAME}:members", "--margin", 99, "--draw-sets")
    units = {"sts12": "pairs", "stsb": "pairs", "overall": "sets"}
    assert {row["dataset"]: row["unit"] for row in found["margins"]} == units
    assert all(row["within"] for row in found["margins"])
    assert "not more than 99.00 below (95 %" in found["conclusion"]
    student, *members = found["models"]
    assert [model["role"] for model in found["models"]] == ["a", "b", "b"]
    assert student["parameters"] == members[0]["parameters"] > 0
    assert student["bytes"] == 4 * student["parameters"] and student["dimensions"] == HIDDEN
    assert student["texts_per_second"] > 0 and 2 < student["tokens"] < 40
    assert student_and_members["comparison"][0] == found["comparison"][0]


def test_wrong_input_is_refused_in_words(options: list[object]) -> None:
    def refused(*arguments: object) -> str:
        outcome = raysts("compare", *arguments, *options)
        assert outcome.code == 2 and not outcome.out
        return outcome.err

    assert "no run and no system 'nope'" in refused("nope:student", NAME)
    assert f"run '{NAME}'" not in refused("./nope", NAME) and "is not there" in refused("./nope", NAME)
    for more, said in (
        (("--resamples", -1), "--resamples=-1 must be from 1 to"),
        (("--tasks", "snli-direction"), "says nothing about the direction"),
        (("--tasks", "stsbb"), "unknown task 'stsbb'"),
        (("--margin", 100.5), "--margin 100.5: must be above 0 and at most 100"),
        (("--margin", 0), "--margin 0: must be above 0"),
        (("--margin", "nan"), "--margin nan: must be above 0"),
        (("--margin", 2, "--resamples", 0), "--resamples 0 gives no interval"),
        (("--draw-sets", "--tasks", "stsb"), "--draw-sets: needs at least two sets"),
        (("--layers", 99), "the encoder has"),
    ):
        assert said in refused(NAME, NAME, *more)


def test_what_is_not_comparable_is_left_out_or_refused(options: list[object], few_world: Path, tmp_path: Path) -> None:
    for table in ("sts/stsb_test", "senteval/trec_train", "senteval/trec_test"):
        (tmp_path / table).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(few_world / f"{table}.parquet", tmp_path / f"{table}.parquet")
    words = {"dataset": ["x"] * 3, "word1": ["a", "dog", "cat"], "word2": ["b", "cat", "man"], "score": [1.0, 2.0, 3.0]}
    (tmp_path / "web").mkdir()
    pq.write_table(pa.table(words), tmp_path / "web" / "word_similarity.parquet")
    where = ["--data", tmp_path, *options[2:], "--resamples", 0]
    told = result("compare", A, B, *where)
    rows = "its values are not of single rows, so there is nothing to pair"
    assert told["left_out"] == {"transfer": "it takes minutes a model; name it in --tasks", "words": rows}
    assert {row["dataset"] for row in told["comparison"]} == {"stsb", "overall"}
    assert f"left out: words: {rows}" in raysts("compare", A, B, *where).out.splitlines()
    for named in ("stsb,words", "words"):
        refused = raysts("compare", A, B, *where, "--tasks", named)
        assert refused.code == 2 and refused.err == f"raysts: task 'words' cannot be compared: {rows}\n"


def test_generated_sentences_are_said_to_be_generated(
    tiny_backbone: Path, tmp_path: Path, options: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAYSTS_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    asked = ["--tasks", "sts12", "--resamples", 0]
    commands = [["evaluate", tiny_backbone, *asked], ["compare", tiny_backbone, tiny_backbone, *asked]]
    for command in commands:
        assert "generated" not in raysts(*command, *options).err
    assert not [*tmp_path.glob("cache/raysts/world-*")], "no copy of what is not read"
    for command in commands:
        assert "The sentences are generated" in raysts(*command, "--storage", tmp_path / "storage").err
