"""``raysts recipes``: the named recipes."""

from __future__ import annotations

import shutil
import sys
import textwrap
from typing import TYPE_CHECKING

from raysts.commands.options import LOOK, Command, Result

if TYPE_CHECKING:
    from raysts.recipes.names import Entry


def recipes() -> Result:
    """List the named recipes (source, purpose, cost) and the commands of the papers' tables.

    Returns:
        status, recipes, tables (paper, table and the command that fills it).
    """
    from raysts.papers.experiments import commands

    tables = [{"paper": paper, "table": number, "command": command} for (paper, number), command in commands().items()]
    return {"status": "done", "recipes": list(_entries()), "tables": tables}


def _entries() -> dict[str, Entry]:
    from raysts.papers.experiments import EXPERIMENTS
    from raysts.recipes.names import RECIPES

    return RECIPES | {name: experiment.entry for name, experiment in EXPERIMENTS.items()}


def _text(result: Result) -> str:
    from raysts.evaluation.standings import aligned

    entries = _entries()
    names = max(map(len, entries)) + 2
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize  # a pipe gets a line per recipe
    lines = [
        textwrap.fill(
            f"{name:<{names}}{e.source}; shows: {e.shows}; cost: {e.cost}", width, subsequent_indent=" " * names
        )
        for name, e in entries.items()
    ]
    lines.append(
        "\nAny stages joined by '-' make a name (nli, ct, sts), then -sed or -ensemble; 'raysts show NAME' prints it."
    )
    lines.append("\nThe papers' tables, each by one command:")
    lines += aligned([(f"{table['paper']} {table['table']}", table["command"]) for table in result["tables"]], (0, 1))
    return "\n".join(lines)


COMMANDS = (Command("recipes", recipes, _text, "raysts recipes", LOOK),)
