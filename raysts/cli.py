"""The ``raysts`` command: what it is called with, how it ends, and what it never prints."""

import contextlib
import errno
import gc
import inspect
import io
import json
import os
import shlex
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, TextIO

from raysts.commands.options import MAKE, MEASURE, USE, Command, Result
from raysts.commands.parser import parse
from raysts.errors import FORBIDDEN, InputError, RunFailed, limit_of, limit_reached, redact
from raysts.log import screen, showing

MOST_PROBLEMS, LONGEST_PROBLEM = 50, 4_000
"""Lines that say what is wrong with the input, and their characters: a file may be wrong everywhere."""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the console script and exit with 0, 2, 3 or 130 (see :func:`execute`)."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a scheduler's way to say Ctrl-C
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # its caller has closed it
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123, SIM115
    sys.stderr = Lenient(sys.stderr)  # type: ignore[assignment]
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        code = execute(words)
    except KeyboardInterrupt:
        print(
            f"raysts: interrupted; finished work is kept. To go on: {written_down(words)}", file=sys.stderr, flush=True
        )
        os._exit(130)  # threads that wait on a Ray run never return after the shutdown: do not wait for them
    if not _print(sys.stdout):
        code = 3
    _print(sys.stderr)
    gc.freeze()  # Python looks through all that is left when it ends: a second, for nothing
    sys.exit(code)


class Lenient:
    """Stream that drops what cannot be written, so that a closed terminal does not end a run."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self._stream.flush()


def _print(stream: Any, text: str | None = None) -> bool:
    """Return False, with a message, if a text, or what a stream holds, cannot be written."""
    stream = getattr(stream, "_stream", stream)
    try:
        if text is not None:
            print(text, file=stream)
        stream.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())  # Python tries once more when it ends
        if not isinstance(error, BrokenPipeError):  # else whoever reads, as in `| head`, has enough
            remedy = "what was made is kept. Give stdout another place and run the same command again"
            print(f"raysts: the result cannot be written to stdout ({error.strerror}); {remedy}", file=sys.stderr)
            return False
    return True


def execute(arguments: list[str]) -> int:
    """Run one command and return its exit code: 0 done, 2 wrong input, 3 a run failed."""
    line = written_down(arguments)
    try:
        with contextlib.redirect_stdout(io.StringIO()) as written:
            command, options, output = parse(arguments)
    except InputError as error:
        return _refuse(error)
    if command is None:  # help or the version was asked for
        return 0 if _print(sys.stdout, written.getvalue().rstrip()) else 3
    # Models and data named on the command line are local unless they are hub names; nothing phones home.
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        # Ray prints to stdout from threads of its own; stdout is for the result.
        with contextlib.redirect_stdout(sys.stderr), showing(verbose=output.verbose, quiet=output.quiet):
            result, text = _call(command, options, line)
    except InputError as error:
        return _refuse(error)
    except RunFailed as error:
        print(f"raysts: {redact(str(error))}", file=sys.stderr)
        return 3
    except Exception as error:
        if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
            print(f"raysts: '{error.filename!s:.60}...': the name is too long; give a shorter path", file=sys.stderr)
            return 2
        limit = limit_reached(error)
        print(f"raysts: {redact(limit) if limit else _crash_message(error, line)}", file=sys.stderr)
        return 2 if limit_of(error) in FORBIDDEN else 3
    if not _print(sys.stdout, json.dumps(result, default=str) if output.json else text):
        return 3
    return 2 if result.get("problems") else 0


def _call(command: Command, options: Mapping[str, Any], line: str) -> tuple[Result, str]:
    """Call the function of a command. Return the fields of the JSON line, and the text for people."""
    extra = {"command": line} if "command" in inspect.signature(command.function).parameters else {}
    shown = {MAKE: "checking data and models", MEASURE: command.name, USE: command.name}.get(command.group)
    with screen.working(shown) if shown else contextlib.nullcontext():
        result = command.function(**options, **extra)
    return result, command.text(result)


def _refuse(error: InputError) -> int:
    """Print what is wrong with the input, and return the exit code."""
    for problem in error.problems[:MOST_PROBLEMS]:
        print(f"raysts: {_cut(redact(problem))}", file=sys.stderr)
    if (omitted := len(error.problems) - MOST_PROBLEMS) > 0:
        print(f"raysts: and {omitted:,} more", file=sys.stderr)
    return 2


def written_down(arguments: Sequence[str]) -> str:
    """Return the command as records, reports and messages show it."""
    return shlex.join(["raysts", *map(redact, arguments)])


def _cut(problem: str) -> str:
    """Return a message without the middle of what it quotes."""
    if len(problem) <= LONGEST_PROBLEM:
        return problem
    return f"{problem[: LONGEST_PROBLEM // 2]} ... {problem[-LONGEST_PROBLEM // 4 :]}"


def _crash_message(error: Exception, line: str) -> str:
    """Write the traceback to a file, and return a message that names it: a traceback is never the message."""
    import tempfile
    import traceback

    details = ""
    with contextlib.suppress(OSError):  # a full disk, for one
        with tempfile.NamedTemporaryFile("w", prefix="raysts-error-", suffix=".log", delete=False) as file:
            file.write(redact("".join(traceback.format_exception(error))))
        details = f"The details are in {file.name}. "
    return f"{type(error).__name__}: {redact(str(error))}\n{details}To go on after mending it: {line}"
