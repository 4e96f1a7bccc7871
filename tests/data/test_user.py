import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from raysts.commands.options import RunOptions
from raysts.data import tables
from raysts.data.checks import BATCH_ROWS
from raysts.data.corpora import Corpus
from raysts.data.user import DEV, HELD_OUT, TEXT, UserData, open_pairs, open_retrieval, open_text
from raysts.errors import InputError, RunFailed


def write(path: Path, texts: list[str]) -> Path:
    path.write_text("".join(f"{text}\n" for text in texts))
    return path


def test_held_out_texts_are_in_no_row(tmp_path: Path) -> None:
    texts = [f"text {i % 900}" for i in range(1000)]
    text = open_text(write(tmp_path / "t.txt", texts), None).holding_out()
    again = open_text(write(tmp_path / "u.txt", texts[::-1]), None).holding_out()
    left = [t for batch in text.batches() for t in batch.column(0).to_pylist()]
    assert len(set(text.held_out)) == text.held_count == 90 <= HELD_OUT
    assert set(text.held_out) == set(again.held_out)  # by content, not by place
    assert left == [t for t in texts if t not in set(text.held_out)] and len(left) == text.rows
    assert text.fingerprint not in {open_text(tmp_path / "t.txt", None).fingerprint, again.fingerprint}
    assert open_text(write(tmp_path / "few.txt", texts[:190]), None).holding_out().held_count == 0


def test_text_stands_for_sentences_of_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "READ_ROWS", 2 * BATCH_ROWS)
    texts = [f"text {i}" for i in range(2 * BATCH_ROWS + 464)]
    user = UserData.of(text=write(tmp_path / "docs.txt", texts))
    (tmp_path / "data").mkdir()
    for root in (None, tmp_path / "data"):
        corpus = Corpus(root, user=user).writing_to(tmp_path / "made")
        assert corpus.read(TEXT).column("sentence").to_pylist() == texts
        assert corpus[TEXT].head("sentence", 9) == texts[:9]
        groups = list(corpus[TEXT].row_groups())
        corpus[TEXT].write()
        file = pq.ParquetFile(groups[0].path)
        assert [group.rows for group in groups] == [2 * BATCH_ROWS, 464]
        assert [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)] == [2 * BATCH_ROWS, 464]
        assert file.read().column("sentence").to_pylist() == texts
        assert corpus.title(TEXT) == "docs" and corpus.sources("sentences") == [TEXT]


@pytest.mark.parametrize("texts", [["one", "two", "three"], ["one", "zwei"], [""]], ids=["more", "others", "none"])
def test_a_text_that_changes_while_it_is_read_is_not_kept(texts: list[str], tmp_path: Path) -> None:
    path = write(tmp_path / "docs.txt", ["one", "two"])
    corpus = Corpus(None, user=UserData.of(text=path)).writing_to(tmp_path / "made")
    write(path, texts)
    with pytest.raises(RunFailed, match=f"{path}: text docs was changed after it was checked"):
        corpus[TEXT].write()
    assert not list((tmp_path / "made").glob("[!.]*.parquet"))


def test_several_development_sets_are_one(tmp_path: Path) -> None:
    for name, score in (("a", 1), ("b", 100)):
        (tmp_path / f"{name}.csv").write_text(f"sentence1,sentence2,score\nx,y,{score}\nx,z,{2 * score}\n")
    user = UserData.of(dev={"A": tmp_path / "a.csv", "b": tmp_path / "b.csv"})
    corpus = Corpus(None, user=user)
    assert corpus.title(DEV) == "a+b" and corpus.read(DEV).column("subset").to_pylist() == ["a", "a", "b", "b"]
    assert corpus["dev/a"].fingerprint != corpus["dev/b"].fingerprint and corpus.tables() == [DEV]
    (tmp_path / "parts.csv").write_text("sentence1,sentence2,score,subset\nx,y,1,one\nx,z,2,two\n")
    alone = Corpus(None, user=UserData.of(dev={"d": tmp_path / "parts.csv"}))  # as that of a data folder
    assert "subset" not in alone.read(DEV).column_names and "subset" in alone.read("dev/d").column_names
    assert UserData.from_plain(user.as_plain()) == user
    assert user.arguments() == ["--dev", f"a={tmp_path / 'a.csv'}", "--dev", f"b={tmp_path / 'b.csv'}"]


def test_a_retrieval_set_is_a_folder(tmp_path: Path) -> None:
    documents = [{"doc_id": 1, "text": "a"}, {"doc_id": 2, "text": "b", "title": "B"}]
    rows = {"corpus": documents, "queries": [{"query_id": 1, "text": "q"}]}
    rows["qrels"] = [{"query_id": 1, "doc_id": 2, "score": 1}]
    folder = tmp_path / "corpus"  # the name of a part is no part's where its files say what they are
    folder.mkdir()
    for part, of_part in rows.items():
        (folder / f"{part}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in of_part))
    assert open_retrieval(folder, "--test x", "x")["corpus"].table.column("title").to_pylist() == [None, "B"]
    corpus = Corpus(None, user=UserData.of(test={"x": folder}, dev={"y": folder}))
    assert corpus.retrieval_sets() == ["x"] and corpus["dev/y/queries"].rows == 1 and corpus.rows(DEV) == 0
    assert corpus["dev/y/corpus"].fingerprint == corpus["retrieval/x/corpus"].fingerprint
    assert corpus.tables() == [DEV, "retrieval/x/corpus", "retrieval/x/queries", "retrieval/x/qrels"]


def test_what_cannot_be_given(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("a,b\n1,2\n")
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "dataset_info.json").write_text("{}")
    said = "columns 'sentence1', 'sentence2', 'score' are missing.*raysts data import .* --columns sentence1=A"
    with pytest.raises(InputError, match=said):
        open_pairs(tmp_path / "x.csv", "--dev")
    for nothing in (tmp_path / "saved", "hf://owner/name"):
        with pytest.raises(InputError, match="--test x '.*': name one file of scored pairs"):
            UserData.of(test={"x": nothing}).open()
    for wrong, message in (
        ({"column": "c"}, "--column 'c': .* --text PATH"),
        ({"test": {"A": "x", "a": "y"}}, "--test A: is given twice"),
        ({"test": {"a/b": "x"}}, "--test a/b=...: a name has"),
        ({"dev": {"a": "x"}, "test": {"a": "y"}}, "two different names"),
    ):
        with pytest.raises(InputError, match=message):
            UserData.of(**wrong)  # type: ignore[arg-type]


def test_a_set_without_rows_is_refused(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "corpus.csv").write_text("doc_id,title,text\n1,,a\n")
    (tmp_path / "docs" / "queries.csv").write_text("query_id,text\n")
    (tmp_path / "docs" / "qrels.csv").write_text("query_id,doc_id,score\n")
    (tmp_path / "pairs.csv").write_text("sentence1,sentence2,score\n")
    for place, said in (("docs", "queries.csv: no rows; queries of a retrieval"), ("pairs.csv", "no rows; a pairs")):
        with pytest.raises(InputError, match=f"{said} [a-z]* must hold at least"):
            UserData.of(test={"x": tmp_path / place}).open()


def test_what_is_distilled_keeps_the_text_and_judges_of_its_run() -> None:
    """Beside them others may be given; with another text, or data, they are no judges of it."""
    record = {"data": "/data", "own": UserData("/text", "body", {"d": "/dev"}, {"a": "/a", "b": "/b"}).as_plain()}
    given = UserData(dev={"e": "/other"}, test={"b": "/new", "c": "/c"})
    options = RunOptions(user_data=given).after(record)
    assert options.data == "/data"
    assert options.user_data == UserData("/text", "body", {"e": "/other"}, {"a": "/a", "b": "/new", "c": "/c"})
    assert RunOptions().after(record).user_data == UserData.from_plain(record["own"])
    for alone in (RunOptions(user_data=UserData("/mine")), RunOptions(data="/mine", user_data=given)):
        assert alone.after(record) is alone


def test_bad_pairs_are_named_together_with_row_and_line(tmp_path: Path) -> None:
    path = tmp_path / "bad.csv"
    path.write_text('sentence1,sentence2,score\n"two\nlines",b,1\n,b,2\na,b,high\na,b,nan\na,b,"1,5"\nc,d,1_000\n')
    with pytest.raises(InputError) as caught:
        open_pairs(path, "--test")
    places = [(1, 4, "sentence1"), *((row, row + 3, "score") for row in (2, 3, 4, 5))]
    for problem, (row, line, column) in zip(caught.value.problems, places, strict=True):
        assert problem.startswith(f"{path}: row {row} (line {line}), column '{column}': ")
    assert "'high' must be a finite number" in caught.value.problems[1]
