"""A handle for a folder, and for a bucket with a mirror on this machine.

Keys are paths below ``root``, relative text or absolute Path. Methods return local paths that hold the content already, or
None. A folder is its own mirror::

    store = Store.open("s3://bucket/runs")                      # or a folder
    record = store.read_json("pipelines/a.json", fresh=True)
    with store.put("results/a.parquet") as draft:               # uploaded before the local file appears
        pq.write_table(table, draft)
    model = store.get_dir("runs/x/model")                       # a complete folder, or None
    content, tag = store.read("runs/x/run.json")
    store.replace("runs/x/run.json", changed, tag)              # raises Conflict if the record has changed

Other rooms never ask the file system about a storage path, because a mirror may be removed between two commands. The folder of
a mirror is named by the URI, so every node finds the storage of a path.

A folder in a bucket is complete when ``<folder>.manifest.json`` lists its files. Files below ``CHANGING`` are replaced by tag.
A writer that finds another version than the one that it wrote confirms its lease before it replaces that version.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path, PurePath
from typing import Any, final
from urllib.parse import unquote

from raysts.errors import InputError, RunFailed, StoreFailed
from raysts.log import logger
from raysts.storage import atomic, checksums
from raysts.storage.atomic import ASIDE, as_json, atomic_write
from raysts.storage.bucket import Bucket, Conflict, Entry, Tag, check_inside, run_parallel
from raysts.storage.checksums import CARD, CHECKSUM, DAMAGED, MANIFEST, checked_write, forget, intact, is_same
from raysts.storage.client import canonical, mirror_name
from raysts.storage.lease import Lease, is_held

SEPARATOR = mirror_name("://")
"""By this in its name the folder of a mirror is known."""

CHANGING = ("pipelines/", "runs/", "studies/")
"""Folders of what changes, always by the holder of a lock; whatever lies elsewhere is named by its content."""

SMALL = 1 << 20
"""Bytes up to which a file is compared by content; a larger one by size and time, which object stores keep in seconds."""

ONE_REQUEST = 8 << 20
"""Bytes up to which a file that changes is sent by its tag; a larger one is sent in parts, which know no conditions."""

Key = str | Path
Paths = list[Path]


@final
@dataclass(frozen=True)
class Store:
    """A folder, perhaps shared by several machines, or the mirror of a bucket.

    Attributes:
        remote: canonical URI of the bucket, else empty.
    """

    root: Path
    remote: str = ""

    @staticmethod
    def open(storage: str | Path, option: str = "--storage") -> Store:
        """Return the storage at a folder or URI without a request. Mirrors lie in ``$RAYSTS_MIRROR``."""
        if "://" not in str(storage):
            path = Path(storage).absolute()
            return Store.of(path.resolve() if ".." in path.parts else path)
        uri = canonical(str(storage), option)
        if len(os.fsencode(mirror_name(uri))) > 200:
            raise InputError(f"{option} '{uri}': is too long to name a folder; take a shorter prefix")
        mirrors = Path(os.environ.get("RAYSTS_MIRROR") or atomic.cache_folder() / "storages")
        return Store(mirrors.absolute() / mirror_name(uri), uri)

    @staticmethod
    @lru_cache(maxsize=4096)
    def of(path: Path) -> Store:
        """Return the bucket that a path mirrors, else the folder ``path``."""
        for index, part in enumerate(path.parts):
            if SEPARATOR in part:
                store = Store(Path(*path.parts[: index + 1]), unquote(part.replace("+", "%")))
                store.key(path)
                return store
        return Store(path)

    @property
    def uri(self) -> str:
        """Return the name that users give the storage."""
        return self.remote or str(self.root)

    @property
    def bucket(self) -> Bucket:
        """Return the objects, which a process changes only while it holds the leases that protect them."""
        return Bucket(self.remote, guard=self._check_leases)

    def key(self, key: Key) -> str:
        """Return a key relative to the root. A bucket refuses one that leaves it."""
        path = PurePath(self.root, key)
        text = str(key) if not path.is_relative_to(self.root) else "/".join(path.parts[len(self.root.parts) :])
        if text and self.remote:
            check_inside(text, self.uri)
        return text

    def path(self, key: Key) -> Path:
        return self.root / self.key(key)

    # -- reading -----------------------------------------------------------------------------------------------------

    def get(self, key: Key, fresh: bool = False) -> Path | None:
        """Return a local copy of a file, or None. ``fresh`` compares an existing copy with the store."""
        path = self.path(key)
        if not (self.remote and fresh) and path.is_file() and intact(path):
            return path
        entry = self.bucket.entry(self.key(key)) if self.remote else None
        return self._get_now(path, entry) if entry else None

    def get_all(self, folder: Key, *patterns: str) -> Paths:
        """Return fresh copies of the files below a folder that match a pattern, in order."""
        files = self._list_paths(folder, recursive=True)
        matches = [path for path in sorted(files) if any(map(path.match, patterns or "*"))]
        if not self.remote:
            return matches
        return [path for path in run_parallel(lambda path: self._get_now(path, files[path]), matches) if path]

    def bring(self, key: Key) -> None:
        """Download a file of the user. A damaged one in a folder is refused and keeps its name."""
        path = self.path(key)
        if self.remote:
            self.get(key, fresh=True)
        elif path.is_file() and not intact(path, aside=False):
            raise InputError(
                f"{path}: is not what raysts wrote there: it was replaced, or is damaged; to take it as it is remove "
                f".{path.name}{CHECKSUM} beside it, otherwise import it again"
            )

    def get_dir(self, key: Key, fresh: bool = False) -> Path | None:
        """Return a complete local copy of a sealed folder, or None. ``fresh`` is that of :meth:`get`."""
        path, name = self.path(key), self.key(key)
        if not self.remote:
            return path if path.is_dir() and intact(path) else None
        files = None if fresh else checksums.manifest_of(path)
        if files and all(is_same(path / name, listed) for name, listed in files.items()):
            return path
        for _ in range(3):
            content, entries = self._manifest(name)
            if content is None or entries is None:
                return None
            absent = [name for name, listed in entries.items() if not is_same(path / name, listed)]
            if all(run_parallel(partial(self._get_entry, path, entries), absent)):
                for file_name, file in _files(path).items():
                    if file_name not in entries and file_name != CARD:
                        file.unlink()
                checksums.write_manifest(path, content)
                if absent and CARD in self.bucket.list_objects(name):
                    self.get(path / CARD, fresh=True)
                return path
            # Something was replaced while we read: its new manifest says by what.
        raise RunFailed(
            f"{self.uri}: {name} is not what its manifest says ({', '.join(sorted(absent)[:3])}); remove {name}{MANIFEST} "
            f"and run the same command again: it is made again"
        )

    def read(self, key: Key) -> tuple[bytes, Tag] | None:
        """Return the content and the tag of a file in the store, or None."""
        if self.remote:
            return self.bucket.read(self.key(key))
        path = self.get(key)
        content = _read(path) if path else None
        return None if content is None else (content, _tag_of(content))

    def read_json(self, key: Key, fresh: bool = False, kind: type[Any] = dict) -> Any:
        """Return the JSON value of this ``kind`` in a file, or None if it is absent or damaged."""
        path = self.get(key, fresh) if self.remote else self.path(key)
        return checksums.read_record(path, kind) if path else None

    def exists(self, key: Key) -> bool:
        """Return True if the store holds this file or sealed folder."""
        if not self.remote:
            return self.path(key).exists()
        return any(self.bucket.entry(name) for name in (self.key(key), f"{self.key(key)}{MANIFEST}"))

    def is_whole(self, key: Key, deep: bool = False) -> bool:
        """Return True if a file or folder has the sizes, or ``deep`` the contents, of its checksums."""
        path = self.path(key)
        return bool(self.remote) or (path.exists() and intact(path, deep))

    def list(self, folder: Key = "", recursive: bool = False) -> Paths:
        """Return the paths in a folder, or with ``recursive`` of all files below it, in order."""
        return sorted(self._list_paths(folder, recursive))

    def size(self, key: Key) -> int:
        """Return the bytes of a file or a folder, 0 of an absent one."""
        if not self.remote:
            path, total = self.path(key), 0
            for file in [path] if path.is_file() else _files(path).values():
                with contextlib.suppress(FileNotFoundError):  # a checkpoint that a later one has replaced
                    total += file.stat().st_size
            return total
        entries = [*self.bucket.list_objects(self.key(key), recursive=True).values(), self.bucket.entry(self.key(key))]
        return sum(entry.size for entry in entries if entry)

    # -- writing -----------------------------------------------------------------------------------------------------

    @contextmanager
    def put(self, key: Key) -> Iterator[Path]:
        """Yield a draft. It becomes the file, in the store first, unless the block raises."""
        path = self.path(key)
        with checked_write(path) as draft:
            yield draft
            if self.remote:
                self._send(path, draft)
        logger.debug("wrote %s", path)

    @contextmanager
    def put_dir(self, key: Key) -> Iterator[Path]:
        """Yield an empty draft folder. It replaces the whole folder unless the block raises."""
        path = self.path(key)
        with atomic_write(path) as draft:
            draft.mkdir()
            yield draft
            if self.remote:
                self.seal(key, draft)
            else:
                forget(path)
        if not self.remote:
            self.seal(key)
        logger.debug("wrote %s", path)

    def upload(self, key: Key) -> None:
        """Upload a file that was written in place, or every file of a folder."""
        if self.remote:
            path = self.path(key)
            run_parallel(lambda file: self._send(file, file), _files(path).values() if path.is_dir() else [path])

    @contextlib.contextmanager
    def append(self, key: Key) -> Iterator[Path]:
        """Yield a file that the block adds to. With an object store it holds what is not added there yet."""
        path = self.path(key)
        try:
            yield path
        finally:
            with contextlib.suppress(StoreFailed, OSError):
                added = path.read_bytes() if self.remote else b""
                while added:
                    before, tag = self.bucket.read(self.key(key)) or (b"", None)
                    with contextlib.suppress(Conflict):
                        self.bucket.replace(self.key(key), before + added, tag)
                        path.write_bytes(path.read_bytes()[len(added) :])
                        break

    def seal(self, key: Key, written: Path | None = None) -> None:
        """Complete a folder that was written in place, or at ``written``: upload files, then manifest."""
        path = self.path(key)
        files = _files(written or path)
        entries = {name: checksums.entry(file) for name, file in files.items() if name != CARD}
        if self.remote:
            self._send_folder(self.key(key), files, entries)
        checksums.write_manifest(path, checksums.as_manifest(entries))

    def replace(self, key: Key, data: bytes, tag: Tag | None) -> Tag:
        """Write a file unless its tag has changed, and return the new tag. The tag of an absent file is None."""
        path = self.path(key)
        if self.remote:
            with checked_write(path) as draft:
                draft.write_bytes(data)
                _tags[self.uri, self.key(key)] = tag = self.bucket.replace(self.key(key), data, tag)
            return tag
        with atomic.lock(path.with_name(f".{path.name}.lock"), f"a change of {path.name}", wait=60.0):
            before = self.read(key)
            if (before and before[1]) != tag:
                raise Conflict(str(path), before and before[1])
            with checked_write(path) as draft:
                draft.write_bytes(data)
        return _tag_of(data)

    def write_json(self, key: Key, value: Any) -> None:
        with self.put(key) as draft:
            draft.write_text(as_json(value), encoding="utf-8")

    def delete(self, key: Key) -> None:
        """Remove a file or a folder if it exists."""
        path, name = self.path(key), self.key(key)
        if self.remote:
            for file in (f"{name}{MANIFEST}", name):  # the manifest first: a folder without it does not exist
                self.bucket.delete(file)
            below = [f"{name}/{file}" for file in self.bucket.list_objects(name, recursive=True)]
            run_parallel(self.bucket.delete, below)
        atomic.remove(path)
        forget(path)

    @contextmanager
    def scratch(self, key: Key) -> Iterator[Path]:
        """Yield the path of a local folder, which is removed before and after the block."""
        path = self.path(key)
        atomic.remove(path)
        try:
            yield path
        finally:
            atomic.remove(path)

    # -- locks -------------------------------------------------------------------------------------------------------

    @contextmanager
    def lock(self, key: Key, holder: str, wait: float = 0.0, protects: Path | None = None) -> Iterator[None]:
        """Hold a lock, or raise an InputError after ``wait`` seconds if another live process holds it.

        A process that loses the lease of a bucket uploads nothing more below ``protects`` (default: the storage), and nothing at
        all if the lock is that of a command, in ``locks/``.
        """
        with atomic.lock(self.path(key), holder, wait):
            if not self.remote:
                yield
                return
            lease = Lease(Bucket(self.remote), self.key(key), holder)
            lease.take(wait)
            _leases[lease] = protects or self.root
            try:
                yield
            finally:
                del _leases[lease]
                lease.release()

    def is_locked(self, key: Key) -> bool:
        """Return True if a live process, here or elsewhere, holds a lock, or seems to wait for it here."""
        return atomic.is_locked(self.path(key)) or bool(self.remote and is_held(Bucket(self.remote), self.key(key)))

    def check(self, writes: bool = False, option: str = "--storage") -> None:
        """Check that the storage answers, or may be made, and with ``writes`` that it takes writes."""
        atomic.check_place(self.root, option)
        if writes:
            with atomic.no_empty_folders(self.root):  # more may be found wrong before work starts
                atomic.writable(self.root, option)
        if self.remote:
            self.bucket.check(writes, option)

    # -- the bucket --------------------------------------------------------------------------------------------------

    def _list_paths(self, folder: Key, recursive: bool) -> dict[Path, Entry | None]:
        """Return the paths in or below a folder. A bucket describes each."""
        path = self.path(folder)
        if self.remote:
            objects = self.bucket.list_objects(self.key(folder), recursive)
            return {path / name: entry for name, entry in objects.items() if _shows(PurePath(name))}
        files = _files_below(path) if recursive or not path.is_dir() else path.iterdir()
        return {file: None for file in files if _shows(file.relative_to(path))}

    def _send(self, path: Path, source: Path) -> None:
        name = self.key(path)
        if name.startswith(CHANGING) and source.stat().st_size <= ONE_REQUEST:
            self._write(name, source.read_bytes())
        else:
            self.bucket.upload(source, name)

    def _send_folder(self, name: str, files: dict[str, Path], entries: dict[str, dict[str, Any]]) -> None:
        """Upload the files of a folder that are new and its manifest, then remove all others."""
        _, before = self._manifest(name)
        if entries != before:
            stored = before or {}
            if any(stored.get(file, listed) != listed for file, listed in entries.items()):
                self.bucket.delete(f"{name}{MANIFEST}")  # better absent than with the content of two
            new = [file for file, listed in entries.items() if stored.get(file) != listed]
            run_parallel(lambda file: self.bucket.upload(files[file], f"{name}/{file}"), new)
            self._write(f"{name}{MANIFEST}", checksums.as_manifest(entries))
            obsolete = self.bucket.list_objects(name, recursive=True).keys() - entries.keys() - {CARD}
            run_parallel(lambda file: self.bucket.delete(f"{name}/{file}"), obsolete)
        if CARD in files:
            self.bucket.upload(files[CARD], f"{name}/{CARD}")

    def _write(self, name: str, content: bytes) -> None:
        """Replace the version that this process wrote last, or as the holder of the lease a later one."""
        tag = _tags.get((self.uri, name))
        while True:
            try:
                _tags[self.uri, name] = self.bucket.replace(name, content, tag)
                return
            except Conflict as conflict:
                # If the lease is still ours now, an earlier holder wrote this version.
                tag = conflict.tag
                for lease in self._leases(name):
                    lease.confirm()

    def _leases(self, name: str) -> Iterable[Lease]:
        path = self.root / name
        for lease, protected in list(_leases.items()):
            of_command = lease.key.startswith("locks/") and protected.is_relative_to(self.root)
            if of_command or path.is_relative_to(protected):
                yield lease

    def _check_leases(self, name: str) -> None:
        for lease in self._leases(name):
            lease.check()

    def _get_now(self, path: Path, entry: Entry | None) -> Path | None:
        """Return a copy of an object that the store just described, or None if it has been removed since."""
        assert entry is not None, "a bucket describes its objects"
        if entry.size > SMALL:
            with contextlib.suppress(OSError):
                local = path.stat()
                if local.st_size == entry.size and abs(local.st_mtime - entry.written) < 1e-3 and intact(path):
                    return path
        with contextlib.suppress(FileNotFoundError):
            if entry.size > SMALL:
                with checked_write(path) as draft:
                    self.bucket.download(self.key(path), draft)
                    os.utime(draft, (entry.written, entry.written))
                return path
            stored = self.bucket.read(self.key(path))
            if stored and stored[0] != _read(path):  # a file that did not change stays the one that is open
                with checked_write(path) as draft:
                    draft.write_bytes(stored[0])
            return path if stored else None
        return None

    def _get_entry(self, folder: Path, entries: dict[str, dict[str, Any]], name: str) -> bool:
        """Download a file of a folder, and return True if it agrees with the manifest."""
        with contextlib.suppress(FileNotFoundError), atomic_write(folder / name) as draft:
            self.bucket.download(self.key(folder / name), draft)
            if not is_same(draft, entries[name]):
                raise FileNotFoundError(name)
            forget(folder / name)
            return True
        return False

    def _manifest(self, name: str) -> tuple[bytes | None, dict[str, dict[str, Any]] | None]:
        """Return a folder's manifest and its files, or None, and refuse names that lead outside."""
        content, _ = self.bucket.read(f"{name}{MANIFEST}") or (None, None)
        entries = None if content is None else checksums.entries_of(content)
        for file in entries or {}:
            check_inside(file, f"{self.uri}: {name}: its manifest")
        return content, entries


_leases: dict[Lease, Path] = {}
"""The leases of this process, each with the folder or file that it protects."""

_tags: dict[tuple[str, str], Tag] = {}
"""The tags of the objects that this process wrote by their tags, by URI and path."""


def _shows(path: PurePath) -> bool:
    """Return False for a draft, a lock, a checksum, a manifest and a damaged file."""
    return not any(part.startswith(".") or part.endswith((".lock", MANIFEST, DAMAGED)) for part in path.parts)


TEMPORARY = re.compile(r"\.tmp\w{6}")
"""Name of a draft of safetensors, which renames it."""


def _files_below(folder: Path) -> list[Path]:
    """Return the files below a folder. Folders may go meanwhile. One that may not be read is an error."""
    paths = (Path(parent, name) for parent, _, names in os.walk(folder, onerror=_check_gone) for name in names)
    return [path for path in paths if path.is_file()]


def _check_gone(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        raise error


def _files(folder: Path) -> dict[str, Path]:
    """Return the files below a folder that belong to it, by their paths from it."""
    files = {path.relative_to(folder).as_posix(): path for path in sorted(_files_below(folder))}
    return {
        name: path
        for name, path in files.items()
        if not (ASIDE in name or name.endswith((CHECKSUM, DAMAGED)) or TEMPORARY.fullmatch(path.name))
    }


def _tag_of(content: bytes) -> Tag:
    return {"sha256": hashlib.sha256(content).hexdigest()}


def _read(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None
