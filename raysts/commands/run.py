"""``raysts run``: a pipeline, a search with what follows from it, or an experiment, to its end."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raysts.commands.options import Command, Result, RunOptions, add, say_on_stderr

if TYPE_CHECKING:
    from raysts.recipes.recipe import Pipeline

HELP = "run a pipeline to its end"
EXAMPLE = "raysts run nli-ct-sed --data DATA --set backbone=bert-base-uncased"


def _arguments(command: argparse.ArgumentParser) -> None:
    add(command, "recipe", "--set", "--data", "--text", "--column", "--dev", "--test", "--storage", "--address")
    command.add_argument("--name", help="name of the run in the storage (default: the recipe's name)")
    add(command, "--strict-contamination", "--skip-bad")


def run(
    recipe: str | Pipeline,
    overrides: Mapping[str, Any] | None = None,
    data: str | Path | None = None,
    storage: str | Path | None = None,
    *,
    text: str | Path | None = None,
    column: str | None = None,
    dev: Mapping[str, str | Path] | None = None,
    test: Mapping[str, str | Path] | None = None,
    name: str | None = None,
    address: str | None = None,
    command: str | None = None,
    strict_contamination: bool = False,
    skip_bad: bool = False,
    say: Callable[[str], None] = say_on_stderr,
) -> Result:
    """Run a pipeline to its end; what is done already is not done again.

    Args:
        recipe: a system's name (``nli-ct-sed``), ``quickstart``, a YAML file, or a pipeline; or the name of a search
            with what follows from it (``sts-grid-sed``) or of an experiment (``sed-stability``).
        overrides: ``{"nli.batch": 32, ...}``.
        data: folder in the canonical layout, or its URI in an object store; default ``$RAYSTS_DATA``, else with data of your
            own none, else the embedded world.
        storage: default ``./raysts-storage``.
        text: text of your own, read where Wikipedia's sentences are: a file (Parquet, CSV, TSV, JSON lines, plain lines), a
            folder of them, a folder that ``datasets`` saved, a URI, or ``hf://NAME``. Then nothing else is needed.
        column: of ``text`` that holds the texts; default: the only one.
        dev: files of scored pairs, and folders of retrieval sets, by name, which choose checkpoints and models instead of STS-B
            dev.
        test: the same, each a task of that name (``retrieval:NAME``).
        name: name of the run in the storage; default the recipe's.
        address: of a Ray cluster; ``none`` runs in this process without Ray; default: the running cluster, else a
            local one.
        command: what the report shows as the exact command.
        strict_contamination: refuse to begin where training rows occur in a test set that would be evaluated.
        skip_bad: go on without files that cannot be read of training tables that have others; what is made has other
            ids than that of the whole tables. Tables that select or are reported on are never cut.
        say: takes progress, a line at a time.

    Returns:
        status, storage, name, model (path or None), delivered (what ``model`` is, and how it compares with the backbone as it
        was distributed: :class:`raysts.pipeline.deliver.Delivered`), report (path), results (rows), contamination (one per
        model and task, see ``evaluation.contamination``), notes (that and what else to know, in words: texts that were cut,
        stages that ended below their start), left_out (members that failed where
        ``min_members`` allows it: number and reason), skipped (files that ``skip_bad`` left out: table, file, rows,
        reason), and of a distillation teachers: what tables call those that were not trained here, by their run ids in the
        rows. After a search also study, best, best_run and points, as :func:`raysts.tune`; of an experiment ``report``
        is the page of the tables that it fills, ``model`` is None, and rows and members ``left_out`` name their point.
    """
    from raysts.data.own import Own
    from raysts.recipes.experiments import is_experiment
    from raysts.recipes.names import pipeline_of
    from raysts.search.composed import is_composed

    given, own = dict(overrides or {}), Own.of(text, column, dev, test)
    called = str(recipe) if isinstance(recipe, Path) else getattr(recipe, "name", recipe)
    line = command or f"raysts.run({called!r}, {given!r})"
    options = RunOptions(data, storage, name, address, line, strict_contamination, skip_bad, say, own)
    if is_experiment(recipe):
        from raysts.commands import experiment

        return experiment.run(recipe, given, options)
    if is_composed(recipe):
        from raysts.commands import composed

        return composed.run(recipe, given, options)
    pipeline = pipeline_of(recipe, given)  # a wrong name is told before torch is imported
    from raysts.commands.context import checked_plan, run_plan

    return run_plan(checked_plan(pipeline, options), options)


def text_of(result: Result) -> str:
    """What came of a run, for people."""
    from raysts.data.shards import skipped_line
    from raysts.evaluation.results import by_name, format_results, format_table, summary
    from raysts.pipeline.deliver import Delivered

    lines, rows = [], by_name(result["results"], result.pop("teachers", {}))
    if rows:
        table = summary(rows)
        lines.append(format_table(table) if table.lines else format_results(rows))  # retrieval has no rank correlation
    lines += result.get("notes", [])
    lines += map(skipped_line, result["skipped"])
    lines += [f"left out: member {gone['member']}, which failed: {gone['reason']}" for gone in result["left_out"]]
    if result.get("delivered"):
        lines.append(Delivered(**result["delivered"]).sentence)
    if result["model"]:
        lines.append(f"model:  {result['model']}")
    lines.append(f"report: {result['report']}")
    if result["model"]:
        lines.append(f"next:   raysts embed {shlex.quote(result['model'])} --input FILE --column TEXT --output DIR")
    return "\n".join(lines)


COMMANDS = (Command("run", HELP, EXAMPLE, _arguments, run, text_of),)
