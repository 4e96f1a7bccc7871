import re
from collections import Counter
from pathlib import Path

import pytest
from evaluation_fakes import HashedWords, scored_pairs, write_table

from raysts.commands.data import check
from raysts.data.corpora import Corpus
from raysts.errors import InputError
from raysts.evaluation import harness
from raysts.schema import RESULTS


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    write_table(tmp_path, "sts/sts13", scored_pairs(80, 1) | {"subset": ["a"] * 30 + ["b"] * 50})
    write_table(tmp_path, "sts/stsb_test", scored_pairs(60, 2))
    write_table(tmp_path, "sts/stsb_dev", scored_pairs(50, 3))
    return Corpus(tmp_path)


def test_each_distinct_sentence_is_embedded_once_for_all_tasks_and_layers(corpus: Corpus) -> None:
    model, calls = HashedWords(), []
    rows = harness.evaluate(model, corpus, layers=(1, 2), resamples=20)
    (call,) = model.calls
    assert set((counts := Counter(call)).values()) == {1}
    tables = [corpus.read(name).to_pydict() for name in ("sts/sts13", "sts/stsb_test")]
    assert counts.keys() == {text for t in tables for column in ("sentence1", "sentence2") for text in t[column]}
    # sts13: 3 aggregations and 2 subsets; stsb, which has none: 1 aggregation; 2 metrics, 2 numbers of layers.
    assert len(rows) == (5 + 1) * 2 * 2 and {row["layers"] for row in rows} == {"1", "2"}
    model.layers, total = 4, len(counts)
    rows = harness.evaluate(model, corpus, resamples=0, progress=lambda *call: calls.append(call))
    assert {row["layers"] for row in rows} == {"4"}, "the model's own, unasked"
    assert calls == [(0, total), (1, total), (total, total)]


def test_rows_have_every_column_and_the_context(corpus: Corpus) -> None:
    context = {"run_id": "r1", "system": "words", "role": "member", "member": 3, "seed": 5, "transductive": False}
    rows = harness.evaluate(HashedWords(), corpus, ["sts13"], context=context, resamples=20)
    known = {"schema_version": 1, "dataset": "sts13", "split": "test", "rows": "all", "pooling": "mean"}
    for row in rows:
        assert list(row) == RESULTS.names and (context | known | {"similarity": "cosine"}).items() <= row.items()
        assert row["created_at"] and row["ci_low"] <= row["ci_high"]
    with pytest.raises(AssertionError, match="colour"):
        harness.evaluate(HashedWords(), corpus, ["sts13"], context={"colour": "red"}, resamples=0)


def test_unknown_and_absent_tasks(corpus: Corpus, tmp_path: Path) -> None:
    assert harness.default_tasks(corpus) == ("sts13", "stsb")
    assert harness.check_tasks(corpus, ["stsb", "sts13", "stsb"]) == ("stsb", "sts13")
    with pytest.raises(InputError, match=r"unknown task 'stsbb' \(did you mean 'stsb'\?\)"):
        harness.check_tasks(corpus, ["sts13", "stsbb"])
    with pytest.raises(InputError, match=r"task 'sts14' has no files.*sts/sts14.parquet.*with files: sts13, stsb"):
        harness.check_tasks(corpus, ["sts13", "sts14"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="holds the files of no task"):
        harness.check_tasks(Corpus(tmp_path / "empty"))
    write_table(tmp_path, "tests/STS13", scored_pairs(20))
    taken = rf"{tmp_path}/tests/STS13\.parquet: has the name of a public task"
    with pytest.raises(InputError, match=taken):
        harness.check_tasks(Corpus(tmp_path))
    assert re.match(taken, check(tmp_path)["problems"][-1])
    write_table(tmp_path / "flat", "tests/flat", scored_pairs(20) | {"score": [1.0] * 20})
    (problem,) = check(tmp_path / "flat")["problems"]
    assert problem.startswith("flat: has 20 row(s) and 1 distinct score(s)")
    write_table(tmp_path / "flat", "tests/flat", scored_pairs(20) | {"score": [1.0] * 19 + [2.0]})
    assert not check(tmp_path / "flat")["problems"]


def test_rows_that_cannot_be_used_are_named_before_anything_is_embedded(corpus: Corpus, tmp_path: Path) -> None:
    broken = scored_pairs(20)
    broken["score"][4] = 7.5
    path, corpus, model = write_table(tmp_path, "sts/sts16", broken), Corpus(tmp_path), HashedWords()
    with pytest.raises(InputError, match=f"{path}: row 4, column 'score'"):
        harness.evaluate(model, corpus)
    assert not model.calls
    # Named tasks that do not read the broken table run.
    assert harness.evaluate(model, corpus, ["stsb"], resamples=0)
    write_table(tmp_path, "sts/sts16", scored_pairs(20) | {"subset": ["a"] * 19 + ["b"]})
    with pytest.raises(InputError, match="sts16: subset 'b' has 1 row"):
        harness.check_tasks(Corpus(tmp_path))


MINILM = {"sts12": 72.37, "sts14": 75.60, "sts15": 85.39, "stsb": 82.03}
"""all-MiniLM-L6-v2, Spearman over all pairs x100, as the MTEB results repository has it."""


@pytest.mark.slow  # half a minute; that its vectors and correlations are others' own, tests of units show
def test_minilm_has_its_published_values(real_data: Corpus, minilm: Path) -> None:
    from raysts.models.pretrained import load

    names = [name for name in MINILM if harness.TASKS[name].tables(real_data)]
    if not names:
        pytest.skip("RAYSTS_DATA holds none of these sets")
    rows = harness.evaluate(load(minilm), real_data, names, layers=(1,))
    whole = (row for row in rows if (row["metric"], row["aggregation"]) == ("spearman", "all"))
    found = {row["dataset"]: 100 * row["value"] for row in whole}
    assert found == pytest.approx({name: MINILM[name] for name in names}, abs=0.01)
