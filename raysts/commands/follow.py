"""Commands on what a storage holds: ``list``, ``status``, ``watch``, ``report``, ``remove``."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from raysts.commands import options as opt
from raysts.commands.options import FOLLOW, Command, Result, option
from raysts.errors import InputError
from raysts.log import logger, say
from raysts.storage.bucket import check_inside

if TYPE_CHECKING:
    from raysts.report.run import ReportData, RunSummary
    from raysts.storage.store import Store

RunName = Annotated[str | None, option("name of a run (default: the only one that the storage holds)", "NAME")]


def list_runs(storage: opt.StoragePlace = None) -> Result:
    """List the runs and studies of a storage. The name of a run stands wherever a MODEL is taken.

    Returns:
        status, storage, runs (name, system, status, model: its folder, empty without one, bytes: of its artifacts,
        removable_bytes: of those that 'raysts remove' frees, command), studies (name, search, status, bytes,
        removable_bytes, command).
    """
    from raysts.commands.context import store_of

    store = store_of(storage)
    runs, studies = [], []
    for record, fields in _list_entries(store):
        if kind_of(record) == "study":
            studies.append({**fields, "search": record["search"]})
        else:
            model = str(store.path(record["model"])) if record["model"] else ""
            runs.append({**fields, "system": record["pipeline"]["name"], "model": model})
    return {"status": "done", "storage": store.uri, "runs": runs, "studies": studies}


def _list_entries(store: Store) -> Iterator[tuple[Mapping[str, Any], Result]]:
    """Yield the record of each run and study, and what a list shows of both."""
    uses = read_uses(store)
    for key, use in uses.items():
        free = removable(uses, key)
        sizes = {path: store.size(path) for path in dict.fromkeys([*use.outputs, *free])}
        shown = {field: use.record[field] for field in ("name", "status", "command")}
        yield use.record, {**shown, "bytes": sum(sizes.values()), "removable_bytes": sum(sizes[path] for path in free)}


def _list_text(result: Result) -> str:
    from raysts.evaluation.standings import align_columns

    rows = [("", "name", "system", "status", "size", "removable", "model")]
    for kind, entries in (("run", result["runs"]), ("study", result["studies"])):
        for entry in entries:
            sizes = (megabytes(entry["bytes"]), megabytes(entry["removable_bytes"]))
            name, system = entry["name"], entry.get("system") or entry["search"]
            rows.append((kind, name, system, entry["status"], *sizes, entry.get("model", "")))
    if len(rows) == 1:
        return _no_run(result["storage"])
    return "\n".join(align_columns(rows, (0, 1, 2, 3, 6)))


# -- how far a run has come ----------------------------------------------------------------------------------------------


def status(name: RunName = None, storage: opt.StoragePlace = None) -> Result:
    """Show how far a run has come: its steps, its training, and what comes next.

    Returns:
        status, storage, name, state (running, done, failed, or stopped: no process drives it), steps (id, kind, title,
        status, seconds, seconds_expected), training (of runs that have begun: title, step, steps, loss, dev), model (its folder
        or None), command.
    """
    from raysts.commands.context import store_of
    from raysts.report.run import report_data

    store = store_of(storage)
    record = _record(store, name)
    return _as_fields(store, record, report_data(store, record))


def _record(store: Store, name: str | None) -> dict[str, Any]:
    """Return the record of a run, without a name of the only one."""
    from raysts.commands.context import run_record
    from raysts.commands.models import run_names

    names = [name] if name else run_names(store)
    if not names:
        raise InputError(_no_run(store.uri))
    if len(names) > 1:
        raise InputError(f"{store.uri} holds {len(names)} runs ({', '.join(names)}); give the NAME of one of them")
    return run_record(store, names[0])


def _no_run(storage: str) -> str:
    return f"{storage} holds no run. 'raysts run quickstart' makes one"


def _as_fields(store: Store, record: dict[str, Any], data: ReportData) -> Result:
    fields = ("id", "kind", "title", "status", "seconds", "seconds_expected")
    return {
        "status": "done",
        "storage": store.uri,
        "name": record["name"],
        "state": record["status"],
        "steps": [{field: step[field] for field in fields} for step in data.nodes],
        "training": [_training(run) for run in data.runs],
        "model": str(store.path(record["model"])) if record["model"] else None,
        "command": record["command"],
    }


def _training(run: RunSummary) -> dict[str, Any]:
    last = run.metrics[-1] if run.metrics else {}
    steps = last.get("steps") or run.record.get("steps")
    fields = {"title": f"{run.name}: {run.stage}", "step": last.get("step", 0), "steps": steps}
    for name in ("loss", "dev"):
        fields[name] = next((line[name] for line in reversed(run.metrics) if line.get(name) is not None), None)
    return fields


def _training_text(result: Result) -> str:
    """Return the state, how many steps are done, and a line for each run that is not trained to its end."""
    from raysts.evaluation.standings import align_columns

    state, done = result["state"], sum(step["status"] == "done" for step in result["steps"])
    rows = []
    for run in result["training"]:
        if run["step"] != run["steps"]:
            loss = f"loss {run['loss']:.4g}" if run["loss"] else ""
            dev = f"dev {100 * run['dev']:.2f}" if run["dev"] else ""
            rows.append((run["title"], f"step {run['step']:,} of {run['steps'] or 0:,}", loss, dev))
    title = "training" if state == "running" else "trained"
    lines = [f"  {title:<8} {line}" for line in align_columns(rows, range(4))] if rows else []
    return "\n".join([f"{result['name']}: {state}, {done} of {len(result['steps'])} steps are done", *lines])


def _status_text(result: Result) -> str:
    from raysts.log import duration

    lines = [_training_text(result)]
    for step in result["steps"]:
        seconds = f", {duration(step['seconds'])}" if step["seconds"] is not None else ""
        lines.append(f"  {step['status']:<8} {step['title']}{seconds}")
    if result["model"]:
        lines.append(f"model:   {result['model']}")
    if result["state"] != "running" and any(step["status"] != "done" for step in result["steps"]):
        lines.append(f"to go on: {result['command']}")
    return "\n".join(lines)


def watch(name: RunName = None, storage: opt.StoragePlace = None, *, seconds: int = 5) -> Result:
    """Follow a run from another terminal until it ends, and keep its page up to date.

    A browser reloads the page. Ctrl-C ends the command and leaves the run alone.

    Args:
        seconds: between two looks.

    Returns:
        as :func:`status`, and report (path of the page).
    """
    from raysts.commands.context import store_of
    from raysts.report.run import report_data, write_report

    if seconds < 1:
        raise InputError(f"--seconds {seconds}: must be at least 1 second")
    store, lines = store_of(storage), ""
    while True:
        record = _record(store, name)
        data, running = report_data(store, record), record["status"] == "running"
        page = write_report(data, store.path(f"reports/{record['name']}"), seconds if running else None)
        result = {**_as_fields(store, record, data), "report": str(page)}
        text = _training_text(result)
        if not lines:
            say(f"page: {page.as_uri()}")
        if text != lines:
            say(text)
        lines = text
        if not running:
            return result
        time.sleep(seconds)


# -- pages ---------------------------------------------------------------------------------------------------------------


def report(name: opt.Name = None, *, paper: opt.Name = None, storage: opt.StoragePlace = None) -> Result:
    """Write the HTML reports of a storage again, with a page that leads to them, or a paper's tables.

    Args:
        name: of this run only (default: all runs in the storage).
        paper: sed, gausscse or latte-mix: its published tables with what was measured beside.

    Returns:
        status, reports (paths); for a paper also text and the fields of :meth:`raysts.papers.measured.PaperData.as_plain`.
    """
    from raysts.commands.context import records_now, run_record, store_of
    from raysts.papers import measured, tables

    if name and paper:
        raise InputError("--name and --paper: give one of them")
    store = store_of(storage)
    if paper is not None:
        store.check(writes=True)
        shown = measured.report_data(paper, store.root)
        path = tables.write_report(shown, store.path(f"reports/paper-{paper}"))
        text = f"{tables.format_paper(shown)}\n\nreport: {path}"
        return {"status": "done", "storage": store.uri, "reports": [str(path)], **shown.as_plain(), "text": text}
    records = [run_record(store, name)] if name else [r for r in records_now(store) if kind_of(r) == "run"]
    if not records:
        raise InputError(_no_run(store.uri))
    store.check(writes=True)
    pages = []
    for record in records:
        try:
            pages.append(_rewrite(record, store))
        except InputError as error:
            if name:
                raise
            say(f"{record['name']}: has no new report. {error}")
    if not name:
        pages.append(_write_index(store))
    return {"status": "done", "storage": store.uri, "reports": pages}


def _write_index(store: Store) -> str:
    """Write the page that leads to the reports of all runs and studies, and return its path."""
    from datetime import UTC, datetime

    from raysts.pipeline.verdict import Delivered
    from raysts.report import html

    folder = store.path("reports")
    rows: dict[str, list[dict[str, str]]] = {"run": [], "study": []}
    for record, fields in _list_entries(store):
        kind, name = kind_of(record), record["name"]
        page, system = (name, record["pipeline"]["name"]) if kind == "run" else (f"study-{name}", record["search"])
        row = {"name": name, "status": fields["status"], "size": megabytes(fields["bytes"]), "system": system}
        row["page"] = f"{page}/index.html" if store.get(folder / page / "index.html") else ""
        row["verdict"] = Delivered(**record["delivered"]).sentence if record.get("delivered") else ""
        rows[kind].append(row)
    created_at = datetime.now(UTC).isoformat(timespec="seconds")
    page = html.render("index.html", storage=store.uri, created_at=created_at, runs=rows["run"], studies=rows["study"])
    return str(html.write_page(page, folder))


def _rewrite(record: dict[str, Any], store: Store) -> str:
    """Write the report of a run from its record and the storage, and return its path."""
    from raysts.report.run import report_data, write_report

    name, data = record["name"], report_data(store, record)
    lost = [step["title"] for step in data.nodes if step["status"] != "done"]
    if record["status"] == "done" and lost:
        say(f"{name}: is without what is gone or damaged: {', '.join(lost)}; to make it again: {record['command']}")
    return str(write_report(data, store.path(f"reports/{name}")))


def _report_text(result: Result) -> str:
    return str(result.pop("text", None) or "\n".join(result["reports"]))


# -- what can be removed -------------------------------------------------------------------------------------------------


def remove(
    name: Annotated[str, option("name of a run, or of a study ('raysts list')", "NAME")],
    storage: opt.StoragePlace = None,
    *,
    yes: bool = False,
) -> Result:
    """Remove a run or a study, its page, and the artifacts that no other run or study names.

    It shows what it removes and asks. A second start finishes a command that was stopped.

    Args:
        yes: remove without a question.

    Returns:
        status, storage, kind (run or study), name, removed (paths in the storage), bytes.
    """
    from raysts.commands.context import run_record, store_of
    from raysts.commands.models import run_names

    store = store_of(storage)
    study = None if name in run_names(store) else store.read_json(f"studies/{name}/study.json", fresh=True)
    kind = kind_of(study or run_record(store, name))
    called, key = (f"study-{name}", f"studies/{name}/study.json") if study else (name, f"pipelines/{name}.json")
    with store.lock(f"locks/{called}.lock", f"raysts remove {name}", protects=store.path(key)):
        paths = removable(read_uses(store), (kind, name))
        size = sum(store.size(path) for path in paths)
        shown = f"{len(paths)} artifacts of {kind} '{name}' with {megabytes(size)}"
        if not yes:
            if not sys.stdin.isatty():
                raise InputError(f"remove: {shown} in {store.uri} would go. Give --yes to remove them")
            logger.warning("\n".join([*paths, f"Remove {shown} from {store.uri}? [y/N]"]))
            if input().strip().lower() not in ("y", "yes"):
                raise InputError("remove: nothing was removed")
        own_paths = [f"reports/{called}", f"logs/{called}.log"]
        if study:
            files = store.list(store.path(key).parent)
            own_paths += [str(path.relative_to(store.root)) for path in files if path != store.path(key)]
        for path in (*paths, *own_paths, key):  # the record last: it names the others
            store.delete(path)
        if study:
            store.delete(f"studies/{name}")
        if not store.remote:  # an object of a bucket cannot be removed by its tag
            store.delete(f"locks/{called}.lock")
    return {"status": "done", "storage": store.uri, "kind": kind, "name": name, "removed": paths, "bytes": size}


def artifacts(store: Store, record: Mapping[str, Any]) -> set[str]:
    """Return the artifacts of a run or a study, as paths in the storage.

    Those of a study are its trials, with all that they were made from.
    """
    from raysts.search.record import read_records

    if kind_of(record) == "study":
        trials = read_records(store.path(f"studies/{record['name']}"))
        outputs = {*(f"runs/{trial.id}" for trial in trials), *record.get("shared", ())}
        outputs |= {path for trial in trials for path in trial.earlier}
    else:
        model = record["model"] if not Path(record["model"]).is_absolute() else ""
        outputs = {*(step["output"] for step in record["steps"]), *record.get("maps", {}).values()}
        outputs |= {*record.get("caches", ()), *filter(None, [model])}
    for output in outputs:
        check_inside(output, f"{kind_of(record)} '{record['name']}': an artifact")  # it is removed
    return {output.removesuffix("/model") for output in outputs}


class Use(NamedTuple):
    """Record of a run or a study with its state now, paths that it has written, and all that it needs.

    ``unnamed``: folders from which it reads, too, what its record does not name before its end.
    """

    record: Mapping[str, Any]
    outputs: set[str]
    needed: dict[str, None]
    unnamed: tuple[str, ...]


def kind_of(record: Mapping[str, Any]) -> str:
    """Return ``study`` or ``run``."""
    return "study" if "search" in record else "run"


def read_uses(store: Store) -> dict[tuple[str, str], Use]:
    """Return the use of a storage by each run and study, by kind and name, from one look at their records."""
    from raysts.commands.context import records_now

    uses = {}
    for record in records_now(store):
        kind, outputs = kind_of(record), artifacts(store, record)
        places = (path for path in record.get("reads", {}).values() if not Path(path).is_absolute())
        read = {path.removesuffix("/model") for path in places}
        needed = add_parents(store, [*sorted(outputs), *sorted(read - outputs)])
        unnamed = ("tokens/", "tables/") if kind == "study" and record["status"] != "done" else ()
        uses[kind, record["name"]] = Use(record, outputs, needed, unnamed)
    return uses


def removable(uses: Mapping[tuple[str, str], Use], key: tuple[str, str]) -> list[str]:
    """Return what only this run or study has made or needs, each model after those that it descends from.

    A model that it needs and no other one has made was that of a run or study that was removed.
    """
    if (use := uses.get(key)) is None:  # it began after the look at the records
        return []
    rest = [other for user, other in uses.items() if user != key]
    needed = set[str]().union(*(other.needed for other in rest))
    unnamed = tuple(folder for other in rest for folder in other.unnamed)
    return [
        path
        for path in reversed(use.needed)
        if path not in needed and (path in use.outputs or path.startswith(("backbones/", "runs/")))
        if not path.startswith(unnamed)
    ]


def add_parents(store: Store, paths: Iterable[str]) -> dict[str, None]:
    """Return the artifacts, then the runs that they descend from. Their records name the training text."""
    seen = dict.fromkeys(paths)
    waiting = [*seen]
    while waiting:
        path = waiting.pop()
        record = store.read_json(f"{path}/run.json") if path.startswith("runs/") else None
        runs = [f"runs/{parent}" for parent in (record or {}).get("parents") or ()]
        new = [run for run in runs if run not in seen and store.exists(f"{run}/run.json")]
        seen |= dict.fromkeys(new)
        waiting += new
    return seen


def megabytes(size: int) -> str:
    """Return a size as text."""
    return f"{size / 1e6:,.1f} MB"


def _remove_text(result: Result) -> str:
    return f"{result['kind']} '{result['name']}' is removed; {megabytes(result['bytes'])} are free"


COMMANDS = (
    Command("list", list_runs, _list_text, "raysts list --storage STORAGE", FOLLOW),
    Command("status", status, _status_text, "raysts status quickstart", FOLLOW, ("name",)),
    Command("watch", watch, _status_text, "raysts watch quickstart", FOLLOW, ("name",)),
    Command("report", report, _report_text, "raysts report --paper sed", FOLLOW),
    Command("remove", remove, _remove_text, "raysts remove quickstart", FOLLOW, ("name",)),
)
