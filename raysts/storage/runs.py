"""The folder of a training run: when its files are uploaded, and what a run resumes from.

The process that trains a run holds the lock of its folder and writes in place. A bucket holds the last checkpoint with its
metrics or, once ``run.json`` has the state done, the model. That record is therefore uploaded last.
"""

import contextlib
import enum
import json
import re
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raysts.errors import InputError
from raysts.storage import atomic
from raysts.storage.bucket import Conflict
from raysts.storage.checksums import parse_record, read_record, write_record
from raysts.storage.store import Store

RECORDS = ("recipe.json", "metrics.jsonl", "run.json")

RUN_ID = re.compile("[0-9a-f]{16}")


class State(enum.StrEnum):
    """The state of a step, and the ``status`` of a run, in its record and in that of a trial.

    A run that was interrupted is running, one without its model is pruned, and a search ends runs as stopped or infeasible.
    :meth:`RunFolder.change` is the one transition of a run that no process trains.
    """

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    PRUNED = "pruned"
    STOPPED = "stopped"
    INFEASIBLE = "infeasible"


def record_of(model: Path) -> dict[str, Any]:
    """Return the record of the run that trained a model, or an empty one if its folder has no run id."""
    is_run = model.name == "model" and RUN_ID.fullmatch(model.parent.name)
    return RunFolder(model.parent).record() if is_run else {}


@dataclass(frozen=True)
class RunFolder:
    """The local folder of a run, which may be part of a mirror."""

    path: Path

    @property
    def store(self) -> Store:
        return Store.of(self.path)

    @contextlib.contextmanager
    def lock(self, holder: str, wait: float = 0.0) -> Iterator[None]:
        """Hold the lock of the run, with its last checkpoint in the folder."""
        with self.store.lock(self.path / "writer.lock", holder, wait, protects=self.path):
            self._receive()
            yield

    def join(self) -> None:
        """Download the last checkpoint in a process that trains the run together with the holder of the lock."""
        if self.store.remote:
            with self._alone() as alone:
                if alone:  # the other one is on another machine
                    self._receive()

    def record(self) -> dict[str, Any]:
        """Return the current record, or an empty one, and download recipe and metrics."""
        if self.store.remote:
            stored = self._remote_record()
            if stored and stored == self.written() and stored.get("status") == State.DONE:
                return stored
            if stored or self.written():
                with self._alone() as alone:
                    if alone:
                        self._bring_records(stored)
        return self.written()

    def done_record(self) -> dict[str, Any] | None:
        """Return the record of a run that is done and has an intact model, or None."""
        record = self.record()
        return record if record.get("status") == State.DONE and self.store.is_whole(self.path / "model") else None

    def change(self, state: State) -> None:
        """Change the state of a run that no process trains."""
        while stored := self.store.read(self.path / "run.json"):
            record = atomic.as_json({**json.loads(stored[0]), "status": state}).encode()
            with contextlib.suppress(Conflict):  # the record has changed: read it again
                self.store.replace(self.path / "run.json", record, stored[1])
                return

    def written(self) -> dict[str, Any]:
        """Return the record on this machine, which may be newer than that of the bucket."""
        return read_record(self.path / "run.json") or {}

    def write(self, record: dict[str, Any]) -> None:
        write_record(self.path / "run.json", record)

    def upload_checkpoint(self) -> Future[None] | None:
        """Upload the checkpoint in a daemon thread, and return None for a folder, which needs no upload."""
        if not self.store.remote:
            return None
        upload: Future[None] = Future()

        def send() -> None:
            try:
                for name in RECORDS:
                    self.store.upload(self.path / name)
                if (self.path / "checkpoints").is_dir():
                    self.store.seal(self.path / "checkpoints")
                upload.set_result(None)
            except BaseException as error:  # noqa: BLE001 (raised where it is waited for)
                upload.set_exception(error)

        threading.Thread(target=send, name="upload", daemon=True).start()
        return upload

    def upload_model(self) -> None:
        """Upload all files of a run that has ended, except the record, which must come last."""
        self.store.seal(self.path / "model")
        for name in RECORDS[:-1]:
            if (self.path / name).exists():
                self.store.upload(self.path / name)

    def _receive(self) -> None:
        if not self.store.remote:
            return
        stored = self._remote_record()
        if stored and stored.get("status") != State.DONE:
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
        elif self.written().get("status") == State.DONE:  # somebody emptied the bucket
            (self.path / "run.json").unlink()

    def _remote_record(self) -> dict[str, Any]:
        stored = self.store.read(self.path / "run.json")
        return parse_record(stored[0]) if stored else {}

    @contextlib.contextmanager
    def _alone(self) -> Iterator[bool]:
        """Yield True if no process of this machine trains the run, and let none start within the block."""
        with contextlib.ExitStack() as locks:
            locks.enter_context(atomic.lock(self.path / "reader.lock", f"a look at {self.path.name}", wait=600.0))
            try:
                locks.enter_context(atomic.lock(self.path / "writer.lock", f"a look at {self.path.name}"))
            except InputError:
                yield False
            else:
                yield True
