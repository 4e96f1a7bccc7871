import re
import subprocess
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from evaluation_fakes import row

from raysts.errors import InputError
from raysts.evaluation import results
from raysts.schema import RESULTS


def read(storage: Path) -> list[dict[str, Any]]:
    return [part for path in sorted((storage / "results").glob("[!.]*.parquet")) for part in results.read_rows(path)]


def test_written_rows_come_back_and_a_part_is_replaced_by_its_name(tmp_path: Path) -> None:
    first = [row("nli", "member", "sts12", 0.5, parent_run_ids=["p", "q"], member=0, n=10, transductive=False)]
    path = results.write(tmp_path, "run-1", [row("nli", "member", "sts12", 0.1)] * 3)
    assert results.write(tmp_path, "run-1", first) == path == tmp_path / "results" / "run-1.parquet"
    results.write(tmp_path, "gausscse-ent+con+rev.v2", [row("ct", "student", "stsb", 0.7)])
    assert read(tmp_path) == [row("ct", "student", "stsb", 0.7), *first]
    assert sorted(p.name for p in path.parent.glob("[!.]*")) == ["gausscse-ent+con+rev.v2.parquet", "run-1.parquet"]


def test_a_writer_that_fails_leaves_the_earlier_part(tmp_path: Path) -> None:
    results.write(tmp_path, "a", [row("nli", "member", "sts12", 0.5)])
    with pytest.raises(pa.ArrowException):
        results.write(tmp_path, "a", [row("nli", "member", "sts12", 0.5, member="three")])
    with pytest.raises(AssertionError, match="colour"):
        results.write(tmp_path, "a", [{"colour": 1}])
    assert len(read(tmp_path)) == 1 and len(list((tmp_path / "results").glob("[!.]*"))) == 1


def test_older_parts_lack_columns_newer_ones_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "key=value" / "results"
    folder.mkdir(parents=True)
    columns = {"dataset": pa.array(["sts12"], pa.large_string()), "value": [1], "old": [2]}
    pq.write_table(pa.table(columns), folder / "x.parquet")
    (folder / ".aside-y.parquet").write_text("half written")
    (old,) = read(tmp_path / "key=value")
    assert [*old] == RESULTS.names
    assert {k: v for k, v in old.items() if v is not None} == {"dataset": "sts12", "value": 1.0}
    results.write(tmp_path / "key=value", "new", [row("a", "member", "sts12", 0.1, schema_version=99)])
    with pytest.raises(InputError, match="schema version 99"):
        read(tmp_path / "key=value")
    (folder / "new.parquet").write_text("broken")
    assert len(read(tmp_path / "key=value")) == 1 and (folder / "new.parquet.damaged").exists()
    (folder / "other.parquet").write_text("broken by others")
    with pytest.raises(InputError, match=r"other\.parquet: not a readable part"):
        read(tmp_path / "key=value")


@pytest.mark.parametrize("kind", ["packed", "detached", "worktree"])
def test_the_commit_is_read_without_git(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As git says it, from what a clone of any kind holds; a machine that runs it may have no git."""
    tree = tmp_path / "tree"

    def git(*arguments: str) -> str:
        command = ["git", "-c", "user.name=a", "-c", "user.email=a@b.c", *arguments]
        return subprocess.run(command, cwd=tree, capture_output=True, text=True, check=True).stdout.strip()

    tree.mkdir()
    git("init", "-q", "-b", "some/branch")
    assert results.commit_of(tree) is None
    for number in "12":
        git("commit", "-q", "--allow-empty", "-m", number)
        assert results.commit_of(tree) == git("rev-parse", "HEAD")
    if kind == "packed":
        git("branch", "other", "HEAD~1")
        git("pack-refs", "--all")
    if kind == "detached":
        git("checkout", "-q", "HEAD~1")
    if kind == "worktree":
        git("worktree", "add", "-q", "-b", "beside", str(tmp_path / "beside"), "HEAD~1")
        tree = tmp_path / "beside"
    commit = git("rev-parse", "HEAD")
    monkeypatch.setenv("PATH", "")
    assert results.commit_of(tree) == commit
    monkeypatch.delenv("RAYSTS_COMMIT", raising=False)
    assert re.fullmatch(r"[0-9a-f]{40}|sources-[0-9a-f]{12}", results.git_commit())
    monkeypatch.setenv("RAYSTS_COMMIT", "said")
    assert results.git_commit() == "said"
