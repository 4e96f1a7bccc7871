"""What commands have in common that costs nothing to import: a command's record, shared arguments, ``RunOptions``.

The files of commands import at their top what their arguments need, and what does the work inside the functions, so that
``raysts COMMAND --help`` is there at once.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from raysts.errors import InputError
from raysts.models.layers import as_layers

if TYPE_CHECKING:
    from raysts.data.own import Own

Result = dict[str, Any]
"""The fields of the JSON line."""


class Command(NamedTuple):
    """One command of ``raysts``.

    Attributes:
        arguments: adds its arguments to a parser. An argument's name is that of the function's parameter; ``--set`` is
            ``overrides``.
        text: its result for people; may take out what only they read.
    """

    name: str
    help: str
    example: str
    arguments: Callable[[argparse.ArgumentParser], None]
    function: Callable[..., Result]
    text: Callable[[Result], str]


def say_on_stderr(text: str) -> None:
    """Progress goes to stderr; stdout is for results."""
    print(text, file=sys.stderr, flush=True)  # noqa: T201


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How something is run, whatever it is; :func:`raysts.run` says what each option means."""

    data: str | Path | None = None
    storage: str | Path | None = None
    name: str | None = None
    address: str | None = None
    command: str | None = None
    strict_contamination: bool = False
    skip_bad: bool = False
    say: Callable[[str], None] = say_on_stderr
    own: Own | None = None
    verify: bool = False
    stand_ins: bool = False

    def after(self, record: Result) -> RunOptions:
        """On the data of the run or study that ``record`` is of, where none is given; with its text go its judges, beside which
        others may be given."""
        from raysts.data.own import Own

        own = self.own or Own()
        if self.data is not None or own.text:
            return self
        before = Own.from_plain(record.get("own"))
        judges = replace(before, dev=own.dev or before.dev, test={**before.test, **own.test})
        return replace(self, data=record.get("data"), own=judges)


def on_this_machine(path: str | Path, option: str) -> Path:
    """A path; the URI of a store, of which a path would be made with that name, is refused."""
    if "://" in str(path):
        raise InputError(f"{option} '{path}': must be a path on this machine; copy what is there from or to the store")
    return Path(path)


def names(text: str) -> list[str] | None:
    """The names in ``a, b``; none where there is none."""
    return [name for name in map(str.strip, text.split(",")) if name] if text else None


def place(text: str) -> str:
    """A path or URI; of an option that is not set a shell makes an empty one, which must not mean the default."""
    if not text:
        raise argparse.ArgumentTypeError("is empty; name a place, or leave the option out")
    return text


class Named(argparse.Action):
    """``NAME=FILE``, repeatable -> ``{"NAME": "FILE"}``."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: Any, values: Any, option: str | None = None) -> None:
        name, equals, path = str(values).partition("=")
        if not (name and equals and path):
            parser.error(f"{option} {values}: must look like NAME=FILE, for example {option} mine=pairs.csv")
        known = dict(getattr(namespace, self.dest) or {})
        if name in known:
            parser.error(f"{option} {name}: is given twice; take two names")
        setattr(namespace, self.dest, {**known, name: path})


SHARED: dict[str, dict[str, Any]] = {
    "recipe": {"metavar": "NAME", "help": "a system's name, quickstart, or a YAML file ('raysts recipes' lists)"},
    "model": {"metavar": "MODEL", "help": "a run id, a directory, a Hugging Face name, or word vectors"},
    "--set": {
        "action": "append",
        "default": [],
        "metavar": "a.b=value",
        "help": "override a value of the recipe: members=4, nli.batch=32, train.max_steps=100 (all stages); repeatable",
    },
    "--tasks": {"type": names, "help": "comma-separated, also retrieval:NAME (default: every task whose files exist)"},
    "--prompt": {
        "metavar": "NAME|TEXT",
        "help": "text before every text: one of the model's own by its name, or the text itself; '' for none (default: the "
        "model's default prompt)",
    },
    "--data": {
        "type": place,
        "metavar": "PATH",
        "help": "folder in the canonical layout, or its URI (s3://..., gs://...) (default: $RAYSTS_DATA, else with --text, "
        "--dev or --test nothing, else the embedded world)",
    },
    "--text": {
        "type": place,
        "metavar": "PATH",
        "help": "your own text, read where Wikipedia's sentences are: Parquet, CSV, TSV, JSONL, plain lines (.txt), .gz of "
        "the last four, a folder of them, a folder that datasets saved, s3://... or hf://NAME",
    },
    "--column": {"metavar": "NAME", "help": "the column of --text that holds the texts (default: the only one)"},
    "--dims": {"type": int, "metavar": "N", "help": "the first N dimensions of the vectors alone (default: all)"},
    "--dtype": {
        "choices": ("float32", "int8", "binary"),
        "default": "float32",
        "help": "of the stored numbers, as sentence-transformers makes them: int8 in 255 steps of each dimension's range, binary "
        "the signs, eight to a byte (default float32)",
    },
    "--dev": {
        "action": Named,
        "metavar": "NAME=FILE",
        "help": "your own scored pairs (sentence1, sentence2, score; Parquet, CSV, TSV, JSONL), or the folder of a retrieval set "
        "(corpus, queries, qrels), which choose checkpoints and models instead of STS-B dev; of several the mean; repeatable",
    },
    "--test": {
        "action": Named,
        "metavar": "NAME=FILE",
        "help": "your own scored pairs as a task of that name, or the folder of a retrieval set as retrieval:NAME, reported with "
        "intervals; repeatable",
    },
    "--storage": {
        "type": place,
        "metavar": "PATH",
        "help": "where runs and results live: a folder, s3://... or gs://... (default ./raysts-storage)",
    },
    "--address": {
        "metavar": "ADDRESS",
        "help": "Ray cluster (default: the running one, else a local one); 'none' works in this process without Ray",
    },
    "--strict-contamination": {
        "action": "store_true",
        "help": "refuse test sets that hold training rows (default: say how many, and score the other rows as well)",
    },
    "--skip-bad": {
        "action": "store_true",
        "help": "go on without files that cannot be read of training tables that have others, and list them (default: "
        "refuse); development and test sets are never cut",
    },
}
"""Arguments that several commands have."""


def add(command: Any, *shared: str) -> None:
    """Add arguments of ``SHARED`` to a parser, or to a group of one."""
    for name in shared:
        command.add_argument(name, **SHARED[name])


def add_layers(command: Any, default: str, of: str = "") -> None:
    """Add ``--layers``."""
    text = f"pool the last K layers{of}, or 'first_last' (default: {default})"
    command.add_argument("--layers", type=as_layers, metavar="K", help=text)
