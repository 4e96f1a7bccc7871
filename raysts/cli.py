"""The ``raysts`` command: a thin face on the functions of ``raysts.commands.context``."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from raysts.commands import tune_arguments as cli_tune
from raysts.errors import InputError, RunFailed
from raysts.models.layers import as_layers


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Entry point of the console script; the exit code says how it ended (0, 2, 3 or 130)."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a scheduler's way to say Ctrl-C
    sys.exit(execute(list(sys.argv[1:] if arguments is None else arguments)))


def execute(arguments: list[str]) -> int:
    """Run one command and return its exit code: 0 done, 2 wrong input, 3 a run failed, 130 interrupted."""
    options = parser().parse_args(arguments)
    # Models and data named on the command line are local unless they are hub names; nothing phones home.
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    command = written_down(arguments)
    try:
        # Ray prints to stdout from threads of its own; stdout is for the result.
        with contextlib.redirect_stdout(sys.stderr):
            found, text = options.function(options, command)
    except InputError as error:
        for problem in error.problems:
            print(f"raysts: {problem}", file=sys.stderr)
        return 2
    except RunFailed as error:
        print(f"raysts: {error}", file=sys.stderr)
        return 3
    except KeyboardInterrupt:
        print(f"raysts: interrupted; finished work is kept. To go on: {command}", file=sys.stderr)
        # Threads that wait on a Ray run never return after the shutdown: do not wait for them.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(130)
    except Exception as error:
        print(f"raysts: {_unexpected(error, command)}", file=sys.stderr)
        return 3
    print(json.dumps(found, default=str) if options.json else text)
    return 2 if found.get("problems") else 0


SECRET_NAMES = ("TOKEN", "SECRET", "PASSWORD", "PASSPHRASE", "CREDENTIALS", "KEY")
"""Last words of the names of environment variables that hold secrets."""


def written_down(arguments: Sequence[str]) -> str:
    """The command as records, reports and messages show it: a secret of the environment by its name, not its value."""
    secrets = {
        value: name
        for name, value in os.environ.items()
        if len(value) >= 8 and name.upper().replace("-", "_").split("_")[-1] in SECRET_NAMES
    }
    shown = []
    for argument in arguments:
        for value in sorted(secrets, key=len, reverse=True):
            argument = argument.replace(value, f"${{{secrets[value]}}}")
        shown.append(argument)
    return shlex.join(["raysts", *shown])


def _unexpected(error: Exception, command: str) -> str:
    """A traceback is never the message: it goes to a file that the message names."""
    import tempfile
    import traceback

    details = ""
    with contextlib.suppress(OSError):  # a full disk, for one
        with tempfile.NamedTemporaryFile("w", prefix="raysts-error-", suffix=".log", delete=False) as file:
            file.write("".join(traceback.format_exception(error)))
        details = f"The details are in {file.name}. "
    return f"{type(error).__name__}: {error}\n{details}To go on after mending it: {command}"


Outcome = tuple[dict[str, Any], str]
"""The fields of the JSON line, and the text for people."""


def _recipes(options: argparse.Namespace, command: str) -> Outcome:
    from raysts.recipes.experiments import EXPERIMENTS
    from raysts.recipes.names import COMPOSED, RECIPES

    every = RECIPES | COMPOSED | {name: experiment.entry for name, experiment in EXPERIMENTS.items()}
    width = max(map(len, every))
    lines = [f"{name:<{width}}  {e.source}; shows: {e.shows}; cost: {e.cost}" for name, e in every.items()]
    lines.append(
        "\nAny stages joined by '-' make a name (nli, ct, sts), then -sed or -ensemble; 'raysts show NAME' prints it."
    )
    return {"status": "done", "recipes": list(every)}, "\n".join(lines)


def _show(options: argparse.Namespace, command: str) -> Outcome:
    import yaml

    from raysts.commands import study_run as api_study
    from raysts.recipes.overrides import parse_overrides

    found = api_study.shown(options.recipe, parse_overrides(options.set))
    text = yaml.safe_dump(found, sort_keys=False, allow_unicode=True)
    return {"status": "done", "recipe": found}, text.rstrip()


def _plan(options: argparse.Namespace, command: str) -> Outcome:
    from raysts.commands import study_run as api_study
    from raysts.data.shards import skipped_line
    from raysts.recipes.overrides import parse_overrides

    found = api_study.described(
        options.recipe, parse_overrides(options.set), options.data, options.storage, options.skip_bad
    )
    lines = [f"{found['name']}: backbone {found['backbone']['name']} ({found['backbone']['id']})"]
    for node in found["nodes"]:
        needs = node["resources"]
        gpus = ", GPU if any" if needs["gpus"] is None else f", {needs['gpus']:g} GPU" if needs["gpus"] else ""
        lines.append(
            f"  {node['id']}  {node['status']:<7}  {node['title']:<34}  {node['sentences']:>13,} sentences  "
            f"{needs['workers']:g} x ({needs['cpus']:g} CPU{gpus})"
        )
    lines += [skipped_line(each) for each in found["skipped"]]
    left = [node for node in found["nodes"] if node["status"] != "done"]
    sentences = sum(node["sentences"] for node in left)
    lines.append(f"{len(found['nodes'])} nodes, {len(left)} left, {sentences:,} sentences to process")
    return {"status": "done", **found}, "\n".join(lines)


def _run(options: argparse.Namespace, command: str) -> Outcome:
    from raysts.commands import study_run as api_study
    from raysts.recipes.overrides import parse_overrides

    found = api_study.run(
        options.recipe,
        parse_overrides(options.set),
        options.data,
        options.storage,
        name=options.name,
        address=options.address,
        command=command,
        strict_contamination=options.strict_contamination,
        skip_bad=options.skip_bad,
    )
    return found, _result(found)


def _distill(options: argparse.Namespace, command: str) -> Outcome:
    from raysts.commands import study_run as api_study
    from raysts.recipes.overrides import parse_overrides

    found = api_study.distill(
        options.models,
        parse_overrides(options.set),
        options.data,
        options.storage,
        from_run=options.from_run,
        from_study=options.from_study,
        top=options.top,
        name=options.name,
        address=options.address,
        command=command,
        skip_bad=options.skip_bad,
    )
    return found, _result(found)


def _layer(text: str) -> str:
    """``3`` or ``all`` -> the choice of that layer alone, or of each alone."""
    if text != "all" and not text.isdecimal():
        raise argparse.ArgumentTypeError(f"'{text}' must be the number of a layer, or 'all'")
    return f"only-{text}"


def _names(text: str | None) -> list[str] | None:
    """The names in ``a, b``."""
    return [name for name in map(str.strip, text.split(",")) if name] if text else None


def _result(found: dict[str, Any]) -> str:
    from raysts.data.shards import skipped_line
    from raysts.evaluation.results import format_table, summary

    lines = [format_table(summary(found["results"])), *found.get("notes", [])]
    lines += [skipped_line(each) for each in found["skipped"]]
    lines += [f"left out: member {gone['member']}, which failed: {gone['reason']}" for gone in found["left_out"]]
    if found["model"]:
        lines.append(f"model:  {found['model']}")
    lines.append(f"report: {found['report']}")
    if found["model"]:
        lines.append(f"next:   raysts embed {found['model']} --input FILE.parquet --column TEXT --output DIR")
    return "\n".join(lines)


def _evaluate(options: argparse.Namespace, command: str) -> Outcome:
    from raysts.commands import context as api
    from raysts.evaluation.results import format_results

    found = api.evaluate(
        options.model,
        _names(options.tasks),
        pairs=options.pairs,
        data=options.data,
        storage=options.storage,
        pooling=options.pooling,
        layers=options.layer if options.layer is not None else options.layers,
        similarity=options.similarity,
        resamples=options.resamples,
        strict_contamination=options.strict_contamination,
        mteb=options.mteb,
    )
    files = [f"MTEB results: {len(found['mteb'])} files in {options.mteb}"] if "mteb" in found else []
    return found, "\n".join([format_results(found["results"]), *found.get("notes", []), *files])


def _compare(options: argparse.Namespace, command: str) -> Outcome:
    from raysts.commands import compare as api_compare

    found = api_compare.compare(
        options.a,
        options.b,
        _names(options.tasks),
        data=options.data,
        storage=options.storage,
        layers=options.layers,
        resamples=options.resamples,
    )
    return found, found.pop("text")


def _embed(options: argparse.Namespace, command: str) -> Outcome:
    from raysts.commands import context as api

    found = api.embed(
        options.model,
        options.input,
        options.column,
        options.output,
        storage=options.storage,
        layers=options.layers,
        address=options.address,
    )
    return found, f"{found['rows']:,} rows in {found['shards']} shards: {found['output']}"


def _export(options: argparse.Namespace, command: str) -> Outcome:
    from raysts.commands import context as api

    found = api.export(options.model, options.to, storage=options.storage, layers=options.layers, format=options.format)
    return found, f"model: {found['model']}"


def _report(options: argparse.Namespace, command: str) -> Outcome:
    from raysts.commands import context as api

    found = api.report(options.name, paper=options.paper, storage=options.storage)
    return found, found.pop("text", "\n".join(found["reports"]))


def _data_fetch(options: argparse.Namespace, command: str) -> Outcome:
    from raysts.commands import context as api

    found = api.data_fetch(options.data, _names(options.tables), source=options.source)
    rows = {name: f", {entry['rows']:,} rows" if "rows" in entry else "" for name, entry in found["tables"].items()}
    return found, "\n".join(f"{name}: {entry['status']}{rows[name]}" for name, entry in found["tables"].items())


def _data_prepare(options: argparse.Namespace, command: str) -> Outcome:
    from raysts.commands import context as api
    from raysts.data.shards import skipped_line

    found = api.data_prepare(
        options.data,
        input=options.input,
        sample=options.sample,
        seed=options.seed,
        address=options.address,
        skip_bad=options.skip_bad,
    )
    skipped = [skipped_line(each) for each in found.get("skipped", [])]
    return found, "\n".join([*skipped, f"{found['rows']:,} sentences: wikipedia/sentences in {found['data']}"])


def _data_check(options: argparse.Namespace, command: str) -> Outcome:
    from raysts.commands import context as api
    from raysts.evaluation.contamination.text_overlap import format_check

    found = api.data_check(options.data)
    return found, format_check(found)


def parser() -> argparse.ArgumentParser:
    """The command-line parser."""
    top = argparse.ArgumentParser(
        prog="raysts",
        description="Train, distil and evaluate sentence embeddings on Ray.",
        epilog="example: raysts run quickstart",
    )
    from raysts import __version__

    top.add_argument("--version", action="version", version=f"raysts {__version__}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    add = _adder(commands)
    add("recipes", _recipes, "list the named recipes: source, what they should show, cost", "raysts recipes")

    command = add("show", _show, "print the resolved recipe tree as YAML", "raysts show nli-ct-sed --set members=4")
    _recipe(command)

    command = add(
        "plan", _plan, "print every node, its cost and what is done; starts nothing", "raysts plan quickstart"
    )
    _recipe(command)
    _common(command)
    _skip_bad(command)

    command = add(
        "run", _run, "run a pipeline to its end", "raysts run nli-ct-sed --data DATA --set backbone=bert-base-uncased"
    )
    _recipe(command)
    _common(command)
    _cluster(command)
    command.add_argument("--name", help="name of the run in the storage (default: the recipe's name)")
    _strict(command)
    _skip_bad(command)

    command = add("tune", cli_tune.tune, "search what matters, on Ray Tune with Optuna", cli_tune.EXAMPLE)
    cli_tune.arguments(command)
    _set(command)
    _common(command)
    _cluster(command)
    _skip_bad(command)

    command = add(
        "distill", _distill, "distil a student from trained models", "raysts distill --from-run quickstart --top 3"
    )
    command.add_argument(
        "models", nargs="*", metavar="MODEL", help="members: run ids, directories or Hugging Face names"
    )
    command.add_argument("--from-run", metavar="NAME", help="take the members of this run")
    command.add_argument("--from-study", metavar="NAME", help="take the best of this study ('raysts tune')")
    command.add_argument("--top", type=int, metavar="K", help="the best K members on STS-B dev (default: all)")
    command.add_argument("--name", help="name of the run in the storage")
    _set(command)
    _common(command)
    _cluster(command)
    _skip_bad(command)

    command = add("evaluate", _evaluate, "measure a model", "raysts evaluate MODEL --data DATA --tasks sts12,stsb")
    command.add_argument("model", metavar="MODEL", help="a run id, a directory, a Hugging Face name, or word vectors")
    what = command.add_mutually_exclusive_group()
    what.add_argument("--tasks", help="comma-separated task names (default: every task whose files exist)")
    what.add_argument(
        "--pairs",
        metavar="FILE",
        help="score this file instead: Parquet, CSV, TSV or JSONL with sentence1, sentence2, score",
    )
    command.add_argument("--pooling", choices=["mean", "cls", "max"], help="pooling over tokens (default: the model's)")
    which = command.add_mutually_exclusive_group()
    which.add_argument(
        "--layers",
        type=as_layers,
        metavar="K",
        help="pool the last K layers, or 'first_last' (default: 1, 2 and the model's own)",
    )
    which.add_argument(
        "--layer",
        type=_layer,
        metavar="I",
        help="pool layer I alone; 0 is the embedding layer; 'all': each layer alone",
    )
    command.add_argument("--similarity", help="cosine, l2, or another that the model has (default: all that it has)")
    command.add_argument(
        "--resamples", type=int, default=1000, metavar="N", help="bootstrap resamples of an interval (default 1000)"
    )
    command.add_argument("--mteb", metavar="DIR", help="write the STS results to DIR in MTEB's format as well")
    _strict(command)
    _common(command)

    command = add(
        "compare", _compare, "test the difference of two systems on the same rows", "raysts compare RUN_A RUN_B"
    )
    for name in ("a", "b"):
        command.add_argument(
            name,
            metavar=name.upper(),
            help="a MODEL, a run or a system of the storage; NAME:members, :ensemble, :student",
        )
    command.add_argument("--tasks", help="comma-separated task names (default: every task whose files exist)")
    command.add_argument(
        "--layers",
        type=as_layers,
        metavar="K",
        help="pool the last K layers of both, or 'first_last' (default: the models' own if all agree, else 1)",
    )
    command.add_argument("--resamples", type=int, default=1000, metavar="N", help="bootstrap resamples (default 1000)")
    _common(command)

    command = add(
        "embed",
        _embed,
        "embed a column of Parquet files, resumable by shard",
        "raysts embed MODEL --input docs.parquet --column text --output vectors/",
    )
    command.add_argument("model", metavar="MODEL", help="a run id, a directory, a Hugging Face name, or word vectors")
    command.add_argument("--input", required=True, metavar="FILE_OR_DIR", help="a Parquet file or a folder of them")
    command.add_argument("--column", required=True, metavar="NAME", help="the text column")
    command.add_argument(
        "--output", required=True, metavar="DIR", help="folder for Parquet shards with all columns and 'embedding'"
    )
    command.add_argument(
        "--layers",
        type=as_layers,
        metavar="K",
        help="pool the last K layers, or 'first_last' (default: the model's own)",
    )
    _storage(command)
    _cluster(command)

    command = add(
        "export",
        _export,
        "write a model as a sentence-transformers directory or as ONNX",
        "raysts export RUN_ID --to my-encoder",
    )
    command.add_argument("model", metavar="MODEL", help="a run id, a directory, a Hugging Face name, or word vectors")
    command.add_argument("--to", required=True, metavar="DIR", help="directory to write; must not hold anything")
    command.add_argument(
        "--format",
        choices=["sentence-transformers", "onnx"],
        default="sentence-transformers",
        help="onnx: model.onnx and the tokenizer, of an encoder with pooling and dense layers; needs raysts[onnx]",
    )
    command.add_argument(
        "--layers",
        type=as_layers,
        metavar="K",
        help="pool the last K layers, or 'first_last' (default: the model's own)",
    )
    _storage(command)

    command = add(
        "report", _report, "write the HTML reports of a storage again, or a paper's tables", "raysts report --paper sed"
    )
    what = command.add_mutually_exclusive_group()
    what.add_argument("--name", help="of this run only (default: all runs in the storage)")
    what.add_argument(
        "--paper", metavar="NAME", help="sed, gausscse or latte-mix: its published tables with what was measured beside"
    )
    _storage(command)

    data = commands.add_parser("data", help="fetch, prepare and check data")
    kinds = _adder(data.add_subparsers(dest="what", required=True, metavar="COMMAND"))
    command = kinds(
        "fetch",
        _data_fetch,
        "get the public sets from the Hugging Face hub and GitHub, and word vectors",
        "raysts data fetch --data DATA --tables sts/stsb_dev,sts/sts12",
    )
    command.add_argument("--data", required=True, metavar="PATH", help="folder to fill, in the canonical layout")
    command.add_argument(
        "--tables",
        help="comma-separated names or folders of tables, also words/glove.6B.{50,100,200,300}d (default: all tables, "
        "no word vectors)",
    )
    command.add_argument("--source", metavar="DIR", help="folder with local copies of the repositories (and archives)")
    command = kinds(
        "prepare",
        _data_prepare,
        "turn Wikipedia articles or a dump into sentences",
        "raysts data prepare wikipedia --data DATA --sample 1000000",
    )
    command.add_argument("corpus", choices=["wikipedia"])
    command.add_argument(
        "--data", required=True, metavar="PATH", help="folder in the canonical layout; gets wikipedia/sentences"
    )
    command.add_argument(
        "--input",
        metavar="FILE",
        help="articles (Parquet) or a MediaWiki dump (.xml, .xml.bz2); default: wikipedia/articles of --data",
    )
    command.add_argument("--sample", type=int, metavar="N", help="draw exactly N sentences (default: all)")
    command.add_argument("--seed", type=int, default=0, help="seed of the draw (default 0)")
    _cluster(command)
    _skip_bad(command)
    command = kinds(
        "check", _data_check, "say what is there, what is wrong, and what overlaps", "raysts data check --data DATA"
    )
    _data(command)
    return top


def _adder(commands: Any) -> Callable[..., argparse.ArgumentParser]:
    def add(name: str, function: Callable[..., Outcome], text: str, example: str) -> argparse.ArgumentParser:
        command = commands.add_parser(
            name,
            help=text,
            description=text[0].upper() + text[1:] + ".",
            epilog=f"example: {example}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.set_defaults(function=function)
        command.add_argument("--json", action="store_true", help="print one JSON object as the last line of stdout")
        return command

    return add


def _recipe(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "recipe", metavar="NAME", help="a system's name, quickstart, or a YAML file ('raysts recipes' lists)"
    )
    _set(command)


def _set(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="a.b=value",
        help="override a value of the recipe: members=4, nli.batch=32, train.max_steps=100 (all stages); repeatable",
    )


def _common(command: argparse.ArgumentParser) -> None:
    _data(command)
    _storage(command)


def _data(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--data",
        metavar="PATH",
        help="folder in the canonical layout, or its URI (s3://..., gs://...) (default: $RAYSTS_DATA, else the embedded world)",
    )


def _storage(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--storage",
        metavar="PATH",
        help="where runs and results live: a folder, s3://... or gs://... (default ./raysts-storage)",
    )


def _skip_bad(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--skip-bad",
        action="store_true",
        help="go on without files that cannot be read of training tables that have others, and list them (default: "
        "refuse); development and test sets are never cut",
    )


def _strict(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--strict-contamination",
        action="store_true",
        help="refuse test sets that hold training rows (default: say how many, and score the other rows as well)",
    )


def _cluster(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--address",
        metavar="ADDRESS",
        help="Ray cluster (default: the running one, else a local one); 'none' works in this process without Ray",
    )
