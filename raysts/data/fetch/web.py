"""Files from the web: read whole, or downloaded with resumption; archives of word vectors made into text files."""

import hashlib
import shutil
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Sequence
from http.client import HTTPException
from pathlib import Path
from typing import IO, Any

from raysts.data.fetch.sources import VECTORS, Archive
from raysts.errors import InputError, RunFailed
from raysts.storage.atomic import atomic_write

TIMEOUT = 60
"""Seconds without an answer after which a server counts as unreachable."""

_BLOCK = 1 << 20
_SAID = 100 << 20  # bytes between two lines of progress


def read(url: str) -> bytes:
    """What is at an address."""
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT) as answer:
            found: bytes = answer.read()
            return found
    except (OSError, HTTPException) as error:
        raise RunFailed(f"{url} could not be read: {_why(error)}") from error


def local_archive(name: str, source: str | Path) -> Path:
    """The copy of the archive of word vectors ``name`` in a folder."""
    path = Path(source) / _file(VECTORS[name])
    if not path.is_file():
        raise InputError(f"--source '{source}' does not hold {path.name}, of which {name} is a part: copy it there")
    return path


def fetch_vectors(
    root: Path, names: Sequence[str], source: str | Path | None, progress: Callable[[str], None]
) -> dict[str, Any]:
    """Write word vectors of ``VECTORS`` as text files below ``root``; those that are there stay.

    The archive is downloaded once for all of them, goes on where an earlier download stopped, is checked against its
    SHA-256, and is removed in the end.

    Raises:
        RuntimeError: the archive cannot be downloaded, is another file than expected, or cannot be unpacked.
    """
    done: dict[str, Any] = {}
    downloaded: set[Path] = set()
    for name in names:
        path, archive = root / f"{name}.txt", VECTORS[name]
        if path.is_file():
            progress(f"{name}: present")
            done[name] = {"status": "present", "file": str(path)}
            continue
        if source is not None:
            packed = local_archive(name, source)
            _check(packed, archive)
        else:
            packed = path.parent / _file(archive)
            packed.parent.mkdir(parents=True, exist_ok=True)
            _download(archive, packed, progress)
            downloaded.add(packed)
        progress(f"{name}: unpacking {archive.member}")
        try:
            with zipfile.ZipFile(packed) as files, files.open(archive.member) as member:
                _write(member, path)
        except (zipfile.BadZipFile, KeyError) as error:
            raise RunFailed(
                f"{packed} holds no readable {archive.member} ({error}); remove it and try again"
            ) from error
        done[name] = {
            "status": "fetched",
            "file": str(path),
            "sources": [{"url": archive.url, "sha256": archive.sha256}],
        }
    for packed in downloaded:
        packed.unlink()
    return done


def _write(member: IO[bytes], path: Path) -> None:
    with atomic_write(path) as draft, draft.open("wb") as file:
        shutil.copyfileobj(member, file, _BLOCK)


def _file(archive: Archive) -> str:
    return archive.url.rsplit("/", 1)[-1]


def _download(archive: Archive, path: Path, progress: Callable[[str], None]) -> None:
    """The whole archive at ``path``; what is there of it, ``<path>.part``, is not asked for again."""
    if path.is_file():  # complete and checked, of a run that ended while it unpacked
        return
    part = path.with_name(f"{path.name}.part")
    try:
        have = part.stat().st_size if part.exists() else 0
        request = urllib.request.Request(archive.url, headers={"Range": f"bytes={have}-"} if have else {})
        try:
            answer = urllib.request.urlopen(request, timeout=TIMEOUT)
        except urllib.error.HTTPError as error:
            if error.code != 416:  # nothing after the last byte that is there
                raise
            _complete(part, path, archive)
            return
        with answer, part.open("ab" if answer.status == 206 else "wb") as file:
            total = file.tell() + int(answer.headers.get("Content-Length") or 0)
            progress(f"{path.name}: downloading {total - file.tell():,} of {total:,} bytes from {archive.url}")
            said = file.tell()
            while block := answer.read(_BLOCK):
                file.write(block)
                if file.tell() - said >= _SAID:
                    said = file.tell()
                    progress(f"{path.name}: {said:,} of {total:,} bytes")
            if file.tell() < total:
                raise ConnectionError(f"the connection ended after {file.tell():,} of {total:,} bytes")
    except (OSError, HTTPException) as error:
        raise RunFailed(
            f"{archive.url} could not be downloaded: {_why(error)}; check the network and run it again (it goes on where "
            f"it stopped), or download {path.name} elsewhere and give its folder with --source FOLDER"
        ) from error
    _complete(part, path, archive)


def _complete(part: Path, path: Path, archive: Archive) -> None:
    try:
        _check(part, archive)
    except RuntimeError:
        part.unlink()  # going on after wrong bytes would never end well
        raise
    part.replace(path)


def _check(path: Path, archive: Archive) -> None:
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != archive.sha256:
        raise RunFailed(
            f"{path.name} of {archive.url} has SHA-256 {found}, expected {archive.sha256}: the file was damaged or "
            f"replaced; fetch it again"
        )


def _why(error: Exception) -> str:
    return str(getattr(error, "reason", None) or error or type(error).__name__)
