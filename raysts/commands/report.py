"""``raysts report``: the HTML reports of a storage again, or a paper's tables with what was measured."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raysts.commands.options import Command, Result, RunOptions, add, say_on_stderr
from raysts.errors import InputError

if TYPE_CHECKING:
    from raysts.pipeline.plan import Plan
    from raysts.storage.store import Store

HELP = "write the HTML reports of a storage again, or a paper's tables"
EXAMPLE = "raysts report --paper sed"


def _arguments(command: argparse.ArgumentParser) -> None:
    what = command.add_mutually_exclusive_group()
    what.add_argument("--name", help="of this run only (default: all runs in the storage)")
    what.add_argument(
        "--paper", metavar="NAME", help="sed, gausscse or latte-mix: its published tables with what was measured beside"
    )
    add(command, "--storage")


def report(name: str | None = None, *, paper: str | None = None, storage: str | Path | None = None) -> Result:
    """Write the HTML report of one run, or of every run in the storage, again; or that of a paper's tables.

    Args:
        name: of this run only.
        paper: ``sed``, ``gausscse`` or ``latte-mix``: its published tables with what this storage measured beside them.
        storage: as :func:`raysts.run`.

    Returns:
        status, reports (paths); for a paper also text, and what :meth:`raysts.report.paper.data.PaperData.as_plain` says.
    """
    from raysts.commands.context import run_names, store_of
    from raysts.report.paper import data as paper_data
    from raysts.report.paper import page as paper_page
    from raysts.report.paper.text import format_paper

    store = store_of(storage)
    if paper is not None:
        store.check(writes=True)
        shown = paper_data.report_data(paper, store.root)
        path = paper_page.write_report(shown, store.path(f"reports/paper-{paper}"))
        text = f"{format_paper(shown)}\n\nreport: {path}"
        return {"status": "done", "storage": store.uri, "reports": [str(path)], **shown.as_plain(), "text": text}
    runs = [name] if name else run_names(store)
    if not runs:
        raise InputError(f"no run in {store.uri}: there is nothing to report; 'raysts run quickstart' makes one")
    plans = {run: _planned_again(run, store) for run in runs}
    store.check(writes=True)
    reports = [_written_again(run, *planned, store) for run, planned in plans.items()]
    return {"status": "done", "storage": store.uri, "reports": reports}


def _planned_again(name: str, store: Store) -> tuple[Plan, dict[str, Any]]:
    """The plan of a run that the storage remembers, which is as it was, and what is remembered."""
    from raysts.commands.context import plan_of, run_record
    from raysts.recipes.recipe import Pipeline
    from raysts.recipes.tree import built

    record = run_record(store, name)
    options = RunOptions(storage=store.root, skip_bad=record.get("skip_bad", False)).after(record)
    plan = plan_of(built(Pipeline, record["pipeline"]), options)
    if [node.id for node in plan.nodes] != record["nodes"]:
        raise InputError(
            f"run '{name}': its data ({record['data']}), its backbone or raysts itself has changed since it ran, so its "
            f"report cannot be made again; the one it has stays ({store.path(f'reports/{name}/index.html')})"
        )
    return plan, record


def _written_again(name: str, plan: Plan, record: dict[str, Any], store: Store) -> str:
    """Path of a run's report, which is written from what the storage holds."""
    from raysts.report.run.data import report_data
    from raysts.report.run.page import write_report

    states = plan.statuses()
    if record.get("status") == "done" and (lost := [node.title for node in plan.nodes if states[node.id] != "done"]):
        say_on_stderr(
            f"{name}: is without what is gone or damaged: {', '.join(lost)}; to make it again: {record['command']}"
        )
    data = report_data(plan, name, record["command"], record["seconds"])
    return str(write_report(data, store.path(f"reports/{name}")))


COMMANDS = (
    Command(
        "report",
        HELP,
        EXAMPLE,
        _arguments,
        report,
        lambda result: result.pop("text", None) or "\n".join(result["reports"]),
    ),
)
