"""Users' files: every format through every door (text, judges, import), and what each door refuses."""

import csv
import gzip
import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raysts.commands.data import import_table
from raysts.data import readers
from raysts.data.user import UserData, UserRows, UserText, open_pairs, open_text
from raysts.errors import InputError

TEXTS = ["A first, text", "", 'He said "no"', "A first, text", "  ", "Über uns"]
PAIRS = {"sentence1": ["one, two", "Über"], "sentence2": ['"b"', "c"], "score": [-3.5, 7.0], "other": ["x", "y"]}
FORMATS = [".parquet", ".csv", ".tsv", ".jsonl", ".csv.gz", ".jsonl.gz"]


def write(path: Path, columns: dict[str, list[Any]]) -> Path:
    """Write columns in the format that the name asks for; of plain lines the last one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = list(zip(*columns.values(), strict=True))
    if path.suffix == ".parquet":
        pq.write_table(pa.table(columns), path)
        return path
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "wt", encoding="utf-8", newline="") as file:  # type: ignore[operator]
        if ".csv" in path.suffixes:
            csv.writer(file).writerows([[*columns], *rows])
        elif ".tsv" in path.suffixes:
            file.writelines("\t".join(map(str, row)) + "\n" for row in [[*columns], *rows])
        elif ".jsonl" in path.suffixes:
            file.writelines(json.dumps(dict(zip(columns, row, strict=True))) + "\n" for row in rows)
        else:
            file.writelines(f"{row[-1]}\n" for row in rows)
    return path


def saved(folder: Path, columns: dict[str, list[Any]]) -> Path:
    import datasets

    datasets.Dataset.from_dict(columns).save_to_disk(folder / "saved")
    return folder / "saved"


def texts_of(text: UserText) -> list[str]:
    return [value for batch in text.batches() for value in batch.column("sentence").to_pylist()]


@pytest.mark.parametrize("name", [*(f"t{suffix}" for suffix in FORMATS), "t.txt", "t.txt.gz", "in/a/t.csv", "saved"])
def test_texts_are_the_same_in_every_format(tmp_path: Path, name: str) -> None:
    columns = {"id": [*range(len(TEXTS))], "body": TEXTS}
    where = saved(tmp_path, columns) if name == "saved" else write(tmp_path / name, columns)
    text = open_text(tmp_path / "in" if name.startswith("in/") else where, None if ".txt" in name else "body")
    assert texts_of(text) == [t for t in TEXTS if t.strip()]
    assert (text.rows, text.scan.empty, text.scan.repeated) == (4, 2, 1)
    assert text.title == {"in/a/t.csv": "in", "saved": "saved"}.get(name, "t")
    assert text.fingerprint == open_text(write(tmp_path / "other/name.jsonl", columns), "body").fingerprint
    assert text.fingerprint != open_text(write(tmp_path / "turned.txt", {"t": TEXTS[::-1]}), None).fingerprint
    named = {} if ".txt" in name else {"columns": {"sentence": "body"}}
    assert import_table(where, "sentences", tmp_path / "data", **named)["rows_written"] == 4
    assert pq.read_table(tmp_path / "data/wikipedia/sentences.parquet").column(0).to_pylist() == texts_of(text)


def test_a_set_of_the_hub_is_read_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For ``datasets`` a folder of that name, below the working directory, is one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(tmp_path / "cache"))
    for library in ("huggingface_hub.constants", "datasets.config"):
        monkeypatch.setattr(f"{library}.HF_HUB_OFFLINE", True)
    here = open_text(write(tmp_path / "owner/docs/train.jsonl", {"id": [*range(len(TEXTS))], "body": TEXTS}), "body")
    text = UserData.of(text="hf://owner/docs", column="body").open()["wikipedia/sentences"]
    assert (text.title, text.fingerprint, text.scan) == ("docs", here.fingerprint, here.scan)
    assert texts_of(text) == texts_of(here)
    with pytest.raises(InputError, match="hf://owner/nothing: the data set cannot be read .*check its name"):
        open_text("hf://owner/nothing", "body")
    with pytest.raises(InputError, match="hf://owner/docs: column 'bodi' is missing .*did you mean 'body'"):
        open_text("hf://owner/docs", "bodi")


@pytest.mark.parametrize("suffix", FORMATS)
def test_pairs_are_the_same_in_every_format(tmp_path: Path, suffix: str) -> None:
    found = open_pairs(write(tmp_path / f"a{suffix}", PAIRS), "--test")
    canonical = {name: PAIRS[name] for name in ("sentence1", "sentence2", "score")}
    assert found.table.to_pydict() == canonical and found.title == "a"

    def print_of(**columns: list[Any]) -> str:
        return open_pairs(write(tmp_path / "b.jsonl", PAIRS | columns), "--test").fingerprint

    assert found.fingerprint == print_of() != print_of(score=[-3.5, 7.5])
    assert len({print_of(), print_of(subset=["", None]), print_of(subset=["one", "two"])}) == 2
    shifted = [print_of(sentence1=[a, "b"], sentence2=[b, "d"]) for a, b in (("a", "bc"), ("ab", "c"))]
    assert shifted[0] != shifted[1]
    import_table(tmp_path / f"a{suffix}", "pairs", tmp_path / "data")
    assert pq.read_table(tmp_path / "data/tests/a.parquet").to_pydict() == canonical


def parquet_of(*columns: list[str]) -> bytes:
    """A file of columns of one name."""
    pq.write_table(pa.table([*columns], names=["body"] * len(columns)), file := io.BytesIO())
    return file.getvalue()


HOSTILE: list[tuple[str, bytes, str]] = [
    ("t.csv", b"id,body\n1,a,b\n", "line 2 has 3 fields, the header 2"),
    ("t.csv", b"body,id,body\na,1,b\n", "has 2 columns 'body'"),
    ("t.csv", b'body\n"a\n', "line [12]: .*correct the quoting"),
    ("t.csv", "body\nÜ\n".encode("latin-1"), "not UTF-8 text .* .'iconv -f cp1252 -t utf-8'"),
    ("t.tsv", b"id\tbody\n1\ta\tb\n", "line 2 has 3 fields"),
    ("t.jsonl", b'{"body": "a"}\n{broken\n', "line 2 is not JSON"),
    ("t.jsonl", b"[1]\n", "line 1 is not an object"),
    ("t.jsonl", b'{"body": "\\ud800 a"}\n', "line 1 is not JSON .*surrogates not allowed"),
    ("t.jsonl", b'{"body": 5}\n', r"row 0 \(line 1\), column 'body': 5; every row needs a text"),
    ("t.parquet", b"PAR1", "not a readable Parquet file"),
    ("twice.parquet", parquet_of(["a"], ["b"]), "has 2 columns 'body'"),
    ("t.csv.gz", b"id,body\n", "cannot be read to its end"),
    ("t.docx", b"a", "unknown format '.docx'"),
]


@pytest.mark.parametrize(("name", "content", "message"), HOSTILE)
@pytest.mark.parametrize("door", ["text", "import"])  # pairs: test_user.py
def test_one_message_names_the_fault(door: str, name: str, content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=message) as refused:
        if door == "text":
            open_text(tmp_path / name, "body")
        else:
            import_table(tmp_path / name, "sentences", tmp_path / "data", columns={"sentence": "body"})
    assert name in str(refused.value) and not (tmp_path / "data" / "wikipedia").exists()


@pytest.mark.parametrize(("name", "content", "column", "message"), [
    ("t.csv", "id,body\n1,a\n", "bodi", r"'bodi' is missing \(columns found: id, body\) \(did you mean 'body'"),
    ("t.csv", "id;body\n1;a\n", "body", "'body' is missing .* has ';' between its columns. Save the file with commas"),
    ("t.csv", "id,body\n1,a\n", None, "--column NAME .* there are: id, body"),
    ("t.csv", "id,body\n", "body", "holds no text"),
    ("t.csv", "body\n\n \n", "body", "holds no text .1 empty rows"),
    ("t.csv", "id,body\n1,a\n2, a\n", "body", "all 2 rows hold the same text .'a'.; --column must name"),
    ("t.txt", "ab\0cd\n", None, "line 1 holds a zero byte"),
    ("t.txt", "a\n", "body", "no column 'body'"),
])  # fmt: skip
def test_text_that_is_refused(tmp_path: Path, name: str, content: str, column: str | None, message: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=message):
        open_text(tmp_path / name, column)


def test_a_column_of_the_usual_name_need_not_be_said(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    for name in ("text", "sentence"):
        path.write_text(f"id,{name},title\n1,a,c\n2,b,d\n")
        assert open_text(path, None).fingerprint == open_text(path, name).fingerprint
    path.write_text("sentence,text\nc,a\nd,b\n")
    assert open_text(path, None).fingerprint == open_text(path, "text").fingerprint


def test_a_line_of_json_may_lack_a_value(tmp_path: Path) -> None:
    """The first line too: columns are those of all lines."""
    (path := tmp_path / "t.jsonl").write_text('{"body": "a"}\n{"body": "b", "other": "c"}\n')
    with pytest.raises(InputError, match="--column NAME .* there are: body, other"):
        open_text(path, None)
    assert open_text(path, "body").rows == 2
    path.write_text('{"other": "c"}\n{"body": "b"}\n')  # as Spark writes a null
    assert (open_text(path, "body").rows, open_text(path, "body").scan.empty) == (1, 1)


def test_parts_that_are_empty_or_hidden_are_no_text(tmp_path: Path) -> None:
    columns = {"body": TEXTS}
    whole = open_text(write(tmp_path / "in/docs.csv", columns).parent, "body").fingerprint
    (tmp_path / "in" / "part-0.csv").touch()
    pq.write_table(pa.table({"body": pa.nulls(0)}), tmp_path / "in" / "part-1.parquet")
    write(tmp_path / "in/.ipynb_checkpoints/docs-checkpoint.csv", columns)
    assert open_text(tmp_path / "in", "body").fingerprint == whole


@pytest.mark.parametrize("name", ["t.txt.gz", "t.csv"])
def test_a_line_that_would_fill_the_memory(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "LONGEST", 1000)
    write(tmp_path / name, {"body": ["short", "x" * 999, "x" * 10**6]})
    with pytest.raises(InputError, match="line [23] has 1,000 characters or more"):
        open_text(tmp_path / name, "body" if ".txt" not in name else None)


def test_a_saved_data_set_that_changes_or_is_torn(tmp_path: Path) -> None:
    place = saved(tmp_path, {"body": TEXTS})
    before = open_text(place, "body").fingerprint
    other = saved(tmp_path / "new", {"body": ["other", "texts"]})
    for file in other.iterdir():  # in place: the folder's own time stays
        (place / file.name).write_bytes(file.read_bytes())
    text = open_text(place, "body")
    assert text.fingerprint != before and texts_of(text) == ["other", "texts"]
    (arrow,) = place.glob("*.arrow")
    content = bytearray(arrow.read_bytes())
    content[content.index(b"other")] = 0xFF
    arrow.write_bytes(content)
    with pytest.raises(InputError, match="cannot be read to its end"):
        open_text(place, "body")


def test_a_file_of_pairs_that_changes_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, read = write(tmp_path / "a.csv", PAIRS), readers.csv.reader

    def changing(*of: Any, **options: Any) -> Any:
        path.write_text(path.read_text() + "a,b,1,c\n")
        return read(*of, **options)

    monkeypatch.setattr(readers.csv, "reader", changing)
    with pytest.raises(RuntimeError, match=f"{path}: was changed while it was read"):
        open_pairs(path, "--test")
    monkeypatch.undo()
    assert isinstance(open_pairs(path, "--test"), UserRows)


def test_a_torn_saved_set_gives_one_line_without_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages of libraries have many lines, and addresses with what lets a user in."""
    folder = saved(tmp_path / "saved", {"body": TEXTS})
    monkeypatch.setenv("HUB_TOKEN", "0123456789abcdef")
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": "0123456789abcdef.arrow"}]}))
    with pytest.raises(InputError, match=r"HUB_TOKEN") as refused:
        open_text(str(folder), "body")
    assert "0123456789abcdef" not in str(refused.value) and len(str(refused.value).splitlines()) == 1
