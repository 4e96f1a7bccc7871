"""A storage: one handle for a folder, and for an object store with a mirror of what this machine needs.

Work goes on files of this machine; the handle brings them and sends them. Keys are paths below ``root``, relative text or
absolute Path. Methods give paths on this machine that hold the content already, or None. A folder is its own mirror, so the
same calls are right for both, and no caller asks which it has::

    store = Store.open("s3://bucket/runs")                           # or a folder
    record = store.read_json("pipelines/a.json", fresh=True)         # None where there is none
    with store.put("results/a.parquet") as draft:       # complete or absent, and in the bucket before it is visible here
        pq.write_table(table, draft)
    model = store.get_dir("runs/x/model")               # a folder that put_dir wrote, whole; or None
    content, tag = store.read("runs/x/run.json")        # a record that several may change
    store.replace("runs/x/run.json", changed, tag)      # raises Conflict when somebody wrote since

Nobody asks the file system about a storage path: in a mirror the answer is about this machine's copy, which may be removed
whenever nothing runs. The name of a mirror's folder is its URI, so a path says by itself, on every node, which storage it
belongs to. Training runs have their own rules: ``storage.runs``.

In an object store ``<folder>.manifest.json``, written last, lists the files of a folder; a folder without it is absent. What
changes (``CHANGING``) is written by the tag of the version that this process wrote last. A writer that meets another version
confirms its lease and then replaces it, so what an earlier holder sends late is refused.
"""

from __future__ import annotations

import abc
import contextlib
import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path, PurePath
from typing import Any, final
from urllib.parse import unquote

from raysts.errors import InputError, RunFailed
from raysts.storage import atomic
from raysts.storage.atomic import ASIDE, as_json, atomic_write
from raysts.storage.bucket import Bucket, Conflict, Entry, Tag, at_once, check_inside
from raysts.storage.checksums import (
    CARD,
    CHECKSUM,
    DAMAGED,
    MANIFEST,
    as_manifest,
    checked_write,
    entries_of,
    entry,
    forget,
    intact,
    is_same,
    manifest_of,
    read_record,
    write_manifest,
)
from raysts.storage.client import canonical, mirror_name
from raysts.storage.lease import Lease

SEPARATOR = mirror_name("://")
"""By this in its name the folder of a mirror is known."""

CHANGING = ("pipelines", "runs", "studies")
"""Folders of what changes, always by the holder of a lock; whatever lies elsewhere is named by its content."""

SMALL = 1 << 20
"""Bytes up to which a file is compared by content; a larger one by size and time, which object stores keep in seconds."""

ONE_REQUEST = 8 << 20
"""Bytes up to which a file that changes is sent by its tag; a larger one is sent in parts, which know no conditions."""

REPLACE_WAIT = 60.0
"""Seconds to wait for another process of this folder that compares and writes the same file."""

Key = str | Path
Paths = list[Path]


class Store(abc.ABC):
    """A storage at ``root`` on this machine; ``uri`` is how people name it. Cheap to make and to pickle."""

    root: Path
    uri: str

    @staticmethod
    def open(storage: str | Path, option: str = "--storage") -> Store:
        """Return the storage at a folder or URI, which need not exist yet; ask nothing of it (see :meth:`check`).

        The mirror of an object store lies in ``$RAYSTS_MIRROR``, else in ``storages`` of the cache folder.
        """
        if "://" not in str(storage):
            return Store.of(Path(storage).absolute())
        uri = canonical(str(storage), option)
        if len(os.fsencode(mirror_name(uri))) > 200:
            raise InputError(f"{option} '{uri}': is too long to name a folder; take a shorter prefix")
        root = Path(os.environ.get("RAYSTS_MIRROR") or atomic.cache_folder() / "storages").absolute() / mirror_name(uri)
        return BucketStore(root, uri)

    @staticmethod
    @lru_cache(maxsize=4096)
    def of(path: Path) -> Store:
        """Return the storage in which a path lies: that of the mirror, else the folder ``path`` itself."""
        for index, part in enumerate(path.parts):
            if SEPARATOR in part:
                store = BucketStore(Path(*path.parts[: index + 1]), unquote(part.replace("+", "%")))
                store.key(path)
                return store
        return FolderStore(path)

    def path(self, key: Key) -> Path:
        """Return the path of a key on this machine."""
        return self.root / key

    @abc.abstractmethod
    def get(self, key: Key, fresh: bool = False) -> Path | None:
        """Bring a file here, or return None; only with ``fresh`` a file that is here is compared with the store's."""

    @abc.abstractmethod
    def get_all(self, folder: Key, *patterns: str) -> Paths:
        """Bring the files below a folder as they are now, in order; with patterns those whose last parts match one."""

    @abc.abstractmethod
    def bring(self, key: Key) -> None:
        """Bring a file of the user's own here as it is in the store now; one in a folder is never set aside.

        Raises:
            InputError: it is not what raysts wrote there.
        """

    @abc.abstractmethod
    def get_dir(self, key: Key, fresh: bool = False) -> Path | None:
        """Bring a folder that :meth:`put_dir` wrote here whole, or return None; ``fresh`` as in :meth:`get`.

        Raises:
            RunFailed: it is not what its manifest says.
        """

    @abc.abstractmethod
    def put(self, key: Key) -> AbstractContextManager[Path]:
        """Give a draft that becomes the file, first in the store and then here, when the block ends well."""

    @abc.abstractmethod
    def put_dir(self, key: Key) -> AbstractContextManager[Path]:
        """Give an empty folder that becomes the folder as a whole, in place of what is there, as :meth:`put` does."""

    @abc.abstractmethod
    def upload(self, key: Key) -> None:
        """Send a file that was written in place, or every file of a folder; no draft."""

    @abc.abstractmethod
    def seal(self, key: Key) -> None:
        """Make a folder that was written in place what :meth:`put_dir` makes: send its files, then its manifest."""

    @abc.abstractmethod
    def whole(self, key: Key, deep: bool = False) -> bool:
        """Return True if a file or folder is what was written, by size or by content (``deep``); else set it aside.

        Objects are whole; copies of them are looked at when used.
        """

    @abc.abstractmethod
    def read(self, key: Key) -> tuple[bytes, Tag] | None:
        """Return the content of a file in the store and the tag of this version; None where there is none."""

    @abc.abstractmethod
    def replace(self, key: Key, data: bytes, tag: Tag | None) -> Tag:
        """Write a file whose tag is still this one (None: an absent file); return its new tag or raise Conflict."""

    def create(self, key: Key, data: bytes) -> Tag:
        """Write a file that is not there yet; return its tag or raise Conflict."""
        return self.replace(key, data, None)

    @abc.abstractmethod
    def exists(self, key: Key) -> bool:
        """Return True if the store holds this file, or this whole folder of :meth:`put_dir`."""

    @abc.abstractmethod
    def list(self, folder: Key = "", recursive: bool = False) -> Paths:
        """Return the paths of the files and folders in a folder, in order; ``recursive``: of all files below."""

    @abc.abstractmethod
    def delete(self, key: Key) -> None:
        """Remove a file or a folder, if it is there."""

    @abc.abstractmethod
    def lock(self, key: Key, holder: str, wait: float = 0.0, of: Path | None = None) -> AbstractContextManager[None]:
        """Be the only one with this lock, in an object store on any machine; wait for a holder that is about to end.

        ``of`` is what it protects (default: the storage). Once another machine has taken the lease nothing below is sent from
        here, and of a lock in ``locks/``, that of a command, nothing at all.

        Raises:
            InputError: another live process holds it.
        """

    @abc.abstractmethod
    def check(self, writes: bool = False, option: str = "--storage") -> None:
        """Make sure that the storage answers, and with ``writes`` that it can be written to, before work starts."""

    @contextmanager
    def scratch(self, key: Key) -> Iterator[Path]:
        """Give a folder of this machine alone, without what a killed process left; it goes when the block ends."""
        path = self.path(key)
        _delete_here(path)
        try:
            yield path
        finally:
            _delete_here(path)

    def read_json(self, key: Key, fresh: bool = False, kind: type[Any] = dict) -> Any:
        """Return the JSON object (or other ``kind`` of value) in a file; None where there is none, or a damaged one."""
        path = self.get(key, fresh)
        return read_record(path, kind) if path else None

    def write_json(self, key: Key, value: Any) -> None:
        """Write ``value`` as indented JSON."""
        with self.put(key) as draft:
            draft.write_text(as_json(value), encoding="utf-8")


@final
@dataclass(frozen=True)
class FolderStore(Store):
    """A folder, perhaps shared by several machines."""

    root: Path

    @property
    def uri(self) -> str:  # type: ignore[override]
        return str(self.root)

    def get(self, key: Key, fresh: bool = False) -> Path | None:
        path = self.path(key)
        return path if path.is_file() and intact(path) else None

    def bring(self, key: Key) -> None:
        path = self.path(key)
        if path.is_file() and not intact(path, aside=False):
            raise InputError(
                f"{path}: is not what raysts wrote there: it was replaced, or is damaged; to take it as it is remove "
                f".{path.name}{CHECKSUM} beside it, otherwise import it again"
            )

    def get_all(self, folder: Key, *patterns: str) -> Paths:
        return [path for path in self.list(folder, recursive=True) if _matches(path, patterns)]

    def get_dir(self, key: Key, fresh: bool = False) -> Path | None:
        path = self.path(key)
        return path if path.is_dir() and intact(path) else None

    def put(self, key: Key) -> AbstractContextManager[Path]:
        return checked_write(self.path(key))

    @contextmanager
    def put_dir(self, key: Key) -> Iterator[Path]:
        with atomic_write(self.path(key)) as draft:
            draft.mkdir()
            yield draft
            forget(self.path(key))
        self.seal(key)

    def upload(self, key: Key) -> None:
        """Do nothing: it is there."""

    def seal(self, key: Key) -> None:
        path = self.path(key)
        write_manifest(path, as_manifest({name: entry(file) for name, file in _files(path).items() if name != CARD}))

    def whole(self, key: Key, deep: bool = False) -> bool:
        path = self.path(key)
        return path.exists() and intact(path, deep)

    def read(self, key: Key) -> tuple[bytes, Tag] | None:
        path = self.get(key)
        content = _read(path) if path else None
        return None if content is None else (content, {"sha256": hashlib.sha256(content).hexdigest()})

    def replace(self, key: Key, data: bytes, tag: Tag | None) -> Tag:
        path = self.path(key)
        with atomic.lock(path.with_name(f".{path.name}.lock"), f"a change of {path.name}", REPLACE_WAIT):
            before = self.read(key)
            if (before and before[1]) != tag:
                raise Conflict(str(path), before and before[1])
            with checked_write(path) as draft:
                draft.write_bytes(data)
        return {"sha256": hashlib.sha256(data).hexdigest()}

    def exists(self, key: Key) -> bool:
        return self.path(key).exists()

    def list(self, folder: Key = "", recursive: bool = False) -> Paths:
        path = self.path(folder)
        if recursive:
            return sorted(below for below in path.rglob("*") if below.is_file() and _shows(below.relative_to(path)))
        return sorted(entry for entry in path.iterdir() if _shows(entry.relative_to(path))) if path.is_dir() else []

    def delete(self, key: Key) -> None:
        _delete_here(self.path(key))
        forget(self.path(key))

    def lock(self, key: Key, holder: str, wait: float = 0.0, of: Path | None = None) -> AbstractContextManager[None]:
        return atomic.lock(self.path(key), holder, wait)

    def check(self, writes: bool = False, option: str = "--storage") -> None:
        if writes:
            with atomic.no_empty_folders(self.root):  # more may be found wrong before work starts
                atomic.writable(self.root, option)


@final
@dataclass(frozen=True)
class BucketStore(Store):
    """The objects below ``uri``, with their mirror at ``root``."""

    root: Path
    uri: str

    @property
    def bucket(self) -> Bucket:
        """The objects themselves; a process that has lost a lease changes none that it protects."""
        return Bucket(self.uri, guard=self._check_leases)

    def key(self, key: Key) -> str:
        """Return the path of a key from the root; empty for the root. A key outside it is refused."""
        path = PurePath(self.root, key)
        text = str(key) if not path.is_relative_to(self.root) else "/".join(path.parts[len(self.root.parts) :])
        if text:
            check_inside(text, self.uri)
        return text

    def path(self, key: Key) -> Path:
        return self.root / self.key(key)

    def get(self, key: Key, fresh: bool = False) -> Path | None:
        path = self.path(key)
        if not fresh:
            return path if (path.is_file() and intact(path)) or self._download(path) else None
        entry = self.bucket.entry(self.key(key))
        return self._get_now(path, entry) if entry else None

    def bring(self, key: Key) -> None:
        self.get(key, fresh=True)

    def get_all(self, folder: Key, *patterns: str) -> Paths:
        base = self.path(folder)
        objects = {base / name: entry for name, entry in self.bucket.listed(self.key(folder), recursive=True).items()}
        wanted = sorted(path for path in objects if _shows(path.relative_to(base)) and _matches(path, patterns))
        return [path for path in at_once(lambda path: self._get_now(path, objects[path]), wanted) if path]

    def get_dir(self, key: Key, fresh: bool = False) -> Path | None:
        path, manifest = self.path(key), f"{self.key(key)}{MANIFEST}"
        known = None if fresh else manifest_of(path)
        if known and all(is_same(path / name, wanted) for name, wanted in known.items()):
            return path
        for _ in range(3):
            content = self._content(manifest)
            entries = self._entries(content, f"{self.uri}: {self.key(key)}")
            if content is None or entries is None:
                return None
            absent = [name for name, wanted in entries.items() if not is_same(path / name, wanted)]
            if all(at_once(partial(self._get_entry, path, entries), absent)):
                for name, file in _files(path).items():
                    if name not in entries and name != CARD:
                        file.unlink()
                write_manifest(path, content)
                if absent and CARD in self.bucket.listed(self.key(key)):
                    self.get(path / CARD, fresh=True)
                return path
            # Something was replaced while we read: its new manifest says by what.
        raise RunFailed(
            f"{self.uri}: {self.key(key)} is not what its manifest says ({', '.join(sorted(absent)[:3])}); remove "
            f"{manifest} and run the same command again: it is made again"
        )

    @contextmanager
    def put(self, key: Key) -> Iterator[Path]:
        path = self.path(key)
        with checked_write(path) as draft:
            yield draft
            self._send(path, draft)

    @contextmanager
    def put_dir(self, key: Key) -> Iterator[Path]:
        with atomic_write(self.path(key)) as draft:
            draft.mkdir()
            yield draft
            self.seal(key, draft)

    def upload(self, key: Key) -> None:
        path = self.path(key)
        at_once(lambda file: self._send(file, file), _files(path).values() if path.is_dir() else [path])

    def seal(self, key: Key, written: Path | None = None) -> None:
        """Send a folder that was written in place or at ``written``: new files, the manifest; then remove the others."""
        path, name = self.path(key), self.key(key)
        files = _files(written or path)
        entries = {file: entry(local) for file, local in files.items() if file != CARD}
        before = self._entries(self._content(f"{name}{MANIFEST}"), f"{self.uri}: {name}")
        if entries != before:
            if before is not None and any(before.get(file, now) != now for file, now in entries.items()):
                self._remove(f"{name}{MANIFEST}")  # better absent than with the content of two
            new = [file for file, now in entries.items() if before is None or before.get(file) != now]
            at_once(lambda file: self.bucket.upload(files[file], f"{name}/{file}"), new)
            content = as_manifest(entries)
            self._write(f"{name}{MANIFEST}", content)
            write_manifest(path, content)
            left = self.bucket.listed(name, recursive=True).keys() - entries.keys() - {CARD}
            at_once(lambda file: self.bucket.delete(f"{name}/{file}"), left)
        if CARD in files:
            self.bucket.upload(files[CARD], f"{name}/{CARD}")

    def read(self, key: Key) -> tuple[bytes, Tag] | None:
        return self.bucket.read(self.key(key))

    def replace(self, key: Key, data: bytes, tag: Tag | None) -> Tag:
        with checked_write(self.path(key)) as draft:
            draft.write_bytes(data)
            _tags[self.uri, self.key(key)] = tag = self.bucket.replace(self.key(key), data, tag)
        return tag

    def exists(self, key: Key) -> bool:
        return self.bucket.has(self.key(key), f"{self.key(key)}{MANIFEST}")

    def whole(self, key: Key, deep: bool = False) -> bool:
        return True

    def list(self, folder: Key = "", recursive: bool = False) -> Paths:
        key = self.key(folder)
        names = self.bucket.listed(key, recursive) if recursive else self.bucket.names(key)
        return sorted(self.path(folder) / name for name in names if _shows(PurePath(name)))

    def delete(self, key: Key) -> None:
        path, name = self.path(key), self.key(key)
        for file in (f"{name}{MANIFEST}", name):  # the manifest first: a folder without it is not there
            self._remove(file)
        self.bucket.delete_folder(name)
        forget(path)
        _delete_here(path)

    @contextmanager
    def lock(self, key: Key, holder: str, wait: float = 0.0, of: Path | None = None) -> Iterator[None]:
        lease, protected = Lease(Bucket(self.uri), self.key(key), holder), of or self.root
        with atomic.lock(self.path(key), holder, wait):
            lease.take(wait)
            _leases[lease] = protected
            try:
                yield
            finally:
                del _leases[lease]
                lease.release()

    def check(self, writes: bool = False, option: str = "--storage") -> None:
        if writes:
            FolderStore(self.root).check(writes, option)
        self.bucket.check(writes, option)

    def _send(self, path: Path, source: Path) -> None:
        name = self.key(path)
        if name.startswith(tuple(f"{folder}/" for folder in CHANGING)) and source.stat().st_size <= ONE_REQUEST:
            self._write(name, source.read_bytes())
        else:
            self.bucket.upload(source, name)

    def _write(self, name: str, content: bytes) -> None:
        """Write an object by the tag that it had when this process wrote it last, for whoever holds its lock."""
        tag = _tags.get((self.uri, name))
        while True:
            try:
                _tags[self.uri, name] = self.bucket.replace(name, content, tag)
                return
            except Conflict as conflict:
                # What stands there is an earlier holder's where the lease is still ours after we saw it.
                tag = conflict.tag
                for lease in self._leases(name):
                    lease.confirm()

    def _remove(self, name: str) -> None:
        self.bucket.delete(name)
        _tags.pop((self.uri, name), None)

    def _content(self, name: str) -> bytes | None:
        there = self.bucket.read(name)
        return there[0] if there else None

    def _leases(self, name: str) -> Iterable[Lease]:
        """Return the leases of this process that protect an object."""
        return [
            lease
            for lease, protected in list(_leases.items())
            if (lease.key.startswith("locks/") and protected.is_relative_to(self.root))
            or (self.root / name).is_relative_to(protected)
        ]

    def _check_leases(self, name: str) -> None:
        for lease in self._leases(name):
            lease.check()

    def _download(self, path: Path) -> bool:
        with contextlib.suppress(FileNotFoundError), checked_write(path) as draft:
            self.bucket.download(self.key(path), draft)
            return True
        return False

    def _get_now(self, path: Path, entry: Entry) -> Path | None:
        """Bring an object of which the store just said ``entry``, unless it is here; None when it has gone since."""
        if entry.size > SMALL:
            with contextlib.suppress(OSError):
                here = path.stat()
                if here.st_size == entry.size and abs(here.st_mtime - entry.written) < 1e-3 and intact(path):
                    return path
        with contextlib.suppress(FileNotFoundError):
            if entry.size > SMALL:
                with checked_write(path) as draft:
                    self.bucket.download(self.key(path), draft)
                    os.utime(draft, (entry.written, entry.written))
                return path
            content = self._content(self.key(path))
            if content is not None and content != _read(path):  # a file that did not change stays the one that is open
                with checked_write(path) as draft:
                    draft.write_bytes(content)
            return path if content is not None else None
        return None

    def _get_entry(self, folder: Path, entries: dict[str, dict[str, Any]], name: str) -> bool:
        """Bring one file of a folder; return True if it is what the manifest says."""
        with contextlib.suppress(FileNotFoundError), atomic_write(folder / name) as draft:
            self.bucket.download(self.key(folder / name), draft)
            if not is_same(draft, entries[name]):
                raise FileNotFoundError(name)
            forget(folder / name)
            return True
        return False

    def _entries(self, content: bytes | None, where: str) -> dict[str, dict[str, Any]] | None:
        """Return the files of a manifest; None where there is none. Names outside its folder are refused."""
        entries = None if content is None else entries_of(content)
        for name in entries or {}:
            check_inside(name, f"{where}: its manifest")
        return entries


_leases: dict[Lease, Path] = {}
"""The leases of this process, each with the folder or file that it protects."""

_tags: dict[tuple[str, str], Tag] = {}
"""The tags of the objects that this process wrote by their tags, by URI and path."""


def _shows(path: PurePath) -> bool:
    """Return True for a file or folder of the storage itself: no draft, lock, checksum, manifest, and nothing damaged."""
    return not any(part.startswith(".") or part.endswith((".lock", MANIFEST, DAMAGED)) for part in path.parts)


def _matches(path: PurePath, patterns: tuple[str, ...]) -> bool:
    return not patterns or any(path.match(pattern) for pattern in patterns)


def _files(folder: Path) -> dict[str, Path]:
    paths = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}
    return {name: path for name, path in paths.items() if ASIDE not in name and not name.endswith((CHECKSUM, DAMAGED))}


def _read(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


def _delete_here(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
