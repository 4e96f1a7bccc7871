"""The objects below a URI such as ``s3://bucket/prefix``: they appear whole, and a write can depend on a tag.

Calls of the client library do not end at Ctrl-C, so they run in threads that nobody waits for at exit.
"""

import collections
import contextlib
import random
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

from obstore.exceptions import AlreadyExistsError, BaseError, InvalidPathError, PreconditionError

from raysts.errors import InputError, StoreFailed
from raysts.storage.atomic import atomic_write
from raysts.storage.client import FINAL, NO_CONDITIONS, NOWHERE, client, is_inside, remedy, short

TRIES = 7
"""Attempts before a run fails; between them it waits 0.5, 1, 2, 4, 8 and 16 s, give or take half."""

PATIENCE = 90.0
"""Seconds after which no further attempt begins."""

ANSWER_SECONDS = 10.0
CHUNK = 8 << 20
"""Bytes of a part of a large object."""

AT_ONCE = 8
"""Calls that run at the same time."""

WRITE = "write"
"""Name of the metadata by which a conditional write is known; equal contents have equal tags in S3."""

T = TypeVar("T")
R = TypeVar("R")
Tag = dict[str, str]
"""The version of an object, as the store names it."""


class Conflict(RuntimeError):  # noqa: N818
    """A conditional write that was refused, with the tag of what is there instead (None: nothing)."""

    def __init__(self, path: str, tag: Tag | None) -> None:
        super().__init__(f"{path} is not what it was")
        self.tag = tag


def check_inside(name: str, where: str, folders: bool = True) -> None:
    """Refuse a name that leads out of its folder, or without ``folders`` into one below."""
    if not is_inside(name) or ("/" in name and not folders):
        raise InputError(
            f"{where} names {name!r}: a name must stay in its folder, so this is refused; raysts writes no such names, "
            f"remove the object"
        )


def at_once(action: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """Return the result of ``action`` for each item, in order; several run at a time, and Ctrl-C ends the wait."""
    pairs = list(enumerate(items))
    left, results, errors = iter(pairs), dict[int, R](), list[BaseException]()

    def work() -> None:
        try:
            for index, item in left:
                results[index] = action(item)
        except BaseException as error:  # noqa: BLE001 (raised below)
            errors.append(error)
            collections.deque(left, maxlen=0)

    threads = [threading.Thread(target=work, daemon=True) for _ in pairs[:AT_ONCE]]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        collections.deque(left, maxlen=0)  # after an interruption no thread begins another item
    if errors:
        raise errors[0]
    return [results[index] for index, _ in pairs]


class Entry(NamedTuple):
    """An object in a listing: bytes, and when it was written by the store's clock, in seconds."""

    size: int
    written: float


class Bucket:
    """The objects below a canonical URI, by their path from there.

    Every method raises StoreFailed when the store does not answer after ``tries``, or refuses.

    Args:
        guard: takes the path before every attempt to change an object, and raises where that must not be.
        seconds: after which a request without an answer has failed.
    """

    def __init__(
        self,
        uri: str,
        tries: int = TRIES,
        guard: Callable[[str], None] = lambda path: None,
        seconds: float = ANSWER_SECONDS,
    ) -> None:
        self.uri, self.tries, self.guard, self.seconds = uri, tries, guard, seconds
        parts = urlsplit(uri)
        self.bucket, self.prefix = parts.netloc.rpartition("@")[2], parts.path.strip("/")

    def read(self, path: str) -> tuple[bytes, Tag] | None:
        """Return the content of an object and its tag; None where there is none."""

        def action() -> tuple[bytes, Tag]:
            answer = self._client.get(self._key(path))
            return bytes(answer.bytes()), _tag(answer.meta)

        with contextlib.suppress(FileNotFoundError):
            return self._tried("read", path, action)
        return None

    def _answer(self, path: str) -> Any:
        with contextlib.suppress(FileNotFoundError):
            return self._tried("look for", path, lambda: self._client.get(self._key(path), options={"head": True}))
        return None

    def replace(self, path: str, content: bytes, tag: Tag | None) -> Tag:
        """Write an object whose tag is still this one, or with None one that is not there; return its new tag.

        Raises:
            Conflict: there is another object.
        """
        nonce = secrets.token_hex(8)
        options = {"mode": tag or "create", "attributes": {WRITE: nonce}, "use_multipart": False}
        try:
            return self._tried("write", path, lambda: _tag(self._client.put(self._key(path), content, **options)))
        except (AlreadyExistsError, PreconditionError):
            there = self._answer(path)
        # It may be our own write, which was sent again because the answer was lost.
        if there and there.attributes.get(WRITE) == nonce:
            return _tag(there.meta)
        raise Conflict(path, _tag(there.meta) if there else None)

    def upload(self, source: Path, path: str) -> None:
        """Write an object from a file, whatever is there."""
        options = {"chunk_size": CHUNK, "max_concurrency": 4}
        self._tried("write", path, lambda: self._client.put(self._key(path), source, **options))

    def download(self, path: str, target: Path) -> None:
        """Write an object to a file, which is complete or absent.

        Raises:
            FileNotFoundError: there is no such object.
        """

        def action() -> None:
            answer = self._client.get(self._key(path))
            with atomic_write(target) as draft, draft.open("wb") as file:
                for chunk in answer.stream(min_chunk_size=CHUNK):
                    file.write(chunk)

        self._tried("read", path, action)

    def entry(self, path: str) -> Entry | None:
        """Return size and time of an object; None where there is none."""
        answer = self._answer(path)
        return _entry(answer.meta) if answer else None

    def has(self, *paths: str) -> bool:
        """Return True if one of the objects is there."""
        return any(self.entry(path) for path in paths)

    def listed(self, folder: str, recursive: bool = False) -> dict[str, Entry]:
        """Return the objects below a folder by their paths from it; none where there is no such folder.

        Raises:
            InputError: a name leads out of the folder.
        """
        objects, folders = self._listing(folder, recursive)
        return {name: entry for name, entry in objects.items() if name not in folders}

    def names(self, folder: str) -> list[str]:
        """Return the names of the objects and folders in a folder, in order."""
        objects, folders = self._listing(folder, recursive=False)
        return sorted({*objects, *folders})

    def _listing(self, folder: str, recursive: bool) -> tuple[dict[str, Entry], set[str]]:
        """Return the objects and the folders below a folder; what a console makes for a folder is both."""
        base, where = self._key(folder), f"{self.uri}: {folder}/"

        def action() -> tuple[list[Any], list[str]]:
            if recursive:
                return [meta for page in self._client.list(base or None) for meta in page], []
            page = self._client.list_with_delimiter(base or None)
            return list(page["objects"]), list(page["common_prefixes"])

        try:
            metas, prefixes = self._tried("list", folder, action)
        except InvalidPathError as error:
            check_inside((re.findall(r'path: "(.*)"', str(error)) or [".."])[0], where)
            raise
        start = f"{base}/" if base else ""
        objects = {meta["path"][len(start) :]: _entry(meta) for meta in metas if meta["path"] != base}
        folders = {prefix[len(start) :] for prefix in prefixes}
        if recursive:
            folders = {name[: match.start()] for name in objects for match in re.finditer("/", name)}
        for name in (*objects, *folders):
            check_inside(name, where)
        return objects, folders

    def delete(self, path: str) -> None:
        """Remove an object, if it is there."""
        with contextlib.suppress(FileNotFoundError):
            self._tried("remove", path, lambda: self._client.delete(self._key(path)))

    def delete_folder(self, folder: str) -> None:
        """Remove all objects of a folder."""
        at_once(self.delete, [f"{folder}/{name}" for name in self._listing(folder, recursive=True)[0]])

    def check(self, writes: bool, option: str = "--storage") -> None:
        """Make sure that the bucket answers and, with ``writes``, that it can be written to, also conditionally.

        That takes no time where nobody is there at all; a store that is busy is asked again.
        """
        try:
            base = self._key("locks")
            self._tried("list", "locks", lambda: self._client.list_with_delimiter(base), (*FINAL, *NOWHERE))
            conditional = not writes or self._obeys_conditions()
        except (BaseError, StoreFailed) as error:
            text = str(error.__cause__ or error)
            raise InputError(f"{option} '{self.uri}': {remedy(text, self.uri)} ({short(text)})") from None
        if not conditional:
            raise InputError(f"{option} '{self.uri}': {NO_CONDITIONS}")

    def _obeys_conditions(self) -> bool:
        probe = f"locks/.probe-{secrets.token_hex(8)}"
        try:
            first = self.replace(probe, b"1", None)
            self.replace(probe, b"2", first)
            for tag in (first, None):
                with contextlib.suppress(Conflict):
                    self.replace(probe, b"3", tag)
                    return False
        finally:
            self.delete(probe)
        return True

    @property
    def _client(self) -> Any:
        return client(self.uri, self.seconds)

    def _key(self, path: str) -> str:
        if not path:  # the storage itself, which can be listed
            return self.prefix
        check_inside(path, self.uri)
        return f"{self.prefix}/{path}" if self.prefix else path

    def _tried(self, what: str, path: str, action: Callable[[], T], final: Sequence[str] = FINAL) -> T:
        began = time.monotonic()
        for attempt in range(self.tries):
            if what in ("write", "remove"):
                self.guard(path)
            try:
                if threading.current_thread() is threading.main_thread():
                    return at_once(lambda _: action(), [None])[0]
                return action()
            except FileNotFoundError as error:
                if what == "write":  # what is not there is the bucket
                    raise self._failure(what, path, error) from None
                raise
            except (InvalidPathError, AlreadyExistsError, PreconditionError):
                raise
            except BaseError as error:
                over = attempt + 1 == self.tries or time.monotonic() - began > PATIENCE
                if over or any(answer in str(error) for answer in final):
                    raise self._failure(what, path, error) from error
                time.sleep(0.5 * 2**attempt * random.uniform(0.5, 1.5))
        raise AssertionError

    def _failure(self, what: str, path: str, error: BaseException) -> StoreFailed:
        return StoreFailed(
            f"{self.uri}: cannot {what} {path}: {remedy(str(error), self.uri)} ({short(str(error))}); then run the same "
            f"command again: it goes on from what was uploaded"
        )


def _tag(result: Any) -> Tag:
    return {name: result[name] for name in ("e_tag", "version") if result[name] is not None}


def _entry(meta: Any) -> Entry:
    return Entry(meta["size"], meta["last_modified"].timestamp())
