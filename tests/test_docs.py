"""What docs/cluster.md and docs/own-text.md tell people to type, and which messages they will see."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from raysts.commands import parser

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "cluster.md"
pytestmark = pytest.mark.skipif(not PAGE.exists(), reason="needs a checkout")
TEXT = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
BASH = [line for block in re.findall(r"^```bash\n(.*?)^```$", TEXT, re.M | re.S) for line in block.splitlines()]


def test_the_way_to_a_cluster_has_ten_lines() -> None:
    first = re.findall(r"^```bash\n(.*?)^```$", TEXT, re.M | re.S)[0]
    assert len(first.splitlines()) == 10


@pytest.mark.parametrize("line", [line for line in BASH if line.startswith("ray ")])
def test_a_ray_command_exists_and_takes_these_options(line: str) -> None:
    import click
    from ray.scripts.scripts import cli as ray

    words, _, entry = line.partition(" -- ")
    group: click.Command = ray
    arguments = shlex.split(words)[1:]
    while isinstance(group, click.Group):
        command = group.get_command(click.Context(group), arguments.pop(0))
        assert command is not None, line
        group = command
    for word in arguments:
        if word.endswith(".yaml"):
            assert (ROOT / word).exists()
    group.make_context("ray", [*arguments, *(["--", *shlex.split(entry)] if entry else [])])
    if entry:
        python, script, *rest = shlex.split(entry)
        assert python == "python" and (ROOT / script).exists()
        parser.parse(["run", *rest])


def test_other_lines_name_files_that_exist() -> None:
    others = [line for line in BASH if not line.startswith("ray ")]
    assert {line.split()[0] for line in others} == {"aws", "export", "kubectl"}
    for path in re.findall(r"(?:jobs|docs)/[\w.-]+\w|cluster[\w-]*\.yaml", TEXT):
        assert (ROOT / path).exists(), path


@pytest.mark.parametrize("name", ["own-text", "methods"])
def test_the_commands_of_a_page_parse(name: str) -> None:
    page = (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
    lines = [line for block in re.findall(r"^```bash\n(.*?)^```$", page, re.M | re.S) for line in block.splitlines()]
    assert len(lines) >= 10
    for line in lines:
        program, *arguments = shlex.split(line)
        assert program == "raysts"
        parser.parse(arguments)


def test_the_messages_of_the_table_are_in_the_code() -> None:
    ours = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "raysts").rglob("*.py"))
    ours = re.sub(r"\{[^{}]*\}", "N", ours)
    for message in (
        "waiting for the cluster to have room for", "no node can hold such a worker", "no Ray cluster answers there",
        "its processes died", "one driver at a time", "auto_map",
    ):  # fmt: skip
        assert message in TEXT and message in ours, message


def test_the_readme_leads_there() -> None:
    assert "docs/cluster.md" in (ROOT / "README.md").read_text(encoding="utf-8")
