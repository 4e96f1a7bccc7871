import os
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from evaluation_fakes import write_table

from raysts.data import checks, facts, readers, tables, user
from raysts.data.corpora import Corpus
from raysts.data.derive import DERIVED, label_codes
from raysts.data.facts import Facts
from raysts.data.user import UserData
from raysts.errors import InputError, RunFailed
from raysts.schema import NLI_LABELS

STS = {"sentence1": ["a b", "c"], "sentence2": ["d", "e"], "score": [0.0, 5.0]}
NLI = {"premise": ["a", "b"], "hypothesis": ["c", "d"], "label": ["neutral", "entailment"]}


def test_a_table_is_a_file_or_a_folder_of_shards(tmp_path: Path) -> None:
    write_table(tmp_path, "tests/faq/b", STS)
    write_table(tmp_path, "tests/faq/a", {**STS, "sentence1": ["x", "y"]})
    (tmp_path / "tests" / "faq" / "notes.txt").touch()
    write_table(tmp_path, "tests/help", STS)
    (tmp_path / "tests" / "notes").mkdir()
    corpus = Corpus(tmp_path)
    assert corpus.tests() == corpus.tables() == ["tests/faq", "tests/help"]
    assert [path.name for path in corpus.files("tests/faq")] == ["a.parquet", "b.parquet"]
    assert (corpus.rows("tests/faq"), corpus.rows("tests/help")) == (4, 2)
    assert corpus.read("tests/faq").column("sentence1").to_pylist() == ["x", "y", "a b", "c"]
    assert corpus["tests/faq"].head("sentence1", 1) == ["x"]


def test_a_shard_may_have_no_rows(tmp_path: Path) -> None:
    """As Spark and pandas write some, which know no types then."""
    write_table(tmp_path, "nli/train/0", {name: pa.array([], pa.null()) for name in NLI})
    write_table(tmp_path, "nli/train/1", NLI)
    write_table(tmp_path, "nli/train/2", {name: [] for name in NLI})
    for corpus in (Corpus(tmp_path), Corpus(tmp_path, skip_bad=True)):
        corpus.check(["nli/train"])
        assert corpus.read("nli/train").to_pydict() == NLI and corpus.find_skipped(["nli/train"]) == []
        assert corpus["nli/train"].head("premise", 9) == NLI["premise"]
        assert [group.rows for group in corpus["nli/train"].row_groups() if group.rows] == [len(NLI["premise"])]
    (tmp_path / "nli" / "train" / "1.parquet").unlink()
    assert ["no rows" in problem for problem in Corpus(tmp_path).problems(["nli/train"])] == [True]


def test_the_fingerprint_is_of_the_content(tmp_path: Path) -> None:
    prints = []
    for place, part, last in (("one", "", 5.0), ("two", "", 5.0), ("three", "/0", 5.0), ("four", "", 4.9)):
        write_table(tmp_path / place, f"sts/stsb_dev{part}", {**STS, "score": [0.0, last]})
        prints.append(Corpus(tmp_path / place).fingerprint("sts/stsb_dev"))
    assert prints[0] == prints[1] == prints[2] != prints[3]


def test_a_table_that_has_not_changed_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    name, root = "sts/stsb_dev", tmp_path / "data"
    path = write_table(root, name, STS)

    def looked_at() -> str:
        corpus = Corpus(root)
        corpus.check([name])
        return corpus.fingerprint(name)

    first = looked_at()
    with monkeypatch.context() as unread:
        unread.setattr(checks, "pages", None)
        unread.setattr(tables, "file_digest", None)
        assert looked_at() == first
    before = path.stat()
    write_table(root, name, {**STS, "score": [0.0, 5.5]})
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    for _ in range(2):  # what was wrong is not remembered as sound
        with pytest.raises(InputError, match=r"score 5\.5"):
            looked_at()
    assert Corpus(root).fingerprint(name) != first
    write_table(root, name, STS)
    assert looked_at() == first


def test_what_is_made_of_a_table_that_changed_meanwhile_is_not_kept_as_of_the_old_one(tmp_path: Path) -> None:
    for name in ("nli/train", "nli/pairs"):
        write_table(tmp_path, "nli/train", NLI)
        corpus = Corpus(tmp_path)
        assert corpus.fingerprint(name)
        corpus.check_unchanged([name])
        write_table(tmp_path, "nli/train", {**NLI, "label": NLI["label"][::-1]})
        with pytest.raises(RunFailed, match="table 'nli/train' of .* was changed while it was read"):
            corpus.check_unchanged([name])


def test_a_second_plan_reads_no_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    root, text = tmp_path / "data", tmp_path / "mine.txt"
    write_table(root, "nli/train", NLI)
    text.write_text("one\ntwo\ntwo\n")

    def looked_at() -> tuple[int, list[tuple[int, int]], dict[str, object]]:
        user._scan.cache_clear()  # as another process
        corpus = Corpus(root, user=UserData.of(text=text)).writing_to(tmp_path)
        groups = [(group.number, group.rows) for group in corpus["sentences"].row_groups()]
        assert corpus.text is not None
        return corpus.rows("nli/pairs"), groups, {**corpus.text.facts(), "smallest": corpus.text.scan.smallest}

    first = looked_at()
    with monkeypatch.context() as unread:
        unread.setattr(checks, "pages", None)
        unread.setattr(tables, "DERIVED", {name: table._replace(make=None) for name, table in DERIVED.items()})
        unread.setattr(readers, "rows_of", None)
        assert looked_at() == first
    text.write_text("one\ntwo\ntwo\nthree\n")
    assert looked_at()[1] == [(0, first[1][0][1] + 1)]


def test_the_latest_facts_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(facts, "MOST", 20)
    for number in range(40):
        Facts("rows", number).add(rows=number)
        assert Facts("rows", number).read() == {"rows": number}
        assert len(list((tmp_path / "raysts" / "known").iterdir())) <= 20
    assert not Facts("rows", 0).read() and Facts("rows", 36).read() == {"rows": 36}


def test_shards_may_say_the_same_in_other_types(tmp_path: Path) -> None:
    """Classes by name or code, ids as text or numbers, scores as decimals: the tables read as if they had one."""
    for part, label, score in (("0", [1, 0], [Decimal("0.5"), Decimal(2)]), ("1", ["1", "Entailment"], [0.5, 2.0])):
        write_table(tmp_path, f"sts/stsb_dev/{part}", {**STS, "score": score, "subset": label})
        corpus_of_set = {"doc_id": pa.array([2**63 + int(part)], pa.uint64()), "text": ["a"]}
        write_table(tmp_path, f"retrieval/x/corpus/{part}", corpus_of_set)
    by_number = pa.dictionary(pa.int32(), pa.string())
    labels = [pa.array([1, 0], pa.uint8()), pa.array(["1", "Entailment"]), pa.array(["1", "entailment"], by_number)]
    for part, (kind, label) in enumerate(zip((pa.large_string(), pa.string_view(), by_number), labels, strict=True)):
        texts = {name: pa.array(NLI[name], kind) for name in ("premise", "hypothesis")}
        write_table(tmp_path, f"nli/train/{part}", {**texts, "label": label, "extra": [1, 2]})
    corpus = Corpus(tmp_path)
    corpus.check(corpus.tables())
    table = corpus.read("nli/train")
    assert table.column_names == ["premise", "hypothesis", "label"]
    assert [b.schema.types[1:] for b in corpus.batches("nli/train", ["premise", "label"])][0] == [pa.int64()]
    assert {b.schema.types[0] for b in corpus.batches("nli/train", ["premise"])} == {pa.string()}
    assert table.column("premise").to_pylist() == NLI["premise"] * 3
    assert label_codes(table.column("label"), NLI_LABELS).tolist() == [1, 0] * 3
    found = corpus.read("sts/stsb_dev")
    assert found.column("score").to_pylist() == [0.5, 2.0] * 2
    assert found.column("subset").to_pylist() == ["1", "0", "1", "Entailment"]
    assert corpus.read("retrieval/x/corpus").column("doc_id").to_pylist() == [2**63, 2**63 + 1]


@pytest.mark.parametrize(("name", "columns", "parts"), [
    ("sts/stsb_dev", {**STS, "score": [0.0, 5.1]}, ["row 1", "'score'", "5.1", "from 0 to 5"]),
    ("sick/sick_train", {**STS, "score": [1.0, 0.5]}, ["row 1", "from 1 to 5"]),
    ("sts/stsb_dev", {**STS, "score": [0.0, float("nan")]}, ["row 1", "nan"]),
    ("sts/stsb_dev", {**STS, "score": [0.0, None]}, ["row 1", "'score'", "null"]),
    ("sts/stsb_dev", {**STS, "score": ["a", "b"]}, ["'score'", "must be numbers"]),
    ("sts/stsb_dev", {**STS, "sentence1": ["a", " \t"]}, ["row 1", "'sentence1'", "empty sentence"]),
    ("sts/stsb_dev", {**STS, "sentence2": [None, "b"]}, ["row 0", "'sentence2'", "null"]),
    ("sts/stsb_dev", {**STS, "sentence2": [1, 2]}, ["'sentence2'", "int64", "must be a string column"]),
    ("nli/train", {**NLI, "label": ["neutral", "maybe"]}, ["row 1", "unknown label 'maybe'", "entailment"]),
    ("nli/train", {**NLI, "label": [0, 3]}, ["row 1", "unknown label 3", "0 to 2"]),
    ("nli/train", {**NLI, "label": [None, 0]}, ["row 0", "'label'", "null"]),
    ("nli/train", {**NLI, "label": [["a"], ["b"]]}, ["'label'", "labels must be strings or integers"]),
    ("retrieval/x/qrels", {"query_id": ["a"], "doc_id": ["b"], "score": [1.5]}, ["row 0", "whole number"]),
    ("sts/stsb_dev", {"sentence1": ["a"]}, ["columns 'sentence2', 'score' are missing", "needs them"]),
    ("nli/train", {"premise": ["a"], "hypotesis": ["b"], "label": [0]}, ["'hypothesis' is missing", "'hypotesis'"]),
    ("nli/train", {name: [] for name in NLI}, ["no rows"]),
])  # fmt: skip
def test_a_bad_row_is_named_by_its_place(name: str, columns: dict[str, Any], parts: Any, tmp_path: Path) -> None:
    path, problems = write_table(tmp_path, name, columns), Corpus(tmp_path).problems([name])
    text = "\n".join(problems)
    assert problems and str(path) in text and all(part in text for part in parts), text
    with pytest.raises(InputError):
        Corpus(tmp_path).check([name])


def test_rows_are_counted_by_file_and_many_problems_are_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "pages", partial(checks.pages, rows=4))
    write_table(tmp_path, "wikipedia/sentences/0", {"sentence": ["x"] * 5})
    bad = [write_table(tmp_path, f"wikipedia/sentences/{n}", {"sentence": ["x"] * 9 + ["", "x"]}) for n in "123"]
    problems = Corpus(tmp_path).problems(["wikipedia/sentences"], most=2)
    assert [problem.partition(",")[0] for problem in problems] == [f"{path}: row 9" for path in bad[:2]]


def test_what_is_not_there_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        Corpus(tmp_path / "absent")
    with pytest.raises(InputError) as caught:
        Corpus(tmp_path).require(["nli/train", "sts/stsb_dev"])
    assert len(caught.value.problems) == 2 and "'nli/train' is missing" in str(caught.value)
    with pytest.raises(InputError, match="did you mean 'nli/train'"):
        Corpus(tmp_path).files("nli/trian")


def test_real_data_is_clean(real_data: Corpus) -> None:
    """Every table but the two largest, in full; those by their first rows."""
    names = [name for name in real_data.tables() if real_data.rows(name) < 20_000]
    assert names and real_data.problems(names) == []
    if real_data.files("nli/train"):
        codes = label_codes(real_data.read("nli/train", ["premise", "hypothesis", "label"]).column("label"), NLI_LABELS)
        assert set(np.unique(codes)) == {0, 1, 2}
