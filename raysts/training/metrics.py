"""Reading and writing of ``metrics.jsonl``, without torch."""

import contextlib
import hashlib
import itertools
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from raysts.storage.atomic import atomic_write
from raysts.storage.checksums import checked_write, forget, intact


class MetricsLog:
    """The file ``metrics.jsonl``, one JSON object a line. Opening at a step drops later lines."""

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
        """Flush the lines to disk, before the checkpoint that needs them, and return their checksum."""
        os.fsync(self._file.fileno())
        return self._checksum.hexdigest()

    def close(self) -> None:
        self._file.close()

    def seal(self) -> None:
        """Close the file and store its checksum."""
        self.close()
        with checked_write(self.path) as draft:
            shutil.copyfile(self.path, draft)


def metrics_until(path: Path, step: int) -> bytes:
    """Return the lines of a metrics file up to a step, as bytes."""
    return b"".join(json.dumps(line).encode() + b"\n" for line in read_metrics(path) if line["step"] <= step)


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Return the complete lines of a metrics file, up to the first torn or damaged one."""
    lines = map(_parse, path.read_bytes().splitlines() if intact(path) else ())
    return [line for line in itertools.takewhile(lambda line: line is not None, lines) if line]


def _parse(line: bytes) -> dict[str, Any] | None:
    with contextlib.suppress(ValueError, RecursionError):
        value = json.loads(line)
        return value if isinstance(value, dict) and type(value.get("step")) is int else None
    return None


def last_metrics(path: Path) -> dict[str, Any] | None:
    """Return the last complete line of a metrics file, or None. Read only its end."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 4096))
            lines = file.read().split(b"\n")[:-1]
    except FileNotFoundError:
        return None
    return _parse(lines[-1]) if lines else None


def figures(line: Mapping[str, Any]) -> list[str]:
    """Return loss and dev score of a metrics line as text for people."""
    shown = (("loss", 1, 4), ("dev", 100, 2))
    return [f"{name} {scale * line[name]:.{digits}f}" for name, scale, digits in shown if line.get(name) is not None]
