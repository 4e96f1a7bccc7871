"""The folder of a training run: what is sent when, and what a run goes on from.

Whoever trains a run holds the lock of its folder and writes in place: a log that grows, checkpoints. In an object store a
run is its last checkpoint with its metrics, or, once ``run.json`` says done, its model; readers see the one or the other::

    run = RunFolder(store.path("runs/x"))
    with run.lock("training of run x"):     # the folder holds now what to go on from
        ...                                 # write run.path / "checkpoints" / ..., run.path / "metrics.jsonl"
        run.upload_checkpoint()
        run.upload_model()                  # then store.write_json(run.path / "run.json", {... "status": "done"})
    run.record()                            # anybody: the record as it is now, with recipe and metrics beside it
"""

import contextlib
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
from raysts.storage.checksums import read_record, write_record
from raysts.storage.store import BucketStore, Store

RECORDS = ("recipe.json", "metrics.jsonl", "run.json")
"""In this order: the record that says done comes last."""

READ_WAIT = 600.0
"""Seconds that processes of one machine wait for each other while one of them brings a run."""

RUN_ID = re.compile("[0-9a-f]{16}")


def record_of(model: Path) -> dict[str, Any]:
    """The record of the run whose folder, named by its id, holds the model; empty where there is none.

    What stands beside a model from elsewhere is somebody's, whatever it is called: it is not even looked at.
    """
    ours = model.name == "model" and RUN_ID.fullmatch(model.parent.name)
    return RunFolder(model.parent).record() if ours else {}


class Upload(threading.Thread):
    """Something on its way to the store; whoever is told to end need not wait for it (a daemon)."""

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
        """As :meth:`lock` for a process that trains the run together with the one that holds the lock."""
        with self._alone() as alone:
            if alone:  # the other one is on another machine
                self._receive()

    def record(self) -> dict[str, Any]:
        """The record ``run.json`` as the store has it, empty where there is none; recipe and metrics are brought with it.

        A run that is done here and not there (somebody emptied the bucket) is sent again.
        """
        stored = self._stored()
        if isinstance(self.store, BucketStore) and (stored or self.written()):
            if stored == self.written() and stored.get("status") == "done":
                return stored
            with self._alone() as alone:
                if alone and self._only_here(stored):
                    self._send()
                elif alone and stored:
                    self._bring_records()
                elif alone and self.written().get("status") == "done":
                    (self.path / "run.json").unlink()  # its model is not here, and nothing is there
        return self.written()

    def upload_checkpoint(self) -> Upload | None:
        """Send what a run that is not over goes on from, beside what the caller does; a reader sees the last checkpoint or
        this one. In a folder nothing is left to do: its files come and go one by one, each with its checksum."""
        return Upload(self._upload_checkpoint) if isinstance(self.store, BucketStore) else None

    def _upload_checkpoint(self) -> None:
        for name in RECORDS:
            self.store.upload(self.path / name)
        self._upload_dir("checkpoints")

    def upload_model(self) -> None:
        """Send all of a run that is over but the record that says so, which comes last."""
        self._upload_dir("model")
        for name in RECORDS[:-1]:
            if (self.path / name).exists():
                self.store.upload(self.path / name)

    def _receive(self) -> None:
        if not isinstance(self.store, BucketStore):
            return
        stored = self._stored()
        if self._only_here(stored):
            self._send()
        elif stored.get("status") == "done":
            self._bring_records()
        elif stored:
            brought = self.store.get_dir(self.path / "checkpoints", fresh=True)
            if brought or not (self.path / "checkpoints").is_dir():
                # What is here may be of a try on this machine that others have overtaken: the store has the last word.
                shutil.rmtree(self.path / "model", ignore_errors=True)
                self._bring_records()

    def _send(self) -> None:
        self.upload_model()
        self.store.upload(self.path / "run.json")
        self.store.delete(self.path / "checkpoints")

    def _bring_records(self) -> None:
        for name in RECORDS:
            self.store.get(self.path / name, fresh=True)

    def _upload_dir(self, name: str) -> None:
        if (self.path / name).is_dir():
            self.store.upload_dir(self.path / name)

    def written(self) -> dict[str, Any]:
        """The record as this machine has it, for whoever trains the run here or shows how far it is."""
        return read_record(self.path / "run.json") or {}

    def write(self, record: dict[str, Any]) -> None:
        """Write the record on this machine, for whoever trains the run here."""
        write_record(self.path / "run.json", record)

    def finished(self) -> dict[str, Any] | None:
        record = self.record()
        return record if record.get("status") == "done" and self.store.whole(self.path / "model") else None

    def _stored(self) -> dict[str, Any]:
        if not isinstance(self.store, BucketStore):
            return self.written()
        content = self.store.bucket.read(self.store.now(self.path / "run.json"))
        try:
            record = json.loads(content or b"{}")
        except (ValueError, RecursionError):
            record = None
        return record if isinstance(record, dict) else {}

    def _only_here(self, stored: dict[str, Any]) -> bool:
        """Whether the run is done on this machine and not in the store."""
        done = self.written().get("status") == "done" and (self.path / "model" / "config.json").is_file()
        return done and stored.get("status") in (None, "running", "failed")

    @contextlib.contextmanager
    def _alone(self) -> Iterator[bool]:
        """Whether nobody on this machine writes into the folder; nobody begins to within the block."""
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
