from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from evaluation_fakes import write_table
from scipy import stats
from words_fakes import CAR, CAT, DOG, sentences, web

from raysts.data.corpora import Corpus
from raysts.errors import InputError
from raysts.evaluation import harness
from raysts.models import pretrained
from raysts.models.sentence_model import SentenceModel


def test_similarity_is_spearman_of_the_cosine_with_ties(static: SentenceModel, tmp_path: Path) -> None:
    names = ["cat", "dog", "car", "t-shirt", "zebra"]
    pairs = [("Pets", a, b, float(number // 3)) for number, (a, b) in enumerate(itertools.combinations(names, 2))]
    rows = harness.evaluate(static, web(tmp_path, word_similarity=pairs), ["words"], resamples=20)
    value, coverage = rows
    assert value["dataset"] == coverage["dataset"] == "pets" and value["layers"] == str(static.layers)
    from raysts.evaluation.words import static_words

    words = static_words(static)
    vectors = {name: words.vectors(words.rows([name]))[0] for name in names}
    cosines = [vectors[a] @ vectors[b] for _, a, b, _ in pairs]
    assert value["value"] == pytest.approx(stats.spearmanr(cosines, [pair[3] for pair in pairs]).statistic)
    assert (value["metric"], value["similarity"], value["n"]) == ("spearman", "cosine", 10)
    assert value["ci_low"] <= value["value"] <= value["ci_high"]
    assert (coverage["metric"], coverage["value"], coverage["n"]) == ("coverage", 0.8, 5)


# -- the task ---------------------------------------------------------------------------------------------------------

SIMILARITY = [("SimLex999", CAT, DOG, 9.0), ("SimLex999", CAT, CAR, 1.0), ("SimLex999", DOG, CAR, 2.0)]
ANALOGY = [("Google", "x", CAT, DOG, CAR, "zebra"), ("SAT", "0", CAT, DOG, CAR, "zebra")]
CATEGORIES = [("AP", "animal", CAT), ("AP", "animal", DOG), ("AP", "thing", CAR)]
STRANGERS = [("RG65", "zebra", "quagga", 1.0), ("RG65", "zebra", "okapi", 2.0)]


def test_the_sets_that_are_there_are_measured_and_the_rest_is_named(
    small: SentenceModel, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    web(tmp_path, word_similarity=SIMILARITY + STRANGERS, word_analogy=ANALOGY, word_categorization=CATEGORIES)
    texts = sentences()
    write_table(tmp_path, "sts/sts12", {"sentence1": texts[:30], "sentence2": texts[30:], "score": [1.0, 2.0] * 15})
    corpus = Corpus(tmp_path)
    rows = harness.evaluate(small, corpus, ["words"], context={"system": "x", "role": "backbone"}, resamples=10)
    assert {row["layers"] for row in rows} == {"only-1", "only-2"}
    assert {(row["dataset"], row["metric"]) for row in rows if row["metric"] != "coverage"} == {
        ("simlex999", "spearman"), ("google", "accuracy"), ("ap", "purity"),
    }  # fmt: skip
    assert all(row["system"] == "x" and row["split"] == "test" and row["pooling"] is None for row in rows)
    said = caplog.text
    assert f"men, ws353, rw (belong in {tmp_path}/web/word_similarity.parquet)" in said
    assert f"msr, semeval2012_2 (belong in {tmp_path}/web/word_analogy.parquet)" in said
    assert f"bless (belong in {tmp_path}/web/word_categorization.parquet)" in said
    assert (
        "3 of 6 words have no vector, and the mean vector stands for them: simlex999 0/3, rg65 3/3, google 1/4" in said
    )
    assert "not measured: rg65 (none of its words has a vector)" in said
    assert next(row["value"] for row in rows if (row["dataset"], row["metric"]) == ("rg65", "coverage")) == 0.0
    one = harness.evaluate(small, corpus, ["words"], layers=("only-0", 2), resamples=0)
    assert {row["layers"] for row in one} == {"only-0", "2"}
    with_sts = harness.evaluate(small, corpus, resamples=0)
    assert {"sts12", "simlex999"} <= {row["dataset"] for row in with_sts}


def test_degrees_are_measured_where_there_are_scores(static: SentenceModel, tmp_path: Path) -> None:
    questions = [
        ("SemEval2012_2", "1a", "cat", "dog", c, d, score)
        for c, d, score in (("dog", "car", 1.0), ("car", "cat", 2.5), ("cat", "t-shirt", -3.0))
    ]
    corpus = web(tmp_path, word_analogy=[*questions, ("MSR", "x", "cat", "dog", "car", "t-shirt")])
    rows = {row["dataset"]: row for row in harness.evaluate(static, corpus, ["words"]) if row["metric"] != "coverage"}
    assert set(rows) == {"semeval2012_2", "msr"} and rows["semeval2012_2"]["metric"] == "spearman"
    assert rows["semeval2012_2"]["n"] == 3 and -1 <= rows["semeval2012_2"]["value"] <= 1


@pytest.mark.parametrize(
    ("tables", "says"),
    [
        ({"word_similarity": [*SIMILARITY, ("MEN", "a", "b", None)]}, "word_similarity.parquet: row 3, column 'score'"),
        ({"word_categorization": [*CATEGORIES, ("AP", "x", " ")]}, "word_categorization.parquet: row 3, column 'word'"),
        ({"word_similarity": [*SIMILARITY, ("MEN", "a", "b", 1.0)]}, "'men' (row 3) has 1 row(s) and 1 distinct"),
        ({"word_categorization": [*CATEGORIES, ("BLESS", "x", "y")]}, "'bless' (row 3) has 1 row(s)"),
        (
            {"word_analogy": [("SemEval2012_2", "r", "a", "b", "c", str(d), d or None) for d in (1.0, 2.0, 0.0)]},
            "web/word_analogy: row 2, column 'score': null",
        ),
        (
            {"word_analogy": [("SemEval2012_2", "r", "a", "b", "c", "d", d) for d in (1.0, 2.0)]},
            "row 1, column 'score': 2 for 'c', 'd' in relation 'r', which row 0 gives 1",
        ),
    ],
)  # fmt: skip
def test_rows_that_cannot_be_scored_are_refused(tables: dict[str, Any], says: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        harness.check_tasks(web(tmp_path, **tables), ["words"])
    assert says in str(caught.value)


def test_missing_files_are_named(small: SentenceModel, tmp_path: Path) -> None:
    (tmp_path / "web").mkdir()
    with pytest.raises(InputError, match=r"task 'words' has no files.*web/word_similarity.parquet"):
        harness.check_tasks(Corpus(tmp_path), ["words"])
    corpus = web(tmp_path, word_similarity=SIMILARITY)
    assert "words" not in harness.default_tasks(corpus), "unasked it would refuse what else is there"
    with pytest.raises(InputError, match=r"holds none of sts/sts12.parquet"):
        harness.evaluate(small, corpus, ["words"])


def test_scores_may_be_null_where_they_say_nothing(tmp_path: Path) -> None:
    web(tmp_path, word_analogy=ANALOGY)
    table = pq.read_table(tmp_path / "web" / "word_analogy.parquet")
    pq.write_table(table.append_column("score", pa.nulls(len(table))), tmp_path / "web" / "word_analogy.parquet")
    assert not Corpus(tmp_path).problems(["web/word_analogy"])


@pytest.mark.slow
def test_lower_layers_of_a_real_model_know_words(real_data: Corpus, minilm: Path) -> None:
    if not harness.TASKS["words"].tables(real_data):
        pytest.skip("RAYSTS_DATA holds no words")
    rows = harness.evaluate(pretrained.load(minilm), real_data, ["words"], layers=("only-1",), resamples=0)
    found = {row["dataset"]: row["value"] for row in rows if row["metric"] == "spearman"}
    assert found["men"] > 0.3 and found["simlex999"] > 0.3
