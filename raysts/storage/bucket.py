"""An object store below a URI such as ``s3://bucket/prefix``: whole objects, retried, none of them half there.

An object appears when its upload has ended, not before, so that a killed process leaves none that is torn.
"""

import contextlib
import errno
import os
import random
import re
import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from raysts.errors import InputError, StoreFailed
from raysts.storage.atomic import atomic_write

SCHEMES = ("s3", "gs")
"""Stores in which an object appears whole; any other file system is a folder once it is mounted. (Arrow's Azure client
would do, but without credentials it aborts the process.)"""

OPTIONS = ("endpoint_override", "region", "scheme")
"""What may follow the ``?`` of a URI."""

TRIES = 7
"""Times that something is tried before a run fails for it; between them it waits 0.5, 1, 2, 4, 8 and 16 s, give or take half."""

PATIENCE = 90.0
"""Seconds after which nothing is tried again."""

AGAIN = 3
"""Times that each request of a try is made again, in a fifth of a second; a try is up to three requests."""

CONNECT_SECONDS, ANSWER_SECONDS = 3.0, 10.0
CHUNK = 8 << 20
FINAL = (
    "ACCESS_DENIED",
    "HTTP status 403",
    "HTTP status 401",
    "INVALID_ACCESS_KEY",
    "SIGNATURE_DOES_NOT_MATCH",
    "INVALID_CLIENT_TOKEN",
    "UNRECOGNIZED_CLIENT",
    "NO_SUCH_BUCKET",
    "MISSING_AUTHENTICATION",
    "OAuth2 access token",
)
"""Answers that asking again does not change."""

NOWHERE = ("curlCode: 6,", "curlCode: 7,")
"""No such host, and nobody there who listens: before a run has begun that is a wrong name."""

T = TypeVar("T")


def canonical(text: str, option: str = "--storage") -> str:
    """The URI of a storage, or of data, as every node writes it, the endpoint of ``AWS_ENDPOINT_URL`` in it.

    Raises:
        InputError: no such kind of store, no bucket, an unknown option, or credentials, which are not repeated.
    """
    what = f"{option} '{_without_secrets(text)}'"
    try:
        parts = urlsplit(text)
        options = dict(parse_qsl(parts.query, strict_parsing=bool(parts.query)))
    except ValueError as error:
        raise InputError(f"{what}: {error}; it must be like s3://bucket/prefix") from None
    scheme = "gs" if parts.scheme == "gcs" else parts.scheme
    if scheme not in SCHEMES:
        raise InputError(
            f"{what}: must be a path or begin with one of {', '.join(f'{name}://' for name in SCHEMES)}; mount any other "
            f"file system and give its path"
        )
    user, at, host = parts.netloc.rpartition("@")
    if (at and (scheme, user) != ("gs", "anonymous")) or ":" in host or set(options) - set(OPTIONS) or parts.fragment:
        raise InputError(
            f"{what}: holds no credentials and no options but {', '.join(OPTIONS)}; credentials come from the environment "
            f"(AWS_ACCESS_KEY_ID, AWS_PROFILE, GOOGLE_APPLICATION_CREDENTIALS) or the machine's role"
        )
    if scheme == "s3" and "endpoint_override" not in options:
        endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
        if endpoint:
            options = {"endpoint_override": endpoint, **options}
    if "://" in options.get("endpoint_override", ""):
        found = urlsplit(options["endpoint_override"])
        if "@" in found.netloc:
            raise InputError("AWS_ENDPOINT_URL: holds credentials; give scheme://host:port alone")
        options = {**options, "scheme": found.scheme, "endpoint_override": found.netloc}
    path = parts.path.strip("/")
    if not host or (path and not is_inside(path)):
        raise InputError(f"{what}: must name a bucket and, below it, a prefix without empty parts, '.' or '..'")
    query = f"?{urlencode(sorted(options.items()))}" if options else ""
    return f"{scheme}://{user}{at}{host}{'/' if path else ''}{path}{query}"


def is_inside(relative: str) -> bool:
    """Whether a name that a store gives stays inside the folder that it is put into."""
    parts = relative.split("/")
    return not any(part in ("", ".", "..") for part in parts) and not re.search(r"[\\\x00-\x1f]", relative)


class Entry(NamedTuple):
    """An object in a listing: bytes, and when it was written by the store's clock, in seconds."""

    size: int
    written: float


class Bucket:
    """The objects below a canonical URI, by their path from there.

    Every method raises StoreFailed when the store does not answer after ``tries``, or refuses.

    Args:
        guard: takes the path before every try to change an object there, and raises where that must not be.
    """

    def __init__(self, uri: str, tries: int = TRIES, guard: Callable[[str], None] = lambda path: None) -> None:
        self.uri, self.tries, self.guard = uri, tries, guard
        parts = urlsplit(uri)
        self.bucket = parts.netloc.rpartition("@")[2]
        self.prefix = "/".join(part for part in (self.bucket, parts.path.strip("/")) if part)

    def read(self, path: str) -> bytes | None:
        def action() -> bytes:
            with self._files.open_input_stream(self._key(path)) as stream:
                content: bytes = stream.read()
            self._whole(path, len(content))
            return content

        with contextlib.suppress(FileNotFoundError):
            return self._tried("read", path, action)
        return None

    def write(self, path: str, content: bytes) -> None:

        def action() -> None:
            with self._files.open_output_stream(self._key(path)) as stream:
                stream.write(content)

        self._changed("write", path, action)

    def upload(self, source: Path, path: str) -> None:

        def action() -> None:
            with source.open("rb") as file:
                first = file.read(CHUNK)
                stream = self._files.open_output_stream(self._key(path))
                try:
                    stream.write(first)
                    while chunk := file.read(CHUNK):
                        stream.write(chunk)
                except BaseException:
                    # Closing is all that can be done with an upload, and it makes an object of what has come so far.
                    with contextlib.suppress(OSError):
                        stream.close()
                        self._files.delete_file(self._key(path))
                    raise
                stream.close()

        self._changed("write", path, action)

    def download(self, path: str, target: Path) -> None:
        """Write an object to a file, which is complete or absent.

        Raises:
            FileNotFoundError: there is no such object.
        """

        def action() -> None:
            stream = self._files.open_input_stream(self._key(path))
            with stream, atomic_write(target) as draft, draft.open("wb") as file:
                while chunk := stream.read(CHUNK):
                    file.write(chunk)
                self._whole(path, file.tell())

        self._tried("read", path, action)

    def _whole(self, path: str, size: int) -> None:
        """Look at an object's size after it was read: pyarrow asks for it before, and of a longer object which has come into
        its place since then it reads as many bytes. An ``OSError`` has it read again."""
        info = self._files.get_file_info(self._key(path))
        if info.is_file and info.size != size:
            raise OSError(f"{path} was written while it was read")

    def entry(self, path: str) -> Entry | None:
        info = self._tried("look for", path, lambda: self._files.get_file_info(self._key(path)))
        return Entry(info.size, info.mtime_ns / 1e9) if info.is_file else None

    def has(self, *paths: str) -> bool:
        keys = [self._key(path) for path in paths]
        return any(info.is_file for info in self._tried("look for", paths[0], lambda: self._files.get_file_info(keys)))

    def listed(self, folder: str, recursive: bool = False) -> dict[str, Entry]:
        """The objects below a folder by their paths from it; none where there is no such folder.

        Raises:
            InputError: a name leads out of the folder.
        """
        infos = self._infos(folder, recursive)
        return {name: Entry(info.size, info.mtime_ns / 1e9) for name, info in infos.items() if info.is_file}

    def names(self, folder: str) -> list[str]:
        return list(self._infos(folder))

    def _infos(self, folder: str, recursive: bool = False) -> dict[str, Any]:
        from pyarrow.fs import FileSelector

        base = self._key(folder)
        selector = FileSelector(base, allow_not_found=True, recursive=recursive)
        infos = self._tried("list", folder, lambda: self._files.get_file_info(selector))
        names = {info.path.removeprefix(f"{base}/"): info for info in infos}
        for name in names:
            check_inside(name, f"{self.uri}: {folder}/")
        return names

    def delete(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._changed("remove", path, lambda: self._files.delete_file(self._key(path)))

    def delete_folder(self, folder: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._changed("remove", folder, lambda: self._files.delete_dir(self._key(folder)))

    def check(self, writes: bool, option: str = "--storage") -> None:
        """Make sure that the bucket is there and answers, and, if asked, that it can be written to.

        That takes no time where nobody is there at all; a store that is busy is asked again.
        """
        what = f"{option} '{self.uri}'"
        try:
            where = self._tried("find", self.bucket, lambda: self._files.get_file_info(self.bucket), (*FINAL, *NOWHERE))
            there = where.type.name != "NotFound"
            if there:
                self.listed("locks")
            if there and writes:
                probe = f"locks/.probe-{os.getpid()}"
                self.write(probe, b"")
                self.delete(probe)
        except (OSError, StoreFailed, ValueError) as error:
            raise InputError(f"{what}: {_remedy(short(error), self.uri)} ({short(error)})") from None
        if not there:
            raise InputError(
                f"{what}: there is no bucket '{self.bucket}' that these credentials can see; make it first, or check the "
                f"name, AWS_PROFILE and AWS_ENDPOINT_URL"
            )

    @property
    def _files(self) -> Any:
        return _filesystem(self.uri)

    def _key(self, path: str) -> str:
        if not path:  # the storage itself, which can be listed
            return self.prefix
        check_inside(path, self.uri)
        return f"{self.prefix}/{path}"

    def _changed(self, what: str, path: str, action: Callable[[], None]) -> None:
        def guarded() -> None:
            self.guard(path)
            action()

        self._tried(what, path, guarded)

    def _tried(self, what: str, path: str, action: Callable[[], T], final: Sequence[str] = FINAL) -> T:
        began = time.monotonic()
        for attempt in range(self.tries):
            try:
                return action()
            except FileNotFoundError:
                raise
            except OSError as error:
                if error.errno == errno.ENOSPC:
                    raise
                over = attempt + 1 == self.tries or time.monotonic() - began > PATIENCE
                if over or any(answer in str(error) for answer in final):
                    raise StoreFailed(
                        f"{self.uri}: cannot {what} {path}: {_remedy(str(error), self.uri)} ({short(error)}); then run the "
                        f"same command again: it goes on from what was uploaded"
                    ) from None
                time.sleep(0.5 * 2**attempt * random.uniform(0.5, 1.5))
        raise AssertionError


def check_inside(name: str, where: str, folders: bool = True) -> None:
    """Refuse a name that leads out of its folder, or without ``folders`` into one below."""
    if not is_inside(name) or ("/" in name and not folders):
        raise InputError(
            f"{where} names {name!r}: a name must stay in its folder, so this is refused; raysts writes no such names, "
            f"remove the object"
        )


@lru_cache(maxsize=16)
def _filesystem(uri: str) -> Any:
    from pyarrow import fs

    parts = urlsplit(uri)
    options = dict(parse_qsl(parts.query))
    if parts.scheme != "s3":
        more = {"retry_limit_seconds": "5"} if parts.scheme == "gs" else {}
        plain = parts._replace(query=urlencode({**options, **more}))
        return fs.FileSystem.from_uri(plain.geturl())[0]
    if "endpoint_override" not in options and not any(map(os.environ.get, ("AWS_REGION", "AWS_DEFAULT_REGION"))):
        options.setdefault("region", fs.resolve_s3_region(parts.netloc))
    return fs.S3FileSystem(
        **options,
        connect_timeout=CONNECT_SECONDS,
        request_timeout=ANSWER_SECONDS,
        allow_delayed_open=True,  # a small object is one request
        retry_strategy=fs.AwsDefaultS3RetryStrategy(max_attempts=AGAIN),
    )


def mirror_name(uri: str) -> str:
    """A canonical URI as the name of a folder, to be read back with ``urllib.parse.unquote``.

    Plus signs stand for percent signs, which SQLite's URLs would decode.
    """
    return quote(uri, safe="").replace("%", "+")


def _remedy(error: str, uri: str) -> str:
    if any(answer in error for answer in FINAL[:3]):
        return "access is denied; credentials with the right to list, read, write and delete objects there are needed"
    if "NO_SUCH_BUCKET" in error or "not found" in error:
        return "there is no such bucket; make it first, or check the name"
    if any(answer in error for answer in FINAL):
        names = "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_PROFILE"
        names = "GOOGLE_APPLICATION_CREDENTIALS" if uri.startswith("gs:") else names
        return f"there are no valid credentials; check {names} or the machine's role"
    endpoint = dict(parse_qsl(urlsplit(uri).query)).get("endpoint_override")
    return f"the store{f' at {endpoint}' if endpoint else ''} does not answer; check the network and AWS_ENDPOINT_URL"


def short(error: BaseException) -> str:
    """What the client library says of a failure, without the number of the request."""
    error = error.__context__ if isinstance(error, StoreFailed) and error.__context__ else error
    text = str(error).splitlines()[0]
    return re.sub(r" \(Request ID: [^)]*\)", "", text)[:300]


def _without_secrets(text: str) -> str:
    """A URI without user, password and the values of options, to be shown."""
    text = re.sub(r"//.*@", "//...@", text)  # a secret key may hold slashes
    return re.sub(r"=[^&]*", "=...", text)
