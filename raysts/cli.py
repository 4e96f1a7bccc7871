"""The ``raysts`` command: what it is called with, how it ends, and what it never prints."""

import argparse
import contextlib
import errno
import functools
import gc
import inspect
import json
import os
import shlex
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

from raysts import __version__
from raysts.commands import (
    claims,
    compare,
    data,
    distill,
    embed,
    evaluate,
    export,
    plan,
    recipes,
    report,
    run,
    show,
    tune,
)
from raysts.commands.options import Command, Result
from raysts.errors import InputError, RunFailed, without_secrets
from raysts.ids import sources

COMMANDS: dict[str, Command] = {
    command.name: command
    for module in (recipes, show, plan, run, tune, distill, claims, evaluate, compare, embed, export, report, data)
    for command in module.COMMANDS
}
MOST_PROBLEMS, LONGEST_PROBLEM = 50, 4_000
"""Lines that say what is wrong with the input, and their characters: a file may be wrong everywhere."""

GROUPS = {"data": "fetch, import, prepare and check data"}
"""Commands of two words, by the first one."""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Entry point of the console script; the exit code says how it ended (0, 2, 3 or 130)."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a scheduler's way to say Ctrl-C
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        code = execute(given)
    except KeyboardInterrupt:
        print(
            f"raysts: interrupted; finished work is kept. To go on: {written_down(given)}", file=sys.stderr, flush=True
        )
        os._exit(130)  # threads that wait on a Ray run never return after the shutdown: do not wait for them
    gc.freeze()  # Python looks through all that is left when it ends: a second, for nothing
    sys.exit(code)


def execute(arguments: list[str]) -> int:
    """Run one command and return its exit code: 0 done, 2 wrong input, 3 a run failed."""
    top = parser()
    options = top.parse_args(arguments)
    for argument in arguments:
        # argparse drops such a value; records are UTF-8.
        if argument.endswith("=--") or argument.encode(errors="ignore").decode() != argument:
            top.error(f"{argument!a:.100}: is no value; it must be UTF-8 text, and not '--'")
    # Models and data named on the command line are local unless they are hub names; nothing phones home.
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    line = written_down(arguments)
    try:
        # Ray prints to stdout from threads of its own; stdout is for the result.
        with contextlib.redirect_stdout(sys.stderr):
            result, text = _call(options, line)
    except InputError as error:
        for problem in error.problems[:MOST_PROBLEMS]:
            print(f"raysts: {_cut(without_secrets(problem))}", file=sys.stderr)
        if (more := len(error.problems) - MOST_PROBLEMS) > 0:
            print(f"raysts: and {more:,} more", file=sys.stderr)
        return 2
    except RunFailed as error:
        print(f"raysts: {without_secrets(str(error))}", file=sys.stderr)
        return 3
    except Exception as error:
        if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
            print(f"raysts: '{error.filename!s:.60}...': the name is too long; give a shorter path", file=sys.stderr)
            return 2
        print(f"raysts: {_unexpected(error, line)}", file=sys.stderr)
        return 3
    try:
        print(json.dumps(result, default=str) if options.json else text, flush=True)
    except BrokenPipeError:  # whoever reads, as in `| head`, has enough; Python flushes once more when it ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 2 if result.get("problems") else 0


def _call(options: argparse.Namespace, line: str) -> tuple[Result, str]:
    """Call the function of a command with its arguments; the fields of the JSON line, and the text for people."""
    command: Command = options.chosen
    given = {**vars(options), "command": line}
    if "set" in given:
        from raysts.recipes.overrides import parse_overrides

        given["overrides"] = parse_overrides(given["set"])
    parameters = inspect.signature(command.function).parameters
    result = command.function(**{name: value for name, value in given.items() if name in parameters})
    text = command.text(result)
    return result, text


def written_down(arguments: Sequence[str]) -> str:
    """The command as records, reports and messages show it."""
    return shlex.join(["raysts", *map(without_secrets, arguments)])


def _cut(problem: str) -> str:
    """A message without the middle of what it quotes."""
    if len(problem) <= LONGEST_PROBLEM:
        return problem
    return f"{problem[: LONGEST_PROBLEM // 2]} ... {problem[-LONGEST_PROBLEM // 4 :]}"


def _unexpected(error: Exception, line: str) -> str:
    """A traceback is never the message: it goes to a file that the message names."""
    import tempfile
    import traceback

    details = ""
    with contextlib.suppress(OSError):  # a full disk, for one
        with tempfile.NamedTemporaryFile("w", prefix="raysts-error-", suffix=".log", delete=False) as file:
            file.write(without_secrets("".join(traceback.format_exception(error))))
        details = f"The details are in {file.name}. "
    return f"{type(error).__name__}: {without_secrets(str(error))}\n{details}To go on after mending it: {line}"


@functools.cache
def parser() -> argparse.ArgumentParser:
    """The command-line parser."""
    top = argparse.ArgumentParser(
        prog="raysts",
        description="Train, distil and evaluate sentence embeddings on Ray.",
        epilog="example: raysts run quickstart",
    )
    top.add_argument("--version", action="version", version=f"raysts {__version__} (sources {sources()})")
    groups = {"": top.add_subparsers(dest="command", required=True, metavar="COMMAND")}
    for command in COMMANDS.values():
        group, _, word = command.name.rpartition(" ")
        if group not in groups:
            words = groups[""].add_parser(group, help=GROUPS[group])
            groups[group] = words.add_subparsers(dest="what", required=True, metavar="COMMAND")
        own = groups[group].add_parser(
            word,
            help=command.help,
            description=f"{command.help[0].upper()}{command.help[1:]}.",
            epilog=f"example: {command.example}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        own.set_defaults(chosen=command)
        own.add_argument("--json", action="store_true", help="print one JSON object as the last line of stdout")
        command.arguments(own)
    return top
