"""Text and judges of a user's own, and nothing else: from a plain file to a delivered model and its page."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import small_runs

import raysts
from raysts.data.corpora import Corpus
from raysts.data.own import TEXT, Own, open_text
from raysts.errors import InputError
from raysts.pipeline.own_text import kept_last, on_own_text
from raysts.recipes import names

STEPS = {"train.max_steps": 3, "train.eval_every": 3, "train.max_length": 24, "evaluation.resamples": 20}


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory, small_corpus: Corpus) -> Path:
    """docs.csv, pairs.csv, dev.csv and the encoders A and B."""
    folder = tmp_path_factory.mktemp("own")
    texts = small_corpus.read("wikipedia/sentences").column("sentence").to_pylist()[:600]
    with (folder / "docs.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["id", "text"], *enumerate([*texts, "", texts[0]])])
    pairs = small_corpus.read("sts/stsb_test").select(["sentence1", "sentence2", "score"]).to_pylist()
    for name, rows in (("pairs", pairs[:40]), ("dev", pairs[40:80])):
        with (folder / f"{name}.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    for seed, name in enumerate("AB"):
        small_runs.write_backbone(folder / name, "bert", seed=seed)
    return folder


def test_own_dev_selects_and_own_test_reports(own: Path, tmp_path: Path) -> None:
    result = raysts.run(
        "simcse-unsup-sed",
        {"backbone": str(own / "A"), "members": 2, **STEPS},
        text=own / "docs.csv",
        column="text",
        dev={"mine-dev": own / "dev.csv"},
        test={"mine": own / "pairs.csv"},
        storage=tmp_path,
        address="none",
    )
    assert {(row["dataset"], row["split"]) for row in result["results"]} == {("mine", "test")}
    members = [row for row in result["results"] if row["role"] == "member"]
    assert {row["selected_by"] for row in members} == {"mine-dev"} and all(row["ci_low"] is not None for row in members)
    assert result["delivered"]["on"] == "mine" and result["delivered"]["beats_input"] is not None
    assert result["notes"][0].startswith("text docs: 601 texts; 1 empty rows left out; 1 rows repeat")
    assert [entry["training_tables"] for entry in result["contamination"]] == [["docs"]]
    card = (Path(result["model"]) / "README.md").read_text()
    page = Path(result["report"]).read_text()
    assert "| sed | `docs` | 601 |" in card and "mine test" in card and "wikipedia" not in card.split("```yaml")[0]
    assert "Labels of mine-dev chose" in page and "tokenise docs" in page
    record = json.loads((tmp_path / "pipelines" / "simcse-unsup-sed.json").read_text())
    assert record["data"] is None and record["own"]["test"] == {"mine": str(own / "pairs.csv")}
    with pytest.raises(InputError, match="table 'nli/train' is missing.*ct-sed or simcse-unsup-sed"):
        raysts.run("nli", {"backbone": str(own / "A")}, text=own / "docs.csv", column="text", storage=tmp_path)
    with pytest.raises(InputError, match="--test stsb=.*public task"):
        raysts.run("ct", test={"stsb": own / "pairs.csv"}, storage=tmp_path)


def distilled(
    own: Path, storage: Path, say: Callable[[str], None] = lambda text: None, **overrides: Any
) -> dict[str, Any]:
    return raysts.distill(
        [str(own / "A"), str(own / "B")],
        {"backbone": str(own / "A"), **STEPS, **{key.replace("__", "."): value for key, value in overrides.items()}},
        text=own / "docs.csv",
        column="text",
        storage=storage,
        address="none",
        say=say,
    )


def test_two_encoders_and_a_file_of_text_give_a_student_and_its_page(own: Path, tmp_path: Path) -> None:
    result = distilled(own, tmp_path / "whole", sed__train__keep="best", sed__train__eval_every=1)
    rows = {(row["role"], row["layers"]): row for row in result["results"] if row["metric"] == "spearman"}
    assert {row["dataset"] for row in rows.values()} == {"agreement"}
    student = rows["student", "1"]
    assert 0 < student["value"] < 1 and student["ci_low"] < student["value"] < student["ci_high"]
    told = result["delivered"]
    assert (told["what"], told["beats_input"], told["on"], told["agreement"]) == (
        "student",
        None,
        None,
        student["value"],
    )
    card, page = (Path(result["model"]) / "README.md").read_text(), Path(result["report"]).read_text()
    for text in (card, page):
        assert "no agreement can show; scored pairs can: --test NAME=FILE" in text
    assert "No labels chose the checkpoint: agreement with the ensemble" in card and "| sed | `docs` |" in card
    assert (
        "There are no scored pairs to test on." in page and "Agreement with the ensemble, without labels, chose" in page
    )

    seen: list[str] = []

    def killed(text: str) -> None:
        """Dies once at each of these lines."""
        for line in ("agreement of 2 members", "teachers: 1 of ", "sed: step 2", "evaluate student ..."):
            if text.startswith(line) and line not in seen:
                seen.append(line)
                raise KeyboardInterrupt

    for _ in range(4):
        with pytest.raises(KeyboardInterrupt):
            distilled(own, tmp_path / "killed", killed, sed__train__keep="best", sed__train__eval_every=1)
    again = distilled(own, tmp_path / "killed", killed, sed__train__keep="best", sed__train__eval_every=1)
    assert Path(again["model"]).parent.name == Path(result["model"]).parent.name
    first, second = (Path(one["model"], "model.safetensors").read_bytes() for one in (result, again))
    assert first == second
    values = [[(row["role"], row["value"], row["ci_low"]) for row in one["results"]] for one in (result, again)]
    assert values[0] == values[1]

    held = set(open_text(own / "docs.csv", "text").holding_out().held_out)
    (written,) = (tmp_path / "whole" / "tables").glob("[!.]*.parquet")
    assert held and not held & set(pq.read_table(written).column("sentence").to_pylist())


def test_the_best_by_agreement_is_no_claim(own: Path, tmp_path: Path) -> None:
    result = distilled(own, tmp_path, deliver="best")
    told = result["delivered"]
    assert (told["by"], told["beats_input"], told["on"]) == ("agreement", None, None) and 0 < told["agreement"] <= 1
    assert "no agreement can show" in Path(result["report"]).read_text()


def test_recipes_read_the_text_and_nothing_chooses_without_labels(own: Path, small_corpus: Corpus) -> None:
    text = Own.of(text=own / "docs.csv", column="text")
    alone, beside = Corpus(None, own=text), Corpus(small_corpus.root, own=text)
    unsupervised = on_own_text(names.pipeline("simcse-unsup-sed"), alone)
    assert (unsupervised.stages["simcse-unsup"].train.keep, unsupervised.sed.train.keep) == ("last", "last")
    assert kept_last(unsupervised, alone)[0].startswith("simcse-unsup: no development set is there")
    with_dev = on_own_text(names.pipeline("simcse-unsup-sed"), beside)
    assert with_dev.stages["simcse-unsup"].train.keep == "best" and not kept_last(with_dev, beside)
    for name, table in (("latte", "nli/sentences"), ("flow", "targets")):
        (recipe,) = names.pipeline(name).stages.values()
        assert recipe.table == table
        (fitted,) = on_own_text(names.pipeline(name), alone).stages.values()
        assert fitted.table == TEXT  # where nothing else is there; what a data folder has is read as ever
        assert on_own_text(names.pipeline(name), beside).stages[name].table == table
    assert not kept_last(on_own_text(names.pipeline("ct"), alone), alone)


def test_evaluate_and_compare_on_own_pairs(own: Path, tmp_path: Path) -> None:
    a, b = str(own / "A"), str(own / "B")
    rows = raysts.evaluate(a, test={"mine": own / "pairs.csv"}, storage=tmp_path, resamples=0)["results"]
    assert {(row["dataset"], row["n"]) for row in rows} == {("mine", 40)}
    compared = raysts.compare(a, b, test={"mine": own / "pairs.csv"}, storage=tmp_path, resamples=10)
    assert {row["dataset"] for row in compared["comparison"]} == {"mine", "overall"}


def test_training_rows_in_an_own_test_are_marked(own: Path, tmp_path: Path) -> None:
    texts = [row["text"] for row in csv.DictReader((own / "docs.csv").open()) if row["text"]]
    with (tmp_path / "leaky.csv").open("w", newline="") as file:
        rows = [[texts[i], texts[i + 1], i % 5] for i in range(30)]
        csv.writer(file).writerows([["sentence1", "sentence2", "score"], *rows])
    result = raysts.run(
        "mlm",
        {"backbone": str(own / "A"), **STEPS},
        text=own / "docs.csv",
        column="text",
        test={"leaky": tmp_path / "leaky.csv"},
        storage=tmp_path / "storage",
        address="none",
    )
    (entry,) = result["contamination"]
    assert (entry["task"], entry["sentence_rows"], entry["trained_rows"]) == ("leaky", 30, 0)
    assert entry["unknown"]  # what the encoder was trained on is not on record


def test_vectors_of_the_text_teach(own: Path, tmp_path: Path) -> None:
    """They are looked for before anything is written: a text without one is named by its row."""
    texts = sorted({row["text"].strip() for row in csv.DictReader((own / "docs.csv").open()) if row["text"].strip()})
    vectors = raysts.load(own / "B").encode(texts)
    for name, some in {"all": slice(None), "half": slice(None, None, 2)}.items():
        table = pa.table({"text": texts[some], "embedding": vectors[some].tolist()})
        pq.write_table(table, tmp_path / f"{name}.parquet")
    options = {"text": own / "docs.csv", "column": "text", "storage": tmp_path / "storage", "address": "none"}
    asked = {"backbone": str(own / "A"), "sed.target": "unit-mean", "evaluation.layers": [1], **STEPS}
    with pytest.raises(InputError, match="has no vector of"):
        raysts.distill([str(tmp_path / "half.parquet")], asked, **options)
    assert not list((tmp_path / "storage").rglob("*.parquet"))
    assert raysts.distill([str(tmp_path / "all.parquet")], asked, **options)["status"] == "done"
