"""Retrieval sets in ``run``, ``compare`` and ``evaluate``."""

from __future__ import annotations

import csv
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from run_commands import TINY, overrides, raysts, result
from small_runs import write_backbone

from raysts.evaluation.retrieval import METRICS
from raysts.models.pretrained import load
from raysts.models.prompts import Prompts


@pytest.fixture(scope="module")
def data(few_world: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A set whose queries are sentences of the world, and whose documents are the sentences that they were scored with."""
    folder = tmp_path_factory.mktemp("retrieval") / "data"
    shutil.copytree(few_world, folder)
    pairs = pq.read_table(folder / "sts" / "stsb_test.parquet").slice(0, 40)
    ids = [f"d{i}" for i in range(len(pairs))]
    tables = {
        "corpus": {"doc_id": ids, "text": pairs.column("sentence2")},
        "queries": {"query_id": ids, "text": pairs.column("sentence1")},
        "qrels": {"query_id": ids, "doc_id": ids, "score": np.rint(pairs.column("score").to_numpy()).astype(np.int64)},
    }
    (folder / "retrieval" / "partners").mkdir(parents=True)
    for name, columns in tables.items():
        pq.write_table(pa.table(columns), folder / "retrieval" / "partners" / f"{name}.parquet")
    return folder


@pytest.fixture(scope="module")
def own(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same set as a folder of the user's own, in formats that people have."""
    folder = tmp_path_factory.mktemp("own") / "Partners"
    (folder / "qrels").mkdir(parents=True)
    for part, name in (("corpus", "corpus.jsonl"), ("queries", "queries.csv"), ("qrels", "qrels/test.tsv")):
        table = pq.read_table(data / "retrieval" / "partners" / f"{part}.parquet")
        with (folder / name).open("w", newline="", encoding="utf-8") as file:
            if name.endswith(".jsonl"):
                file.writelines(json.dumps(row) + "\n" for row in table.to_pylist())
            else:
                writer = csv.writer(file, delimiter="\t" if name.endswith(".tsv") else ",")
                writer.writerows([table.column_names, *zip(*table.to_pydict().values(), strict=True)])
    return folder


@pytest.mark.whole
def test_in_a_pipeline_and_between_two_of_its_models(data: Path, own: Path, tmp_path: Path) -> None:
    where = ["--data", data, "--storage", tmp_path / "storage", "--test", f"Mine={own}"]
    short = overrides(TINY, {"train.max_steps": 2, "evaluation.tasks": "[stsb,retrieval]", "evaluation.resamples": 20})
    found = result("run", "ct-ensemble", "--name", "x", *where, *short, "--address", "none")
    for role in ("backbone", "member", "ensemble", "BM25"):
        rows, of_own = (
            [row for row in found["results"] if row["role"] == role and row["dataset"] == f"retrieval:{name}"]
            for name in ("partners", "mine")
        )
        assert [row["value"] for row in rows] == [row["value"] for row in of_own]
        assert {row["metric"] for row in rows} == set(METRICS), role
        for row in rows:
            assert 0 < row["value"] <= 1 and row["ci_low"] <= row["value"] <= row["ci_high"] and row["split"] == "test"
    compared = result("compare", "x:ensemble", "x:members", *where, "--tasks", "retrieval", "--resamples", 20)
    rows = {(row["dataset"], row["metric"]): row for row in compared["comparison"]}
    assert rows["retrieval:partners", "map"]["b_models"] == 2
    (ensemble,) = (
        row["value"] for row in found["results"]
        if (row["role"], row["dataset"], row["metric"], row["layers"]) == ("ensemble", "retrieval:partners", "map", "1")
    )  # fmt: skip
    assert rows["retrieval:partners", "map"]["a"] == pytest.approx(ensemble, abs=1e-6)


@pytest.fixture
def given(own: Path, tiny_backbone: Path, tmp_path: Path) -> list[object]:
    """Options of a run on a text of the user's, with the set as the one that selects."""
    text = tmp_path / "text.txt"
    text.write_text("".join(f"the dog number {i} runs\n" for i in range(64)))
    settings = overrides({"backbone": tiny_backbone, "train.max_steps": 2, "train.eval_every": 1, "batch": 8})
    where = ["--text", text, "--storage", tmp_path / "storage", "--address", "none"]
    return [*where, "--dev", f"mine={own}", *settings]


@pytest.mark.whole
def test_a_folder_of_ones_own_selects(own: Path, given: list[object], tmp_path: Path) -> None:
    """By nDCG@10; beside scored pairs by the mean of that and of the rank correlation."""
    pairs = tmp_path / "pairs.csv"
    pairs.write_text("sentence1,sentence2,score\na dog runs,a cat sleeps,1\na dog runs,the dog runs,5\na cat,a dog,2\n")
    short = overrides({"members": 1, "evaluation.layers": "[1]", "evaluation.resamples": 20, "ct.train.keep": "dev"})
    same, once = ("--test", f"same={own}"), ["--layers", 1, "--resamples", 0, "--storage", tmp_path / "storage"]

    def kept(*more: object) -> dict[str, Any]:
        model = Path(result("run", "ct", *given, *short, *same, *more)["model"])
        return {**json.loads((model.parent / "run.json").read_text())["dev"]["scores"], "model": model}

    def measured(model: Path, *test: object) -> dict[str, float]:
        rows = result("evaluate", model, *test, *once)["results"]
        return {row["metric"]: row["value"] for row in rows if row["role"] != "BM25" and row["aggregation"] != "mean"}

    alone = kept()
    assert measured(alone["model"], *same) == {name: pytest.approx(alone[name], abs=1e-6) for name in METRICS}
    both = kept("--dev", f"pairs={pairs}")
    rank = measured(both["model"], "--test", f"p={pairs}", "--tasks", "p")["spearman"]
    ndcg = measured(both["model"], *same)["ndcg@10"]
    assert both["mean"] == pytest.approx((rank + ndcg) / 2, abs=1e-6)


@pytest.mark.whole
def test_a_search_goes_by_a_retrieval_set(given: list[object], tmp_path: Path) -> None:
    """By its first score, which no other score may replace."""
    arguments = ["tune", "simcse-unsup", *given, *overrides({"space.optim.lr": "1e-5,1e-3", "train.keep": "best"})]
    found = result(*arguments)
    assert (found["metric"], found["mode"], found["trials"]) == (METRICS[0], "max", 2)
    run = json.loads((tmp_path / "storage" / "runs" / found["best_run"]["run"] / "run.json").read_text())
    assert found["best"]["value"] == pytest.approx(run["dev"]["scores"][METRICS[0]])
    refused = raysts(*arguments, "--set", "metric=pearson")
    assert refused.code == 2 and "remove metric" in refused.err


def test_a_folder_of_no_use_is_refused(tiny_backbone: Path, tmp_path: Path) -> None:
    """All that may be wrong: tests/evaluation/test_retrieval.py."""
    folder, text = tmp_path / "set", tmp_path / "text.txt"
    text.write_text("".join(f"text {i}\n" for i in range(40)))
    given = ["--set", f"backbone={tiny_backbone}", "--storage", tmp_path / "storage"]
    folder.mkdir()
    (folder / "corpus.csv").write_text("doc_id,text\nd,a dog\n")
    (folder / "queries.csv").write_text("query_id,text\nq,who runs\n")
    for qrels, why in (
        ("", "it has no qrels"),
        ("query_id,doc_id,score\nq,d,many\n", "row 0 .line 2., column 'score': 'many'"),
    ):
        if qrels:
            (folder / "qrels.csv").write_text(qrels)
        for option in ("--dev", "--test"):
            refused = raysts("plan", "ct", "--text", text, option, f"x={folder}", *given)
            assert refused.code == 2 and re.search(why, refused.err), refused.err


def test_a_prompt_that_is_asked_for_stands_before_queries_and_documents(data: Path, tmp_path: Path) -> None:
    model = load(write_backbone(tmp_path / "plain", "bert", seed=0), device="cpu")
    values = []
    for name, texts, asked in (
        ("one", {}, None),
        ("sides", {"query": "a cat ", "document": "two dogs "}, "the house "),
    ):
        model.prompts = Prompts(texts=texts or {"q": "the house "}, default=None if texts else "q")
        model.save(tmp_path / name)
        options = ["--tasks", "retrieval", "--data", data, "--storage", tmp_path / "storage", "--resamples", 0]
        rows = result("evaluate", tmp_path / name, *options, *(["--prompt", asked] if asked else []))["results"]
        values.append([row["value"] for row in rows])
    assert values[0] == values[1]


def test_queries_by_one_model_and_documents_by_another(data: Path, tmp_path: Path) -> None:
    student, teacher, wide = (write_backbone(tmp_path / name, "bert", seed=i) for i, name in enumerate("abc"))
    options = ["--data", data, "--storage", tmp_path / "storage", "--resamples", 0, "--layers", 1]
    alone, asked, same = (
        {
            row["metric"]: row["value"]
            for row in result("evaluate", student, *options, *more)["results"]
            if row["role"] != "BM25"
        }
        for more in (["--tasks", "retrieval"], ["--documents-by", teacher], ["--documents-by", student])
    )
    assert alone == same and alone["map"] > 0.2
    assert asked["map"] < alone["map"], "two random encoders have no space in common"
    refused = raysts("evaluate", student, *options, "--documents-by", teacher, "--tasks", "stsb,retrieval")
    assert refused.code == 2 and "stsb has no documents" in refused.err
    raysts("export", wide, "--to", tmp_path / "narrow", "--storage", tmp_path / "storage")
    settings = tmp_path / "narrow" / "config_sentence_transformers.json"
    settings.write_text(settings.read_text().replace("{", '{"truncate_dim": 8, ', 1))
    refused = raysts("evaluate", student, *options, "--documents-by", tmp_path / "narrow")
    assert refused.code == 2 and "vectors of 8 dimensions and the model of 32" in refused.err
