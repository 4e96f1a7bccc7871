from __future__ import annotations

import contextlib
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

import pytest
import run_commands
from golden.golden import Golden, shape
from run_commands import EVALUATION, options_of, overrides, raysts, result

from raysts import __version__, cli
from raysts.commands import parser
from raysts.commands.result import run_text
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


def test_an_unexpected_error_is_no_traceback(
    small_world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_an_empty_place_is_not_the_default() -> None:
    for option in ("--data", "--text", "--storage"):
        outcome = raysts("run", "ct", option, "")
        assert outcome.code == 2 and f"{option}" in outcome.err
        assert "is empty; name a place, or remove the option" in outcome.err


def test_v_shows_what_is_read_and_written_and_q_errors_alone(
    finished: run_commands.Finished, monkeypatch: pytest.MonkeyPatch
) -> None:
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
