"""Wrong input: exit code 2, one clear message on stderr, nothing started and nothing written."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from damage import flipped
from run_commands import TINY, overrides, raysts, result, write_csv

from raysts.commands.options import JOB_COPIES
from raysts.errors import InputError
from raysts.evaluation.harness import TASKS
from raysts.pipeline.steps import train as tokens
from raysts.recipes.names import pipeline
from raysts.recipes.overrides import dump


class Refused:
    """Runs commands that must be refused, with a storage folder that must not appear."""

    def __init__(self, place: Path, data: Path) -> None:
        self.place, self.data = place, data

    def __call__(self, *arguments: object, says: tuple[str, ...] = (), storage: object = None) -> str:
        outcome = raysts(*arguments, "--storage", storage or self.place / "new" / "storage", "--json")
        assert outcome.code == 2, f"exit code {outcome.code}: {outcome.err}"
        assert outcome.out == "", "stdout is for results"
        # Checks that take seconds, as on a busy machine, say that they go on.
        first, *_ = [line for line in outcome.err.splitlines() if not line.startswith("... ")]
        assert first.startswith("raysts: ")
        assert not (self.place / "new").exists(), "nothing is written, the storage folder not even made"
        for part in says:
            assert part in outcome.err, f"{part!r} is not in: {outcome.err}"
        return outcome.err

    def run(self, name: object, *sets: str, says: tuple[str, ...], data: object = None, tiny: bool = True) -> str:
        given = [part for item in sets for part in ("--set", item)]
        small = overrides(TINY) if tiny else []
        return self("run", name, "--data", data or self.data, "--address", "none", *small, *given, says=says)


@pytest.fixture
def refused(tmp_path: Path, few_world: Path) -> Refused:
    return Refused(tmp_path, few_world)


# -- names ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "says"), [
    ("nli-cct", ("'nli-cct'", "did you mean 'ct'?", "stages are mlm, nli, ct, sts", "raysts recipes")),
    ("", ("unknown recipe ''",)), ("none.yaml", ("recipe file 'none.yaml' is not there", "raysts init")),
    ("lower-bound@small", ("is a search", "'raysts tune lower-bound@small'")),
])  # fmt: skip
def test_unknown_recipe(name: str, says: tuple[str, ...], refused: Refused) -> None:
    refused("plan", name, "--data", refused.data, says=says)


def test_a_run_name_becomes_a_file_name(refused: Refused) -> None:
    """As an option, as a setting and in a file."""
    where = sorted(refused.place.parent.rglob("*"))
    for name in ("..", ".hidden", "../../../evil", " ", "a\nb", "-x", "x" * 300):
        refused("run", "nli", "--data", refused.data, f"--name={name}",
                says=("--name=", "must be 1 to 100 letters, digits"))  # fmt: skip
    refused.run("nli", "name='../evil'", says=("name=", "must be 1 to 100"))
    file = refused.place / "recipe.yaml"
    file.write_text(dump(pipeline("nli")).replace("name: nli", "name: ../evil"), encoding="utf-8")
    refused.run(file, says=("recipe.yaml: name=", "must be 1 to 100"), tiny=False)
    file.unlink()
    assert sorted(refused.place.parent.rglob("*")) == where


# -- overrides -----------------------------------------------------------------------------------------------------------


WRONG: dict[str, dict[str, str]] = {
    "of the recipe": {
        "nli.optim.lrr=1": "unknown option 'nli.optim.lrr' (did you mean 'nli.optim.lr'?); 'raysts show nli-sed' lists all",
        "members=0": "members=0",
        "nli.batch=x": "nli.batch='x'",
        "max_seq_length=2": "max_seq_length=2 must be at least 3",
        "evaluation.resamples=1000000": "evaluation.resamples=1000000 must be from 1 to 100,000, or 0",
        "resources.cpus=1000000000": "resources.cpus=1000000000 must be from 1 to 1,024",
    },
    "of the model": {
        "nli.train.max_length=500": "nli.train.max_length=500: the backbone 'tiny' has positions for 128 tokens",
        "max_seq_length=1000": "max_seq_length=1000: the backbone 'tiny' has positions for 128 tokens",
        "evaluation.layers=[2,3]": "evaluation.layers=3: the backbone 'tiny' has 2 layers",
        "nli.layers=3": "nli.layers=3: the backbone 'tiny' has 2 layers",
        "student_pooling=3": "student_pooling=3: the backbone 'tiny' has 2 layers",
        "evaluation.tasks=sts21": "unknown task 'sts21' (did you mean",
    },
    "of the data": {
        "nli.data.sources=[nowhere]": "nli: nli/train: no row has a source in ['nowhere']; data.sources must",
        "nli.train.lora=1000000000": "nli.train.lora=1000000000: is the rank of matrices of 128 rows; it must be at most that",
    },
    "no options": {"nli=3": "unknown option 'nli'", "recipes=none": "recipes=None: must be a mapping"},
    "no value": {"optim.lr": "--set optim.lr: must look like a.b=value, for example --set nli.batch=32"},
    "no name": {"backbone=": "the name is empty"},
}
"""What is found together, by what shows it. All that may be wrong with a recipe: tests/recipes/test_recipe.py."""


@pytest.mark.parametrize("what", WRONG)
def test_everything_wrong_with_overrides_comes_in_one_message(what: str, refused: Refused) -> None:
    said = refused.run("nli-sed", *WRONG[what], says=(*WRONG[what].values(),))
    assert len(said.splitlines()) == len(WRONG[what])


# -- recipe files --------------------------------------------------------------------------------------------------------


def test_recipe_files_that_cannot_be_read(refused: Refused) -> None:
    """All that may be wrong in one: tests/recipes."""
    file = refused.place / "recipe.yaml"
    file.write_bytes(b"\xff\xfe\0n")
    refused.run(file, tiny=False, says=("recipe.yaml", "cannot be read"))
    file.unlink()
    file.mkdir()
    refused.run(file, tiny=False, says=("recipe.yaml", "is a folder"))


# -- data ----------------------------------------------------------------------------------------------------------------


def test_a_missing_data_folder(refused: Refused) -> None:
    gone = refused.place / "gone"
    refused.run("nli", data=gone, says=(str(gone), "does not exist", "--data", "raysts data fetch"))
    file = refused.place / "file"
    file.touch()
    refused.run("nli", data=file, says=(str(file), "is not a folder"))


Edit = Callable[[Path], Any]


@pytest.fixture
def broken(refused: Refused, copy_of: Callable[[Path, str], Path]) -> Callable[[str, Edit], Path]:
    """Makes a copy of the world in which the file of one table is edited."""

    def change(table: str, edit: Edit) -> Path:
        folder = copy_of(refused.data, "world")
        edit(folder / f"{table}.parquet")
        return folder

    return change


def of(name: str, make: Callable[[list[Any]], list[Any]]) -> Edit:
    """Replace the values of a column."""

    def edit(path: Path) -> None:
        columns = pq.read_table(path).to_pydict()
        pq.write_table(pa.table({**columns, name: make(columns[name])}), path)

    return edit


def at(row: int, value: object) -> Callable[[list[Any]], list[Any]]:
    """Replace one value of a column."""
    return lambda column: [*column[:row], value, *column[row + 1 :]]


def rewritten(change: Callable[[pa.Table], pa.Table]) -> Edit:
    return lambda path: pq.write_table(change(pq.read_table(path)), path)


def real_text(column: list[str]) -> list[str]:
    return [f"Quarterly deliberations bewildered several municipal accountants {i}" for i in range(len(column))]


@pytest.mark.parametrize(("name", "table", "edit", "says"), [
    ("nli", "nli/train", rewritten(lambda table: table.drop_columns(["label"])),
     ("nli/train.parquet", "column 'label' is missing", "columns found: premise")),
    ("nli", "nli/train", flipped, ("nli/train.parquet", "cannot be read")),
    ("nli", "sts/sts12", of("score", at(4, 5.5)), ("sts12.parquet", "row 4", "column 'score'", "5.5", "from 0 to 5")),
    ("sts", "sts/stsb_dev", of("score", at(0, float("inf"))), ("stsb_dev.parquet", "row 0", "column 'score'", "inf")),
    ("nli", "sts/sts12", of("score", lambda column: [1.0] * len(column)), ("sts12", "1 distinct score")),
    ("ct", "wikipedia/sentences", of("sentence", at(9, "")), ("row 9", "column 'sentence'", "empty sentence")),
    ("ct", "wikipedia/sentences", rewritten(lambda table: table.slice(0, 1)), ("ct.batch=16", "too few rows")),
    # Every word would be the unknown word: the tiny backbone neither trains on it nor is it measured on it.
    ("nli", "nli/train", of("premise", real_text), ("backbone=tiny", "nli/train", "--set backbone=")),
    ("raw", "sts/sts12", of("sentence1", real_text), ("backbone=tiny", "sts/sts12", "--set backbone=")),
])  # fmt: skip
def test_wrong_tables(
    name: str, table: str, edit: Edit, says: tuple[str, ...], refused: Refused, broken: Callable[[str, Edit], Path]
) -> None:
    """That train, select and are reported on; every kind of wrong row and damage: tests/data/test_corpora.py, test_shards.py."""
    refused.run(name, data=broken(table, edit), says=says)


def test_dev_is_needed_where_it_selects(refused: Refused, broken: Callable[..., Path]) -> None:
    data = broken("sts/stsb_dev", lambda path: path.unlink())
    for name, *sets in (("sts",), ("nli-sed", "select_top=1"), ("nli", "train.keep=best"), ("nli", "train.patience=2")):
        refused.run(name, *sets, data=data, says=("'sts/stsb_dev' is missing",))
    assert raysts("plan", "nli", "--data", data, "--storage", refused.place / "s", *overrides(TINY)).code == 0


def test_a_set_on_which_no_model_has_a_score(refused: Refused, tiny_backbone: Path) -> None:
    """Found before anything is trained, by the same words in a set that selects and in one that is reported on."""
    mine, where = refused.place / "mine.csv", ("--data", refused.data)
    run = ("run", "nli", *where, *overrides(TINY))
    for rows, says in (
        ("a,b,1\nc,d,1\n", "mine: has 2 row(s) and 1 distinct score"),
        ("a,a,1\nb,b,2\n", "mine: has pairs of equal texts alone"),
    ):
        mine.write_text(f"sentence1,sentence2,score\n{rows}")
        refused(*run, "--dev", f"mine={mine}", says=(f"development set {says}",))
        refused("evaluate", tiny_backbone, "--test", f"mine={mine}", says=(says,))
    for name, says in (("p.txt", "unknown format '.txt'"), ("none.csv", "no such file")):
        (refused.place / "p.txt").touch()
        refused("evaluate", tiny_backbone, "--test", f"mine={refused.place / name}", says=(name, says))


def test_wrong_input_that_shows_at_work(few_world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def found_late(*arguments: object) -> None:
        raise InputError("a file that went meanwhile")

    monkeypatch.setattr(tokens, "_tokenize", found_late)
    where = ["--data", few_world, "--storage", tmp_path / "storage", "--address", "none"]
    outcome = raysts("run", "nli", *where, *overrides(TINY))
    assert outcome.code == 3 and "tokenise nli/train: a file that went meanwhile" in outcome.err


# -- models --------------------------------------------------------------------------------------------------------------


def without_config(folder: Path) -> Path:
    (folder / "config.json").unlink()
    return folder


def other_module(folder: Path) -> Path:
    module = {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.LSTM"}
    (folder / "modules.json").write_text(json.dumps([module]), encoding="utf-8")
    return folder


def graph(folder: Path) -> Path:
    (folder / "model.safetensors").rename(folder / "model.onnx")
    return folder


def vectors_of_texts(folder: Path) -> Path:
    pq.write_table(pa.table({"text": ["a"], "embedding": [[0.0, 1.0]]}), folder / "in.parquet")
    return folder / "in.parquet"


NO_MODEL: dict[str, tuple[Callable[[Path], object], tuple[str, ...]]] = {
    "no config": (without_config, ("not a model directory", "config.json")),
    "unknown module": (other_module, ("modules.json", "LSTM", "unknown")), "graph": (graph, ("is an ONNX graph",)),
    "vectors": (vectors_of_texts, ("is Parquet",)), "no folder": (lambda folder: "/no/such/folder", ()),
    "no such name": (lambda folder: "no-such-model-anywhere", ()), "no name": (lambda folder: "bad name!", ()),
}  # fmt: skip
"""What stands where a model should, and what is said of it. All that may be wrong in a directory:
tests/models/test_foreign_files.py."""


@pytest.mark.parametrize("what", NO_MODEL)
def test_what_is_no_model_is_refused_by_every_command_before_anything_is_embedded(
    what: str,
    refused: Refused,
    tiny_backbone: Path,
    copy_of: Callable[[Path, str], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)  # the tests stay off the network
    make, says = NO_MODEL[what]
    model, out = make(copy_of(tiny_backbone, "model")), refused.place / "out"
    data, text = ("--data", refused.data), refused.data / "sts/stsb_dev.parquet"
    commands: dict[str, tuple[object, ...]] = {
        "run": ("nli", *data, "--set", f"backbone='{model}'"),
        "distill": (model, *data, "--set", f"backbone={tiny_backbone}"), "evaluate": (model, *data, "--tasks", "sts12"),
        "compare": (tiny_backbone, model, *data, "--tasks", "sts12"), "export": (model, "--to", out),
        "embed": (model, "--input", text, "--column", "sentence1", "--output", out),
    }  # fmt: skip
    if what in ("graph", "vectors"):
        del commands["distill"]
    if what == "graph":
        del commands["evaluate"]
    for command, arguments in commands.items():
        said = refused(command, *arguments, says=(str(model), *says))
        assert "embedding " not in said and "reading the word vectors" not in said
    assert not out.exists()


# -- where things are written --------------------------------------------------------------------------------------------


def test_a_storage_that_cannot_be_written(refused: Refused) -> None:
    """By anybody, root included."""
    file = refused.place / "file"
    file.touch()
    run = ["run", "nli", "--data", refused.data, *overrides(TINY)]
    for storage in (file, file / "below" / "it", "/proc/none/storage"):
        refused(*run, storage=storage, says=("--storage", str(storage), "cannot be written to"))
    for command in (["plan", *run[1:]], ["list"], ["remove", "nli", "--yes"]):
        refused(*command, storage=file, says=("--storage", str(file), "cannot be written to"))


@pytest.mark.parametrize(("option", "command"), [
    ("--storage", "plan quickstart"), ("--data", "data prepare wikipedia"),
    ("--data", "data import pairs.csv --as pairs"), ("--data", "data fetch --tables sts/sts12"),
    ("--output", "embed MODEL --input pairs.csv --column sentence1"), ("--to", "export MODEL"),
], ids=lambda words: words.replace(" ", "-"))  # fmt: skip
def test_what_a_job_writes_is_not_removed_with_its_working_directory(
    option: str, command: str, tiny_backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = tmp_path / JOB_COPIES / "copy"
    job.mkdir(parents=True)
    monkeypatch.chdir(job)
    write_csv(job / "pairs.csv", [{"sentence1": "a", "sentence2": "b", "score": 1.0}])
    words = [str(tiny_backbone) if word == "MODEL" else word for word in command.split()]
    outcome = raysts(*words, option, "out")
    assert outcome.code == 2 and f"{option} 'out'" in outcome.err and "removed later" in outcome.err, outcome.err
    assert [path.name for path in job.iterdir()] == ["pairs.csv"]


def test_places_that_are_not_known_or_do_not_answer(refused: Refused) -> None:
    run = ("run", "nli", "--data", refused.data, *overrides(TINY))
    for storage in ("hdfs://host/x", "abfs://container/x"):
        refused(*run, storage=storage, says=(storage, "s3://", "path"))
    for address in ("127.0.0.1:1", "nonsense"):
        refused(*run, "--address", address, says=("--address", address))


def test_an_export_overwrites_nothing(refused: Refused, tiny_backbone: Path) -> None:
    (refused.place / "there").mkdir()
    (refused.place / "there" / "mine.txt").write_text("mine", encoding="utf-8")
    (refused.place / "file").touch()
    for target in ("there", "file"):
        said = ("--to", target, "nothing is overwritten")
        refused("export", tiny_backbone, "--to", refused.place / target, says=said)
    refused("export", tiny_backbone, "--to", refused.place / "file" / "x", says=("--to", "cannot be written to"))
    refused("export", tiny_backbone, "--to", refused.place / "out", "--layers", 3, says=("layers=3", "has 2 layers"))
    refused("export", tiny_backbone, "--to", tiny_backbone / "onnx", says=("--to", "lies in the folder of the model"))
    assert not (refused.place / "out").exists()
    assert [path.name for path in (refused.place / "there").iterdir()] == ["mine.txt"]


# -- the other commands --------------------------------------------------------------------------------------------------


def test_distill(refused: Refused, tiny_backbone: Path) -> None:
    where = ("--data", refused.data)
    given = (*where, "--set", f"backbone={tiny_backbone}")
    refused("distill", *where, says=("MODEL", "--from-run NAME", "--from-study NAME"))
    refused("distill", tiny_backbone, "--from-run", "x", *where, says=("MODEL", "--from-run NAME"))
    refused("distill", "--from-run", "nothing", *where, says=("no run 'nothing'", "it holds: none"))
    refused("distill", tiny_backbone, *where, says=("--set backbone=",))
    refused("distill", "", *given, says=("the name is empty",))
    for top in (0, 2):
        refused("distill", tiny_backbone, "--top", top, *given, says=(f"--top {top}", "to the number of teachers, 1"))
    refused("distill", tiny_backbone, "--top", 1, *given, says=("--top", "no score on STS-B dev"))
    refused("distill", tiny_backbone, *where, "--set", "backbone=tiny", says=("backbone=tiny",))
    refused("distill", tiny_backbone, *given, "--name", "a/b", says=("name='a/b'",))
    refused("distill", tiny_backbone, *given, "--set", "optim.lrr=1", says=("did you mean 'optim.lr'?",))


def test_distilling_members_that_are_not_finished(few_world: Path, tmp_path: Path) -> None:
    where = ["--data", few_world, "--storage", tmp_path, "--address", "none"]
    few = overrides(TINY, {"evaluation.tasks": "sts12", "evaluation.resamples": 0})

    def refused(*arguments: object) -> str:
        outcome = raysts("distill", *arguments)
        assert outcome.code == 2
        return outcome.err

    assert raysts("run", "nli", *where, *few, "--set", "optim.lr=1e30").code == 3
    said = refused("--from-run", "nli", *where[2:])
    assert "2 of its 2 members are not finished" in said and "raysts run nli" in said
    assert "did you mean 'nli'?" in refused("--from-run", "mli", *where[2:])


def test_evaluate(refused: Refused, tiny_backbone: Path) -> None:
    where = ("evaluate", tiny_backbone, "--data", refused.data)
    refused(*where, "--tasks", "sts12,stsbb", says=("unknown task 'stsbb'", "did you mean 'stsb'?", *TASKS))
    for layers in (0, 3):
        refused(*where, "--tasks", "sts12", "--layers", layers, says=(f"layers={layers}",))
    refused(*where, "--tasks", "sts12", "--resamples", 10**6, says=("--resamples=1000000", "from 1 to 100,000"))
    refused(*where, "--tasks", "sts12", "--column", "text", says=("--column 'text'", "--text PATH"))


def test_paths_that_are_written_or_read_here_are_no_uris(refused: Refused, tiny_backbone: Path) -> None:
    """A path would be made of them, with the secret that they hold in its name."""
    uri, pairs = "s3://key:secret@bucket/x", refused.data / "sts/stsb_dev.parquet"
    for option, command in {
        "--output": ["embed", tiny_backbone, "--input", pairs, "--column", "sentence1", "--output", uri],
        "--input": ["embed", tiny_backbone, "--input", uri, "--column", "sentence1", "--output", refused.place / "v"],
        "--to": ["export", tiny_backbone, "--to", uri],
        "--mteb": ["evaluate", tiny_backbone, "--data", refused.data, "--tasks", "sts12", "--mteb", uri],
    }.items():
        said = refused(*command, says=(f"{option} 's3://...@bucket/x': must be a path on this machine",))
        assert "secret" not in said
    assert not Path("s3:").exists()


def test_data_commands(tmp_path: Path) -> None:
    for arguments, says in (
        (["check", "--data", tmp_path / "none"], "does not exist"),
        (["fetch", "--data", tmp_path / "new", "--tables", "sts/stsb_dv"], "did you mean 'sts/stsb_dev'?"),
        (["fetch", "--data", tmp_path / "new", "--tables", "sts/stsb_dev", "--source", tmp_path / "none"], "--source"),
        (["prepare", "wikipedia", "--data", tmp_path / "new"], "does not exist"),
        (["prepare", "wikipedia", "--data", tmp_path / "new", "--input", tmp_path / "none.parquet"], "none.parquet"),
    ):
        outcome = raysts("data", *arguments)
        assert outcome.code == 2 and outcome.out == "" and says in outcome.err, (arguments, outcome.err)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("shards", [("articles.parquet",), ("articles/0.parquet", "articles/1.parquet")], ids=len)
def test_articles_of_the_data_folder_are_prepared_whole(shards: tuple[str, ...], tmp_path: Path) -> None:
    for word, shard in zip(("river", "garden"), shards, strict=False):
        path = tmp_path / "wikipedia" / shard
        path.parent.mkdir(parents=True, exist_ok=True)
        text = f"The {word} is the first thing that people see here. Another sentence says a little more about it."
        pq.write_table(pa.table({"article_id": [word], "title": [word], "text": [text]}), path)
    told = result("data", "prepare", "wikipedia", "--data", tmp_path, "--address", "none")
    assert told["rows"] == len(shards) + 1
