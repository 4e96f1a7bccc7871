import json
import shlex
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from raysts.commands import parser
from raysts.commands.data import check, import_table
from raysts.data import readers
from raysts.data.corpora import Corpus
from raysts.errors import InputError, RunFailed

NLI = [
    ("A man eats.", "Someone eats.", "ent"),
    *(("A man eats.", text, "con") for text in ("A man is asleep!", "a man is asleep", "A man is asleep!", " ")),
    ("x", "y", "-"),
]
ODD = {"n": "1_0", "none": None, "yes": True, "one": 1, "three": 3, "half": 0.5}
LABELS = {"ent": "entailment", "con": "contradiction", "-": "drop"}
COLUMNS = {"premise": "q", "hypothesis": "a", "label": "gold"}


def lines(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def nli(folder: Path) -> Path:
    return lines(folder / "mine.jsonl", [{**dict(zip(("q", "a", "gold"), row, strict=True)), **ODD} for row in NLI])


@pytest.mark.parametrize(("drop", "written"), [(False, 4), (True, 3)])
def test_rows_are_counted_and_labels_mapped(tmp_path: Path, drop: bool, written: int) -> None:
    found = import_table(nli(tmp_path), "nli", tmp_path / "data", columns=COLUMNS, labels=LABELS, drop=drop)
    counts = ("rows_read", "rows_written", "empty", "left_out", "exact_duplicates")
    assert [found[name] for name in counts] == [6, written, 1, 1, 1]
    corpus = Corpus(tmp_path / "data")
    corpus.check(["nli/train"])
    assert corpus.read("nli/train").to_pylist()[0] == {
        "premise": "A man eats.", "hypothesis": "Someone eats.", "label": "entailment"
    }  # fmt: skip
    assert corpus.rows("nli/pairs") == 1  # what contrastive objectives read is made of it
    with pytest.raises(InputError, match=r"train\.parquet: the table nli/train is there; replace it with --force"):
        import_table(nli(tmp_path), "nli", tmp_path / "data", columns=COLUMNS, labels=LABELS)
    again = import_table(nli(tmp_path), "nli", tmp_path / "data", columns=COLUMNS, labels=LABELS, force=True)
    assert corpus.rows("nli/train") == again["rows_written"] == 4


def test_every_kind_becomes_the_table_that_is_read(tmp_path: Path) -> None:
    data, rows = tmp_path / "data", [{"a": f"one {i}", "b": f"two {i}", "c": f"three {i}", "n": i} for i in range(3)]
    file = lines(tmp_path / "mine.jsonl", rows)

    def table(kind: str, columns: str, **options: Any) -> str:
        wanted = dict(item.split("=") for item in columns.split(","))
        return str(import_table(file, kind, data, columns=wanted, **options)["table"])

    assert table("triplets", "anchor=a,positive=b,negative=c") == "nli/triplets"
    assert table("triplets", "anchor=a,positive=b") == "nli/pairs"  # without negatives
    assert table("pairs", "sentence1=a,sentence2=b,score=n") == "tests/mine"
    assert table("pairs", "sentence1=a,sentence2=b,score=n", name="sts/stsb_dev") == "sts/stsb_dev"
    lines(file, [*rows[:2], {**rows[2], "title": "Third"}])
    assert table("retrieval", "doc_id=n,text=a", name="faq") == "retrieval/faq/corpus"
    assert table("retrieval", "query_id=n,text=b", name="faq") == "retrieval/faq/queries"
    assert table("retrieval", "query_id=n,doc_id=n,score=n", name="faq") == "retrieval/faq/qrels"
    corpus = Corpus(data)
    corpus.check(corpus.tables())
    assert {"tests/mine", "nli/pairs", "retrieval/faq/qrels"} <= {*corpus.tables()}
    assert corpus.read("retrieval/faq/corpus").column("title").to_pylist() == [None, None, "Third"]
    assert corpus.read("nli/pairs").column("negative").to_pylist() == [None] * 3

    prose = lines(tmp_path / "prose.jsonl", [{"text": "Dr. Who came. He left! Why?"}, {"text": None}])
    import_table(prose, "sentences", data, columns={"sentence": "text"}, split=True)
    written = pq.read_table(data / "wikipedia" / "sentences.parquet").column("sentence").to_pylist()
    assert written == ["Dr. Who came.", "He left!", "Why?"]


def test_documents_of_one_text_or_title_are_no_duplicates(tmp_path: Path) -> None:
    texts = {"1": None, "2": None, "3": "same", "4": "same"}
    rows = [{"doc_id": doc_id, "title": f"no. {doc_id}", "text": text} for doc_id, text in texts.items()]
    found = import_table(lines(tmp_path / "faq.jsonl", [*rows, rows[3]]), "retrieval", tmp_path / "data", drop=True)
    assert (found["rows_written"], found["exact_duplicates"]) == (4, 1)


def pairs(score: str) -> dict[str, Any]:
    return {"columns": {"sentence1": "q", "sentence2": "a", "score": score}}


@pytest.mark.parametrize(("kind", "options", "message"), [
    ("nli", {"columns": COLUMNS}, r"row 0 \(line 1\), column 'gold': unknown label 'ent'; map it with --labels=ent="),
    ("nli", {"columns": {**COLUMNS, "label": "gld"}}, "'gld' is missing.*did you mean 'gold'.*--columns label="),
    ("nli", {"columns": {**COLUMNS, "label": "three"}}, r"column 'three': unknown label 3; map it with --labels=3="),
    ("nli", {"columns": {"premis": "q"}}, "no column of nli/train, .*did you mean 'premise'"),
    ("nli", {"columns": COLUMNS, "labels": {"ent": "yes"}}, "--labels ent=yes: must be one of entailment"),
    ("pairs", pairs("gold"), "column 'gold': 'ent' must be a finite number"),
    ("pairs", pairs("n"), "'1_0' must be a finite number"),
    ("pairs", pairs("none"), r"row 0 \(line 1\), column 'none': null or missing; every row needs a value"),
    ("pairs", pairs("yes"), "True must be a finite number"),
    ("pairs", {"columns": COLUMNS}, "no column of tests/mine"),
    ("pairs", {"columns": COLUMNS, "name": "STSb"}, "--name 'STSb': is the name of a public task"),
    ("pairs", {"columns": COLUMNS, "name": "a b"}, "--name 'a b': has up to 100 letters"),
    ("pairs", {**pairs("one"), "labels": LABELS}, "--labels: tests/mine has no labels"),
    ("pairs", {**pairs("one"), "split": True}, "--split-sentences: cuts the texts of --as sentences alone"),
    ("sentences", {"columns": {"sentence": "a"}, "name": "x"}, "--name 'x': sentences become the table wikipedia"),
    ("sentences", {"columns": {"sentence": "a"}, "name": "nli/train"}, "must be a canonical table with the columns sent"),
    ("sentences", {"columns": {"sentence": "none"}}, r"no row can be used \(6 read, 6 empty\)"),
    ("retrieval", {"columns": {"text": "a"}}, "say with them which table of the retrieval set"),
    ("retrieval", {"columns": {"doc_id": "gold", "text": "a"}},
        r"1 values of doc_id are there several times \(the first: 'con'\); each may be there once, remove"),
    ("retrieval", {"columns": {"query_id": "q", "text": "a"}, "drop": True}, "1 values of query_id are .*: 'A man eat"),
    ("retrieval", {"columns": {"query_id": "q", "doc_id": "gold", "score": "one"}},
        "1 values of query_id and doc_id are .*: 'A man eats.' and 'con'"),
    ("retrieval", {"columns": {"query_id": "q", "doc_id": "a", "score": "half"}}, "'half': 0.5 must be a whole number"),
    ("sentence", {}, r"--as 'sentence': must be one of .*did you mean 'sentences'"),
])  # fmt: skip
def test_refused_and_nothing_is_written(tmp_path: Path, kind: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        import_table(nli(tmp_path), kind, tmp_path / "data", **options)
    assert not list((tmp_path / "data").rglob("*"))


@pytest.mark.parametrize("rows", [2, 6, 9])
def test_a_file_that_changes_meanwhile_is_no_table(tmp_path: Path, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    file = lines(tmp_path / "mine.jsonl", [{"sentence": f"one {i}"} for i in range(6)])
    read = readers.rows_of

    def changed(*of: Any) -> Any:
        yield from read(*of)
        lines(file, [{"sentence": f"two {i}"} for i in range(rows)])

    monkeypatch.setattr("raysts.data.importing.readers.rows_of", changed)
    with pytest.raises(RunFailed, match="mine.jsonl: was changed while it was read"):
        import_table(file, "sentences", tmp_path / "data")
    assert not list((tmp_path / "data").rglob("*.parquet"))


@pytest.mark.parametrize("label", [-1, "-", "not sure"])
def test_what_the_message_about_a_label_says_can_be_typed(label: Any, tmp_path: Path) -> None:
    rows = [{"premise": "a", "hypothesis": "b", "label": label}, {"premise": "a", "hypothesis": "c", "label": 0}]
    file = lines(tmp_path / "mine.jsonl", rows)
    with pytest.raises(InputError) as caught:
        import_table(file, "nli", tmp_path / "data")
    *_, option = shlex.split(str(caught.value).rpartition(" with ")[2])
    _, typed, _ = parser.parse(["data", "import", str(file), "--as", "nli", "--data", "d", option])
    assert import_table(file, "nli", tmp_path / "data", labels=typed["labels"])["left_out"] == 1


def test_check_names_what_nothing_reads(tmp_path: Path) -> None:
    data = tmp_path / "my data"
    data.mkdir()
    import_table(nli(data), "nli", data, columns=COLUMNS, labels=LABELS)
    (data / "notes.bin").write_bytes(b"x")
    scored = lines(data / "scored.jsonl", [{"sentence1": "a", "sentence2": "b", "score": 1}])
    found = {entry["file"]: entry for entry in check(data)["unused"]}
    assert set(found) == {"mine.jsonl", "notes.bin", "scored.jsonl"}
    assert found["scored.jsonl"]["command"] == f"raysts data import '{scored}' --as pairs --data '{data}'"
    assert found["notes.bin"]["why"] == "no format of a table"
