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
        ("x.csv", "sentence1,sentence_2,score\n", r"'sentence2' is missing.*did you mean 'sentence_2'"),
        ("x.csv", "", "no rows"),
        ("x.csv", "sentence1,sentence2,score\n", "no rows"),
        ("x.tsv", 'sentence1\tsentence2\tscore\na\t"b\t1\na\tc\t1\n', "all|1 distinct score"),
        ("x.jsonl", '{"sentence1": "a", "sentence2": 5, "score": true}\n', r"row 0 \(line 1\), column 'sentence2': 5;"),
        ("x.jsonl", '{"sentence1": "a", "sentence2": "b", "score": true}\n', "True must be a finite number"),
    ],
)
def test_files_that_cannot_be_used(tmp_path: Path, name: str, content: str, message: str) -> None:
    """As pairs; as files of any kind: HOSTILE in tests/data/test_readers.py, whose reader this is."""
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=message):
        load_pairs_file(tmp_path / name)
