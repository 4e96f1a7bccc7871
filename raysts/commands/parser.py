"""Command line, built from the signatures and docstrings of the commands' functions."""

import functools
import inspect
import itertools
import re
import typing
from collections.abc import Mapping, Sequence
from inspect import Parameter as Argument
from typing import Annotated, Any, NamedTuple

from cyclopts import App, CycloptsError, MissingArgumentError, Parameter, UnknownOptionError, UnusedCliTokensError

from raysts import __version__
from raysts.commands import claims, compare, data, distill, evaluate, follow, look, run, tune, use
from raysts.commands.options import HIDDEN, Command, option
from raysts.errors import InputError
from raysts.ids import sources

MODULES = (run, distill, tune, look, follow, evaluate, compare, claims, use, data)
COMMANDS: dict[str, Command] = {command.name: command for module in MODULES for command in module.COMMANDS}
WORDS = {"data": "Fetch, import, prepare and check data."}
"""Help of the first word of commands with two words."""


COMPLETION = "--install-completion"


class PrintOptions(NamedTuple):
    """Options of every command that are not parameters of its function."""

    json: Annotated[bool, option("print one JSON object as the last line of stdout")] = False
    verbose: Annotated[
        bool, option("show what each step reads and writes, with times, and Ray's lines", name=("--verbose", "-v"))
    ] = False
    quiet: Annotated[bool, option("show warnings, errors and the result alone", name=("--quiet", "-q"))] = False


def parse(arguments: Sequence[str]) -> tuple[Command | None, dict[str, Any], PrintOptions]:
    """Return the command, the arguments of its function, and what it prints.

    The command is None after printing the help or the version.

    Raises:
        InputError: no command, an unknown command, or a wrong value of an option.
    """
    for argument in arguments:
        if argument.encode(errors="ignore").decode() != argument:  # records are UTF-8
            raise InputError(f"{argument!a:.100}: must be UTF-8 text")
    try:
        function, bound, _ = parser().parse_args(list(arguments), exit_on_error=False, print_error=False)
    except CycloptsError as error:
        raise InputError(_problem(error, arguments)) from None
    command = getattr(function, "raysts_command", None)
    if command is None:
        words = " ".join(word for word in arguments if not word.startswith("-"))
        if not {"--help", "-h", "--version", COMPLETION} & {*arguments}:
            raise InputError(f"name a command: '{f'raysts {words}'.strip()} --help' lists them")
        function(*bound.args, **bound.kwargs)
        return None, {}, PrintOptions()
    options = dict(bound.arguments)
    output = PrintOptions(**{name: options.pop(name) for name in PrintOptions._fields if name in options})
    if output.verbose and output.quiet:
        raise InputError("-v and -q: give one of them")
    return command, options, output


def _problem(error: CycloptsError, arguments: Sequence[str]) -> str:
    """Return the message for a wrong command line."""
    error.verbose = False
    words = " ".join(["raysts", *(error.command_chain or ())])
    if isinstance(error, UnusedCliTokensError):
        text = f"{words} takes no argument '{(error.unused_tokens or [''])[0]}'"
    elif isinstance(error, MissingArgumentError) and error.argument is not None:
        name, pairs = error.argument.name, itertools.pairwise(arguments)
        text = f"{words} needs {name}"
        if value := next((value for word, value in pairs if word == name and value.startswith("-")), ""):
            text = (
                f"{words} {name}: needs a value. '{value}' begins as an option does; if it is one, write {name}={value}"
            )
    else:
        text = str(error)
    text = text if text.endswith((".", "?")) else f"{text}."
    if isinstance(error, UnknownOptionError) and any(
        "--set" in argument.names for argument in error.argument_collection
    ):
        from raysts.recipes.recipe import Pipeline

        setting = (error.token.keyword or error.token.value).lstrip("-").partition("=")[0].replace("-", "_")
        if "." in setting or setting in Pipeline.model_fields:
            text += f" A setting is given as --set {setting}=VALUE."
    return f"{text} '{words} --help' shows what it takes"


@functools.cache
def parser() -> App:
    """Return the command line with every command and its options."""
    shared: dict[str, Any] = {
        "help_format": "plaintext",
        "default_parameter": Parameter(negative=(), json_list=False, json_dict=False, accepts_keys=False, n_tokens=1),
    }
    top = App(
        name="raysts",
        help="Train, distil and evaluate sentence embeddings on Ray.",
        help_epilogue="start here: raysts run quickstart, or raysts init for data of your own",
        version=lambda: f"raysts {__version__} (sources {sources()})",
        **shared,
    )
    top.register_install_completion_command(COMPLETION, help="Have the shell complete commands and options on Tab.")
    groups = {"": top}
    for place, command in enumerate(COMMANDS.values()):
        word, _, name = command.name.rpartition(" ")
        if word not in groups:
            groups[word] = App(name=word, help=WORDS[word], group=command.group, **shared)
            top.command(groups[word])
        groups[word].command(
            _entry(command),
            name=name,
            group=command.group,
            sort_key=place,
            help_epilogue=f"example: {command.example}",
        )
    return top


def _entry(command: Command) -> Any:
    """Return a function with the signature for the command line and the command's docstring.

    Parameters that are not ``positional`` are keyword-only, and a mapping becomes a list of pairs.
    """
    hints = typing.get_type_hints(command.function, include_extras=True)
    arguments = []
    for name, argument in inspect.signature(command.function).parameters.items():
        hint = hints[name]
        if HIDDEN in typing.get_args(hint):
            continue
        kind = Argument.POSITIONAL_ONLY if name in command.positional else Argument.KEYWORD_ONLY
        value, *about = typing.get_args(hint) if typing.get_origin(hint) is Annotated else [hint]
        if Mapping in (typing.get_origin(part) for part in typing.get_args(value)):
            value = (
                list[str] | dict[str, Any] | None
            )  # cyclopts collects every use of an option whose type begins with a list
        if value is bool:
            about.append(Parameter(show_default=False))
        hint = Annotated[value, *about, Parameter()]
        arguments.append(argument.replace(annotation=hint, kind=kind))
    for name, hint in typing.get_type_hints(PrintOptions, include_extras=True).items():
        hint = Annotated[hint, Parameter(show_default=False)]
        arguments.append(Argument(name, Argument.KEYWORD_ONLY, default=False, annotation=hint))

    def entry(**options: Any) -> None:
        raise AssertionError("parse() calls the command")

    entry.__signature__ = inspect.Signature(sorted(arguments, key=lambda argument: argument.kind))  # type: ignore[attr-defined]
    entry.__name__ = command.function.__name__
    text = re.sub(r"\n {12,}", " ", command.function.__doc__ or "")  # of options: one line each
    entry.__doc__ = re.sub(r"(?<=\S)\n {4}(?=\S)", " ", text).replace("``", "")  # and of paragraphs
    entry.raysts_command = command  # type: ignore[attr-defined]
    return entry
