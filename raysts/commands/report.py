"""``raysts report``: HTML reports of a storage, or the tables of a paper with measured values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from raysts.commands.options import MEASURE, Command, Result, RunOptions, StoragePlace, one_of, option, say_on_stderr
from raysts.errors import InputError

if TYPE_CHECKING:
    from raysts.pipeline.plan import Plan
    from raysts.storage.store import Store

WHICH = one_of("--name", "--paper")


def report(
    name: Annotated[str | None, option("of this run only (default: all runs in the storage)", group=WHICH)] = None,
    *,
    paper: Annotated[
        str | None,
        option("sed, gausscse or latte-mix: its published tables with what was measured beside", "NAME", group=WHICH),
    ] = None,
    storage: StoragePlace = None,
) -> Result:
    """Write the HTML reports of a storage again, or a paper's tables.

    Returns:
        status, reports (paths); for a paper also text and the fields of :meth:`raysts.papers.measured.PaperData.as_plain`.
    """
    from raysts.commands.context import run_names, store_of
    from raysts.papers import measured, tables

    store = store_of(storage)
    if paper is not None:
        store.check(writes=True)
        shown = measured.report_data(paper, store.root)
        path = tables.write_report(shown, store.path(f"reports/paper-{paper}"))
        text = f"{tables.format_paper(shown)}\n\nreport: {path}"
        return {"status": "done", "storage": store.uri, "reports": [str(path)], **shown.as_plain(), "text": text}
    runs = [name] if name else run_names(store)
    if not runs:
        raise InputError(f"no run in {store.uri}: there is nothing to report; 'raysts run quickstart' makes one")
    plans = {run: _restore_plan(run, store) for run in runs}
    store.check(writes=True)
    reports = [_rewrite_report(run, *planned, store) for run, planned in plans.items()]
    return {"status": "done", "storage": store.uri, "reports": reports}


def _restore_plan(name: str, store: Store) -> tuple[Plan, dict[str, Any]]:
    """Return the plan of a recorded run and its record.

    Raises:
        InputError: the plan is not the recorded one.
    """
    from raysts.commands.context import plan_of, run_record
    from raysts.recipes.recipe import Pipeline
    from raysts.recipes.tree import built

    record = run_record(store, name)
    options = RunOptions(storage=store.root, skip_bad=record.get("skip_bad", False)).after(record)
    plan = plan_of(built(Pipeline, record["pipeline"]), options)
    if [step.id for step in plan.steps] != record["nodes"]:
        raise InputError(
            f"run '{name}': its data ({record['data']}), its backbone or raysts itself has changed since it ran, so its "
            f"report cannot be made again; the one it has stays ({store.path(f'reports/{name}/index.html')})"
        )
    return plan, record


def _rewrite_report(name: str, plan: Plan, record: dict[str, Any], store: Store) -> str:
    """Write the report of a run from the storage and return its path."""
    from raysts.report.run.data import report_data
    from raysts.report.run.page import write_report

    states = plan.states()
    if record.get("status") == "done" and (lost := [step.title for step in plan.steps if states[step.id] != "done"]):
        say_on_stderr(
            f"{name}: is without what is gone or damaged: {', '.join(lost)}; to make it again: {record['command']}"
        )
    data = report_data(plan, name, record["command"], record["seconds"])
    return str(write_report(data, store.path(f"reports/{name}")))


def _text(result: Result) -> str:
    return str(result.pop("text", None) or "\n".join(result["reports"]))


COMMANDS = (Command("report", report, _text, "raysts report --paper sed", MEASURE),)
