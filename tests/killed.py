"""Programs that end their own process, as forks of one that has imported what they need: imports take seconds each."""

from __future__ import annotations

import gc
import multiprocessing
import os
import sys
from typing import Any


def forks() -> Any:
    """The context whose processes are forks of one server; a process has one, so all that its forks need stands here."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        [
            "raysts.commands.run",
            "raysts.commands.tune",
            "raysts.training.loop",
            "raysts.objectives",
            "transformers.models.bert.modeling_bert",
            "pandas",  # pyarrow asks for it
        ]
    )
    return context


def start(program: str, *arguments: str) -> Any:
    """Start a process with the text of a program, ``sys.argv[1:]`` and our environment."""
    process = forks().Process(target=_run, args=(program, arguments, dict(os.environ)))
    process.start()
    return process


def exit_code(program: str, *arguments: str) -> int:
    """Run the text of a program as :func:`start` does; negative: the signal that ended it."""
    process = start(program, *arguments)
    process.join(300)
    assert process.exitcode is not None
    return process.exitcode


def _run(program: str, arguments: tuple[str, ...], environment: dict[str, str]) -> None:
    gc.freeze()  # as in gloo_ranks
    os.environ.clear()
    os.environ.update(environment)
    sys.argv[1:] = arguments
    exec(program, {})  # noqa: S102
