"""Objects in a bucket: they appear whole, and a write can depend on a tag.

Calls of the client library ignore Ctrl-C, so they run in daemon threads.
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

SECONDS = 10.0
CHUNK = 8 << 20
"""Bytes of a part of a large object."""

AT_ONCE = 8

WRITE = "write"
"""Name of the metadata by which a conditional write is known; equal contents have equal tags in S3."""

T = TypeVar("T")
R = TypeVar("R")
Tag = dict[str, str]
"""The version of an object, as the store names it."""
Guard = Callable[[str], None]


class Conflict(RuntimeError):  # noqa: N818
    """A conditional write that was refused, with the tag of the current version (None: absent)."""

    def __init__(self, path: str, tag: Tag | None) -> None:
        super().__init__(f"{path} is not what it was")
        self.tag = tag


def check_inside(name: str, place: str, folders: bool = True) -> None:
    """Refuse a name that leads out of its folder, or without ``folders`` into one below."""
    if not is_inside(name) or ("/" in name and not folders):
        raise InputError(
            f"{place} names {name!r}: a name must stay in its folder, so this is refused; raysts writes no such names, "
            f"remove the object"
        )


def run_parallel(action: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """Return the results of ``action`` for all items, in order. Several calls run at a time."""
    pairs = list(enumerate(items))
    items_left, results, errors = iter(pairs), dict[int, R](), list[BaseException]()

    def work() -> None:
        try:
            for index, item in items_left:
                results[index] = action(item)
        except BaseException as error:  # noqa: BLE001 (raised below)
            errors.append(error)
            collections.deque(items_left, maxlen=0)

    threads = [threading.Thread(target=work, daemon=True) for _ in pairs[:AT_ONCE]]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():  # Ctrl-C just before a wait without an end would be seen after it
                thread.join(0.5)
    finally:
        collections.deque(items_left, maxlen=0)  # after an interruption no thread begins another item
    if errors:
        raise errors[0]
    return [results[index] for index, _ in pairs]


class Entry(NamedTuple):
    """An object in a listing: bytes, and when it was written by the store's clock, in seconds."""

    size: int
    written: float


class Bucket:
    """The objects below a canonical URI, by their path from it.

    Every method raises StoreFailed if the store refuses, or does not answer ``tries`` attempts of ``seconds``. ``guard`` is
    called with a path before each attempt to change the object.
    """

    def __init__(self, uri: str, tries: int = TRIES, guard: Guard | None = None, seconds: float = SECONDS) -> None:
        self.uri, self.tries, self.guard, self.seconds = uri, tries, guard, seconds
        parts = urlsplit(uri)
        self.bucket, self.prefix = parts.netloc.rpartition("@")[2], parts.path.strip("/")

    def read(self, path: str) -> tuple[bytes, Tag] | None:
        """Return the content and the tag of an object, or None."""

        def action() -> tuple[bytes, Tag]:
            answer = self._client.get(self._key(path))
            return bytes(answer.bytes()), _tag(answer.meta)

        with contextlib.suppress(FileNotFoundError):
            return self._try("read", path, action)
        return None

    def _answer(self, path: str) -> Any:
        with contextlib.suppress(FileNotFoundError):
            return self._try("look for", path, lambda: self._client.get(self._key(path), options={"head": True}))
        return None

    def replace(self, path: str, content: bytes, tag: Tag | None) -> Tag:
        """Write an object unless its tag has changed, and return the new tag or raise Conflict."""
        nonce = secrets.token_hex(8)
        options = {"mode": tag or "create", "attributes": {WRITE: nonce}, "use_multipart": False}
        try:
            return self._try("write", path, lambda: _tag(self._client.put(self._key(path), content, **options)))
        except (AlreadyExistsError, PreconditionError):
            stored = self._answer(path)
        # It may be our own write, which was sent again because the answer was lost.
        if stored and stored.attributes.get(WRITE) == nonce:
            return _tag(stored.meta)
        raise Conflict(path, _tag(stored.meta) if stored else None)

    def upload(self, source: Path, path: str) -> None:
        """Write an object from a file without a condition."""
        self._try("write", path, lambda: self._client.put(self._key(path), source, chunk_size=CHUNK, max_concurrency=4))

    def download(self, path: str, target: Path) -> None:
        """Write an object to a file, or raise FileNotFoundError."""

        def action() -> None:
            answer = self._client.get(self._key(path))
            with atomic_write(target) as draft, draft.open("wb") as file:
                for chunk in answer.stream(min_chunk_size=CHUNK):
                    file.write(chunk)

        self._try("read", path, action)

    def entry(self, path: str) -> Entry | None:
        """Return size and time of an object, or None."""
        answer = self._answer(path)
        return _entry(answer.meta) if answer else None

    def list_objects(self, folder: str, recursive: bool = False) -> dict[str, Entry]:
        """Return the objects in a folder by their paths from it: all below it, or with its folders."""
        base, place = self._key(folder), f"{self.uri}: {folder}/"

        def action() -> tuple[list[Any], list[str]]:
            if recursive:
                return [meta for page in self._client.list(base or None) for meta in page], []
            page = self._client.list_with_delimiter(base or None)
            return list(page["objects"]), list(page["common_prefixes"])

        try:
            metas, prefixes = self._try("list", folder, action)
        except InvalidPathError as error:
            check_inside((re.findall(r'path: "(.*)"', str(error)) or [".."])[0], place)
            raise
        start = len(f"{base}/") if base else 0
        objects = {meta["path"][start:]: _entry(meta) for meta in metas if meta["path"] != base}
        for name in (*objects, *(prefix[start:] for prefix in prefixes)):
            check_inside(name, place)
        # A console makes an object of a folder that it makes.
        below = {name[: match.start()] for name in objects for match in re.finditer("/", name)}
        objects = {name: entry for name, entry in objects.items() if name not in below}
        return objects | {prefix[start:]: Entry(0, 0.0) for prefix in prefixes}

    def delete(self, path: str) -> None:
        """Remove an object if it exists."""
        with contextlib.suppress(FileNotFoundError):
            self._try("remove", path, lambda: self._client.delete(self._key(path)))

    def check(self, writes: bool, option: str = "--storage") -> None:
        """Check that the bucket answers and, with ``writes``, that it takes conditional writes."""
        begin = f"{option} '{self.uri}'"
        try:
            self._try("list", "", lambda: self._client.list_with_delimiter(self._key("locks")), (*FINAL, *NOWHERE))
            if writes and not self._obeys_conditions():
                raise InputError(f"{begin}: {NO_CONDITIONS}")
        except (BaseError, StoreFailed) as error:
            text = str(error.__cause__ or error)
            raise InputError(f"{begin}: {remedy(text, self.uri)} ({short(text)})") from None

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

    def _try(self, verb: str, path: str, action: Callable[[], T], final: Sequence[str] = FINAL) -> T:
        began = time.monotonic()
        for attempt in range(self.tries):
            if self.guard is not None and verb in ("write", "remove"):
                self.guard(path)
            try:
                if threading.current_thread() is threading.main_thread():
                    return run_parallel(lambda _: action(), [None])[0]
                return action()
            except FileNotFoundError as error:
                if verb == "write":  # what is not there is the bucket
                    raise self._failure(verb, path, error) from None
                raise
            except (InvalidPathError, AlreadyExistsError, PreconditionError):
                raise
            except BaseError as error:
                over = attempt + 1 == self.tries or time.monotonic() - began > PATIENCE
                if over or any(answer in str(error) for answer in final):
                    raise self._failure(verb, path, error) from error
                time.sleep(0.5 * 2**attempt * random.uniform(0.5, 1.5))
        raise AssertionError

    def _failure(self, verb: str, path: str, error: BaseException) -> StoreFailed:
        return StoreFailed(
            f"{self.uri}: cannot {verb} {path}: {remedy(str(error), self.uri)} ({short(str(error))}); then run the same "
            f"command again: it goes on from what was uploaded"
        )


def _tag(result: Any) -> Tag:
    return {name: result[name] for name in ("e_tag", "version") if result[name] is not None}


def _entry(meta: Any) -> Entry:
    return Entry(meta["size"], meta["last_modified"].timestamp())
