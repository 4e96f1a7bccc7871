from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raysts.errors import InputError
from raysts.evaluation import results
from raysts.schema import RESULTS


def row(system: str, role: str, dataset: str, value: float, **columns: Any) -> dict[str, Any]:
    given = {
        "schema_version": 1, "system": system, "role": role, "dataset": dataset, "value": value, "metric": "spearman",
        "aggregation": "all", "split": "test", "rows": "all", "pooling": "mean", "layers": "2", "similarity": "cosine",
        "created_at": "2026-01-01T00:00:00+00:00", "run_id": system + role,
    }  # fmt: skip
    return dict.fromkeys(RESULTS.names) | given | columns


def test_written_rows_come_back_and_a_part_is_replaced_by_its_name(tmp_path: Path) -> None:
    first = [row("nli", "member", "sts12", 0.5, parent_run_ids=["p", "q"], member=0, n=10, transductive=False)]
    path = results.write(tmp_path, "run-1", [row("nli", "member", "sts12", 0.1)] * 3)
    assert results.write(tmp_path, "run-1", first) == path == tmp_path / "results" / "run-1.parquet"
    results.write(tmp_path, "gausscse-ent+con+rev.v2", [row("ct", "student", "stsb", 0.7)])
    table = results.read(tmp_path)
    assert table.schema == RESULTS
    assert table.to_pylist() == [row("ct", "student", "stsb", 0.7), *first]
    assert sorted(p.name for p in path.parent.glob("[!.]*")) == ["gausscse-ent+con+rev.v2.parquet", "run-1.parquet"]


def test_a_writer_that_fails_leaves_the_earlier_part(tmp_path: Path) -> None:
    results.write(tmp_path, "a", [row("nli", "member", "sts12", 0.5)])
    with pytest.raises(pa.ArrowException):
        results.write(tmp_path, "a", [row("nli", "member", "sts12", 0.5, member="three")])
    with pytest.raises(AssertionError, match="colour"):
        results.write(tmp_path, "a", [{"colour": 1}])
    assert results.read(tmp_path).num_rows == 1
    assert len(list((tmp_path / "results").glob("[!.]*"))) == 1


def test_an_empty_storage_has_an_empty_table(tmp_path: Path) -> None:
    assert results.read(tmp_path).num_rows == 0 and results.read(tmp_path).schema == RESULTS
    assert results.format_table(results.summary(results.read(tmp_path)))


def test_older_parts_lack_columns_newer_ones_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "key=value" / "results"
    folder.mkdir(parents=True)
    pq.write_table(
        pa.table({"dataset": pa.array(["sts12"], pa.large_string()), "value": [1], "old": [2]}), folder / "x.parquet"
    )
    (folder / ".aside-y.parquet").write_text("half written")
    table = results.read(tmp_path / "key=value")
    assert table.schema == RESULTS
    assert {k: v for k, v in table.to_pylist()[0].items() if v is not None} == {"dataset": "sts12", "value": 1.0}
    results.write(tmp_path / "key=value", "new", [row("a", "member", "sts12", 0.1, schema_version=99)])
    with pytest.raises(InputError, match="schema version 99"):
        results.read(tmp_path / "key=value")
    (folder / "new.parquet").write_text("broken")
    assert results.read(tmp_path / "key=value").num_rows == 1 and (folder / "new.parquet.damaged").exists()
    (folder / "other.parquet").write_text("broken by others")
    with pytest.raises(InputError, match=r"other\.parquet: not a readable part"):
        results.read(tmp_path / "key=value")


def example() -> list[dict[str, Any]]:
    rows = []
    for layers, shift in (("2", 0.0), ("1", -0.1)):
        for member, value in enumerate((0.70, 0.72, 0.77)):
            own = {"member": member, "run_id": f"m{member}", "layers": layers}
            rows += [row("nli-sed", "member", "sts12", value + shift, **own)]
            rows += [row("nli-sed", "member", "stsb", value + shift + 0.1, **own)]
        rows += [row("nli-sed", "student", name, 0.8 + shift, layers=layers) for name in ("sickr-all", "stsb", "sts12")]
        rows += [row("nli-sed", "backbone", "sts12", 0.3, layers=layers)]
    # What the table must not show.
    rows += [
        row("nli-sed", "student", "sts12", 0.0, split="dev"),
        row("nli-sed", "student", "sts12", 0.0, rows="clean"),
    ]
    rows += [row("nli-sed", "student", "sts12", 0.0, metric="pearson")]
    rows += [row("nli-sed", "student", "sts12", 0.0, aggregation=None, subset="x")]
    # A value measured earlier for the same run.
    rows += [row("nli-sed", "student", "sts12", 0.1, created_at="2025-12-31T00:00:00+00:00")]
    return rows


def test_summary(tmp_path: Path) -> None:
    results.write(tmp_path, "x", example())
    for rows in (example(), results.read(tmp_path)):
        table = results.summary(rows)
        assert table.datasets == ("sts12", "stsb", "sickr-all")
        assert [(line.layers, line.role) for line in table.lines] == [
            (layers, role) for layers in ("1", "2") for role in ("backbone", "member", "student")
        ]
        backbone, members, student = table.lines[3:]
        assert members.cells["sts12"].mean == pytest.approx(0.73)
        assert members.cells["sts12"].std == pytest.approx(0.0013**0.5)  # deviations -.03 -.01 .04, ddof 1
        assert members.cells["sts12"].n == 3
        assert members.average.mean == pytest.approx(0.78) and members.average.n == 3
        assert student.cells["sts12"] == results.Cell(0.8, None, 1)
        assert student.average.mean == pytest.approx(0.8)
        assert backbone.cells.keys() == {"sts12"} and backbone.average is None


def test_systems_studies_and_trials_are_kept_apart() -> None:
    rows = [
        row(s, "member", "sts12", 0.5, study=t, trial=u)
        for s, t, u in (("a", None, None), ("b", "s", "1"), ("b", "s", "2"))
    ]
    assert [(line.system, line.trial, line.cells["sts12"].n) for line in results.summary(rows).lines] == [
        ("a", None, 1),
        ("b", "1", 1),
        ("b", "2", 1),
    ]


def test_layers_are_ordered_as_numbers() -> None:
    rows = [row("a", "member", "sts12", 0.5, layers=layers) for layers in ("12", "2", "1")]
    assert [line.layers for line in results.summary(rows).lines] == ["1", "2", "12"]


def test_formatted_table() -> None:
    text = results.format_table(results.summary([r for r in example() if r["layers"] == "2"]))
    assert text.splitlines() == [
        "spearman, all, x100",
        "system   role        pooling  layers  similarity        sts12         stsb  sickr-all          avg",
        "-" * 98,
        "nli-sed  backbone    mean     2       cosine            30.00",
        "nli-sed  member (3)  mean     2       cosine      73.00 ±3.61  83.00 ±3.61             78.00 ±3.61",
        "nli-sed  student     mean     2       cosine            80.00        80.00      80.00        80.00",
    ]


def test_metrics_without_aggregation_have_tables_of_their_own() -> None:
    accuracy = {"metric": "accuracy", "aggregation": None, "similarity": None}
    rows = [row("a", "member", "sts12", 0.7), row("a", "member", "mr", 0.8, split="cv", **accuracy)]
    rows += [row("a", "member", "trec", 0.9, **accuracy), row("a", "member", "trec", 0.1, subset="x", **accuracy)]
    assert results.format_results(rows[:1]) == results.format_table(results.summary(rows))
    first, second = results.format_results(rows).split("\n\n")
    assert first == results.format_table(results.summary(rows))
    assert second.splitlines() == [
        "accuracy, x100",
        "system  role    pooling  layers  similarity     mr   trec",
        "-" * 57,
        "a       member  mean     2       -           80.00  90.00",
    ]
    assert results.format_results([]) == results.format_table(results.summary([]))


@pytest.mark.parametrize("kind", ["branch", "packed", "detached", "worktree"])
def test_the_commit_is_read_without_git(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As git says it, from what a clone of any kind holds; a machine that runs it may have no git."""
    tree = tmp_path / "tree"

    def git(*arguments: str) -> str:
        who = ("-c", "user.name=a", "-c", "user.email=a@b.c")
        return subprocess.run(
            ["git", *who, *arguments], cwd=tree, capture_output=True, text=True, check=True
        ).stdout.strip()

    tree.mkdir()
    git("init", "-q", "-b", "some/branch")
    assert results.commit_of(tree) is None
    for number in "12":
        git("commit", "-q", "--allow-empty", "-m", number)
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
