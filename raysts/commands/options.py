"""Shared options of the commands, the record of a command, and ``RunOptions``.

A command is a function. Its annotated parameters and its docstring are the parser, the help, the Python signature and the
reference. The words of an option that one command takes stand in its docstring, those of a shared option here. This module
is cheap to import. The files of commands import at their top only what parameters need, and the rest inside the functions,
so that ``raysts COMMAND --help`` answers at once.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import Parameter as Argument
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypedDict, TypeVar, get_args, get_type_hints

from cyclopts import Group, Parameter, Token

from raysts.errors import InputError, nearest
from raysts.models.layers import Layers as LayersValue
from raysts.models.layers import as_layers
from raysts.models.precision import PRECISIONS

if TYPE_CHECKING:
    from raysts.data.user import UserData
    from raysts.recipes.recipe import Pipeline

Result = dict[str, Any]
"""The fields of the JSON line."""

TITLES = "Make an encoder", "Look before a run", "Follow and keep runs", "Measure", "Use an encoder", "Data"
MAKE, LOOK, FOLLOW, MEASURE, USE, DATA = (Group(title, sort_key=number) for number, title in enumerate(TITLES))
"""Groups of commands in the help."""


class Command(NamedTuple):
    """Command of ``raysts``.

    Attributes:
        name: one or two words.
        function: the Python function of the command. Its parameters are the options.
        text: returns the result as text. It may remove fields that only the text needs.
        example: a command line that works.
        group: heading of the command in the help.
        positional: parameters that are written without an option.
    """

    name: str
    function: Callable[..., Result]
    text: Callable[[Result], str]
    example: str
    group: Group
    positional: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Options of a command, without its subject. ``user_data``: what text, column, dev and test name."""

    data: str | Path | None = None
    storage: str | Path | None = None
    name: str | None = None
    address: str | None = None
    command: str | None = None
    track: Mapping[str, str] | None = None
    strict_contamination: bool = False
    skip_bad: bool = False
    user_data: UserData | None = None
    verify: bool = False
    stand_ins: bool = False
    prices: Mapping[str, float] | None = None

    @classmethod
    def from_arguments(cls, **options: Any) -> RunOptions:
        """Return the options of a command that takes a group of options (see below)."""
        from raysts.data.user import UserData

        keys = ("text", "column", "dev", "test", "queries", "queries_column")
        user_data = UserData.of(*(options.pop(key, None) for key in keys))
        if (price := options.pop("price", None)) is not None:
            from raysts.pipeline.price import parse_prices

            options["prices"] = parse_prices(price)
        return cls(user_data=user_data, **options)

    def after(self, record: Result) -> RunOptions:
        """Return these options with the data of a recorded run or study, unless they name data.

        User text of the record comes with its development and test sets. These options may replace or add some.
        """
        from raysts.data.user import UserData

        user_data = self.user_data or UserData()
        if self.data is not None or user_data.text:
            return self
        before = UserData.from_plain(record.get("own"))
        combined = replace(before, dev=user_data.dev or before.dev, test={**before.test, **user_data.test})
        return replace(self, data=record.get("data"), user_data=combined)


JOB_COPIES = "working_dir_files"
"""Folder in which Ray unpacks the working directories of jobs."""


def is_job_copy() -> bool:
    """Return True in the working directory of a Ray job, a copy that Ray removes later."""
    return JOB_COPIES in Path.cwd().parts


def local_path(path: str | Path, option: str, writes: bool = False) -> Path:
    """Return a path, perhaps one to write to.

    Raises:
        InputError: a URI of a storage, which would become a folder name; a relative path to write to in a job.
    """
    if "://" in str(path):
        raise InputError(f"{option} '{path}': must be a path on this machine; copy what is there from or to the store")
    if writes and is_job_copy() and not Path(path).is_absolute():
        raise InputError(
            f"{option} '{path}': the working directory of a Ray job is a copy that is removed later; give an absolute path "
            f"that every node can reach"
        )
    return Path(path)


def _names(hint: Any, tokens: Sequence[Token]) -> list[str] | None:
    """Return the names in ``a, b``, or None if the text has no name."""
    return [name for token in tokens for name in map(str.strip, token.value.split(",")) if name] or None


def _place(hint: Any, tokens: Sequence[Token]) -> str:
    """Return a path or URI that is not empty.

    A shell replaces an unset variable by an empty text, which must not mean the default.
    """
    if not tokens[0].value:
        raise ValueError("is empty; name a place, or remove the option")
    return tokens[0].value


def _named_places(hint: Any, tokens: Sequence[Token]) -> dict[str, str]:
    """Return ``{"NAME": "FILE"}`` of ``NAME=FILE``, which may be repeated."""
    places: dict[str, str] = {}
    for token in tokens:
        name, equals, path = token.value.partition("=")
        if not (name and equals and path):
            raise ValueError(f"'{token.value}' must look like NAME=FILE, for example {token.keyword} mine=pairs.csv")
        if name in places:
            raise ValueError(f"'{name}' is given twice; take two names")
        places[name] = path
    return places


def _words(hint: Any, tokens: Sequence[Token]) -> dict[str, str]:
    """Return ``{"a": "b"}`` of ``a=b,c=d``."""
    words: dict[str, str] = {}
    for item in (item for token in tokens for item in token.value.split(",")):
        key, equals, value = item.partition("=")
        if not (key and equals and value):
            raise ValueError(f"'{item}' must look like a=b, several as a=b,c=d")
        words[key] = value
    return words


def _tools(hint: Any, tokens: Sequence[Token]) -> dict[str, str]:
    """Return ``{"mlflow": "URI", "wandb": ""}`` of ``mlflow=URI,wandb``."""
    items = (item for token in tokens for item in re.split(r",(?=[a-z]+(?:=|,|$))", token.value))
    return {name.strip(): place for name, _, place in (item.partition("=") for item in items)}


def _overrides(hint: Any, tokens: Sequence[Token]) -> dict[str, Any]:
    from raysts.recipes.overrides import parse_overrides

    return parse_overrides([token.value for token in tokens])


def option(help: str, metavar: str | None = None, **settings: Any) -> Parameter:  # noqa: A002
    """Return the description of a parameter: its help, the word for its value, and settings."""
    return Parameter(help=help, metavar=metavar, **settings)


HIDDEN = Parameter(parse=False)
"""Marker of a parameter that is not an option."""


File = Annotated[str | Path | None, Parameter(metavar="FILE")]
Folder = Annotated[str | Path | None, Parameter(metavar="DIR")]
Name = Annotated[str | None, Parameter(metavar="NAME")]
Number = Annotated[int | None, Parameter(metavar="N")]

CommandLine = Annotated[str | None, HIDDEN]
"""The exact command, for records and reports."""

if TYPE_CHECKING:
    RecipeName = str | Pipeline
else:
    RecipeName = Annotated[str, option("a system's name, quickstart, or a YAML file ('raysts recipes' lists)", "NAME")]

Model = Annotated[str | Path, option("a run id, a directory, a Hugging Face name, or word vectors", "MODEL")]

OtherModel = Annotated[str | Path | None, Parameter(metavar="MODEL")]

Overrides = Annotated[
    Mapping[str, Any] | None,
    option(
        "override a value of the recipe: members=4, nli.batch=32, train.max_steps=100 (all stages). May be repeated",
        "a.b=value",
        name="--set",
        converter=_overrides,
    ),
]

NamesOption = Annotated[Sequence[str] | None, Parameter(converter=_names, metavar="NAME,...")]

WordsOption = Annotated[Mapping[str, str] | None, Parameter(converter=_words)]

Tasks = Annotated[
    NamesOption, option("comma-separated, also retrieval:NAME (default: every task whose files exist)", "NAME,...")
]

Prompt = Annotated[
    str | None,
    option(
        "text before every text: one of the model's own by its name, or the text itself; '' for none (default: the model's "
        "default prompt)",
        "NAME|TEXT",
    ),
]

Data = Annotated[
    str | Path | None,
    option(
        "folder in the canonical layout, or its URI (s3://..., gs://...) (default: $RAYSTS_DATA, else with --text, --dev or "
        "--test nothing, else generated sentences)",
        "PATH",
        converter=_place,
    ),
]

TextColumn = Annotated[
    str | None,
    option(
        "the column of --text that holds the texts (default: the only one, text or sentence)", "NAME", name="--column"
    ),
]

PriceOption = Annotated[
    str | None,
    option(
        "what the work costs: 3.2/gpu-hour, also cpu-hour, gb-moved, 1000-requests, several with commas, or a YAML file of them "
        "(UNIT: NUMBER)",
        "PRICE",
        allow_leading_hyphen=True,  # of a number below 0, which the message is to name
    ),
]

Dims = Annotated[int | None, option("the first N dimensions of the vectors alone (default: all)", "N")]

Dtype = Annotated[
    Literal["float32", "int8", "binary"],
    option(
        "of the stored numbers, as sentence-transformers makes them: int8 in 255 steps of each dimension's range, binary the "
        "signs, eight to a byte"
    ),
]

Dev = Annotated[
    Mapping[str, str | Path] | None,
    option(
        "your own scored pairs (sentence1, sentence2, score; Parquet, CSV, TSV, JSONL), or the folder of a retrieval set "
        "(corpus, queries, qrels), which choose checkpoints and models instead of STS-B dev. May be repeated: "
        "the mean of the sets counts",
        "NAME=FILE",
        converter=_named_places,
    ),
]

Test = Annotated[
    Mapping[str, str | Path] | None,
    option(
        "your own scored pairs, the task NAME, or the folder of a retrieval set, the task retrieval:NAME; reported with "
        "intervals. May be repeated",
        "NAME=FILE",
        converter=_named_places,
    ),
]

StoragePlace = Annotated[
    str | Path | None,
    option(
        "where runs and results live: a folder, s3://... or gs://... (default: ./raysts-storage)",
        "PATH",
        name="--storage",
        converter=_place,
    ),
]

Address = Annotated[
    str | None,
    option(
        "Ray cluster (default: the running one, else a local one); 'none' works in this process without Ray", "ADDRESS"
    ),
]

StrictContamination = Annotated[
    bool,
    option("refuse test sets that hold training rows (default: say how many, and score the other rows as well)"),
]

SkipBad = Annotated[
    bool,
    option(
        "go on without files that cannot be read of training tables that have others, and list them (default: refuse); "
        "development and test sets are never cut"
    ),
]

Precision = Annotated[
    str,
    option(
        f"what it computes in: {', '.join(PRECISIONS)} (auto: bf16 where the hardware multiplies it natively)", "NAME"
    ),
]

Resamples = Annotated[int, option("bootstrap resamples of an interval; 0 for no intervals", "N")]


Layers = Annotated[
    LayersValue | None,
    option(
        "pool the last K layers, 'first_last', layer I alone ('only-I'; 0 is the embedding layer), or each alone ('only-all') "
        "(default: the model's own)",
        "K",
        converter=lambda hint, tokens: as_layers(tokens[0].value),
    ),
]


def check_precision(name: str) -> None:
    """Raise InputError for an unknown precision."""
    if name not in PRECISIONS:
        raise InputError(f"--precision {name}: must be one of {', '.join(PRECISIONS)}{nearest(name, PRECISIONS)}")


# -- groups of options that several commands take as ``**options`` -------------------------------------------------------


class TextOptions(TypedDict, total=False):
    """The user's data that a search reads."""

    text: Annotated[
        str | Path | None,
        option(
            "your own text, read where Wikipedia's sentences are: Parquet, CSV, TSV, JSONL, plain lines (.txt), .gz of the last "
            "four, a folder of them, a folder that datasets saved, s3://... or hf://NAME",
            "PATH",
            converter=_place,
        ),
    ]
    column: TextColumn
    queries: Annotated[
        str | Path | None,
        option(
            "texts of the query side beside those of --text: read behind the models' prompts of queries",
            "PATH",
            converter=_place,
        ),
    ]
    queries_column: Annotated[
        str | None,
        option("the column of --queries that holds the texts (default: the only one, text or sentence)", "NAME"),
    ]
    dev: Dev
    skip_bad: SkipBad


class UserOptions(TextOptions, total=False):
    """The user's data that a run reads."""

    test: Test


class TeacherOptions(TypedDict, total=False):
    """The teachers of a student, beside the models that are named."""

    from_run: Annotated[str | None, option("take the members of this run", "NAME")]
    from_study: Annotated[str | None, option("take the best of this study ('raysts tune')", "NAME")]
    top: Annotated[
        int | None,
        option(
            "the best K members on STS-B dev (default: all); of a search by points (lower-bound) K seeds of its best point "
            "(default: as many as it had)",
            "K",
        ),
    ]
    prompt: Annotated[
        str | None,
        option(
            "text before every text that the teachers read: a prompt's name, or the text itself; '' for none (default: each "
            "one's default prompt); the student's own is --set prompt=NAME|TEXT",
            "NAME|TEXT",
        ),
    ]
    keep_index: Annotated[
        str | None,
        option(
            "the one teacher. The student keeps its space and width, and its queries search an index that this model embedded",
            "MODEL",
        ),
    ]
    teacher_url: Annotated[
        str | None,
        option(
            "another teacher: a server's address in the format of OpenAI (http://HOST/v1/embeddings). Its key is read from "
            "$RAYSTS_TEACHER_KEY, and the most requests a minute from $RAYSTS_TEACHER_RATE; the storage keeps its vectors",
            "URL",
        ),
    ]
    teacher_model: Annotated[str | None, option("the name of the model at --teacher-url", "NAME")]


class PlanOptions(UserOptions, TeacherOptions, total=False):
    """Options of a plan."""


class WorkOptions(TypedDict, total=False):
    """Options of a command that works: its place, its name, and what follows it."""

    name: Annotated[
        str | None, option("name in the storage (default: that of the recipe, or what it comes from)", "NAME")
    ]
    address: Address
    track: Annotated[
        Mapping[str, str] | None,
        option(
            "show the training runs while they train in tensorboard, mlflow, wandb or trackio; mlflow=URI names its server or "
            "file, wandb=PROJECT and trackio=PROJECT a project (default: the tool's own)",
            "TOOL[=PLACE],...",
            converter=_tools,
        ),
    ]
    command: CommandLine
    price: PriceOption


class SearchOptions(TextOptions, WorkOptions, total=False):
    """Options of a search."""


class RunGroup(UserOptions, WorkOptions, total=False):
    """Options of a run."""

    strict_contamination: StrictContamination


class DistillOptions(RunGroup, TeacherOptions, total=False):
    """Options of a distillation."""


Function = TypeVar("Function", bound=Callable[..., Any])


def takes(group: type) -> Callable[[Function], Function]:
    """Return a decorator: ``**options`` of a function become keyword parameters, for parser, help and Tab."""

    def expand(function: Function) -> Function:
        hints, signature = get_type_hints(group, include_extras=True), inspect.signature(function)
        parameters = [named for named in signature.parameters.values() if named.kind is not Argument.VAR_KEYWORD]
        for name, hint in hints.items():
            default = False if hint is bool or get_args(hint)[:1] == (bool,) else None
            parameters.append(Argument(name, Argument.KEYWORD_ONLY, default=default, annotation=hint))
        function.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        function.__annotations__ = {**function.__annotations__, **hints}
        return function

    return expand
