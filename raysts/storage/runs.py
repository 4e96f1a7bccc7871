"""The folder of a training run in an object store: what is sent when, and what a run goes on from.

A run there is its last checkpoint with its metrics, or, once ``run.json`` says done, its model. Whoever trains a run holds
the lock of its folder; everybody else looks.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from raysts.errors import InputError
from raysts.storage import atomic as files
from raysts.storage import store as storage
from raysts.storage.atomic import read_json
from raysts.storage.manifests import pull_folder, push_folder, remove

RECORDS = ("recipe.json", "metrics.jsonl")
PULL_WAIT = 600.0
"""Seconds that processes of one machine wait for each other while one of them brings a run."""


def send_checkpoint(folder: Path) -> None:
    """Send what a run that is not over goes on from; a reader sees the last checkpoint or this one."""
    for name in (*RECORDS, "run.json"):
        storage.push(folder / name)
    push_folder(folder / "checkpoints")


def send_model(folder: Path) -> None:
    """Send all of a run that is over but the record that says so, which comes last."""
    push_folder(folder / "model")
    for name in RECORDS:
        if (folder / name).exists():
            storage.push(folder / name)


def receive(folder: Path) -> None:
    """Bring what is needed to go on with a run, or to know that it is done. The caller holds the lock of the folder."""
    if storage.place_of(folder) is None:
        return
    there = _remote_record(folder)
    status = there.get("status")
    if _done_here(folder) and status in (None, "running", "failed"):
        send_model(folder)
        storage.push(folder / "run.json")
        remove(folder / "checkpoints")
    elif status == "done":
        _bring_records(folder)
    elif status is not None and (pull_folder(folder / "checkpoints") or not (folder / "checkpoints").is_dir()):
        # What is here may be of a try on this machine that others have overtaken: the store has the last word.
        shutil.rmtree(folder / "model", ignore_errors=True)
        _bring_records(folder)


def look(folder: Path) -> None:
    """Bring the records of a run that nobody trains on this machine; whose writer is here has the latest already."""
    if storage.place_of(folder) is None or _record(folder).get("status") == "done":
        return
    if _remote_record(folder):
        with _alone(folder) as alone:
            if alone:
                _bring_records(folder)


def receive_beside(folder: Path) -> None:
    """:func:`receive` for a process that trains a run together with the one that holds the lock."""
    if storage.place_of(folder) is not None:
        with _alone(folder) as alone:
            if alone:  # the other one is on another machine
                receive(folder)


def confirm(folder: Path) -> None:
    """Make the record that is here that of the store, which has the last word on whether a run is done."""
    if storage.place_of(folder) is None:
        return
    there = _remote_record(folder)
    if there != _record(folder) and (there or folder.is_dir()):
        with _alone(folder) as alone:
            if alone and _done_here(folder) and there.get("status") in (None, "running", "failed"):
                receive(folder)
            elif alone and there:
                _bring_records(folder)
            elif alone and _record(folder).get("status") == "done":
                (folder / "run.json").unlink()  # its model is not here, and nothing is there


def _bring_records(folder: Path) -> None:
    for name in (*RECORDS, "run.json"):
        storage.bring(folder / name)


def _record(folder: Path) -> dict[str, Any]:
    return read_json(folder / "run.json") or {}


def _remote_record(folder: Path) -> dict[str, Any]:
    content = storage.remote(folder / "run.json")
    found = json.loads(content) if content else {}
    return found if isinstance(found, dict) else {}


def _done_here(folder: Path) -> bool:
    return _record(folder).get("status") == "done" and (folder / "model" / "config.json").is_file()


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[bool]:
    """Whether nobody on this machine writes into a run folder; nobody begins to within the block."""
    with contextlib.ExitStack() as held:
        held.enter_context(files.lock(folder / "reader.lock", f"a look at {folder.name}", PULL_WAIT))
        try:
            held.enter_context(files.lock(folder / "writer.lock", f"a look at {folder.name}"))
        except InputError:
            yield False
        else:
            yield True
