from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raysts.data.corpora import Corpus
from raysts.evaluation.text_overlap import (
    EVAL_TABLES,
    TRAIN_TABLES,
    check_folder,
    format_check,
    normalise,
    occurrences,
    overlap,
)
from raysts.recipes.recipe import Data


def contaminated_rows(corpus: Corpus, tables: list[str], eval_table: str) -> tuple[np.ndarray, np.ndarray]:
    rows, sentences = zip(
        *(occurrences(corpus, table, Data(), [eval_table])[eval_table] for table in tables), strict=True
    )
    return np.logical_or.reduce(rows), np.logical_or.reduce(sentences)


def _write(root: Path, name: str, **columns: list) -> None:
    path = root / f"{name}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path)


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    _write(tmp_path, "nli/train", premise=["A dog runs.", "Two  cats SLEEP!", "It is late", "Nobody is here"],
           hypothesis=["An animal moves", "Cats are resting", "It is early", "Someone is here"],
           label=["entailment", "entailment", "contradiction", "contradiction"])  # fmt: skip
    _write(tmp_path, "wikipedia/sentences", sentence=["Nobody is here!", "The ﬁrst of May."])
    _write(
        tmp_path, "sts/stsb_test",
        sentence1=["unseen", "cats are resting", "A dog runs", "Two cats sleep", "the first of may"],
        sentence2=["also unseen", "Two cats, sleep", "It is early", "unseen", "unseen too"],
        score=[0.0, 1.0, 2.0, 3.0, 4.0],
    )  # fmt: skip
    _write(tmp_path, "senteval/subj", text=["nobody is here", "nothing of the kind"], label=[0, 1])
    return Corpus(tmp_path)


def test_normalise() -> None:
    assert normalise("  The ﬁrst, (of)\tMAY…! ") == normalise("the first of may") == "the first of may"
    assert normalise("It's 3.5") == "it s 3 5" != normalise("Its 3.5")
    assert normalise("?!") != normalise("...")
    assert normalise("लड़का खाता है।") == normalise("लड़का, खाता है") != normalise("लड़की खाती है"), "vowels are marks"
    assert normalise("a ❤️ b") == normalise("a ❤ b") == "a b"


def test_overlap_counts_pairs_in_either_order_and_sentences(corpus: Corpus) -> None:
    found = overlap(corpus, ["nli/train", "wikipedia/sentences"], ["sts/stsb_test", "senteval/subj"])
    by_name = {(entry["train"], entry["eval"]): entry for entry in found}
    assert len(by_name) == len(found) == 4
    nli = by_name["nli/train", "sts/stsb_test"]
    assert {key: nli[key] for key in ("rows", "pair_rows", "both_rows", "sentence_rows")} == {
        "rows": 5, "pair_rows": 1, "both_rows": 2, "sentence_rows": 3,
    }  # fmt: skip
    assert [example["row"] for example in nli["examples"]] == [1, 2, 3]
    assert nli["examples"][0]["text"] == ["cats are resting", "Two cats, sleep"]
    wikipedia = by_name["wikipedia/sentences", "sts/stsb_test"]
    assert wikipedia["pair_rows"] is None and (wikipedia["both_rows"], wikipedia["sentence_rows"]) == (0, 1)
    assert [example["row"] for example in wikipedia["examples"]] == [4]
    single = by_name["nli/train", "senteval/subj"]
    assert single["pair_rows"] is None and single["both_rows"] is None and single["sentence_rows"] == 1


def test_check_reports_everything_and_survives_broken_tables(corpus: Corpus) -> None:
    (corpus.root / "sts/sts12.parquet").write_bytes(b"not parquet")
    _write(corpus.root, "sts/sts13", sentence1=["a"], sentence2=["b"], score=[7.0])
    report = check_folder(Corpus(corpus.root))
    assert report["tables"]["nli/train"] == {"rows": 4, "files": 1}
    assert report["tables"]["sts/sts12"]["rows"] is None
    assert "sts/sts14" in report["missing"] and "sts/sts12" not in report["missing"]
    assert any("sts12.parquet: not a readable Parquet file" in problem for problem in report["problems"])
    assert any("score 7 must be a number from 0 to 5" in problem for problem in report["problems"])
    assert {entry["eval"] for entry in report["overlaps"]} == {"sts/stsb_test", "senteval/subj"}
    text = format_check(report)
    assert "nli/train in sts/stsb_test: 1 / 2 / 3 of 5" in text
    assert "wikipedia/sentences in senteval/subj: - / - / 1 of 2" in text
    assert "unreadable" in text and "score 7" in text and "sts/sts14" in text


def test_tables_are_training_or_evaluation() -> None:
    assert not set(TRAIN_TABLES) & set(EVAL_TABLES)
    assert {"sts/sts12", "sts/stsb_dev", "sick/sick_trial", "nli/snli_test", "senteval/mrpc_test"} <= set(EVAL_TABLES)
    assert not {"senteval/mrpc_train", "web/word_similarity", "wikipedia/articles"} & set(EVAL_TABLES)
