from __future__ import annotations

from pathlib import Path

import pytest

from raysts.errors import InputError
from raysts.evaluation.sts import load_pairs_file


def test_pairs_are_read_as_they_are(tmp_path: Path) -> None:
    """In any finite range, and each sentence once. Other formats: tests/data/test_readers.py."""
    path = tmp_path / "Mine.csv"
    path.write_text(
        'sentence1,sentence2,score\n"A man, walking","He said ""no""",-3.5\nÜber uns,"A man, walking",120\n'
    )
    pairs = load_pairs_file(path)
    assert pairs.name == "mine" and len(pairs.sha256) == 64 and pairs.gold.tolist() == [-3.5, 120.0]
    assert pairs.texts == ["A man, walking", "Über uns", 'He said "no"']
    assert (pairs.left.tolist(), pairs.right.tolist()) == ([0, 1], [2, 0])


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
