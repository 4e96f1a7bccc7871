from pathlib import Path
from typing import Any

import numpy as np
import pytest
from evaluation_fakes import write_table
from run_commands import raysts

from raysts.commands.data import check
from raysts.data.corpora import Corpus
from raysts.evaluation.text_overlap import normalise, occurrences
from raysts.recipes.recipe import Data


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    write_table(tmp_path, "nli/train", {
        "premise": ["A dog runs.", "Two  cats SLEEP!", "It is late", "Nobody is here"],
        "hypothesis": ["An animal moves", "Cats are resting", "It is early", "Someone is here"],
        "label": ["entailment", "entailment", "contradiction", "contradiction"],
    })  # fmt: skip
    write_table(tmp_path, "wikipedia/sentences", {"sentence": ["Nobody is here!", "The ﬁrst of May."]})
    write_table(tmp_path, "sts/stsb_test", {
        "sentence1": ["unseen", "cats are resting", "A dog runs", "Two cats sleep", "the first of may"],
        "sentence2": ["also unseen", "Two cats, sleep", "It is early", "unseen", "unseen too"],
        "score": [0.0, 1.0, 2.0, 3.0, 4.0],
    })  # fmt: skip
    write_table(tmp_path, "senteval/subj", {"text": ["nobody is here", "nothing of the kind"], "label": [0, 1]})
    return Corpus(tmp_path)


def test_normalise() -> None:
    assert normalise("  The ﬁrst, (of)\tMAY…! ") == normalise("the first of may") == "the first of may"
    assert normalise("It's 3.5") == "it s 3 5" != normalise("Its 3.5") and normalise("?!") != normalise("...")
    assert normalise("लड़का खाता है।") == normalise("लड़का, खाता है") != normalise("लड़की खाती है"), "vowels are marks"
    assert normalise("a ❤️ b") == normalise("a ❤ b") == "a b"


@pytest.mark.parametrize(("trained", "tested", "rows", "sentences"), [
    ("nli/train", "sts/stsb_test", [1], [1, 2, 3]), ("nli/sentences", "sts/stsb_test", [], [1, 2, 3]),
    ("wikipedia/sentences", "sts/stsb_test", [], [4]), ("nli/train", "senteval/subj", [0], [0]),
])  # fmt: skip
def test_pairs_and_sentences(trained: str, tested: str, rows: Any, sentences: Any, corpus: Corpus) -> None:
    masks = occurrences(corpus, trained, Data(), [tested])[tested]
    assert [np.flatnonzero(mask).tolist() for mask in masks] == [rows, sentences]


def test_check_lists_everything_and_survives_broken_tables(corpus: Corpus) -> None:
    (corpus.root / "sts/sts12.parquet").write_bytes(b"not parquet")
    write_table(corpus.root, "sts/sts13", {"sentence1": ["a"], "sentence2": ["b"], "score": [7.0]})
    report = check(corpus.root)
    assert report["tables"]["nli/train"] == {"rows": 4, "files": 1} and report["tables"]["sts/sts12"]["rows"] is None
    assert "sts/sts14" in report["missing"] and "sts/sts12" not in report["missing"]
    assert any("sts12.parquet: not a readable Parquet file" in problem for problem in report["problems"])
    assert any("score 7 must be a number from 0 to 5" in problem for problem in report["problems"])
    text = raysts("data", "check", "--data", corpus.root).out
    assert "unreadable" in text and "score 7" in text and "sts/sts14" in text
