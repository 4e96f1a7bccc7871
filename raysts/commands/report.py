"""``raysts report``: HTML reports of a storage, or the tables of a paper with measured values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from raysts.commands.options import FOLLOW, Command, Result, StoragePlace, one_of, option, say_on_stderr
from raysts.errors import InputError

if TYPE_CHECKING:
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
    from raysts.commands.context import run_names, run_record, store_of
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
    records = {run: run_record(store, run) for run in runs}
    store.check(writes=True)
    return {"status": "done", "storage": store.uri, "reports": [_rewrite(record, store) for record in records.values()]}


def _rewrite(record: dict[str, Any], store: Store) -> str:
    """Write the report of a run from its record and the storage, and return its path."""
    from raysts.report.run.data import report_data
    from raysts.report.run.page import write_report

    name, data = record["name"], report_data(store, record)
    lost = [step.title for step in data.nodes if step.status != "done"]
    if record["status"] == "done" and lost:
        say_on_stderr(
            f"{name}: is without what is gone or damaged: {', '.join(lost)}; to make it again: {record['command']}"
        )
    return str(write_report(data, store.path(f"reports/{name}")))


def _text(result: Result) -> str:
    return str(result.pop("text", None) or "\n".join(result["reports"]))


COMMANDS = (Command("report", report, _text, "raysts report --paper sed", FOLLOW),)
