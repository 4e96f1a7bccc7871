"""A storage: a local folder, or an object store with a local folder that mirrors what this machine needs of it.

Below a mirror all code reads and writes files as it does in any folder. The functions here bring what is needed and send
what has become complete; for paths that lie in no mirror they do nothing. The name of a mirror's folder is its URI, so a
path says by itself, on every node, which store it belongs to.

Objects appear whole. What one is here too is written there first: nothing counts as done here that is not there.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import unquote

from raysts.errors import InputError
from raysts.storage import atomic as files
from raysts.storage.atomic import ASIDE
from raysts.storage.bucket import Bucket, canonical, check_inside, mirror_name
from raysts.storage.lease import Lease

SEPARATOR = mirror_name("://")
"""By this in its name the folder of a mirror is known."""

AT_ONCE = 8
"""Objects that are asked for at the same time."""

T = TypeVar("T")
R = TypeVar("R")


class Place(NamedTuple):
    """Where a path lies in an object store; ``path`` is empty for the storage itself."""

    bucket: Bucket
    root: Path
    path: str


def mirror(uri: str, option: str = "--storage") -> Path:
    """The folder on this machine for the object store at ``uri``, which need not exist yet.

    It lies in ``$RAYSTS_MIRROR``, else ``$XDG_CACHE_HOME/raysts/storages``, else ``~/.cache/raysts/storages``, and may be
    removed whenever nothing runs.

    Raises:
        InputError: the URI is not that of an object store.
    """
    name = mirror_name(canonical(uri, option))
    if len(os.fsencode(name)) > 200:
        raise InputError(f"{option} '{canonical(uri)}': is too long to name a folder; take a shorter prefix")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "raysts" / "storages"
    return Path(os.environ.get("RAYSTS_MIRROR") or cache).absolute() / name


@lru_cache(maxsize=4096)
def place_of(path: Path) -> Place | None:
    """Where a path lies in an object store; None when it lies in no mirror.

    Raises:
        InputError: the path leads out of the mirror.
    """
    for index, part in enumerate(path.parts):
        if SEPARATOR in part:
            rest = "/".join(path.parts[index + 1 :])
            uri = unquote(part.replace("+", "%"))
            if rest:
                check_inside(rest, uri)
            return Place(Bucket(uri), Path(*path.parts[: index + 1]), rest)
    return None


def location(path: Path) -> str:
    """A storage as people name it: the URI of a mirror, the path of a folder."""
    place = place_of(path)
    return str(path) if place is None else place.bucket.uri


def check(root: Path, writes: bool = False, option: str = "--storage") -> None:
    """Make sure that an object store answers, before anything is asked of it.

    Raises:
        InputError: it does not, or ``writes`` is asked for and it cannot be written to.
    """
    place = place_of(root)
    if place is not None:
        place.bucket.check(writes, option)


# -- single files ----------------------------------------------------------------------------------------------------------


def push(path: Path) -> None:
    """Send a file, or every file of a folder that needs no manifest."""
    place = place_of(path)
    if place is None:
        return
    check_leases(path)
    for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
        if file.is_file() and ASIDE not in file.name:
            place.bucket.upload(file, file.relative_to(place.root).as_posix())


@contextlib.contextmanager
def aside(path: Path) -> Iterator[Path]:
    """:func:`raysts.storage.atomic.aside` for a file, which is sent before it becomes visible here."""
    with files.aside(path) as draft:
        yield draft
        place = place_of(path)
        if place is not None:
            check_leases(path)
            place.bucket.upload(draft, place.path)


def write_json(path: Path, value: Any) -> None:
    """Write ``value`` as indented JSON with :func:`aside`."""
    with aside(path) as draft:
        draft.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def need(path: Path) -> None:
    """Bring a file whose content never changes, unless it is here."""
    place = place_of(path)
    if place is not None and not path.exists():
        with contextlib.suppress(FileNotFoundError):
            place.bucket.download(place.path, path)


def current(path: Path) -> None:
    """Bring a file that others write, unless the one here has the size and the time of what is in the store now."""
    place = place_of(path)
    entry = place.bucket.entry(place.path) if place is not None else None
    if place is None or entry is None:
        return
    with contextlib.suppress(OSError):
        here = path.stat()
        if here.st_size == entry.size and abs(here.st_mtime - entry.written) < 1e-3:
            return
    with files.aside(path) as draft:
        place.bucket.download(place.path, draft)
        os.utime(draft, (entry.written, entry.written))


def remote(path: Path) -> bytes | None:
    """The content of a file in the store; None where there is none, or no store."""
    place = place_of(path)
    return place.bucket.read(place.path) if place is not None else None


def bring(path: Path) -> bool:
    """Bring a small file as it is in the store now; whether there is one. One that is here alone stays."""
    content = remote(path)
    if content is None:
        return path.exists() and place_of(path) is None
    with contextlib.suppress(OSError):
        if path.read_bytes() == content:
            return True
    with files.aside(path) as draft:
        draft.write_bytes(content)
    return True


def fetch(folder: Path, suffixes: tuple[str, ...] = (".json",), named: tuple[str, ...] = ()) -> None:
    """Bring the files below a folder as they are now: those with one of the suffixes, and of the names if any are given."""
    place = place_of(folder)
    if place is None:
        return
    found = place.bucket.listed(place.path, recursive=True)
    wanted = [name for name in found if name.endswith(suffixes) and (not named or name.rpartition("/")[2] in named)]
    at_once(bring, [folder / name for name in wanted])


def names(folder: Path) -> set[str]:
    """Names of the files in a folder, in the store where there is one."""
    place = place_of(folder)
    if place is not None:
        return set(place.bucket.listed(place.path))
    return {path.name for path in folder.iterdir()} if folder.is_dir() else set()


def listing(folder: Path) -> list[Path]:
    """Paths of all files below a folder in the store, whether they are here or not."""
    place = place_of(folder)
    return [folder / name for name in place.bucket.listed(place.path, recursive=True)] if place is not None else []


# -- locks -----------------------------------------------------------------------------------------------------------------

_leases: dict[Path, Lease] = {}
"""The leases of this process by the folder or file that they are for."""


@contextlib.contextmanager
def lock(path: Path, holder: str, wait: float = 0.0, of: Path | None = None) -> Iterator[None]:
    """:func:`raysts.storage.atomic.lock`, and in an object store the lease that keeps out other machines too.

    Args:
        path: as there.
        holder: as there.
        wait: as there.
        of: what it protects; once another machine has taken the lease, nothing below is sent from here. Default: the
            storage.
    """
    with files.lock(path, holder, wait):
        place = place_of(path)
        if place is None:
            yield
            return
        lease, protected = Lease(place.bucket, place.path, holder), of or place.root
        lease.take(wait)
        _leases[protected] = lease
        try:
            yield
        finally:
            del _leases[protected]
            lease.release()


def check_leases(path: Path) -> None:
    """Raise a RunFailed when a lease that protects ``path`` was lost."""
    for protected, lease in list(_leases.items()):
        if path.is_relative_to(protected):
            lease.check()


def at_once(action: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """What ``action`` gives for each item, several at the same time."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(action, items))
