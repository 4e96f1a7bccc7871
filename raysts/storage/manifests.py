"""Folders of an object store that are complete or absent: ``<folder>.manifest.json``, written last, lists their files.

Readers ignore a folder without a manifest, so one whose upload was interrupted is not there, or is still what it was.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

from raysts.errors import RunFailed
from raysts.storage import store as storage
from raysts.storage.atomic import ASIDE, aside
from raysts.storage.bucket import check_inside
from raysts.storage.store import Place, at_once, check_leases, location, place_of

ABOUT = "README.md"
"""A model's card: written again when more is known of the model, so no manifest lists it."""


def push_folder(folder: Path) -> None:
    """Send a folder: what is new, then the manifest, then what the folder does not hold any more is removed."""
    place = place_of(folder)
    if place is None or not folder.is_dir():
        return
    check_leases(folder)
    bucket, held = place.bucket, _files(folder)
    entries = {name: _entry(path) for name, path in held.items() if name != ABOUT}
    before = _entries(bucket.read(_manifest(place.path)), location(folder))
    if entries != before:
        if before is not None and any(before.get(name, entry) != entry for name, entry in entries.items()):
            bucket.delete(_manifest(place.path))  # better absent than with the content of two
        new = [name for name, entry in entries.items() if before is None or before.get(name) != entry]
        at_once(lambda name: bucket.upload(held[name], f"{place.path}/{name}"), new)
        content = json.dumps({"files": entries}, indent=1).encode()
        bucket.write(_manifest(place.path), content)
        _manifest_of(folder).write_bytes(content)
        for name in bucket.listed(place.path, recursive=True).keys() - entries.keys() - {ABOUT}:
            bucket.delete(f"{place.path}/{name}")
    if ABOUT in held:
        bucket.upload(held[ABOUT], f"{place.path}/{ABOUT}")


def pull_folder(folder: Path) -> bool:
    """Make a folder what it is in the store; whether it is complete there. Otherwise what is here stays.

    Raises:
        RunFailed: what is there is not what its manifest says.
    """
    place = place_of(folder)
    if place is None:
        return folder.is_dir()
    for _ in range(3):
        content = place.bucket.read(_manifest(place.path))
        entries = _entries(content, location(folder))
        if content is None or entries is None:
            return False
        known = _entries(_local(_manifest_of(folder)), str(folder)) or {}
        left = [name for name, entry in entries.items() if not _is_here(folder / name, entry, known.get(name))]
        if all(at_once(partial(_bring, place, folder, entries), left)):
            for name, path in _files(folder).items():
                if name not in entries and name != ABOUT:
                    path.unlink()
            with aside(_manifest_of(folder)) as draft:
                draft.write_bytes(content)
            if left and ABOUT in place.bucket.listed(place.path):
                storage.bring(folder / ABOUT)
            return True
        # Something was replaced while we read: its new manifest says by what.
    raise RunFailed(
        f"{place.bucket.uri}: {place.path} is not what its manifest says ({', '.join(sorted(left)[:3])}); remove "
        f"{_manifest(place.path)} and run the same command again: it is made again"
    )


def need_folder(folder: Path) -> Path:
    """Bring a folder whose content never changes, unless it is here, and return it."""
    if place_of(folder) is None:
        return folder
    entries = _entries(_local(_manifest_of(folder)), str(folder))
    if entries is None or any(_size(folder / name) != entry["size"] for name, entry in entries.items()):
        pull_folder(folder)
    return folder


def has_folder(folder: Path) -> bool:
    """Whether a folder is complete, in the store where there is one."""
    place = place_of(folder)
    return folder.is_dir() if place is None else place.bucket.has(_manifest(place.path))


def remove(folder: Path) -> None:
    """Remove a folder, here and in the store."""
    place = place_of(folder)
    if place is not None:
        check_leases(folder)
        place.bucket.delete(_manifest(place.path))
        place.bucket.delete_folder(place.path)
        _manifest_of(folder).unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)


def _manifest(path: str) -> str:
    return f"{path}.manifest.json"


def _manifest_of(folder: Path) -> Path:
    return folder.with_name(_manifest(folder.name))


def _files(folder: Path) -> dict[str, Path]:
    paths = sorted(folder.rglob("*"))
    return {
        p.relative_to(folder).as_posix(): p for p in paths if p.is_file() and ASIDE not in str(p.relative_to(folder))
    }


def _entry(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        return {"size": path.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


def _size(path: Path) -> int | None:
    return path.stat().st_size if path.is_file() else None


def _local(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


def _entries(content: bytes | None, where: str) -> dict[str, dict[str, Any]] | None:
    """The files of a manifest; None where there is none.

    Raises:
        InputError: it names a file outside its folder.
    """
    if content is None:
        return None
    try:
        found = {
            str(name): {"size": each["size"], "sha256": each["sha256"]}
            for name, each in json.loads(content)["files"].items()
        }
    except (ValueError, KeyError, TypeError, AttributeError):
        return None  # not ours
    for name in found:
        check_inside(name, f"{where}: its manifest")
    return found


def _bring(place: Place, folder: Path, entries: dict[str, dict[str, Any]], name: str) -> bool:
    """Bring one file; whether it is what the manifest says."""
    with contextlib.suppress(FileNotFoundError), aside(folder / name) as draft:
        place.bucket.download((folder / name).relative_to(place.root).as_posix(), draft)
        if _entry(draft) != entries[name]:
            raise FileNotFoundError(name)
        return True
    return False


def _is_here(path: Path, entry: dict[str, Any], known: dict[str, Any] | None) -> bool:
    """Whether a file is what the manifest says; it is only read where no earlier manifest here says so too."""
    return _size(path) == entry["size"] and (known == entry or _entry(path) == entry)
