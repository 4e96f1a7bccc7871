"""``metrics.jsonl``: what a run says of its steps, and whoever follows it reads, without torch."""

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

from raysts.storage.atomic import atomic_write
from raysts.storage.checksums import checked_write, forget, intact


class MetricsLog:
    """``metrics.jsonl``: one JSON object a line; opened at a step, it forgets the lines of later steps."""

    def __init__(self, path: Path, step: int) -> None:
        self.path, text = path, metrics_until(path, step)
        with atomic_write(path) as draft:
            draft.write_bytes(text)
            forget(path)  # of the file as a bucket gave it
        self._checksum = hashlib.sha256(text)
        self._file = path.open("a", encoding="utf-8")

    def write(self, line: dict[str, Any]) -> None:
        text = json.dumps(line) + "\n"
        self._file.write(text)
        self._file.flush()
        self._checksum.update(text.encode())

    def sync(self) -> str:
        """Have the disk hold the lines, before a checkpoint that stands behind them; their checksum."""
        os.fsync(self._file.fileno())
        return self._checksum.hexdigest()

    def close(self) -> None:
        self._file.close()

    def seal(self) -> None:
        """Close the file: no line comes any more, and from now on its checksum stands beside it."""
        self.close()
        with checked_write(self.path) as draft:
            shutil.copyfile(self.path, draft)


def metrics_until(path: Path, step: int) -> bytes:
    """The lines of a metrics file up to a step, as they are written."""
    return b"".join(json.dumps(line).encode() + b"\n" for line in read_metrics(path) if line["step"] <= step)


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The complete lines of a metrics file; a line torn by a kill, or damaged, ends it."""
    if not intact(path):
        return []
    found = []
    for text in path.read_bytes().splitlines():
        if (line := _parsed(text)) is None:
            break
        found.append(line)
    return found


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    whole = isinstance(found, dict) and type(found.get("step")) is int
    return found if whole else None


def last_metrics(path: Path) -> dict[str, Any] | None:
    """The last complete line of a metrics file; reads only its end."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 4096))
            lines = file.read().split(b"\n")[:-1]
    except FileNotFoundError:
        return None
    return _parsed(lines[-1]) if lines else None
