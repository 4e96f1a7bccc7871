"""Commands run in this process, and one storage folder in which named recipes have run."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import logging
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from cyclopts.argument import Argument

from raysts.cli import execute
from raysts.commands.context import checked_plan
from raysts.commands.parser import parser
from raysts.commands.run import open_run
from raysts.log import logger
from raysts.pipeline.plan import Plan
from raysts.recipes.names import RECIPES, pipeline_of

TASKS = ("sts12", "stsb")
TINY = {"backbone": "tiny", "members": 2, "train.max_steps": 4, "train.eval_every": 4, "precision": "fp32"}
"""Overrides that make any named recipe run in a second or two, with the same numbers on processors that multiply bf16."""
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
        code = execute([str(argument) for argument in arguments])
    assert "Traceback" not in err.getvalue(), err.getvalue()
    return Outcome(code, out.getvalue(), err.getvalue())


def plan_of(
    recipe: Any,
    overrides: Any = None,
    data: str | Path | None = None,
    storage: str | Path | None = None,
    **options: Any,
) -> Plan:
    """The plan that ``raysts plan`` shows."""
    subject, settings, opened = open_run(recipe, overrides, data=data, storage=storage, **options)
    return checked_plan(pipeline_of(subject, settings if isinstance(subject, str) else {}), opened)


@contextlib.contextmanager
def listening(take: Callable[[str], object]) -> Iterator[None]:
    """Call ``take`` with every message, for the block."""
    handler = logging.Handler(logging.INFO)
    handler.emit = lambda record: take(record.getMessage())  # type: ignore[method-assign, assignment, return-value]
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def result(*arguments: object) -> dict[str, Any]:
    """The JSON object of a command that must end well; stdout holds nothing else."""
    outcome = raysts(*arguments, "--json")
    assert outcome.code == 0, outcome.err
    (line,) = outcome.out.splitlines()
    found = json.loads(line)
    assert found["status"] == "done"
    return found


def write_csv(path: Path, rows: list[dict[str, Any]]) -> Path:
    """Write a file of a user's."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def options_of(name: str) -> list[Argument]:
    """What the command line takes for a command."""
    app = parser()
    for word in name.split():
        app = app[word]
    return [argument for argument in app.assemble_argument_collection(parse_docstring=True) if argument.parse]


def overrides(*several: dict[str, Any]) -> list[str]:
    """``--set`` arguments; a later value replaces an earlier one."""
    merged = {key: value for each in several for key, value in each.items()}
    return [part for key, value in merged.items() for part in ("--set", f"{key}={value}")]


WHOLE = (
    "raw", "ct-ensemble-flow", "nli-ct-sed", "nli-ct-sed-flow", "gausscse-ent+con+rev", "nli-latte", "quickstart",
)  # fmt: skip
"""Recipes that have every way to combine members, every kind of head and of post stage among them."""
EVERY = [name if name in WHOLE else pytest.param(name, marks=pytest.mark.slow) for name in RECIPES]
"""Every named recipe, for tests that run them whole: the others are planned (`test_ids.py`), and run when slow tests do."""


class Results(dict[str, dict[str, Any]]):
    """What each named recipe gave; one that has not run runs when it is first asked for."""

    def __init__(self, data: Path, storage: Path) -> None:
        super().__init__()
        self.data, self.storage = data, storage

    def __missing__(self, name: str) -> dict[str, Any]:
        self[name] = result("run", *_arguments(self, name), "--address", "none")
        return self[name]


def _arguments(results: Results, name: str, **more: Any) -> list[object]:
    few = {"settings.dims": 4} if "latte" in name else {}
    few |= {"settings.classes": 4} if name.endswith("latte") else {}
    chosen = overrides(TINY, EVALUATION, few, {key.replace("__", "."): value for key, value in more.items()})
    return [name, "--data", results.data, "--storage", results.storage, *chosen]


class Finished:
    """A storage folder with named recipes run."""

    def __init__(self, folder: Path, world: Path) -> None:
        self.data, self.storage = folder / "finished-data", folder / "finished-storage"
        shutil.copytree(world, self.data)
        self.results = Results(self.data, self.storage)

    def options(self) -> list[object]:
        return ["--data", self.data, "--storage", self.storage]

    def arguments(self, name: str, **more: Any) -> list[object]:
        """The arguments with which the recipe has run."""
        assert self.results[name]
        return _arguments(self.results, name, **more)
