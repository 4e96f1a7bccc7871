"""The folder of a training run: what is sent when, and what a run goes on from.

Whoever trains a run holds the lock of its folder and writes in place: a log that grows, checkpoints. In an object store a
run is its last checkpoint with its metrics, or, once ``run.json`` says done, its model; readers see the one or the other::

    run = RunFolder(store.path("runs/x"))
    with run.lock("training of run x"):     # the folder holds now what to go on from
        ...                                 # write run.path / "checkpoints" / ..., run.path / "metrics.jsonl"
        run.upload_checkpoint()
        run.upload_model()                  # then store.write_json(run.path / "run.json", {... "status": "done"})
    run.record()                            # anybody: the record as it is now, with recipe and metrics beside it
    run.change(RunState.PRUNED)             # who removes its model, once nobody trains it
"""

import contextlib
import enum
import json
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raysts.errors import InputError
from raysts.storage import atomic
from raysts.storage.bucket import Conflict
from raysts.storage.checksums import read_record, write_record
from raysts.storage.store import BucketStore, Store

RECORDS = ("recipe.json", "metrics.jsonl", "run.json")
"""In this order: the record that says done comes last."""

READ_WAIT = 600.0
"""Seconds that processes of one machine wait for each other while one of them brings a run."""

RUN_ID = re.compile("[0-9a-f]{16}")


class RunState(enum.StrEnum):
    """The states of a run in its record, as ``status``; a run that was interrupted is still running, and goes on."""

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    PRUNED = "pruned"
    """Done, its model removed by the search that trained it."""


def record_of(model: Path) -> dict[str, Any]:
    """Return the record of the run whose folder, named by its id, holds the model; empty where there is none.

    What stands beside a model from elsewhere is somebody's, whatever it is called: it is not even looked at.
    """
    ours = model.name == "model" and RUN_ID.fullmatch(model.parent.name)
    return RunFolder(model.parent).record() if ours else {}


class Upload(threading.Thread):
    """A transfer to the store; whoever is told to end need not wait for it (a daemon)."""

    def __init__(self, send: Callable[[], None]) -> None:
        super().__init__(name="upload", daemon=True)
        self._send = send
        self._error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self._send()
        except BaseException as error:  # noqa: BLE001 (raised where it is waited for)
            self._error = error

    def arrive(self) -> None:
        """Wait for its end, and raise what it raised."""
        self.join()
        if self._error is not None:
            raise self._error


@dataclass(frozen=True)
class RunFolder:
    """The run folder at ``path`` on this machine; of a folder that is no mirror all of it is there already."""

    path: Path

    @property
    def store(self) -> Store:
        return Store.of(self.path)

    @contextlib.contextmanager
    def lock(self, holder: str, wait: float = 0.0) -> Iterator[None]:
        """Be the only one who trains the run; the folder holds what it goes on from, or is done.

        Raises:
            InputError: another live process trains it.
        """
        with self.store.lock(self.path / "writer.lock", holder, wait, of=self.path):
            self._receive()
            yield

    def join(self) -> None:
        """Receive the run as :meth:`lock` does, in a process that trains it with the one that holds the lock."""
        with self._alone() as alone:
            if alone:  # the other one is on another machine
                self._receive()

    def record(self) -> dict[str, Any]:
        """Return the record ``run.json`` as the store has it, empty where there is none; bring recipe and metrics too."""
        if isinstance(self.store, BucketStore):
            stored = self._stored()
            if stored and stored == self.written() and stored.get("status") == RunState.DONE:
                return stored
            if stored or self.written():
                with self._alone() as alone:
                    if alone:
                        self._bring_records(stored)
        return self.written()

    def finished(self) -> dict[str, Any] | None:
        """Return the record of a run that is done; None where there is none, or no whole model."""
        record = self.record()
        return record if record.get("status") == RunState.DONE and self.store.whole(self.path / "model") else None

    def change(self, state: RunState) -> None:
        """Put another state into the record of a run that nobody trains."""
        while there := self.store.read(self.path / "run.json"):
            record = atomic.as_json({**json.loads(there[0]), "status": state}).encode()
            with contextlib.suppress(Conflict):  # read again what somebody wrote since
                self.store.replace(self.path / "run.json", record, there[1])
                return

    def written(self) -> dict[str, Any]:
        """Return the record as this machine has it, for whoever trains the run here or shows how far it is."""
        return read_record(self.path / "run.json") or {}

    def write(self, record: dict[str, Any]) -> None:
        """Write the record on this machine, for whoever trains the run here."""
        write_record(self.path / "run.json", record)

    def upload_checkpoint(self) -> Upload | None:
        """Send what a run that is not over goes on from, beside what the caller does.

        A reader sees the last checkpoint or this one. In a folder nothing is left to do: its files come and go one by one,
        each with its checksum.
        """
        return Upload(self._upload_checkpoint) if isinstance(self.store, BucketStore) else None

    def _upload_checkpoint(self) -> None:
        for name in RECORDS:
            self.store.upload(self.path / name)
        self._seal("checkpoints")

    def upload_model(self) -> None:
        """Send all of a run that is over but the record that says so, which comes last."""
        self._seal("model")
        for name in RECORDS[:-1]:
            if (self.path / name).exists():
                self.store.upload(self.path / name)

    def _seal(self, name: str) -> None:
        if (self.path / name).is_dir():
            self.store.seal(self.path / name)

    def _receive(self) -> None:
        if not isinstance(self.store, BucketStore):
            return
        stored = self._stored()
        if stored and stored.get("status") != RunState.DONE:
            brought = self.store.get_dir(self.path / "checkpoints", fresh=True)
            if not brought and (self.path / "checkpoints").is_dir():
                return  # they never came there
            # What is here may be of a try on this machine that others have overtaken: the store has the last word.
            shutil.rmtree(self.path / "model", ignore_errors=True)
        self._bring_records(stored)

    def _bring_records(self, stored: dict[str, Any]) -> None:
        if stored:
            for name in RECORDS:
                self.store.get(self.path / name, fresh=True)
        elif self.written().get("status") == RunState.DONE:  # somebody emptied the bucket
            (self.path / "run.json").unlink()

    def _stored(self) -> dict[str, Any]:
        there = self.store.read(self.path / "run.json")
        try:
            record = json.loads(there[0]) if there else None
        except (ValueError, RecursionError):
            record = None
        return record if isinstance(record, dict) else {}

    @contextlib.contextmanager
    def _alone(self) -> Iterator[bool]:
        """Give True if nobody on this machine writes into the folder; nobody begins to within the block."""
        if not isinstance(self.store, BucketStore):
            yield True
            return
        with contextlib.ExitStack() as held:
            held.enter_context(atomic.lock(self.path / "reader.lock", f"a look at {self.path.name}", READ_WAIT))
            try:
                held.enter_context(atomic.lock(self.path / "writer.lock", f"a look at {self.path.name}"))
            except InputError:
                yield False
            else:
                yield True
