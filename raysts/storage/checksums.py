"""The SHA-256 and size of each file, in ``.<name>.checksum`` beside it, which is renamed first.

A damaged file becomes ``<name>.damaged`` and counts as absent.
A file without a checksum is taken as it is. The checksums of a folder are ``<folder>.manifest.json``.
"""

import contextlib
import json
import logging
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from raysts.errors import RunFailed
from raysts.ids import file_digest, file_state
from raysts.storage.atomic import as_json, atomic_write

MANIFEST = ".manifest.json"
CARD = "README.md"
"""A model's card: written again when more is known of the model, so no manifest lists it."""

CHECKSUM = ".checksum"
DAMAGED = ".damaged"
"""Ends the name of what was set aside."""

REMEMBERED = 3
"""Checksums beside a file: a kill may come between the renames of the checksum and of its file, a few times in a row."""

logger = logging.getLogger("raysts")


def checksum(path: Path) -> str:
    """Return the SHA-256 of a file as hex digits."""
    return file_digest(path).hex()


def entry(path: Path) -> dict[str, Any]:
    """Return a file as manifests list it."""
    return {"size": path.stat().st_size, "sha256": checksum(path)}


@contextlib.contextmanager
def checked_write(path: Path) -> Iterator[Path]:
    """Write a file and its checksum like :func:`atomic_write`. A card has none: users edit it."""
    with atomic_write(path) as draft:
        yield draft
        if path.name == CARD:
            return
        lines = dict.fromkeys([f"{checksum(draft)} {draft.stat().st_size}", *_lines(path)])
        with atomic_write(_sidecar(path), synced=False) as sidecar:
            sidecar.write_text("\n".join([*lines][:REMEMBERED]), encoding="utf-8")


def intact(path: Path, deep: bool = True, aside: bool = True) -> bool:
    """Return True if a file or folder agrees with its checksums, by content or by size (not ``deep``).

    A damaged one is renamed unless ``aside`` is False.
    """
    if path.is_dir():
        sound = all(is_same(path / name, listed, deep) for name, listed in (manifest_of(path) or {}).items())
        return sound or set_aside(path)
    try:
        while state := file_state(path):
            if not _lines(path):
                return True  # not ours: it is not even read
            current = f"{checksum(path) if deep else ''} {path.stat().st_size}"
            lines = _lines(path)  # looked at last: a writer may be at work
            if any(line.endswith(current) for line in lines):
                return True
            if file_state(path) == state:
                return aside and set_aside(path)
    except (FileNotFoundError, NotADirectoryError):
        pass
    return False


def is_same(path: Path, listed: dict[str, Any], deep: bool = True) -> bool:
    """Return True if a file is what a manifest lists."""
    try:
        return path.stat().st_size == listed["size"] and (not deep or checksum(path) == listed["sha256"])
    except OSError:
        return False


def write_manifest(folder: Path, content: bytes) -> None:
    """Write what :func:`manifest_of` reads."""
    with atomic_write(folder.with_name(f"{folder.name}{MANIFEST}"), synced=False) as draft:
        draft.write_bytes(content)


def manifest_of(folder: Path) -> dict[str, dict[str, Any]] | None:
    """Return size and SHA-256 of the files of a sealed folder by name, or None."""
    with contextlib.suppress(OSError):
        return entries_of(folder.with_name(f"{folder.name}{MANIFEST}").read_bytes())
    return None


def as_manifest(entries: dict[str, dict[str, Any]]) -> bytes:
    """Return a manifest of files."""
    return json.dumps({"files": entries}, indent=1).encode()


def entries_of(content: bytes) -> dict[str, dict[str, Any]] | None:
    """Return the files that a manifest lists, or None if it is damaged."""
    try:
        files = json.loads(content)["files"]
        return {str(name): {key: listed[key] for key in ("size", "sha256")} for name, listed in files.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def set_aside(path: Path) -> bool:
    """Rename a damaged file or folder so that it is made again, log it, and return False."""
    damaged = path.with_name(f"{path.name}{DAMAGED}")
    if damaged.is_dir():
        shutil.rmtree(damaged)
    try:
        path.replace(damaged)
        forget(path)
    except FileNotFoundError:  # another process did
        return False
    except OSError as error:
        raise RunFailed(
            f"{path} is damaged: it is not what was written, and cannot be set aside ({error.strerror}); remove it and run "
            f"the same command again"
        ) from None
    logger.warning(f"{path} is damaged: it is not what was written. It is now {damaged.name}, and counts as absent")
    return False


def forget(path: Path) -> None:
    """Remove the checksums of a file or folder that goes."""
    _sidecar(path).unlink(missing_ok=True)
    path.with_name(f"{path.name}{MANIFEST}").unlink(missing_ok=True)


def read_record(path: Path, kind: type[Any] = dict) -> Any:
    """Return the JSON value of this ``kind`` in a file that raysts wrote, or None."""
    if not intact(path):
        return None
    try:
        value = json.loads(path.read_bytes())
    except (FileNotFoundError, IsADirectoryError):
        return None
    except (ValueError, RecursionError):
        value = None
    return value if isinstance(value, kind) else set_aside(path) or None


def parse_record(content: bytes) -> dict[str, Any]:
    """Return the JSON object in a record's content, or an empty one."""
    with contextlib.suppress(ValueError, RecursionError):
        record = json.loads(content)
        return record if isinstance(record, dict) else {}
    return {}


def write_record(path: Path, value: Any) -> None:
    """Write ``value`` as indented JSON, with its checksum."""
    with checked_write(path) as draft:
        draft.write_text(as_json(value), encoding="utf-8")


def _sidecar(path: Path) -> Path:
    return path.with_name(f".{path.name}{CHECKSUM}")


def _lines(path: Path) -> list[str]:
    """Return the valid lines of the checksum beside a file, the newest first."""
    lines: list[str] = []
    with contextlib.suppress(OSError, ValueError):
        lines = _sidecar(path).read_text(encoding="ascii").splitlines()
    return [line for line in lines if len(line) > 65 and line[64] == " " and line[65:].isdigit()]
