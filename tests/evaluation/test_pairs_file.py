from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raysts.errors import InputError
from raysts.evaluation.sts import load_pairs_file

ROWS = [
    {"sentence1": "A man, walking", "sentence2": 'He said "no"', "score": -3.5, "note": "x"},
    {"sentence1": "Über uns", "sentence2": "A man, walking", "score": 120.0, "note": "y"},
    {"sentence1": "One\nline more", "sentence2": "Third", "score": 7, "note": "z"},
]


def write(folder: Path, suffix: str, rows: list[dict]) -> Path:
    path = folder / f"Mine{suffix}"
    if suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist([{**row, "score": float(row["score"])} for row in rows]), path)
    elif suffix == ".jsonl":
        path.write_text("\n".join(json.dumps(row) for row in rows) + "\n\n", encoding="utf-8")
    else:
        import csv

        with path.open("w", encoding="utf-8-sig" if suffix == ".csv" else "utf-8", newline="") as file:
            if suffix == ".csv":
                writer = csv.DictWriter(file, list(rows[0]))
                writer.writeheader()
                writer.writerows(rows)
            else:
                file.write("\t".join(rows[0]) + "\n")
                file.writelines("\t".join(str(value) for value in row.values()) + "\n" for row in rows)
    return path


@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".tsv", ".jsonl"])
def test_formats_agree(tmp_path: Path, suffix: str) -> None:
    rows = [{**row, "sentence1": row["sentence1"].replace("\n", " ")} for row in ROWS] if suffix == ".tsv" else ROWS
    pairs = load_pairs_file(write(tmp_path, suffix, rows))
    assert pairs.name == "mine" and len(pairs.sha256) == 64
    assert [pairs.texts[i] for i in pairs.left] == [row["sentence1"] for row in rows]
    assert [pairs.texts[i] for i in pairs.right] == [row["sentence2"] for row in rows]
    assert pairs.gold.tolist() == [-3.5, 120.0, 7.0]
    assert len(pairs.texts) == 5


def test_bad_rows_are_named_together(tmp_path: Path) -> None:
    path = tmp_path / "bad.csv"
    path.write_text('sentence1,sentence2,score\n"two\nlines",b,1\n,b,2\na,b,high\na,b,nan\na,b,"1,5"\nc,d,1_000\n')
    with pytest.raises(InputError) as caught:
        load_pairs_file(path)
    assert [problem.split("':")[0].removeprefix(str(path)) for problem in caught.value.problems] == [
        ": row 1 (line 4), column 'sentence1",
        ": row 2 (line 5), column 'score",
        ": row 3 (line 6), column 'score",
        ": row 4 (line 7), column 'score",
        ": row 5 (line 8), column 'score",
    ]
    assert "'high' must be a finite number" in caught.value.problems[1]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.txt", "a", "unknown format '.txt'"),
        ("x.csv", "sentence1,sentence_2,score\n", r"'sentence2' is missing.*did you mean 'sentence_2'"),
        ("x.csv", "", "no rows"),
        ("x.csv", "sentence1,sentence2,score\n", "no rows"),
        ("x.csv", "sentence1,sentence2,score\na,b,1\na,b,c,2\n", "line 3 has 4 fields, the header 3"),
        ("x.csv", 'sentence1,sentence2,score\na,"b,1\n', "line 3?2?: .*quot"),
        ("x.tsv", 'sentence1\tsentence2\tscore\na\t"b\t1\na\tc\t1\n', "all|1 distinct score"),
        ("x.jsonl", '{"sentence1": "a", "sentence2": "b", "score": 1}\n{broken\n', "line 2 is not JSON"),
        ("x.jsonl", "[1, 2]\n", "line 1 is not an object"),
        ("x.jsonl", '{"sentence1": "a", "sentence2": 5, "score": true}\n', r"row 0 \(line 1\), column 'sentence2': 5;"),
        ("x.jsonl", '{"sentence1": "a", "sentence2": "b", "score": true}\n', "True must be a finite number"),
        ("x.parquet", "not parquet", "not a readable Parquet file"),
    ],
)
def test_files_that_cannot_be_used(tmp_path: Path, name: str, content: str, message: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=message):
        load_pairs_file(tmp_path / name)


def test_missing_file_and_wrong_encoding(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        load_pairs_file(tmp_path / "absent.csv")
    (tmp_path / "latin.csv").write_bytes("sentence1,sentence2,score\nÜ,b,1\n".encode("latin-1"))
    with pytest.raises(InputError, match="not UTF-8"):
        load_pairs_file(tmp_path / "latin.csv")
