"""Commands run in this process, and one storage folder in which every named recipe has run."""

from __future__ import annotations

import contextlib
import io
import json
import os
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from raysts.cli import execute
from raysts.data.world.generate import write_world
from raysts.recipes.names import RECIPES

TASKS = ("sts12", "stsb")
TINY = {"backbone": "tiny", "members": 2, "train.max_steps": 4}
"""Overrides that make any named recipe run in a second or two."""
EVALUATION = {"evaluation.resamples": 4, "evaluation.tasks": f"[{','.join(TASKS)}]"}


class Outcome(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str


def raysts(*arguments: object) -> Outcome:
    """Run ``raysts ARGUMENTS`` here."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = execute([str(argument) for argument in arguments])
        except SystemExit as ended:  # argparse
            code = int(ended.code or 0)
    assert "Traceback" not in err.getvalue(), err.getvalue()
    return Outcome(code, out.getvalue(), err.getvalue())


def result(*arguments: object) -> dict[str, Any]:
    """The JSON object of a command that must end well; stdout holds nothing else."""
    outcome = raysts(*arguments, "--json")
    assert outcome.code == 0, outcome.err
    (line,) = outcome.out.splitlines()
    found = json.loads(line)
    assert found["status"] == "done"
    return found


def overrides(*several: dict[str, Any]) -> list[str]:
    """``--set`` arguments; a later value replaces an earlier one."""
    merged = {key: value for each in several for key, value in each.items()}
    return [part for key, value in merged.items() for part in ("--set", f"{key}={value}")]


class Finished(NamedTuple):
    """A storage folder with every named recipe run, and how."""

    storage: Path
    data: Path
    results: dict[str, dict[str, Any]]

    def options(self) -> list[object]:
        return ["--data", self.data, "--storage", self.storage]

    def arguments(self, name: str, **more: Any) -> list[object]:
        """The arguments with which the recipe has run."""
        return [
            name,
            *self.options(),
            *overrides(TINY, EVALUATION, {key.replace("__", "."): v for key, v in more.items()}),
        ]


@cache
def finished(folder: Path) -> Finished:
    """Run every named recipe once per test session (``folder`` is the session's base folder)."""
    data, storage = folder / "finished-data", folder / "finished-storage"
    write_world(data, size="small")
    found = Finished(storage, data, {})
    before = os.environ.pop("RAYSTS_DATA", None)
    try:
        for name in RECIPES:
            found.results[name] = result("run", *found.arguments(name), "--address", "none")
    finally:
        if before is not None:
            os.environ["RAYSTS_DATA"] = before
    return found
