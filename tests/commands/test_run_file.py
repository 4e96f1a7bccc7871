"""A run as a file: the same ids as from the command and from Python, and messages that name the line to change."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
import yaml
from run_commands import plan_of, result, write_csv
from run_commands import raysts as command

import raysts
from raysts.data.corpora import Corpus
from raysts.errors import InputError
from raysts.recipes.names import pipeline
from raysts.recipes.overrides import load_pipeline


@pytest.fixture
def own(tmp_path: Path, small_corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> Path:
    """docs.csv and pairs.csv in the current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RAYSTS_DATA", raising=False)
    texts = small_corpus.read("wikipedia/sentences").column("sentence").to_pylist()[:200]
    pairs = small_corpus.read("sts/stsb_test").select(["sentence1", "sentence2", "score"]).to_pylist()[:40]
    for name, rows in (("docs", [{"id": i, "body": text} for i, text in enumerate(texts)]), ("pairs", pairs)):
        write_csv(Path(f"{name}.csv"), rows)
    return tmp_path


def test_file_command_and_python_give_the_same_ids(own: Path, tiny_backbone: Path) -> None:
    """Five lines are a whole run; nested keys and dotted ones are the same."""
    Path("run.yaml").write_text(
        f"base: ct-sed@small\nbackbone: {tiny_backbone}\ntext: docs.csv\ncolumn: body\ntest: {{mine: pairs.csv}}\n"
        f"name: mine\nstorage: here\nct:\n  train: {{max_steps: 7}}\nsed.batch: 8\n"
    )
    settings = {"backbone": str(tiny_backbone), "ct.train.max_steps": 7, "sed.batch": 8}
    places = {"text": "docs.csv", "column": "body", "test": {"mine": "pairs.csv"}}
    words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    options = ["--text", "docs.csv", "--column", "body", "--test", "mine=pairs.csv", "--storage", "here"]
    by_file, *others = (
        result("plan", "run.yaml"), result("plan", "ct-sed@small", *words, *options), raysts.plan("run.yaml"),
        raysts.plan("ct-sed@small", settings, storage="here", **places),
    )  # fmt: skip
    ids = [node["id"] for node in by_file["nodes"]]
    for plan in others:
        assert [node["id"] for node in plan["nodes"]] == ids and plan["storage"] == by_file["storage"]
    other = raysts.plan("run.yaml", {"sed.batch": 16}, storage="there")  # the command replaces what the file names
    assert Path(other["storage"]).name == "there" and [node["id"] for node in other["nodes"]] != ids


@pytest.mark.whole
def test_a_run_file_runs_and_is_a_search_with_a_space(own: Path, tiny_backbone: Path) -> None:
    """Its places, the name among them, are those of the search. A distillation has its teachers and queries there."""
    small = f"backbone: {tiny_backbone}\ntext: docs.csv\ncolumn: body\nstorage: here\ntrain.max_steps: 2\n"
    tested = "name: mine\ntest: {mine: pairs.csv}\nevaluation.resamples: 4\n"
    Path("run.yaml").write_text(f"base: simcse-unsup\n{small}{tested}")
    done = result("run", "run.yaml", "--address", "none")
    assert done["name"] == "mine" and Path("here/pipelines/mine.json").is_file()
    assert {row["dataset"] for row in done["results"]} == {"mine"}
    Path("members.yaml").write_text(f"base: simcse-unsup\n{small}name: mine\nspace: {{optim.lr: [1.0e-5, 1.0e-4]}}\n")
    done = result("tune", "members.yaml", "--dev", "ours=pairs.csv", "--address", "none")
    assert (done["name"], done["trials"]) == ("mine", 2) and Path("here/studies/mine/study.json").is_file()
    Path("student.yaml").write_text(
        f"base: distill\n{small}queries: docs.csv\nqueries_column: body\nteachers: [{tiny_backbone}]\nsed.batch: 8\n"
    )
    done = result("tune", "student.yaml", "--set", "space.sed.optim.lr=1e-4", "--address", "none")
    assert done["trials"] == 1 and json.loads(Path("here/studies/distill/study.json").read_text())["own"]["queries"]


@pytest.mark.parametrize(("text", "says"), [
    ("backbone: tiny\n", ("'base' is missing", "base: ct-sed@small")), ("base: ct-sde\n", ("ct-sde", "did you mean")),
    ("base: ct-sed\nct:\n  trian: {max_steps: 3}\n", ("unknown option 'ct.trian.max_steps'", "ct.train.max_steps")),
    ("base: ct-sed\ntest: pairs.csv\n", ("test='pairs.csv'", "must be a mapping")),
    ("base: ct-sed\nname: 0123\n", ("name=83", "must be text", "in quotes")),
    ("base: ct-sed\ntest: {0123: pairs.csv}\n", ("test={83: 'pairs.csv'}", "must be text")),
    ("base: distill\nteachers: 5\n", ("model '5' is not there",)),
    ("base: ct-sed\n  x: [\n", ("cannot be read", "line 2")),
    ("base: ct-sed\ntxet: docs.csv\ncolumn: body\n", ("unknown key 'txet'", "did you mean 'text'")),
    ("", ("is empty", "raysts init")), ("base: ct-sed\nstorage: ''\n", ("storage=''", "is empty")),
])  # fmt: skip
def test_a_wrong_file_has_one_message(text: str, says: tuple[str, ...], own: Path) -> None:
    Path("run.yaml").write_text(text)
    refused = command("plan", "run.yaml")
    assert refused.code == 2 and all(words in refused.err for words in says), refused.err


def test_init_writes_a_file_for_the_data_that_is_there(own: Path, tiny_backbone: Path) -> None:
    Path("a.csv").write_bytes("id,body\n1,Straße\n".encode("cp1252"))
    outcome = command("init", "--backbone", tiny_backbone, "--json")
    assert outcome.code == 0 and "init: without a file that cannot be read. a.csv: not UTF-8" in outcome.err
    made = json.loads(outcome.out)
    assert (made["text"], made["column"], made["test"]) == ("docs.csv", "body", {"pairs": "pairs.csv"})
    plan = plan_of("run.yaml")
    assert plan.corpus.text is not None and plan.corpus.text.rows == 180 and [*plan.corpus.user.test] == ["pairs"]
    result("init", "student.yaml", "--base", "distill", "--backbone", tiny_backbone)
    student = plan_of("student.yaml")
    assert student.pipeline.teachers == (str(tiny_backbone),) and student.corpus.text is not None
    again = command("init")
    assert again.code == 2 and "exists and stays" in again.err
    Path("empty").mkdir()
    Path("empty/0123.csv").write_text("sentence1,sentence2,score\na,b,1\n")
    result("init", "new/2024.yaml", "--folder", "empty")
    named = yaml.safe_load(Path("new/2024.yaml").read_text())
    assert named["name"] == "2024" and [*named["test"]] == ["0123"]
    Path("empty/0123.csv").unlink()
    result("init", "other.yaml", "--folder", "empty")
    assert yaml.safe_load(Path("other.yaml").read_text()).keys() == {"base", "name", "backbone", "members"}


def test_what_init_writes_for_odd_names_can_be_planned(own: Path, tiny_backbone: Path) -> None:
    """Files with spaces, of one stem, and with the names of public tasks."""
    pairs = Path("pairs.csv").read_text()
    for name in ("dev pairs.csv", "my test.v2.csv", "my-test.csv", "STSB.csv", "_übung.csv"):
        Path(name).write_text(pairs)
    rows = csv.DictReader(pairs.splitlines())
    Path("pairs.jsonl").write_text("\n".join(json.dumps({**row, "score": float(row["score"])}) for row in rows))
    outcome = command("init", "my first run.yaml", "--backbone", tiny_backbone)
    assert outcome.code == 0 and "raysts plan 'my first run.yaml'" in outcome.out
    plan = plan_of("my first run.yaml")
    user = plan.corpus.user
    places = {name: Path(path).name for name, path in (user.dev | user.test).items()}
    assert places == {
        "dev-pairs": "dev pairs.csv", "my-test": "my test.v2.csv", "my-test-2": "my-test.csv", "stsb-2": "STSB.csv",
        "my_übung": "_übung.csv", "pairs": "pairs.csv", "pairs-2": "pairs.jsonl",
    }  # fmt: skip
    assert yaml.safe_load(Path("my first run.yaml").read_text())["name"] == "my-first-run"


def test_what_is_shown_is_a_recipe_with_or_without_comments(tmp_path: Path) -> None:
    path = tmp_path / "tree.yaml"
    for name, *options in (("gausscse-ent+con", "--yaml"), ("ct",)):
        shown = command("show", name, *options).out
        path.write_text(shown)
        assert load_pipeline(path) == pipeline(name)
        assert ("# root of every seed" in shown) == bool(options)
    path.write_text("recipes: 3\n")
    with pytest.raises(InputError, match="recipes"):
        plan_of(path)
