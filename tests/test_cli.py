from __future__ import annotations

import contextlib
import errno
import inspect
import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import run_commands
from golden.golden import Golden, shape
from run_commands import EVALUATION, options_of, overrides, raysts, result

from raysts import __main__, __version__, cli
from raysts.commands import parser
from raysts.commands.options import RunOptions
from raysts.commands.result import RunResult, run_text
from raysts.data.checks import skipped_line
from raysts.data.user import UserData
from raysts.errors import InputError, RunFailed
from raysts.log import logger
from raysts.papers.experiments import EXPERIMENTS
from raysts.recipes.names import RECIPES
from raysts.search.search import SEARCHES

COMMANDS = parser.COMMANDS
EXAMPLES = [name for name in COMMANDS if name not in ("data fetch", "data prepare", "claims", "remove", "init")]
"""Commands whose fields and types of the JSON object are recorded here; those of ``claims`` in tests/commands/test_claims.py."""


# -- help ----------------------------------------------------------------------------------------------------------------


def test_what_comes_next_can_be_typed() -> None:
    """Where a path has blanks, too."""
    done = {"results": [], "skipped": [], "left_out": [], "model": "/my storage/model", "report": "page"}
    line = next(line for line in run_text(done).splitlines() if line.startswith("next:"))
    _, *arguments = shlex.split(line.removeprefix("next:"))
    assert parser.parse(arguments)[1]["model"] == done["model"]


@pytest.mark.parametrize("name", COMMANDS)
def test_help_explains_every_option_and_gives_an_example_that_parses(name: str) -> None:
    """What is typed reaches the function, and what the function takes can be typed."""
    outcome = raysts(*name.split(), "--help")
    assert outcome.code == 0 and outcome.err == ""
    assert "--json" in outcome.out and "example: raysts" in outcome.out
    taken = {argument.field_info.name: argument for argument in options_of(name)}
    for argument in taken.values():
        assert argument.parameter.help, f"{name}: {argument.name} has no help"
        assert argument.name in outcome.out
    example = COMMANDS[name].example
    assert example.startswith(f"raysts {name}") and example in " ".join(outcome.out.split())
    assert parser.parse(shlex.split(example)[1:])[0] == COMMANDS[name]
    typed = taken.keys() - {*parser.PrintOptions._fields}
    assert typed == {*inspect.signature(COMMANDS[name].function).parameters} - {"command"}
    if name == "tune":
        first, last = list(SEARCHES)[:-1], list(SEARCHES)[-1]
        assert str(taken["search"].parameter.help).startswith(f"{', '.join(first)} or {last};")


@pytest.mark.whole
def test_the_shell_completes_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SHELL", "/bin/bash")
    outcome = raysts("--install-completion")
    assert outcome.code == 0 and "Completion script installed" in outcome.out
    (script,) = tmp_path.glob(".local/share/**/raysts")
    words = "COMP_WORDS=(raysts di); COMP_CWORD=1; COMP_LINE='raysts di'; COMP_POINT=9"
    function = re.search(r"complete .*-F (\w+) raysts", script.read_text())
    assert function
    line = f"source {script}; {words}; {function[1]} raysts di raysts; echo ${{COMPREPLY[*]}}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["distill"], done.stderr


def test_the_version_names_the_sources() -> None:
    outcome = raysts("--version")
    assert outcome.code == 0 and re.fullmatch(rf"raysts {__version__} \(sources [0-9a-f]{{12}}\)\n", outcome.out)


# -- what is typed -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("words", "taken"), [
    ("evaluate M --tasks sts12,,stsb --tasks sick", {"model": "M", "tasks": ["sts12", "stsb", "sick"]}),
    ("evaluate M --tasks , --layers only-1", {"model": "M", "tasks": None, "layers": "only-1"}),
    ("evaluate M --test a=x=1.csv --test b=y.csv", {"model": "M", "test": {"a": "x=1.csv", "b": "y.csv"}}),
    ("run ct --track mlflow=sqlite:///a,b.db,wandb", {"recipe": "ct", "track": {"mlflow": "sqlite:///a,b.db", "wandb": ""}}),
    ("data import f --as nli --data D --labels=-1=drop,1=neutral",
     {"file": "f", "kind": "nli", "data": "D", "labels": {"-1": "drop", "1": "neutral"}}),
    *((f"run ct --{name}=", "is empty; name a place, or remove the option") for name in ("data", "text", "storage")),
    ("evaluate M --test a", "'a' must look like NAME=FILE, for example --test mine="),
    ("evaluate M --test =a", "'=a' must look like NAME=FILE"), ("evaluate M --test a=", "'a=' must look like NAME=FILE"),
    ("evaluate M --test a=x --test a=y", "'a' is given twice; take two names"),
    ("data import f --as nli --data D --labels a=b,c", "'c' must look like a=b, several as a=b,c=d"),
    ("data import f --as nli --data D --labels a=", "'a=' must look like a=b"), ("list one", "takes no argument 'one'"),
    ("evaluate", "raysts evaluate needs MODEL. 'raysts evaluate --help' shows what it takes"),
    ("recipes -v -q", "-v and -q: give one of them"), ("", "name a command: 'raysts --help' lists them"),
    ("data", "name a command: 'raysts data --help' lists them"), ("frobnicate", "frobnicate"), ("run nli --frob", "--frob"),
    ("distill --top many", "--top"), ("plan quickstart --price -3/gpu-hour", "--price -3/gpu-hour: must be NUMBER/UNIT"),
    ("plan quickstart --set -batch=8", "'-batch=8' begins as an option does; if it is one, write --set=-batch=8"),
])  # fmt: skip
def test_words_become_values_of_options(words: str, taken: dict[str, Any] | str) -> None:
    if isinstance(taken, dict):
        command, values, output = parser.parse(words.split())
        assert command is not None and values == taken and output == parser.PrintOptions()
    else:
        refused = raysts(*words.split())
        assert refused.code == 2 and refused.out == "" and taken in refused.err
        assert refused.err.startswith("raysts: ") and refused.err.count("\n") == 1


def test_options_after_a_record_have_its_data_unless_they_name_some(tmp_path: Path) -> None:
    """Sets of the record stay beside a text of the record; development sets are replaced, test sets added."""
    sets = {"dev": {"d": "/d.csv"}, "test": {"t": "/t.csv"}}
    record = {"data": "/there", "own": {"text": "/docs.csv", "column": "body", **sets}}
    after = RunOptions(name="x").after(record)
    assert (after.name, after.data, after.user_data) == ("x", "/there", UserData("/docs.csv", "body", **sets))
    for options in (RunOptions(data="/mine"), RunOptions.from_arguments(text=tmp_path / "mine.csv")):
        assert options.after(record) == options
    more = RunOptions.from_arguments(dev={"e": "/e.csv"}, test={"u": "/u.csv"}, price="2/gpu-hour").after(record)
    assert more.user_data == UserData("/docs.csv", "body", {"e": "/e.csv"}, {"t": "/t.csv", "u": "/u.csv"})
    assert more.prices == {"gpu-hour": 2.0}


# -- what people read ----------------------------------------------------------------------------------------------------


PRICE = {
    "seconds": 60.0, "device_seconds": 120.0, "bytes": 0, "moved": 0, "objects": 0, "requests": 0, "measured": 0.0,
    "slots": 2,
}  # fmt: skip
NEEDS = {"workers": 2, "cpus": 4}
NODES = [
    {
        "id": id_,
        "title": f"step {id_}",
        "status": status,
        "sentences": 1200,
        "seconds_expected": 5.0,
        "resources": NEEDS | more,
    }
    for id_, status, more in (
        ("a", "done", {"gpus": None}),
        ("b", "waiting", {"gpus": 0.5, "memory": 8}),
        ("c", "waiting", {"gpus": 0}),
    )
]
TABLES = {"sts/sts12": {"rows": 1200, "files": 1}, "nli": {"rows": None, "files": 2}}
UNUSED = [
    {"file": "x.csv", "why": "no table", "command": "raysts data import x.csv"},
    {"file": "y", "why": "", "command": "z"},
]
TEXTS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "plan": (
        {"name": "ct", "backbone": {"name": "tiny", "id": "1f", "layers": [1, 2]}, "nodes": NODES, "skipped": [], "price": PRICE,
         "text": {"name": "t.csv", "rows": 1200, "empty": 3, "repeated": 2, "held_out": 60}, "notes": ["a note"]},
        ["ct: backbone tiny (1f, layers 1, 2 of it)",
         "  a  done     step a  1,200 sentences  5.0 s  2 x (4 CPU, GPU if any)",
         "  b  waiting  step b  1,200 sentences  5.0 s  2 x (4 CPU, 0.5 GPU, 8 GB)",
         "  c  waiting  step c  1,200 sentences  5.0 s  2 x (4 CPU)",
         "  text t.csv: 1,200 texts; 3 empty rows left out; 2 rows repeat an earlier text; 60 texts held out", "a note",
         "3 steps, 2 left, 2,400 sentences to process"],
    ),
    "data check": (
        {"data": "D", "tables": TABLES, "missing": ["a", "b"], "problems": [], "unused": UNUSED},
        ["data folder D", "", "tables", "  sts/sts12         1,200", "  nli          unreadable  (2 files)", "", "not there",
         "  a, b", "", "problems", "  none", "", "files that raysts does not use",
         "  x.csv: no table; raysts data import x.csv", "  y: z"],
    ),
    "data fetch": (
        {"tables": {"a": {"status": "written", "rows": 1200}, "b": {"status": "there"}}}, ["a: written, 1,200 rows", "b: there"],
    ),
    "data prepare": (
        {"rows": 1200, "data": "D", "skipped": [{"table": "t", "file": "f", "rows": 5, "reason": "damaged"}]},
        [skipped_line({"table": "t", "file": "f", "rows": 5, "reason": "damaged"}), "1,200 sentences: wikipedia/sentences in D"],
    ),
    "init": (
        {"file": "a b.yaml", "text": "t.csv", "dev": {"d": 1}, "test": {"e": 1}},
        ["a b.yaml is written: text t.csv, dev set d, test set e", "next: raysts plan 'a b.yaml'"],
    ),
    "embed": ({"rows": 1200, "shards": 1, "output": "O"}, ["1,200 rows in 1 shard: O"]),
    "export": ({"model": "M", "pushed": "https://hub"}, ["model: M", "pushed: https://hub"]),
    "claims": ({"text": "t", "reports": ["r"]}, ["t", "report: r"]),
    "tune": (
        {"table": "T", "study": "/s", "report": "r", "next": "n"},
        ["T", "study:  /s", "report: r", "dashboard: optuna-dashboard sqlite:////s/optuna.db",
         "scalars: tensorboard --logdir /s/tensorboard", "next:   n"],
    ),
    "run": (
        {"results": [], "model": "/m", "report": "p", "notes": ["one"]},
        ["model:  /m", "report: p", "next:   raysts embed /m --input FILE --column TEXT --output DIR", "", "notes:", "- one"],
    ),
}  # fmt: skip
"""A result of a command, and how people read it."""


@pytest.mark.parametrize("name", TEXTS)
def test_a_result_in_words(name: str) -> None:
    given, lines = TEXTS[name]
    assert COMMANDS[name].text({**given}).splitlines()[: len(lines)] == lines


def test_a_notebook_shows_a_run_with_a_link_to_its_page(tmp_path: Path) -> None:
    shown = RunResult({"results": [], "model": None, "report": str(tmp_path / "a&b.html")})
    page = f"{tmp_path}/a&amp;b.html"
    assert shown._repr_html_() == f'<pre>report: <a href="{(tmp_path / "a&b.html").as_uri()}">{page}</a></pre>'.replace(
        "a&b", "a&amp;b"
    )
    assert (shown.model, shown.report, shown.verdict, shown.main_scores()) == (None, tmp_path / "a&b.html", "", {})
    assert RunResult({"results": [], "model": None, "report": None})._repr_html_() == "<pre>report: None</pre>"


# -- the JSON line -------------------------------------------------------------------------------------------------------


STUDENT = {"train.max_steps": 2, "sed.data.sample": 64}
SEARCH = {"backbone": "tiny", "train.max_steps": 2, "sts.data.sample": 64, "space.lower_bound": "0,0.5", "seeds": 1}


def example_of(name: str, finished: run_commands.Finished, tmp_path: Path) -> list[object]:
    """Arguments with which a command has little to do."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    student = finished.results["nli-ct-sed"]["model"]
    storage = ["--storage", finished.storage]
    assert finished.results["nli"], "what is reported and distilled"
    if name in ("embed", "data import"):
        pq.write_table(pa.table({"text": ["a dog"]}), tmp_path / "in.parquet")
    return {
        "recipes": [],
        "show": ["nli-ct-sed"],
        "schema": [],
        "plan": finished.arguments("nli-ct-sed"),
        "run": [*finished.arguments("nli-ct-sed"), "--address", "none"],
        "tune": ["lower-bound", "--data", finished.data, "--storage", tmp_path / "storage", "--address", "none",
                 *overrides(SEARCH)],
        "distill": ["--from-run", "nli", *storage, "--address", "none", *overrides(STUDENT, EVALUATION)],
        "evaluate": [student, *finished.options(), "--tasks", "sts12", "--resamples", "0"],
        "compare": [student, "nli-ct-sed:members", *finished.options(), "--tasks", "sts12", "--resamples", "20"],
        "embed": [student, "--input", tmp_path / "in.parquet", "--column", "text", "--output", tmp_path / "out",
                  "--address", "none"],
        "export": [student, "--to", tmp_path / "exported"],
        "report": ["--name", "nli", *storage],
        "list": storage,
        "status": ["nli", *storage],
        "watch": ["nli", *storage],
        "data check": ["--data", finished.data],
        "data import": [tmp_path / "in.parquet", "--as", "sentences", "--columns", "sentence=text", "--data", tmp_path / "data"],
    }[name]  # fmt: skip


@pytest.mark.parametrize("name", EXAMPLES)
def test_one_json_object_is_all_of_stdout(
    name: str, finished: run_commands.Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    """And what is printed without ``--json`` is text."""
    arguments, call, texts = example_of(name, finished, tmp_path), cli._call, []

    def kept(*given: Any) -> Any:
        called = call(*given)
        texts.append(called[1])
        return called

    monkeypatch.setattr(cli, "_call", kept)
    found = result(*name.split(), *arguments)
    if name in ("show", "schema"):  # the tree of a recipe has other values, and the same fields, in every recipe
        key = "recipe" if name == "show" else name
        found[key] = list(found[key])
    # the seconds of a step are null in a run that found it done, which depends on what ran before
    shown = re.sub(
        r'("seconds(?:_expected)?": )"(?:NoneType|float|NoneType\|float)"',
        r'\1"NoneType|float"',
        json.dumps(shape(found)),
    )
    golden.check(f"json/{name.replace(' ', '-')}", json.loads(shown))
    for path in (found.get("model"), found.get("report"), found.get("output")):
        assert path is None or Path(path).exists()
    (text,) = texts
    assert text.strip()
    with pytest.raises(json.JSONDecodeError):
        json.loads(text.splitlines()[-1])


def test_recipes_lists_names_with_source_and_cost() -> None:
    several = {name: recipe.entry for name, recipe in EXPERIMENTS.items()}
    assert result("recipes")["recipes"] == [*RECIPES, *EXPERIMENTS]
    text = raysts("recipes").out
    for name, entry in (RECIPES | several).items():
        (line,) = [line for line in text.splitlines() if line.split()[:1] == [name]]
        assert entry.source in line and entry.shows in line and entry.cost in line


def test_the_table_for_people_holds_the_numbers(finished: run_commands.Finished) -> None:
    text = raysts("run", *finished.arguments("nli-ct-sed")).out
    rows = finished.results["nli-ct-sed"]["results"]
    (line,) = [line for line in text.splitlines() if line.split()[:1] == ["stsb"]]
    for role in ("backbone", "student", "ensemble"):
        (value,) = {
            row["value"] for row in rows
            if (row["role"], row["dataset"], row["layers"]) == (role, "stsb", "1")
            and (row["metric"], row["aggregation"]) == ("spearman", "all")
        }  # fmt: skip
        assert f"{100 * value:.2f}" in line.split()
    assert "members" in text and "(2)" in text and "±" in line
    assert finished.results["nli-ct-sed"]["model"] in text and finished.results["nli-ct-sed"]["report"] in text


# -- how it ends ---------------------------------------------------------------------------------------------------------


def test_an_unknown_error_is_no_traceback(small_world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its details go to a file that the message names; where no file can be written the message comes all the same."""

    def broken(*arguments: Any, **options: Any) -> None:
        raise RuntimeError("something nobody thought of")

    monkeypatch.setattr("raysts.commands.experiment.checked_plan", broken)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    outcome = raysts("plan", "nli", "--data", small_world)
    assert outcome.code == 3 and "RuntimeError: something nobody thought of" in outcome.err
    assert "raysts plan nli" in outcome.err
    (log,) = tmp_path.iterdir()
    assert str(log) in outcome.err and "Traceback" in log.read_text(encoding="utf-8")
    monkeypatch.setattr("tempfile.tempdir", "/proc/none")
    outcome = raysts("plan", "nli", "--data", small_world)
    assert outcome.code == 3 and "RuntimeError: something nobody thought of" in outcome.err


ENDS: list[tuple[Exception, int, str]] = [
    (PermissionError(errno.EACCES, "Permission denied", "f"), 2, "you have no permission for that ("),
    (OSError(errno.ENOSPC, "No space left on device"), 3, "the disk is full ("),
    (RuntimeError("can't start new thread"), 3, "this user may have no more processes or threads"),
    (OSError(errno.ENAMETOOLONG, "File name too long", "n" * 300), 2, f"'{'n' * 60}...': the name is too long; give a"),
    (OSError(errno.EIO, "Input/output error"), 3, "OSError: [Errno 5] Input/output error\nThe details are in"),
    (RunFailed("nli: it failed"), 3, "raysts: nli: it failed\n"),
    (InputError([f"problem {i}" for i in range(52)]), 2, "raysts: problem 49\nraysts: and 2 more\n"),
    (InputError([f"problem {i}" for i in range(50)]), 2, "raysts: problem 49\n"),
    (InputError("a" * 3_000 + "b" * 1_000), 2, f"raysts: {'a' * 3_000}{'b' * 1_000}\n"),
    (InputError("a" * 3_000 + "b" * 1_001), 2, f"raysts: {'a' * 2_000} ... {'b' * 1_000}\n"),
]


def test_an_error_has_an_exit_code_and_a_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for error, code, said in ENDS:
        monkeypatch.setattr("raysts.commands.context.store_of", Mock(side_effect=error))
        outcome = raysts("list")
        assert outcome.code == code
        assert outcome.err.endswith(said) if said.endswith("\n") else said in outcome.err


@pytest.mark.parametrize("broken", ["reader", "disk"])
def test_a_result_that_nobody_reads_is_no_failure_and_a_full_disk_is(broken: str) -> None:
    read, write = os.pipe()
    os.close(read)
    stream = os.fdopen(write, "w") if broken == "reader" else Path("/dev/full").open("w")  # noqa: SIM115
    with stream, contextlib.redirect_stdout(stream), contextlib.redirect_stderr(io.StringIO()) as said:
        code = cli.execute(["recipes", "--json"])
    assert (code, "No space left" in said.getvalue()) == ((0, False) if broken == "reader" else (3, True))


@pytest.mark.parametrize("before", [signal.default_int_handler, signal.SIG_IGN])
def test_ctrl_c_ends_the_imports_unless_it_is_ignored(before: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """And whoever started the command has his handler back before it runs."""
    handlers, usual = [], signal.signal(signal.SIGINT, before)
    monkeypatch.setattr(signal, "signal", lambda number, handler: handlers.append(handler))
    monkeypatch.setattr(cli, "main", lambda: handlers.append("main"))
    __main__.main()
    monkeypatch.undo()
    signal.signal(signal.SIGINT, usual)
    assert handlers == ([] if before == signal.SIG_IGN else [__main__._end]) + [before, "main"]


def test_a_world_that_cannot_be_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    outcome = raysts("plan", "quickstart", "--storage", tmp_path / "s")
    assert outcome.code == 3 and "XDG_CACHE_HOME" in outcome.err and "--data" in outcome.err
    assert not (tmp_path / "s").exists()


class Interrupted(io.StringIO):
    """Where results go: Ctrl-C while they do."""

    def write(self, text: str) -> int:
        signal.raise_signal(signal.SIGINT)
        return super().write(text)


def test_ctrl_c_while_a_result_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with (
        monkeypatch.context() as patch,
        contextlib.redirect_stdout(Interrupted()),
        contextlib.redirect_stderr(io.StringIO()) as shown,
        pytest.raises(SystemExit, match="^130$"),
    ):
        patch.setattr(os, "_exit", sys.exit)
        cli.main(["recipes"])
    signal.signal(signal.SIGTERM, before)
    assert shown.getvalue() == "raysts: interrupted; finished work is kept. To go on: raysts recipes\n"


def test_a_setting_that_is_given_as_an_option_takes_set() -> None:
    """A word that is no setting has no such remedy."""
    for option in ("--backbone", "--train.max-steps=3"):
        name = option.lstrip("-").partition("=")[0].replace("-", "_")
        outcome = raysts("distill", "A", option, "B")
        assert outcome.code == 2 and f"A setting is given as --set {name}=VALUE." in outcome.err
        assert "--set" not in raysts("list", option).err
    assert "--set" not in raysts("distill", "A", "--nothing", "B").err


def test_v_shows_all_and_q_errors_alone(finished: run_commands.Finished, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log in the storage has everything with times and no secret, whatever the screen shows."""
    monkeypatch.setenv("MY_TOKEN", "hunter22-hunter22")
    arguments = ["run", *finished.arguments("nli", members=1), "--name", "loud-hunter22-hunter22", "--address", "none"]
    loud = raysts(*arguments, "-v").err
    assert re.search(r"^ +\d+\.\d\d s  wrote \S+/pipelines/loud-\S+\.json$", loud, re.M)
    logger.debug("a record outside of any command")
    quiet = raysts(*arguments, "-q")
    assert quiet.code == 0 and quiet.err == "" and "report:" in quiet.out
    wrong = raysts("status", "nothing", "--storage", finished.storage, "-q")
    assert wrong.code == 2 and "no run 'nothing'" in wrong.err
    (path,) = (finished.storage / "logs").glob("loud-*.log")
    text = path.read_text(encoding="utf-8")
    assert len(re.findall(r"DEBUG wrote \S+/reports/", text)) >= 2, "of both runs"
    assert " INFO " in text and "${MY_TOKEN}" in text and "hunter22" not in text
    both = raysts(*arguments, "-v", "-q")
    assert both.code == 2 and "-v and -q: give one of them" in both.err
