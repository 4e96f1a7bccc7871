"""A hook of mkdocs: ``llms.txt`` and ``SKILL.md`` for coding agents, made from the pages and the commands."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from raysts.commands.parser import COMMANDS

RULES = """\
- Add `--json`: the last line of stdout is one JSON object, and progress goes to stderr.
- Exit codes: 0 done; 2 the input is wrong and nothing was started; 3 a run failed; 130 interrupted. The message names the remedy.
- `raysts plan` with the arguments of `raysts run` shows the steps and their costs, and starts nothing.
- The same command continues an interrupted one. Finished steps are never repeated.
- A MODEL is a run's name, `NAME:student`, a run id, a directory, or a Hugging Face name.
- Say what `delivered` and its interval say. If the interval includes 0, no difference is shown.
"""


def on_post_build(config: Any) -> None:
    """Write both files beside the pages."""
    docs, site = Path(config["docs_dir"]), Path(config["site_dir"])
    pages = "".join(f"- [{title}]({name}): {summary(docs / name)}\n" for title, name in pages_of(config["nav"]))
    head = f"# {config['site_name']}\n\n> {config['site_description']}\n"
    (site / "llms.txt").write_text(f"{head}\n## Pages\n\n{pages}\n## Commands\n\n{commands()}", encoding="utf-8")
    for name in {name for _, name in pages_of(config["nav"])}:  # the sources of the pages, which agents read
        (site / name).write_text((docs / name).read_text(encoding="utf-8"), encoding="utf-8")
    about = "Train, distil, search, evaluate and use sentence encoders with the raysts command."
    front = f"---\nname: raysts\ndescription: {about}\n---\n"
    skill = f"{front}\n# raysts\n\n{config['site_description']}.\n\n## Rules\n\n{RULES}\n## Commands\n\n{commands()}"
    (site / "SKILL.md").write_text(skill, encoding="utf-8")


def pages_of(nav: list[Any]) -> Iterator[tuple[str, str]]:
    """Yield the title and the file of every page."""
    for entry in nav:
        for title, inner in entry.items():
            yield from pages_of(inner) if isinstance(inner, list) else [(title, inner)]


def summary(page: Path) -> str:
    """Return the first sentence of a page."""
    paragraphs = page.read_text(encoding="utf-8").split("\n\n")
    text = next(part for part in paragraphs if part.strip() and not part.startswith(("#", "!", "```", "|")))
    return re.split(r"(?<=[.!?:]) ", " ".join(text.split()))[0]


def commands() -> str:
    """Return every command with its summary and an example."""
    lines = []
    for name, command in COMMANDS.items():
        first = (command.function.__doc__ or "").splitlines()[0]
        lines.append(f"- `raysts {name}`: {first} Example: `{command.example}`\n")
    return "".join(lines)
