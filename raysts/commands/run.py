"""``raysts run``, the file of a run, and ``raysts init``, which writes such a file."""

from __future__ import annotations

import difflib
import itertools
import re
import shlex
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Unpack

import yaml

from raysts.commands import options as opt
from raysts.commands.options import MAKE, Command, Result, RunOptions, option
from raysts.commands.result import run_text
from raysts.errors import InputError
from raysts.log import say, screen

if TYPE_CHECKING:
    from raysts.recipes.recipe import Pipeline

DISTILL = "distill"
"""The base of a run file whose ``teachers`` are models that exist."""

PLACES = ("text", "column", "queries", "queries_column", "dev", "test", "data", "storage", "name")
"""Keys of a run file that are options of the command; paths start in the current folder, as on the command line."""


@opt.takes(opt.RunGroup)
def run(
    recipe: opt.RecipeName,
    overrides: opt.Overrides = None,
    data: opt.Data = None,
    storage: opt.StoragePlace = None,
    *,
    tasks: opt.Tasks = None,
    **options: Unpack[opt.RunGroup],
) -> Result:
    """Run a pipeline to its end. Finished steps are not repeated.

    Args:
        recipe: a system's name (``nli-ct-sed``), ``quickstart``, a YAML file (:func:`read_run`), or a
            pipeline; or the name of an experiment
            (``sed-stability``), which may begin with a search (``sts-grid-sed``). A system with a
            space (``space.optim.lr=1e-5,3e-5``) begins with a search over its members (docs/search.md).
        name: name of the run in the storage (default: the recipe's name).

    Returns:
        status, storage, name, model (path or None), delivered (what ``model`` is, compared with the backbone as distributed:
        :class:`raysts.pipeline.verdict.Delivered`), report (path), results (rows), contamination (one per model and task,
        see ``evaluation.contamination``), notes (contamination and other facts as text: texts that were cut, stages that
        ended below their start), left_out (failed members that ``min_members`` allows: number and reason), skipped (files
        that ``skip_bad`` left out: table, file, rows, reason), and of a distillation teachers: names in tables of teachers,
        by the run ids in their rows (teachers that run ids name are members). After a search also study, best, best_run and
        points, as :func:`raysts.tune`. An experiment has the page of its tables as ``report`` and None as ``model``, and its
        rows and ``left_out`` members name their point.
    """
    called = str(recipe) if isinstance(recipe, Path) else getattr(recipe, "name", recipe)
    options.setdefault("command", f"raysts.run({called!r}, {dict(overrides or {})!r})")
    settings = {**(overrides or {}), **({"evaluation.tasks": list(tasks)} if tasks else {})}
    subject, settings, opened = open_run(recipe, settings, data=data, storage=storage, **options)
    from raysts.commands import experiment

    with screen.working():
        return experiment.run(experiment.plan_experiment(subject, settings, opened))


# -- run files ---------------------------------------------------------------------------------------------------------


def read_run(
    recipe: Any, overrides: Mapping[str, Any] | None, **options: Any
) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """Return the recipe, the overrides and the options of a run, with those of its file.

    A run file has ``base``, the name of a recipe, then options of the command (``PLACES``) and overrides, nested or
    dotted. What the command names replaces what the file names. Another recipe is returned as it is.
    """
    settings = dict(overrides or {})
    if not isinstance(recipe, str | Path) or Path(recipe).suffix not in (".yaml", ".yml"):
        return recipe, settings, options
    from raysts.recipes.overrides import read_yaml

    plain = read_yaml(Path(recipe))
    if plain is None:
        raise InputError(f"{recipe}: is empty; 'raysts init' writes a file of a run for the data in a folder")
    if not isinstance(plain, Mapping) or "base" not in plain:
        if isinstance(plain, Mapping) and "recipes" not in plain:
            raise InputError(
                f"{recipe}: 'base' is missing. It names the recipe that the other lines change, for example "
                f"'base: ct-sed@small'; 'raysts init' writes such a file"
            )
        return recipe, settings, options
    for key in ("dev", "test"):
        if not isinstance(plain.get(key, {}), Mapping):
            raise InputError(
                f"{recipe}: {key}={plain[key]!r}: must be a mapping from names to files, as {{mine: pairs.csv}}"
            )
    for key in ("base", *PLACES):
        value = plain.get(key)
        words = [*value, *value.values()] if isinstance(value, Mapping) else [value]
        if value is not None and not all(isinstance(word, str) for word in words):
            raise InputError(
                f"{recipe}: {key}={value!r}: must be text, which YAML does not read here; put it in quotes"
            )
        if "" in words:
            raise InputError(f"{recipe}: {key}={value!r}: is empty; name what you mean, or remove the line")
    from_file = {key: plain[key] for key in PLACES if options.get(key) is None and key in plain}
    changes = {key: value for key, value in plain.items() if key not in (*PLACES, "base")}
    for key in changes:
        if near := difflib.get_close_matches(str(key), PLACES, n=1, cutoff=0.75):
            raise InputError(f"{recipe}: unknown key '{key}' (did you mean '{near[0]}'?)")
    return str(plain["base"]), {**_dotted_keys(changes), **settings}, {**options, **from_file}


def open_run(
    recipe: Any, overrides: Mapping[str, Any] | None, **options: Any
) -> tuple[Pipeline | str, dict[str, Any], RunOptions]:
    """Return a pipeline, or the name of an experiment, with its overrides and options.

    A wrong name is reported before torch is imported.
    """
    from raysts.papers.experiments import is_experiment
    from raysts.recipes.names import pipeline_of
    from raysts.search.search import SEARCHES

    recipe, settings, options = read_run(recipe, overrides, **options)
    if isinstance(recipe, str) and recipe.partition("@")[0] in SEARCHES:
        raise InputError(f"recipe '{recipe}': is a search, not a system. 'raysts tune {recipe}' runs it")
    if recipe == DISTILL:
        from raysts.commands.distill import open_distillation

        return open_distillation(take_teachers(settings), settings, **options)
    opened = RunOptions.from_arguments(**options)
    return recipe if is_experiment(recipe, settings) else pipeline_of(recipe, settings), settings, opened


def take_teachers(settings: dict[str, Any]) -> list[str]:
    """Remove the teachers of a run file from its settings, and return them."""
    teachers = settings.pop("teachers", ())
    return [str(teacher) for teacher in (teachers if isinstance(teachers, list | tuple) else [teachers])]


def _dotted_keys(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested changes by dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in changes.items():
        nested = _dotted_keys(value) if isinstance(value, Mapping) else {}
        flat |= {f"{key}.{inner}": of_inner for inner, of_inner in nested.items()} if nested else {str(key): value}
    return flat


def flow_text(value: Any) -> str:
    """Return a value as YAML on one line."""
    return yaml.safe_dump([value], allow_unicode=True, default_flow_style=True, width=10**6).strip()[1:-1]


FILE = """\
# A run of raysts: 'raysts plan {name}' shows its steps, 'raysts run {name}' runs it.
# 'raysts show {name}' prints every option with its value, 'raysts show {name} --yaml' with its meaning.
base: {base}
name: {run}

# The encoder that training starts from: a directory or a name of the Hugging Face hub.
backbone: {backbone}

# Your text, and the column that holds it.
{text}
# Sets that select checkpoints and models: scored pairs (sentence1, sentence2, score), or a retrieval folder.
{dev}
# Sets that are reported at the end, with intervals. Take others than above.
{test}
{source}
# A limit for a first try.
# train.max_steps: 100
"""

MEMBERS = "# Members of the ensemble.\nmembers: 4"
TEACHERS = """\
# The encoders that teach, and how many of the student's layers to keep (all without that line).
teachers: [{backbone}]
# backbone_layers: 3"""


def init(
    to: Annotated[str | Path, option("file to write; must not exist", "FILE")] = "run.yaml",
    *,
    folder: Annotated[str | Path, option("folder with your data (default: the current one)", "DIR")] = ".",
    base: Annotated[
        str, option("recipe that the file changes ('raysts recipes'), or distill", "NAME")
    ] = "simcse-unsup-sed@small",
    backbone: Annotated[str, option("encoder that training starts from", "MODEL")] = "bert-base-uncased",
) -> Result:
    """Write a commented run file for the data in a folder.

    Files with sentence1, sentence2 and score, and folders with corpus, queries and qrels, become test sets, those called dev
    or val development sets. The first other file with text becomes the text.

    Returns:
        status, file (path), text, column, dev and test (files by name).
    """
    from raysts.data.readers import LINES, TABLES, columns_of_files, format_of
    from raysts.evaluation.harness import TASKS
    from raysts.recipes.names import pipeline_of
    from raysts.storage.store import Store

    if base != DISTILL:
        pipeline_of(base, {"backbone": backbone})
    target, place = Path(to), Path(folder)
    if target.exists():
        raise InputError(f"init: '{target}' exists and stays as it is. Give another FILE")
    Store(target.absolute().parent).check(writes=True, option="FILE")
    if not place.is_dir():
        raise InputError(f"--folder '{folder}': must be a folder")
    text: str | None = None
    column: str | None = None
    tests: dict[str, str] = {}
    devs: dict[str, str] = {}
    for path in sorted(place.iterdir()):
        stem = path.name.split(".")[0]
        sets = devs if stem.startswith(("dev", "val")) else tests
        name = _allowed_name(stem, {*TASKS, *map(str.lower, (*devs, *tests))})
        if path.is_dir() and {"corpus", "queries", "qrels"} <= {file.name.split(".")[0] for file in path.iterdir()}:
            sets[name] = str(path)
        elif path.is_file() and format_of(path) in (*TABLES, LINES):
            try:
                columns = [] if format_of(path) == LINES else columns_of_files([path])
            except InputError as error:
                say(f"init: without a file that cannot be read. {error}")
                continue
            if {"sentence1", "sentence2", "score"} <= {*columns}:
                sets[name] = str(path)
            elif text is None:
                usual = [name for name in ("text", "body", "sentence") if name in columns]
                text, column = str(path), next(iter([*usual, *columns[-1:]]), None)
    text_lines = f"text: {flow_text(text or 'FILE')}\n" + (f"column: {flow_text(column)}\n" if column else "")
    dev_lines, test_lines = (
        "".join([f"{key}:\n", *(f"  {flow_text(name)}: {flow_text(path)}\n" for name, path in sets.items())])
        for key, sets in (("dev", devs), ("test", tests))
    )
    content = FILE.format(
        name=shlex.quote(target.name),
        base=base,
        run=flow_text(_allowed_name(target.stem)),
        backbone=flow_text(backbone),
        text=text_lines if text else "".join(f"# {line}\n" for line in text_lines.splitlines()),
        dev=dev_lines if devs else "# dev:\n#   mine: dev.csv\n",
        test=test_lines if tests else "# test:\n#   faq: test.csv\n",
        source=TEACHERS.format(backbone=flow_text(backbone)) if base == DISTILL else MEMBERS,
    )
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(content, encoding="utf-8")
    return {"status": "done", "file": str(target), "text": text, "column": column, "dev": devs, "test": tests}


def _allowed_name(stem: str, taken: Collection[str] = ()) -> str:
    """Return the name of a file as that of a run or a set, with a number if it is taken."""
    letters = re.sub(r"[^\w.+=-]+", "-", stem)[:90]
    name = letters if re.match("[A-Za-z0-9]", letters) else f"my{letters}"
    numbered = (f"{name}-{number}" for number in itertools.count(2))
    return next(free for free in itertools.chain([name], numbered) if free.lower() not in taken)


def _init_text(result: Result) -> str:
    data = [f"text {result['text']}"] if result["text"] else []
    data += [f"{kind} set {name}" for kind in ("dev", "test") for name in result[kind]]
    lines = [f"{result['file']} is written: {', '.join(data) or 'no data was there, so fill in text:'}"]
    return "\n".join([*lines, f"next: raysts plan {shlex.quote(result['file'])}"])


EXAMPLE = "raysts run nli-ct-sed --data DATA --set backbone=bert-base-uncased"
COMMANDS = (
    Command("run", run, run_text, EXAMPLE, MAKE, ("recipe",)),
    Command("init", init, _init_text, "raysts init run.yaml", MAKE, ("to",)),
)
