from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raysts.commands.options import RunOptions
from raysts.data import user_files
from raysts.data.corpora import Corpus
from raysts.data.own import DEV, HELD_OUT, TEXT, Own, open_pairs, open_retrieval, open_text
from raysts.errors import InputError, RunFailed

TEXTS = ["A first, text", "", 'He said "no"', "A first, text", "  ", "Über uns"]


def write(folder: Path, name: str, texts: list[str] = TEXTS) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if name.endswith(".parquet"):
        pq.write_table(pa.table({"id": list(range(len(texts))), "body": texts}), path)
        return path
    opened = gzip.open if name.endswith(".gz") else open
    with opened(path, "wt", encoding="utf-8", newline="") as file:  # type: ignore[operator]
        if ".csv" in name:
            csv.writer(file).writerows([["id", "body"], *enumerate(texts)])
        elif ".tsv" in name:
            file.writelines(f"{i}\t{text}\n" for i, text in [("id", "body"), *enumerate(texts)])
        elif ".jsonl" in name:
            file.writelines(json.dumps({"id": i, "body": text}) + "\n" for i, text in enumerate(texts))
        else:
            file.writelines(f"{text}\n" for text in texts)
    return path


def saved(folder: Path) -> Path:
    import datasets

    datasets.Dataset.from_dict({"id": list(range(len(TEXTS))), "body": TEXTS}).save_to_disk(folder / "saved")
    return folder / "saved"


@pytest.mark.parametrize("name", ["t.parquet", "t.csv", "t.tsv", "t.jsonl", "t.txt", "t.csv.gz", "in/a/t.csv", "saved"])
def test_formats_agree(tmp_path: Path, name: str) -> None:
    where = saved(tmp_path) if name == "saved" else write(tmp_path, name)
    text = open_text(tmp_path / "in" if name.startswith("in/") else where, None if name == "t.txt" else "body")
    assert [t for batch in text.batches() for t in batch.column(0).to_pylist()] == [t for t in TEXTS if t.strip()]
    assert (text.rows, text.scan.empty, text.scan.repeated) == (4, 2, 1)
    assert text.title == {"in/a/t.csv": "in", "saved": "saved"}.get(name, "t")
    assert text.sha256 == open_text(write(tmp_path, "other/name.jsonl"), "body").sha256  # content decides, no path


@pytest.mark.parametrize(
    ("name", "content", "column", "message"),
    [
        (
            "t.csv",
            b"id,body\n1,a\n",
            "bodi",
            r"column 'bodi' is missing \(columns found: id, body\) \(did you mean 'body'",
        ),
        ("t.csv", b"id,body\n1,a\n", None, "--column NAME .* there are: id, body"),
        ("t.csv", b"id,body\n", "body", "holds no text"),
        ("t.csv", b"id,body\n1,a\n2, a\n", "body", "all 2 rows hold the same text .'a'.; --column must name"),
        ("t.csv", b"body\n\n \n", "body", "holds no text .1 empty rows"),
        ("t.csv", b"id,body\n1,a,b\n", "body", "line 2 has 3 fields, the header 2"),
        ("t.csv", b"body,id,body\na,1,b\n", "body", "has 2 columns 'body'"),
        ("t.txt", b"ab\0cd\n", None, "line 1 holds a zero byte"),
        ("t.txt", b"\xff\xfe\x00", None, "not UTF-8 text"),
        ("t.txt", b"a\n", "body", "no column 'body'"),
        ("t.jsonl", b'{"body": 5}\n', "body", "row|line 1.*holds 5, which is no text"),
        ("t.jsonl", b'{"body": "\\ud800 a"}\n', "body", "line 1 is not JSON .*surrogates not allowed"),
        ("t.parquet", b"PAR1", "body", "not a readable Parquet file"),
        ("t.csv.gz", b"id,body\n", "body", "cannot be read to its end"),
        ("t.docx", b"a", None, "unknown format '.docx'"),
    ],
)
def test_refused(tmp_path: Path, name: str, content: bytes, column: str | None, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=message):
        open_text(tmp_path / name, column)


def test_a_line_of_json_may_lack_what_has_no_value_there(tmp_path: Path) -> None:
    """The first one too: columns are those of all lines."""
    documents = [{"doc_id": 1, "text": "a"}, {"doc_id": 2, "text": "b", "title": "B"}]
    rows = {"corpus": documents, "queries": [{"query_id": 1, "text": "q"}]}
    rows["qrels"] = [{"query_id": 1, "doc_id": 2, "score": 1}]
    folder = tmp_path / "corpus"  # the name of a part is no part's where its files say what they are
    folder.mkdir()
    for part, of_part in rows.items():
        (folder / f"{part}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in of_part))
    found = open_retrieval(folder, "--test x", "x")
    assert found["corpus"].table.column("title").to_pylist() == [None, "B"]
    (tmp_path / "t.jsonl").write_text('{"body": "a"}\n{"body": "b", "other": "c"}\n')
    with pytest.raises(InputError, match="--column NAME .* there are: body, other"):
        open_text(tmp_path / "t.jsonl", None)
    assert open_text(tmp_path / "t.jsonl", "body").rows == 2
    (tmp_path / "t.jsonl").write_text('{"other": "c"}\n{"body": "b"}\n')  # as Spark writes a null
    assert (open_text(tmp_path / "t.jsonl", "body").rows, open_text(tmp_path / "t.jsonl", "body").scan.empty) == (1, 1)


def test_a_part_may_be_empty(tmp_path: Path) -> None:
    whole = open_text(write(tmp_path, "in/docs.csv").parent, "body").sha256
    (tmp_path / "in" / "part-0.csv").touch()
    pq.write_table(pa.table({"body": pa.nulls(0)}), tmp_path / "in" / "part-1.parquet")
    assert open_text(tmp_path / "in", "body").sha256 == whole


def test_what_is_hidden_is_no_text(tmp_path: Path) -> None:
    """What editors keep beside a file in a folder of their own would be the same texts again."""
    whole = open_text(write(tmp_path, "in/docs.csv").parent, "body").sha256
    write(tmp_path, "in/.ipynb_checkpoints/docs-checkpoint.csv")
    assert open_text(tmp_path / "in", "body").sha256 == whole


def test_a_line_that_would_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_files, "LONGEST", 1000)
    for name, column in (("t.txt.gz", None), ("t.csv.gz", "body"), ("t.jsonl", "body")):
        write(tmp_path, name, ["short", "x" * 999, "x" * 10**6])
        with pytest.raises(InputError, match="line [23] has 1,000 characters or more"):
            open_text(tmp_path / name, column)


def test_a_parquet_column_that_is_there_twice(tmp_path: Path) -> None:
    pq.write_table(pa.table([["a"], ["b"]], names=["body", "body"]), tmp_path / "t.parquet")
    with pytest.raises(InputError, match="has 2 columns 'body'"):
        open_text(tmp_path / "t.parquet", "body")


def test_a_saved_data_set_that_is_torn(tmp_path: Path) -> None:
    (arrow,) = saved(tmp_path).glob("*.arrow")
    content = bytearray(arrow.read_bytes())
    content[content.index("Über".encode())] = 0xFF
    arrow.write_bytes(content)
    with pytest.raises(InputError, match="cannot be read to its end"):
        open_text(tmp_path / "saved", "body")


def test_a_saved_data_set_that_was_written_anew_is_read_anew(tmp_path: Path) -> None:
    import datasets

    place = saved(tmp_path)
    before = open_text(place, "body").sha256
    datasets.Dataset.from_dict({"body": ["other", "texts"]}).save_to_disk(tmp_path / "new")
    for file in (tmp_path / "new").iterdir():  # in place: the folder's own time stays
        (place / file.name).write_bytes(file.read_bytes())
    text = open_text(place, "body")
    assert text.sha256 != before and [row for b in text.batches() for row in b.column(0).to_pylist()] == [
        "other",
        "texts",
    ]


def test_held_out_texts_are_in_no_row(tmp_path: Path) -> None:
    texts = [f"text {i % 900}" for i in range(1000)]
    text = open_text(write(tmp_path, "t.txt", texts), None).holding_out()
    again = open_text(write(tmp_path, "u.txt", texts[::-1]), None).holding_out()
    left = [t for batch in text.batches() for t in batch.column(0).to_pylist()]
    assert len(set(text.held_out)) == text.held == 90 <= HELD_OUT
    assert set(text.held_out) == set(again.held_out)  # by content, not by place
    assert left == [t for t in texts if t not in set(text.held_out)] and len(left) == text.rows
    assert text.sha256 not in {open_text(tmp_path / "t.txt", None).sha256, again.sha256}
    assert open_text(write(tmp_path, "few.txt", texts[:190]), None).holding_out().held == 0


def test_text_stands_for_sentences_of_any_folder(tmp_path: Path) -> None:
    texts = [f"text {i}" for i in range(70_000)]
    data = tmp_path / "data" / "wikipedia"
    data.mkdir(parents=True)
    pq.write_table(pa.table({"sentence": ["from Wikipedia"]}), data / "sentences.parquet")
    own = Own.of(text=write(tmp_path, "docs.txt", texts))
    for root in (None, tmp_path / "data"):
        corpus = Corpus(root, own=own).writing_to(tmp_path / "made")
        assert (
            corpus.read(TEXT).column("sentence").to_pylist()
            == texts
            == corpus.head(TEXT, "sentence", 70_000)[:8192] + (texts[8192:])
        )
        groups = list(corpus.row_groups(TEXT))
        corpus.write_derived(TEXT)
        file = pq.ParquetFile(groups[0].path)
        assert [group.rows for group in groups] == [65_536, 4_464]
        assert [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)] == [65_536, 4_464]
        assert file.read().column("sentence").to_pylist() == texts
        assert corpus.title(TEXT) == "docs" and corpus.sources("sentences") == [TEXT]


@pytest.mark.parametrize("texts", [["one", "two", "three"], ["one", "zwei"], [""]], ids=["more", "others", "none"])
def test_a_text_that_changes_while_it_is_read_is_not_kept(texts: list[str], tmp_path: Path) -> None:
    path = write(tmp_path, "docs.txt", ["one", "two"])
    corpus = Corpus(None, own=Own.of(text=path)).writing_to(tmp_path / "made")
    write(tmp_path, "docs.txt", texts)
    with pytest.raises(RunFailed, match=f"{path}: text docs was changed after it was checked"):
        corpus.write_derived(TEXT)
    assert not list((tmp_path / "made").glob("[!.]*.parquet"))


def test_several_development_sets_are_one(tmp_path: Path) -> None:
    for name, score in (("a", 1), ("b", 100)):
        (tmp_path / f"{name}.csv").write_text(f"sentence1,sentence2,score\nx,y,{score}\nx,z,{2 * score}\n")
    own = Own.of(dev={"A": tmp_path / "a.csv", "b": tmp_path / "b.csv"})
    corpus = Corpus(None, own=own)
    assert corpus.title(DEV) == "a+b" and corpus.read(DEV).column("subset").to_pylist() == ["a", "a", "b", "b"]
    (tmp_path / "parts.csv").write_text("sentence1,sentence2,score,subset\nx,y,1,one\nx,z,2,two\n")
    alone = Corpus(None, own=Own.of(dev={"d": tmp_path / "parts.csv"}))  # as that of a data folder
    assert "subset" not in alone.read(DEV).column_names
    assert Own.from_plain(own.as_plain()) == own
    assert own.arguments() == ["--dev", f"a={tmp_path / 'a.csv'}", "--dev", f"b={tmp_path / 'b.csv'}"]
    with pytest.raises(InputError, match="column 'score' is missing.*raysts data import .* --columns sentence1=A"):
        open_pairs(write(tmp_path, "x.csv"), "--dev")
    for nothing in (saved(tmp_path), "hf://owner/name"):
        with pytest.raises(InputError, match="--test x '.*': name one file of scored pairs"):
            Own.of(test={"x": nothing}).open()
    with pytest.raises(InputError, match="--column 'c': .* --text PATH"):
        Own.of(column="c")
    with pytest.raises(InputError, match="--test A: is given twice"):
        Own.of(test={"A": "x", "a": "y"})
    with pytest.raises(InputError, match="two different names"):
        Own.of(dev={"a": "x"}, test={"a": "y"})


def test_what_is_distilled_keeps_the_text_and_judges_of_its_run() -> None:
    """Beside them others may be given; with another text, or data, they are no judges of it."""
    record = {"data": "/data", "own": Own("/text", "body", {"d": "/dev"}, {"a": "/a", "b": "/b"}).as_plain()}
    given = Own(dev={"e": "/other"}, test={"b": "/new", "c": "/c"})
    options = RunOptions(own=given).after(record)
    assert options.data == "/data"
    assert options.own == Own("/text", "body", {"e": "/other"}, {"a": "/a", "b": "/new", "c": "/c"})
    assert RunOptions().after(record).own == Own.from_plain(record["own"])
    for alone in (RunOptions(own=Own("/mine")), RunOptions(data="/mine", own=given)):
        assert alone.after(record) is alone
