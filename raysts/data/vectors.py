"""Word vectors from the web: downloads that continue after an interruption, unpacked into text files."""

import shutil
import urllib.error
import urllib.request
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any

from raysts.errors import InputError, RunFailed
from raysts.ids import file_digest
from raysts.log import say
from raysts.storage.atomic import atomic_write

TIMEOUT = 60
"""Seconds without an answer after which a server counts as unreachable."""

_BLOCK = 1 << 20
_PROGRESS = 100 << 20  # bytes between two lines of progress


@dataclass(frozen=True, slots=True)
class Archive:
    """A zip archive on the web, and the text file to take from it."""

    url: str
    sha256: str
    member: str

    @property
    def file(self) -> str:
        return self.url.rsplit("/", 1)[-1]


ALONE = "words/glove.840B.300d"
"""Word vectors that only their own name fetches, not that of their folder: the archive has 2 GB."""

VECTORS = {
    f"words/glove.6B.{width}d": Archive(
        "https://nlp.stanford.edu/data/glove.6B.zip",
        "617afb2fe6cbd085c235baf7a465b96f4112bd7f7ccb2b2cbd649fed9cbcf2fb",
        f"glove.6B.{width}d.txt",
    )
    for width in (50, 100, 200, 300)
}
VECTORS[ALONE] = Archive(
    "https://nlp.stanford.edu/data/glove.840B.300d.zip",
    "c06db255e65095393609f19a4cfca20bf3a71e20cc53e892aafa490347e3849f",
    "glove.840B.300d.txt",
)
"""Word vectors that can be fetched, as text files of that name. They are large, so only their names fetch them."""


def local_archive(name: str, source: str | Path) -> Path:
    """Return the copy of the archive of word vectors ``name`` in a folder."""
    path = Path(source) / VECTORS[name].file
    if not path.is_file():
        raise InputError(f"--source '{source}' does not hold {path.name}, of which {name} is a part: copy it there")
    return path


def fetch_vectors(root: Path, names: Sequence[str], source: str | Path | None) -> dict[str, Any]:
    """Write word vectors as text files below ``root``, unless they exist.

    One download of the archive serves all of them. It continues an earlier download, is checked against its SHA-256, and removed
    in the end.

    Raises:
        RunFailed: the archive cannot be downloaded, is another file than expected, or cannot be unpacked.
    """
    entries: dict[str, Any] = {}
    downloaded: set[Path] = set()
    for name in names:
        path, archive = root / f"{name}.txt", VECTORS[name]
        entries[name] = {"status": "present", "file": str(path)}
        if path.is_file():
            say(f"{name}: present")
            continue
        if source is not None:
            packed = local_archive(name, source)
            _check(packed, archive)
        else:
            packed = path.with_name(archive.file)
            downloaded.add(packed)
            if not packed.is_file():  # complete and checked, of a run that ended while it unpacked
                _download(archive, packed)
        say(f"{name}: unpacking {archive.member}")
        try:
            with (
                zipfile.ZipFile(packed) as files,
                files.open(archive.member) as member,
                atomic_write(path) as draft,
                draft.open("wb") as file,
            ):
                shutil.copyfileobj(member, file, _BLOCK)
        except (zipfile.BadZipFile, KeyError) as error:
            raise RunFailed(
                f"{packed} holds no readable {archive.member} ({error}); remove it and try again"
            ) from error
        entries[name] |= {"status": "fetched", "sources": [{"url": archive.url, "sha256": archive.sha256}]}
    for packed in downloaded:
        packed.unlink()
    return entries


def _download(archive: Archive, path: Path) -> None:
    """Download the rest of the archive to ``<path>.part``, check it, and rename it."""
    part = path.with_name(f"{path.name}.part")
    part.parent.mkdir(parents=True, exist_ok=True)
    try:
        size = part.stat().st_size if part.exists() else 0
        request = urllib.request.Request(archive.url, headers={"Range": f"bytes={size}-"} if size else {})
        with (
            urllib.request.urlopen(request, timeout=TIMEOUT) as answer,
            part.open("ab" if answer.status == 206 else "wb") as file,
        ):
            size = shown = file.tell()
            total = size + int(answer.headers.get("Content-Length") or 0)
            say(f"{path.name}: downloading {total - size:,} of {total:,} bytes from {archive.url}")
            while block := answer.read(_BLOCK):
                size += file.write(block)
                if size - shown >= _PROGRESS:
                    shown = size
                    say(f"{path.name}: {size:,} of {total:,} bytes")
            if size < total:
                raise ConnectionError(f"the connection ended after {size:,} of {total:,} bytes")
    except (OSError, HTTPException) as error:
        if not (isinstance(error, urllib.error.HTTPError) and error.code == 416):  # 416: the part is all of it
            why = getattr(error, "reason", None) or error or type(error).__name__
            raise RunFailed(
                f"{archive.url} could not be downloaded: {why}; check the network and run it again (it goes on where it "
                f"stopped), or download {path.name} elsewhere and give its folder with --source FOLDER"
            ) from error
    try:
        _check(part, archive)
    except RunFailed:
        part.unlink()  # going on after wrong bytes would never end well
        raise
    part.replace(path)


def _check(path: Path, archive: Archive) -> None:
    if (sha256 := file_digest(path).hex()) != archive.sha256:
        raise RunFailed(
            f"{path.name} of {archive.url} has SHA-256 {sha256}, expected {archive.sha256}: the file was damaged or "
            f"replaced; fetch it again"
        )
