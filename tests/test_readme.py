"""What the README tells a newcomer to type and where it says things are."""

from __future__ import annotations

import ast
import inspect
import re
import runpy
import shlex
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import run_commands

import raysts
from raysts.commands import parser
from raysts.data.fetch import sources
from raysts.recipes.names import RECIPES, pipeline

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8") if (ROOT / "README.md").exists() else ""
pytestmark = pytest.mark.skipif(not README, reason="needs a checkout with README.md")


def blocks(language: str) -> list[str]:
    found = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    return [text for its, text in found if its == language]


def shell_commands() -> list[list[str]]:
    """Every simple command of the README's shell blocks, in words."""
    text = "\n".join(blocks("bash")).replace("\\\n", " ")
    found = []
    for line in text.splitlines():
        words: list[str] = []
        for word in shlex.split(line, comments=True):
            if word in ("&&", ";", "|"):
                found.append(words)
                words = []
            else:
                words.append(word)
        if words:
            found.append(words)
    return found


def raysts_commands() -> list[list[str]]:
    """Arguments of every raysts command in the README; those of a job count as those of its command."""
    found = []
    for words in shell_commands():
        if words[0] == "raysts":
            found.append(words[1:])
        job = next((word for word in words if re.fullmatch(r"(\./)?jobs/\w+\.py", word)), None)
        if job is not None:
            found.append([*command_of_job(Path(job).name), *words[words.index(job) + 1 :]])
    return found


def command_of_job(name: str) -> list[str]:
    """The command whose arguments a job takes, as its call of ``main`` says."""
    source = (ROOT / "jobs" / name).read_text(encoding="utf-8")
    (words,) = re.findall(r'main\(\[((?:"[\w-]+", )+)\*sys\.argv\[1:\]\]\)', source)
    return re.findall(r"[\w-]+", words)


def test_the_readme_is_short_and_has_a_picture() -> None:
    assert len(README.splitlines()) <= 120
    (picture,) = re.findall(r"!\[[^]]+\]\(([^)]+)\)", README)
    assert ElementTree.parse(ROOT / picture).getroot().tag.endswith("svg")


def test_the_readme_has_commands() -> None:
    assert ["quickstart"] in [arguments[1:2] for arguments in raysts_commands() if arguments[0] == "run"]
    assert {"run", "plan", "evaluate", "embed", "export", "data"} <= {arguments[0] for arguments in raysts_commands()}


@pytest.mark.parametrize("arguments", raysts_commands(), ids=" ".join)
def test_a_command_parses_and_names_what_exists(arguments: list[str]) -> None:
    _, options, _ = parser.parse(arguments)
    if "recipe" in options:
        from raysts.papers.experiments import is_experiment, pipelines

        recipe, overrides = options["recipe"], options.get("overrides", {})
        if recipe.endswith(".yaml"):  # of the reader
            assert "overrides" not in options
        elif is_experiment(recipe):
            assert pipelines(recipe, overrides, lambda backbone: 12)
        else:
            pipeline(recipe, overrides)
    if options.get("tables"):
        for wanted in options["tables"]:
            assert any(name == wanted or name.startswith(f"{wanted}/") for name in sources()), wanted


def test_other_commands_are_installed_or_here() -> None:
    known = {"raysts", "pip", "python", "ray", "pytest", "git", "export", "cd", "docker"}
    assert {words[0] for words in shell_commands()} <= known
    for words in shell_commands():
        for word in words:
            if word.startswith(("jobs/", "benchmarks/", "tests/")):
                assert (ROOT / word).exists(), word


@pytest.mark.parametrize("text", blocks("python"))
def test_python_calls_functions_that_exist_with_arguments_they_take(text: str) -> None:
    called = 0
    for node in ast.walk(ast.parse(text)):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        if isinstance(node.func.value, ast.Name) and node.func.value.id == "raysts":
            function: Any = getattr(raysts, node.func.attr)
            places = [
                ast.literal_eval(argument) if isinstance(argument, ast.Constant) else None for argument in node.args
            ]
            inspect.signature(function).bind(*places, **{str(keyword.arg): None for keyword in node.keywords})
            called += 1
    assert called


def test_names_of_systems_are_systems() -> None:
    """What stands in code font on a page and looks like the name of a system is one."""
    text = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs").glob("*.md")) + README
    stages = r"(?:nli|ct|sts)"
    names = set(re.findall(rf"`({stages}(?:-{stages})*(?:-sed|-ensemble)?)`", text)) | set(RECIPES) & set(
        re.findall(r"`(\w+)`", text)
    )
    assert names
    for name in names:
        pipeline(name)


def test_options_in_the_text_exist() -> None:
    known = {
        option for name in parser.COMMANDS for argument in run_commands.options_of(name) for option in argument.names
    }
    used = set(re.findall(r"`(--[a-z][a-z-]*)", README))
    assert used and used <= known | {"--working-dir"}, used - known


# -- the tree ------------------------------------------------------------------------------------------------------------


def tree() -> list[Path]:
    """The paths that the tree in CONTRIBUTING.md lists."""
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```\w*\n(.*?)^```$", page, re.M | re.S)
    text = next(block for block in blocks if block.startswith("raysts/"))
    found: list[Path] = []
    for line in text.splitlines():
        inside = line.startswith("  ")
        for word in line.split():
            if not re.fullmatch(r"[\w.]+(/|\.py)", word):
                break
            found.append(Path("raysts", word) if inside else Path(word))
    return found


def test_the_tree_exists() -> None:
    missing = [str(path) for path in tree() if not (ROOT / path).exists()]
    assert not missing


def test_the_tree_is_complete() -> None:
    """Every module and package at the top of raysts is in it."""
    known = {path.name for path in tree()}
    there = {
        path.name for path in (ROOT / "raysts").iterdir()
        if not path.name.startswith("_") and (path.suffix == ".py" or (path / "__init__.py").exists())
    }  # fmt: skip
    assert there <= known, there - known


def test_files_in_the_text_exist() -> None:
    paths = re.findall(r"`((?:benchmarks|jobs|tests|raysts|\.ci)/[\w./-]+)`", README)
    missing = [path for path in paths if not (ROOT / path).exists()]
    assert not missing
    for path in re.findall(r"`((?:recipes|objectives)/\w+\.py)`", README):
        assert (ROOT / "raysts" / path).exists(), path


def test_the_two_commands_are_what_ci_runs() -> None:
    script = ROOT / ".ci" / "run"
    if not script.exists():
        pytest.skip("needs a checkout with .ci/run")
    text = script.read_text(encoding="utf-8")
    two = [
        words for words in shell_commands() if words[0] in ("pytest",) or words[:3] == ["raysts", "run", "quickstart"]
    ]
    assert ["pytest"] in two and ["raysts", "run", "quickstart"] in two
    assert "raysts run quickstart" in text and "pytest" in text


# -- jobs ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", sorted((ROOT / "jobs").glob("*.py")), ids=lambda path: path.name)
def test_a_job_takes_the_arguments_of_its_command(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 40
    command = command_of_job(path.name)
    monkeypatch.setattr(sys, "argv", [str(path), "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(path), run_name="__main__")
    assert ended.value.code == 0
    named = command[:1] if command[0] == "tune" else command[:2]  # which search is an argument
    assert f"Usage: raysts {' '.join(named)}" in capsys.readouterr().out
    example = re.search(
        r"^ray job submit .*? -- python (jobs/\S+) (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE
    )
    assert example and (ROOT / example[1]).samefile(path)
    parser.parse([*command, *shlex.split(example[2])])
