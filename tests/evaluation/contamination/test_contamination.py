import json
from pathlib import Path
from typing import Any

import pytest
from evaluation_fakes import HashedWords, scored_pairs, write_table

from raysts.data.corpora import Corpus
from raysts.evaluation import harness
from raysts.evaluation.contamination import TrainedOn, TrainingText
from raysts.recipes.recipe import Data
from raysts.storage.checksums import write_record

FIRST = 20
"""Rows of the test set that the training table repeats: these, turned around and in capitals."""


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    test = scored_pairs(60, 1)
    own = {column: [f"{text} t{i}" for i, text in enumerate(test[column])] for column in ("sentence1", "sentence2")}
    write_table(tmp_path, "sts/stsb_test", test | own)
    turned = {"sentence1": [t.upper() for t in own["sentence2"][:FIRST]], "sentence2": own["sentence1"][:FIRST]}
    one_only = {"sentence1": own["sentence1"][FIRST : FIRST + 5], "sentence2": [f"new{i}" for i in range(5)]}
    train = {name: turned[name] + one_only[name] for name in turned}
    write_table(tmp_path, "sts/stsb_train", train | {"score": [1.0, 2.0] * 12 + [3.0]})
    write_table(tmp_path, "sts/sts13", scored_pairs(40, 2))
    wikipedia = [*own["sentence1"][30:33], *own["sentence2"][30:33], "x y"]
    write_table(tmp_path, "wikipedia/sentences", {"sentence": wikipedia})
    return Corpus(tmp_path)


def text_of(corpus: Corpus, table: str, **data: Any) -> TrainingText:
    return TrainingText(table, Data(**data), corpus.fingerprint(table))


def find_contamination(corpus: Corpus, *texts: TrainingText, tasks: Any = ("stsb", "sts13"), **options: Any) -> Any:
    return harness.find_contamination(corpus, tasks, TrainedOn(texts), **options)


def test_pairs_in_either_order_are_unclean_and_single_sentences_are_counted(corpus: Corpus) -> None:
    found = find_contamination(corpus, text_of(corpus, "sts/stsb_train"))
    stsb, sts13 = found.tasks["stsb"], found.tasks["sts13"]
    assert (stsb.rows, stsb.trained_rows, stsb.sentence_rows, stsb.clean_rows) == (60, FIRST, FIRST + 5, 40)
    assert (sts13.rows, sts13.trained_rows, sts13.clean_rows, sts13.masks) == (40, 0, 40, {})
    assert found.lines("m") == [
        "m: stsb: 20 of 60 rows are training rows (sts/stsb_train); 25 hold a sentence of the training text; "
        "scored without them as rows=clean, n=40",
        "m: no sentence of the training text (sts/stsb_train) is in sts13",
    ]
    (problem,) = found.refuse("m")
    assert problem.startswith("--strict-contamination: 20 of 60 rows of stsb are training rows of m (sts/stsb_train)")
    drawn = find_contamination(corpus, text_of(corpus, "sts/stsb_train", sample=10)).tasks["stsb"]
    assert 0 < drawn.trained_rows <= 10, "only the selected rows were trained on"
    entry = found.entries("m")[0]
    assert (entry["task"], entry["trained_rows"], entry["sentence_rows"], entry["clean_rows"]) == ("stsb", 20, 25, 40)


def test_sentences_alone_make_no_pair(corpus: Corpus) -> None:
    """Both sentences of three rows are among the Wikipedia sentences."""
    found = find_contamination(corpus, text_of(corpus, "wikipedia/sentences"), tasks=("stsb",))
    stsb = found.tasks["stsb"]
    assert (stsb.trained_rows, stsb.sentence_rows, stsb.masks) == (0, 3, {})
    said = "m: stsb: none of 60 rows is a training row (wikipedia/sentences); 3 hold a sentence of the training text"
    assert found.lines("m") == [said]
    texts = text_of(corpus, "wikipedia/sentences"), text_of(corpus, "sts/stsb_train")
    both = find_contamination(corpus, *texts).tasks["stsb"]
    assert (both.trained_rows, both.sentence_rows) == (FIRST, FIRST + 5 + 3)


def test_clean_rows_are_scored_beside_all_rows(corpus: Corpus) -> None:
    """Their values: test_tasks.py."""
    model = HashedWords()
    found = find_contamination(corpus, text_of(corpus, "sts/stsb_train"))
    assert {name: mask.tolist() for name, mask in found.clean.items()} == {"stsb": [False] * FIRST + [True] * 40}
    rows = harness.evaluate(model, corpus, ["stsb", "sts13"], layers=(1,), resamples=20, clean=found.clean)
    clean, every = ([row for row in rows if row["rows"] == which] for which in ("clean", "all"))
    assert [(row["dataset"], row["metric"]) for row in clean] == [("stsb", "pearson"), ("stsb", "spearman")]
    assert all(row["n"] == 40 and row["ci_low"] < row["ci_high"] for row in clean)
    alone = harness.evaluate(model, corpus, ["stsb", "sts13"], layers=(1,), resamples=20)
    assert [row["value"] for row in every] == [row["value"] for row in alone]


def test_rows_that_a_task_does_not_measure_do_not_count(tmp_path: Path) -> None:
    pairs = {side: [f"{side} number {i}" for i in range(40)] for side in ("premise", "hypothesis")}
    write_table(tmp_path, "nli/snli_test", {**pairs, "label": [0, 1] * 20})
    write_table(tmp_path, "nli/train", {side: texts[:6] for side, texts in pairs.items()} | {"label": [0, 1] * 3})
    write_table(tmp_path, "retrieval/faq/corpus", {"doc_id": ["d"], "text": ["a document"]})
    write_table(tmp_path, "retrieval/faq/queries", {"query_id": range(15), "text": [f"query {i}" for i in range(15)]})
    write_table(tmp_path, "retrieval/faq/qrels", {"query_id": range(14), "doc_id": ["d"] * 14, "score": [1] * 14})
    write_table(tmp_path, "wikipedia/sentences", {"sentence": ["query 1", "query 13", "query 14"]})
    corpus = Corpus(tmp_path)
    texts = text_of(corpus, "nli/train"), text_of(corpus, "wikipedia/sentences")
    found = find_contamination(corpus, *texts, tasks=("snli-direction", "retrieval")).tasks
    direction, retrieval = found["snli-direction"], found["retrieval"]
    assert (direction.rows, direction.trained_rows, direction.clean_rows) == (20, 3, 17)
    assert (retrieval.rows, retrieval.trained_rows, retrieval.clean_rows) == (14, 2, 12)


@pytest.mark.parametrize("names", [("trained", "small", "free"), (1, 2, 3)])
@pytest.mark.parametrize(("left", "clean"), [(9, 31), (10, 40)])
def test_subsets_with_too_few_clean_rows_are_left_out(names: Any, left: int, clean: int, corpus: Corpus) -> None:
    """Ten are enough, and fewer where none was trained on: of 60 rows 20 were."""
    (trained, small, free), table = names, corpus.read("sts/stsb_test").to_pydict()
    names = [trained] * (FIRST + left) + [small] * 5 + [free] * (60 - FIRST - left - 5)
    write_table(corpus.root, "sts/stsb_test", table | {"subset": names})
    again = Corpus(corpus.root)
    found = find_contamination(again, text_of(again, "sts/stsb_train"))
    assert found.tasks["stsb"].clean_rows == clean
    rows = harness.evaluate(HashedWords(), again, ["stsb"], layers=(1,), resamples=0, clean=found.clean)
    counted = {row["subset"]: row["n"] for row in rows if row["rows"] == "clean"}
    kept = {str(trained): left} if left == 10 else {}
    assert counted == {None: clean, **kept, str(small): 5, str(free): 35 - left}
    assert {row["subset"] for row in rows if row["rows"] == "all"} == {None, str(trained), str(small), str(free)}


def test_a_set_that_is_wholly_trained_on_has_no_clean_score(corpus: Corpus) -> None:
    write_table(corpus.root, "sts/stsb_train", corpus.read("sts/stsb_test").to_pydict())
    again = Corpus(corpus.root)
    found = find_contamination(again, text_of(again, "sts/stsb_train"))
    assert (found.tasks["stsb"].trained_rows, found.tasks["stsb"].clean_rows, found.tasks["stsb"].masks) == (60, 0, {})
    assert "too few others" in found.lines("m")[0]
    rows = harness.evaluate(HashedWords(), again, ["stsb"], layers=(1,), resamples=0, clean=found.clean)
    assert {row["rows"] for row in rows} == {"all"}


@pytest.mark.parametrize(("left", "clean"), [([3.0] * 40, 0), ([3.0] * 39 + [4.0], 40)])
def test_clean_rows_of_one_score_have_no_correlation(left: list[float], clean: int, corpus: Corpus) -> None:
    table = corpus.read("sts/stsb_test").to_pydict()
    write_table(corpus.root, "sts/stsb_test", table | {"score": [1.0, 2.0] * (FIRST // 2) + left})
    again = Corpus(corpus.root)
    assert find_contamination(again, text_of(again, "sts/stsb_train")).tasks["stsb"].clean_rows == clean


def test_what_was_found_is_kept_by_what_it_depends_on(corpus: Corpus, tmp_path: Path) -> None:
    cache, text = tmp_path / "kept", text_of(corpus, "sts/stsb_train")
    first = find_contamination(corpus, text, cache=cache)
    (file,) = cache.glob("[!.]*")
    kept = json.loads(file.read_text())
    kept["rows"]["sts/stsb_test"][1] = [0, 1]
    write_record(file, kept)
    again = find_contamination(corpus, text, cache=cache)
    assert (first.tasks["stsb"].trained_rows, again.tasks["stsb"].trained_rows) == (FIRST, 2)
    write_table(corpus.root, "sts/stsb_test", corpus.read("sts/stsb_test").slice(0, 30).to_pydict())
    assert find_contamination(Corpus(corpus.root), text, cache=cache).tasks["stsb"].rows == 30, "another test set"


def test_a_table_that_has_changed_since_is_unknown(corpus: Corpus) -> None:
    found = find_contamination(corpus, TrainingText("sts/stsb_train", Data(), "another"))
    assert not found.tasks and not found.refuse("m")
    assert found.lines("m") == [
        "m: test sentences were not looked for in training text that is not on record: "
        f"table 'sts/stsb_train' as it was trained on (not in {corpus.root})"
    ]
    (entry,) = found.entries("m")
    assert entry["task"] is None and entry["unknown"]
    own = find_contamination(corpus, TrainingText("wikipedia/sentences", Data(), "gone", "docs")).unknown
    assert own == ("text 'docs' as it was trained on (which this command does not read)",)
    parts = [TrainingText("nli/train", Data(sample=rows), "gone") for rows in (5, 6)]  # of a teacher and its student
    (label,) = find_contamination(corpus, *parts).unknown
    assert label.startswith("table 'nli/train' as it was trained on (")


def test_thresholds_and_targets_are_not_searched(corpus: Corpus) -> None:
    pairs = {"premise": [f"p{i}" for i in range(30)], "hypothesis": [f"h{i}" for i in range(30)],
             "label": ["entailment", "neutral", "contradiction"] * 10}  # fmt: skip
    others = pairs | {"premise": [*pairs["premise"][:6], *(f"q{i}" for i in range(24))]}
    for table, columns in (("train", pairs), ("snli_dev", pairs), ("snli_test", others)):
        write_table(corpus.root, f"nli/{table}", columns)
    again = Corpus(corpus.root)
    task, triplets, alone = (
        find_contamination(again, text_of(again, f"nli/{table}"), tasks=("snli-2way",)).tasks["snli-2way"]
        for table in ("train", "triplets", "sentences")
    )
    counts = (task.rows, task.trained_rows, task.sentence_rows, task.clean_rows)
    assert counts == (30, 6, 30, 24), "SNLI dev gives thresholds alone"
    assert triplets.trained_rows == 6, "an anchor with its positive, or with its negative"
    assert (alone.trained_rows, alone.sentence_rows) == (0, 30)
    assert not find_contamination(again, text_of(again, "targets")).tables
