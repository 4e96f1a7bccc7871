"""``raysts list``, ``status`` and ``watch``: the content of a storage, and how far a run has come."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

from raysts.commands.options import FOLLOW, Command, Result, StoragePlace, option, say_on_stderr
from raysts.errors import InputError

if TYPE_CHECKING:
    from raysts.report.run.data import ReportData, RunSummary
    from raysts.storage.store import Store


RunName = Annotated[str | None, option("name of a run (default: the only one that the storage holds)", "NAME")]
FIELDS = ("name", "system", "status", "size", "removable", "model")


def list_runs(storage: StoragePlace = None) -> Result:
    """List the runs and studies of a storage. Their names stand wherever a MODEL, or a NAME, is taken.

    Returns:
        status, storage, runs (name, system, status, model: its folder, empty without one, bytes: of its artifacts,
        removable_bytes: of those that 'raysts remove' frees, command), studies (name, search, status, command).
    """
    from raysts.commands.context import run_names, run_record, store_of
    from raysts.commands.remove import artifacts, removable, size_of

    store = store_of(storage)
    runs = []
    for name in run_names(store):
        record = run_record(store, name)
        model = str(store.path(record["model"])) if record["model"] else ""
        fields = {field: record[field] for field in ("name", "status", "command")}
        sizes = {path: size_of(store, path) for path in artifacts(record)}
        fields |= {
            "bytes": sum(sizes.values()),
            "removable_bytes": sum(sizes[path] for path in removable(store, record)),
        }
        runs.append({**fields, "system": record["pipeline"]["name"], "model": model})
    paths = store.get_all("studies", "*/study.json")
    records = [record for path in paths if (record := store.read_json(path))]
    studies = [{key: record[key] for key in ("name", "search", "status", "command")} for record in records]
    return {"status": "done", "storage": store.uri, "runs": runs, "studies": studies}


def _list_text(result: Result) -> str:
    from raysts.commands.remove import megabytes
    from raysts.evaluation.standings import aligned

    rows = [
        ("run", run["name"], run["system"], run["status"], megabytes(run["bytes"]), megabytes(run["removable_bytes"]))
        + (run["model"],)
        for run in result["runs"]
    ]
    rows += [("study", study["name"], study["search"], study["status"], "", "", "") for study in result["studies"]]
    if not rows:
        return f"{result['storage']} holds no run; 'raysts run quickstart' makes one"
    return "\n".join(aligned([("", *FIELDS), *rows], (0, 1, 2, 3, 6)))


def status(
    name: RunName = None,
    storage: StoragePlace = None,
) -> Result:
    """Show how far a run has come: its steps, its training, and what comes next.

    Returns:
        status, storage, name, state (of its record: running until its last step has ended), steps (id, kind, title, status,
        seconds), training (of runs that have begun: title, step, steps, loss, dev), model (its folder or None), command.
    """
    from raysts.commands.context import store_of
    from raysts.report.run.data import report_data

    store = store_of(storage)
    record = _record(store, name)
    data = report_data(store, record)
    return _as_fields(store, record, data)


def _record(store: Store, name: str | None) -> dict[str, Any]:
    """Return the record of a run, without a name of the only one."""
    from raysts.commands.context import run_names, run_record

    names = [name] if name else run_names(store)
    if len(names) != 1:
        listed = ", ".join(names) or "none"
        raise InputError(f"{store.uri} holds {len(names)} runs ({listed}); give the NAME of one of them")
    return run_record(store, names[0])


def _as_fields(store: Store, record: dict[str, Any], data: ReportData) -> Result:
    fields = ("id", "kind", "title", "status", "seconds")
    return {
        "status": "done",
        "storage": store.uri,
        "name": record["name"],
        "state": record["status"],
        "steps": [{field: getattr(step, field) for field in fields} for step in data.nodes],
        "training": [_training(run) for run in data.runs],
        "model": str(store.path(record["model"])) if record["model"] else None,
        "command": record["command"],
    }


def _training(run: RunSummary) -> dict[str, Any]:
    last = run.metrics[-1] if run.metrics else {}
    steps = last.get("steps") or run.record.get("steps")
    scores = {name: next((line[name] for line in reversed(run.metrics) if line.get(name) is not None), None)
              for name in ("loss", "dev")}  # fmt: skip
    return {"title": f"{run.name}: {run.stage}", "step": last.get("step", 0), "steps": steps, **scores}


def _training_text(result: Result) -> str:
    """Return how many steps are done, and a line for each run in training."""
    from raysts.evaluation.standings import aligned

    done = sum(step["status"] == "done" for step in result["steps"])
    lines = [f"{result['name']}: {done} of {len(result['steps'])} steps are done"]
    rows = []
    for run in result["training"]:
        if run["step"] != run["steps"]:
            loss = f"loss {run['loss']:.4g}" if run["loss"] else ""
            dev = f"dev {100 * run['dev']:.2f}" if run["dev"] else ""
            rows.append((run["title"], f"step {run['step']:,} of {run['steps'] or 0:,}", loss, dev))
    return "\n".join([*lines, *(f"  training {line}" for line in aligned(rows, range(4)) if rows)])


def _status_text(result: Result) -> str:
    from raysts.training.monitor import duration

    steps, done = result["steps"], sum(step["status"] == "done" for step in result["steps"])
    lines = _training_text(result).splitlines()
    for step in steps:
        seconds = "" if step["seconds"] is None else duration(step["seconds"])
        lines.append(f"  {step['status']:<8} {step['title']}" + (f", {seconds}" if seconds else ""))
    if result["model"]:
        lines.append(f"model:   {result['model']}")
    if done < len(steps):
        lines.append(f"to go on: {result['command']}")
    return "\n".join(lines)


def watch(
    name: RunName = None,
    storage: StoragePlace = None,
    *,
    seconds: Annotated[int, option("between two looks", "SECONDS")] = 5,
) -> Result:
    """Follow a run from another terminal until it ends, and keep its page up to date.

    A browser reloads the page. Ctrl-C ends the command and leaves the run alone.

    Returns:
        as :func:`status`, and report (path of the page).
    """
    from raysts.commands.context import store_of
    from raysts.report.run.data import report_data
    from raysts.report.run.page import write_report

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
            say_on_stderr(f"page: {page.as_uri()}")
        if text != lines:
            say_on_stderr(text)
        lines = text
        if not running:
            return result
        time.sleep(seconds)


COMMANDS = (
    Command("list", list_runs, _list_text, "raysts list --storage STORAGE", FOLLOW),
    Command("status", status, _status_text, "raysts status quickstart", FOLLOW, ("name",)),
    Command("watch", watch, _status_text, "raysts watch quickstart", FOLLOW, ("name",)),
)
