"""Commands in sessions of their own whose processes, however deep and however renamed, are found again."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from raysts.storage.atomic import ASIDE
from raysts.storage.foreign import read_json

TAG = "RAYSTS_TEST_TAG"


class Command:
    """A command that leads a session of its own; what descends from it stays in the session or carries its tag.

    Args:
        arguments: of ``python``.
        log: file that gets stderr.
        environment: added to ours.
        cwd: working directory.
    """

    def __init__(
        self, arguments: list[str], log: Path, environment: dict[str, str] | None = None, cwd: Path | None = None
    ) -> None:
        self.tag, self.log, self.output = uuid.uuid4().hex, log, log.with_suffix(".stdout")
        with log.open("w") as errors, self.output.open("w") as output:
            self.process = subprocess.Popen(
                [sys.executable, *arguments],
                env={**os.environ, **(environment or {}), TAG: self.tag},
                stdout=output,
                stderr=errors,
                stdin=subprocess.DEVNULL,
                cwd=cwd,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Of the command itself."""
        return self.process.pid

    def ended(self) -> bool:
        """Whether the command itself has ended."""
        return self.process.poll() is not None

    def stderr(self) -> str:
        """What it has written so far."""
        return self.log.read_text()

    def stdout(self) -> str:
        """Wait for the end and return what it printed."""
        self.process.wait(timeout=600)
        return self.output.read_text()

    def signal_driver(self, number: int) -> None:
        """To the command alone."""
        os.kill(self.pid, number)

    def family(self) -> list[int]:
        """Every living process of the session or with the tag, the command included."""
        return family(self.pid, self.tag)

    def left_behind(self, patience: float = 120.0) -> list[str]:
        """Command lines of what still lives when ``patience`` is over; returns as soon as nothing does. Two agents of Ray look
        for a minute for a head that was killed with its driver."""
        self.process.wait(timeout=600)
        deadline = time.monotonic() + patience
        while (left := self.family()) and time.monotonic() < deadline:
            time.sleep(0.1)
        return [describe(pid) for pid in left]

    def sweep(self) -> None:
        """End whatever is left of it."""
        for pid in self.family():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()


def family(session: int, tag: str) -> list[int]:
    """Ids of the living processes of a session, or whose environment carries the tag.

    Both, for some processes start a session of their own, and others write their title over their environment.
    """
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.status() != psutil.STATUS_ZOMBIE and (
                os.getsid(process.pid) == session or process.environ().get(TAG) == tag
            ):
                found.append(process.pid)
    return found


def describe(pid: int) -> str:
    """Process id and command line, for a message."""
    with contextlib.suppress(OSError):
        return f"{pid}: {Path(f'/proc/{pid}/cmdline').read_bytes().replace(bytes(1), b' ').decode()[:120]}"
    return f"{pid}: ended"


def wait_until(condition: Callable[[], object], seconds: float = 400.0, pause: float = 0.02) -> None:
    """Poll until ``condition`` holds; an error after ``seconds``."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{condition} did not come true within {seconds:g} s")
        time.sleep(pause)


@contextlib.contextmanager
def standing_still(pid: int | None) -> Iterator[None]:
    """A process gets nothing done meanwhile."""
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):  # it was ended
            os.kill(pid, signal.SIGCONT)


def writer_of(folder: Path) -> int | None:
    """Process id of the one that trains (or trained last) in a run folder."""
    try:
        text = (folder / "writer.lock").read_text()
        if text.startswith("a look at "):  # a driver's, which is not to be killed in its place: it may be this process
            return None
        return int(text.split("(process ")[1].split()[0])
    except (OSError, IndexError):
        return None


@contextlib.contextmanager
def small_windows(rows: int) -> Iterator[None]:
    """Token stores made and planned in this process have windows of so many rows."""
    with pytest.MonkeyPatch.context() as patch:
        for module in ("raysts.data.windows", "raysts.pipeline.inputs"):
            patch.setattr(f"{module}.WINDOW", rows)
        yield


def family_of_title(title: str, ancestor: int) -> list[int]:
    """Ids of the living descendants of a process whose command line contains ``title``."""
    return [child.pid for child in psutil.Process(ancestor).children(recursive=True) if title in describe(child.pid)]


def finished_files(storage: Path) -> dict[Path, int]:
    """Time of writing of everything a finished run, token store or teacher cache consists of."""
    folders = [path.parent for path in storage.glob("tokens/*/manifest.json")]
    folders += [path.parent for path in storage.glob("embeddings/*/manifest.json")]
    for record in storage.glob("runs/*/run.json"):
        if (read_json(record) or {}).get("status") == "done":
            folders += [record.parent]
    kept = {path for folder in folders for path in folder.rglob("*") if path.is_file()}
    kept |= set(storage.glob("results/*.parquet"))
    found = {}
    for path in kept:
        # The lock says who holds it, the card is written with the results; checkpoints are about to go.
        if path.name in ("writer.lock", "README.md") or "checkpoints" in path.parts or path.name.startswith(ASIDE):
            continue
        with contextlib.suppress(FileNotFoundError):
            found[path] = path.stat().st_mtime_ns
    return found


def progress(storage: Path) -> int:
    """How far a run has come: metrics lines (a resumed run forgets those after its checkpoint) and finished files."""
    lines = sum(path.read_bytes().count(b"\n") for path in storage.glob("runs/*/metrics.jsonl"))
    files = [path for part in ("tokens", "embeddings", "results") for path in storage.glob(f"{part}/**/*.*")]
    return lines + sum(not path.name.startswith(ASIDE) and "sum-" not in str(path) for path in files)


def trainer(storage: Path) -> int | None:
    """Process id of a worker that is training now."""
    for record in storage.glob("runs/*/run.json"):
        pid = writer_of(record.parent)
        if (read_json(record) or {}).get("status") == "running" and pid and Path(f"/proc/{pid}").exists():
            return pid
    return None
