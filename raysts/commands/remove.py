"""``raysts remove``: free what one run alone needs. Also the sizes that ``raysts list`` shows."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from raysts.commands.options import FOLLOW, Command, Result, StoragePlace, option, say_on_stderr
from raysts.errors import InputError
from raysts.storage.bucket import check_inside

if TYPE_CHECKING:
    from raysts.storage.store import Store


def remove(
    name: Annotated[str, option("name of a run ('raysts list')", "NAME")],
    storage: StoragePlace = None,
    *,
    yes: Annotated[bool, option("remove without a question")] = False,
) -> Result:
    """Remove a run, its page, and the artifacts that no other run or study names.

    It shows what it removes and asks. A second start finishes a command that was stopped.

    Returns:
        status, storage, name, removed (paths in the storage), bytes.
    """
    from raysts.commands.context import run_record, store_of

    store = store_of(storage)
    record = run_record(store, name)
    with store.lock(f"locks/{name}.lock", f"raysts remove {name}", of=store.path(f"pipelines/{name}.json")):
        paths = removable(store, record)
        size = sum(size_of(store, path) for path in paths)
        shown = f"{len(paths)} artifacts of run '{name}' with {megabytes(size)}"
        if not yes:
            if not sys.stdin.isatty():
                raise InputError(f"remove: {shown} in {store.uri} would go. Give --yes to remove them")
            say_on_stderr("\n".join(paths))
            say_on_stderr(f"Remove {shown} from {store.uri}? [y/N]")
            if input().strip().lower() not in ("y", "yes"):
                raise InputError("remove: nothing was removed")
        for path in [*paths, f"reports/{name}", f"pipelines/{name}.json"]:  # the record last: it names the others
            store.delete(path)
    return {"status": "done", "storage": store.uri, "name": name, "removed": paths, "bytes": size}


def artifacts(record: Mapping[str, Any]) -> set[str]:
    """Return the artifacts that a run's record names, as paths in the storage."""
    model = record["model"] if not Path(record["model"]).is_absolute() else ""
    outputs = {*(step["output"] for step in record["steps"]), *filter(None, [model])}
    for output in outputs:
        check_inside(output, f"run '{record['name']}': an artifact")  # it is removed
    return {output.removesuffix("/model") for output in outputs}


def removable(store: Store, record: Mapping[str, Any]) -> list[str]:
    """Return the artifacts of a run that nothing else in the storage needs."""
    from raysts.commands.context import run_names, run_record
    from raysts.search.record import read_records

    needed: set[str] = set()
    for other in run_names(store):
        if other != record["name"]:
            other_record = run_record(store, other)
            needed |= artifacts(other_record) | _models(store, other_record["pipeline"])
    for study in (path.parent for path in store.get_all("studies", "*/study.json")):
        study_record = store.read_json(study / "study.json") or {}
        needed |= {f"runs/{trial.id}" for trial in read_records(study)} | _models(store, study_record["pipeline"])
        if study_record["status"] != "done":  # it reads token shards that its record does not name
            needed |= {path for path in artifacts(record) if path.startswith("tokens/")}
    return sorted(artifacts(record) - add_parents(store, needed))


def _models(store: Store, pipeline: Mapping[str, Any]) -> set[str]:
    """Return the runs in the storage that a pipeline reads models of."""
    from raysts.commands.models import locate

    folders = set()
    for model in {pipeline["backbone"], *pipeline["teachers"]}:
        try:
            folder = locate(model, store, fetch=False).absolute()
        except InputError:  # gone, or of the hub
            continue
        if folder.is_relative_to(store.root):
            folders.add(str(folder.relative_to(store.root)).removesuffix("/model"))
    return folders


def add_parents(store: Store, paths: set[str]) -> set[str]:
    """Return the artifacts with the runs that they descend from. Their records name the training text."""
    waiting, seen = [*paths], set(paths)
    while waiting:
        path = waiting.pop()
        record = store.read_json(f"{path}/run.json") if path.startswith("runs/") else None
        new = {f"runs/{parent}" for parent in (record or {}).get("parents") or ()} - seen
        seen |= new
        waiting += new
    return seen


def size_of(store: Store, path: str) -> int:
    """Return the bytes of an artifact on this machine."""
    place = store.path(path)
    files = [place] if place.is_file() else [file for file in place.rglob("*") if file.is_file()]
    return sum(file.stat().st_size for file in files)


def megabytes(size: int) -> str:
    """Return a size as text."""
    return f"{size / 1e6:,.1f} MB"


def _text(result: Result) -> str:
    return f"run '{result['name']}' is removed; {megabytes(result['bytes'])} are free"


COMMANDS = (Command("remove", remove, _text, "raysts remove quickstart", FOLLOW, ("name",)),)
