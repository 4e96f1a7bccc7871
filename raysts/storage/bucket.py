"""An object store below a URI such as ``s3://bucket/prefix``: objects that appear whole, and writes that depend on a tag.

The client library is obstore. Its calls do not end at Ctrl-C, so they run in threads that nobody waits for at exit. A process
that has used it must not fork: its children would hang.
"""

import collections
import contextlib
import os
import queue
import random
import re
import secrets
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from obstore import store as clients
from obstore.exceptions import AlreadyExistsError, BaseError, InvalidPathError, NotSupportedError, PreconditionError

from raysts.errors import InputError, StoreFailed
from raysts.storage.atomic import atomic_write

SCHEMES = ("s3", "gs", "az")
"""Amazon S3 and what speaks its protocol, Google Cloud Storage, Azure Blob Storage."""

OPTIONS = ("account", "endpoint_override", "region", "scheme")
"""Names that may follow the ``?`` of a URI."""

TRIES = 7
"""Attempts before a run fails; between them it waits 0.5, 1, 2, 4, 8 and 16 s, give or take half."""

PATIENCE = 90.0
"""Seconds after which no further attempt begins."""

RETRIES = 2
"""Repetitions of a request within an attempt, in a fifth of a second."""

CONNECT_SECONDS, ANSWER_SECONDS = 3.0, 10.0
CHUNK = 8 << 20
"""Bytes of a part of a large object."""

AT_ONCE = 8
"""Calls that run at the same time."""

AMAZON = "https://s3.amazonaws.com"
UNKNOWN_KEYS = (
    "InvalidAccessKeyId",
    "SignatureDoesNotMatch",
    "InvalidToken",
    "ExpiredToken",
    "UnrecognizedClient",
    "AuthenticationFailed",
    "401 Unauthorized",
    "latest/api/token",
    "169.254.",
    "metadata.google.internal",
    "credential",
)
NO_BUCKET = ("NoSuchBucket", "ContainerNotFound", "404 Not Found")
FINAL = (*UNKNOWN_KEYS, "403 Forbidden", *NO_BUCKET, "Received redirect", "501 Not Implemented")
"""Answers that another attempt does not change."""

NOWHERE = ("dns error", "ConnectionRefused")
"""Signs of a wrong host name: final before a run has begun."""

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


def canonical(text: str, option: str = "--storage") -> str:
    """Return the URI of a storage or of data as every node writes it, with the endpoint of the environment.

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
    if (at and user != "anonymous") or ":" in host or set(options) - set(OPTIONS) or parts.fragment:
        raise InputError(
            f"{what}: holds no credentials and no options but {', '.join(OPTIONS)}; credentials come from the environment "
            f"({_key_names(scheme)}) or the machine's role"
        )
    for name, variables in _ENVIRONMENT.get(scheme, {}).items():
        value = next(filter(None, map(os.environ.get, variables)), None)
        if value and name not in options:
            options[name] = value
    if "://" in options.get("endpoint_override", ""):
        endpoint = urlsplit(options["endpoint_override"])
        if "@" in endpoint.netloc:
            raise InputError(f"{option}: its endpoint holds credentials; give scheme://host:port alone")
        options |= {"scheme": endpoint.scheme, "endpoint_override": f"{endpoint.netloc}{endpoint.path}".rstrip("/")}
    path = parts.path.strip("/")
    if not host or (path and not is_inside(path)):
        raise InputError(f"{what}: must name a bucket and, below it, a prefix without empty parts, '.' or '..'")
    if scheme == "az" and "account" not in options:
        raise InputError(f"{what}: names no storage account; add ?account=NAME, or set AZURE_STORAGE_ACCOUNT_NAME")
    query = f"?{urlencode(sorted(options.items()))}" if options else ""
    return f"{scheme}://{user}{at}{host}{'/' if path else ''}{path}{query}"


_ENVIRONMENT: dict[str, dict[str, tuple[str, ...]]] = {
    "s3": {"endpoint_override": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")},
    "az": {
        "endpoint_override": ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
        "account": ("AZURE_STORAGE_ACCOUNT_NAME",),
    },
}
"""Environment variables that decide where a bucket is; a URI that other nodes read has them as options."""


def is_inside(relative: str) -> bool:
    """Return True if a name that a store gives stays inside the folder that it is put into."""
    parts = relative.split("/")
    return not any(part in ("", ".", "..") for part in parts) and not re.search(r"[\\\x00-\x1f]", relative)


def check_inside(name: str, where: str, folders: bool = True) -> None:
    """Refuse a name that leads out of its folder, or without ``folders`` into one below."""
    if not is_inside(name) or ("/" in name and not folders):
        raise InputError(
            f"{where} names {name!r}: a name must stay in its folder, so this is refused; raysts writes no such names, "
            f"remove the object"
        )


def mirror_name(uri: str) -> str:
    """Return a canonical URI as the name of a folder, to be read back with ``urllib.parse.unquote``.

    Plus signs stand for percent signs, which SQLite's URLs would decode.
    """
    return quote(uri, safe="").replace("%", "+")


def at_once(action: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """Return the result of ``action`` for each item, in order; several run at the same time, and Ctrl-C ends the wait."""
    waiting = collections.deque(enumerate(items))
    results: dict[int, R] = {}
    answers: queue.SimpleQueue[tuple[int, R | None, BaseException | None]] = queue.SimpleQueue()

    def work() -> None:
        with contextlib.suppress(IndexError):
            while True:
                index, item = waiting.popleft()
                try:
                    answers.put((index, action(item), None))
                except BaseException as error:  # noqa: BLE001 (raised where it is waited for)
                    answers.put((index, None, error))

    count = len(waiting)
    threads = [threading.Thread(target=work, daemon=True) for _ in range(min(AT_ONCE, count))]
    try:
        for thread in threads:
            thread.start()
        for _ in range(count):
            index, result, error = answers.get()
            if error is not None:
                waiting.clear()
                for thread in threads:
                    thread.join()
                raise error
            results[index] = result  # type: ignore[assignment]
    finally:
        waiting.clear()
    return [results[index] for index in range(count)]


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
            return self._changed("write", path, lambda: _tag(self._client.put(self._key(path), content, **options)))
        except (AlreadyExistsError, PreconditionError):
            there = self._answer(path)
        # It may be our own write, which was sent again because the answer was lost.
        if there and there.attributes.get(WRITE) == nonce:
            return _tag(there.meta)
        raise Conflict(path, _tag(there.meta) if there else None)

    def write(self, path: str, content: bytes) -> None:
        """Write an object, whatever is there."""
        self._changed("write", path, lambda: self._client.put(self._key(path), content))

    def upload(self, source: Path, path: str) -> None:
        """Write an object from a file, whatever is there."""
        options = {"chunk_size": CHUNK, "max_concurrency": 4}
        self._changed("write", path, lambda: self._client.put(self._key(path), source, **options))

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
            self._tried("remove", path, self._guarded(path, lambda: self._client.delete(self._key(path))))

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
        except (BaseError, StoreFailed, ValueError) as error:
            raise InputError(f"{option} '{self.uri}': {_remedy(_text(error), self.uri)} ({short(error)})") from None
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
        return _client(self.uri, self.seconds)

    def _key(self, path: str) -> str:
        if not path:  # the storage itself, which can be listed
            return self.prefix
        check_inside(path, self.uri)
        return f"{self.prefix}/{path}" if self.prefix else path

    def _guarded(self, path: str, action: Callable[[], T]) -> Callable[[], T]:
        def guarded() -> T:
            self.guard(path)
            return action()

        return guarded

    def _changed(self, what: str, path: str, action: Callable[[], T]) -> T:
        try:
            return self._tried(what, path, self._guarded(path, action))
        except FileNotFoundError as error:  # what is not there is the bucket
            raise self._failure(what, path, error) from None

    def _tried(self, what: str, path: str, action: Callable[[], T], final: Sequence[str] = FINAL) -> T:
        began = time.monotonic()
        for attempt in range(self.tries):
            try:
                return _interruptible(action)
            except (InvalidPathError, AlreadyExistsError, PreconditionError):
                raise
            except BaseError as error:
                over = attempt + 1 == self.tries or time.monotonic() - began > PATIENCE
                if over or isinstance(error, NotSupportedError) or any(answer in _text(error) for answer in final):
                    raise self._failure(what, path, error) from error
                time.sleep(0.5 * 2**attempt * random.uniform(0.5, 1.5))
        raise AssertionError

    def _failure(self, what: str, path: str, error: BaseException) -> StoreFailed:
        return StoreFailed(
            f"{self.uri}: cannot {what} {path}: {_remedy(_text(error), self.uri)} ({short(error)}); then run the same "
            f"command again: it goes on from what was uploaded"
        )


def _interruptible(action: Callable[[], T]) -> T:
    """Return the result of ``action``, which the main thread waits for in a way that Ctrl-C ends."""
    main = threading.current_thread() is threading.main_thread()
    return at_once(lambda _: action(), [None])[0] if main else action()


@lru_cache(maxsize=16)
def _client(uri: str, seconds: float) -> Any:
    """Return obstore's client for the bucket of a URI."""
    parts = urlsplit(uri)
    options = dict(parse_qsl(parts.query))
    scheme = options.get("scheme", "https")
    endpoint = f"{scheme}://{options['endpoint_override']}" if "endpoint_override" in options else None
    bucket = parts.netloc.rpartition("@")[2]
    common: dict[str, Any] = {"skip_signature": True} if parts.username else {}
    common |= {
        "client_options": {
            "timeout": timedelta(seconds=seconds),
            "connect_timeout": timedelta(seconds=min(seconds, CONNECT_SECONDS)),
            "allow_http": scheme == "http",
        },
        "retry_config": {
            "max_retries": RETRIES,
            "retry_timeout": timedelta(seconds=seconds),
            "backoff": {
                "init_backoff": timedelta(milliseconds=50),
                "max_backoff": timedelta(milliseconds=100),
                "base": 2,
            },
        },
    }
    if parts.scheme == "gs":
        return _google_client(bucket, {"base_url": endpoint} if endpoint else {}, common)
    config: Any = {"endpoint": endpoint} if endpoint else {}
    if parts.scheme == "az":
        return clients.AzureStore(bucket, config=config | {"account_name": options["account"]}, **common)
    region = next(filter(None, map(os.environ.get, ("AWS_REGION", "AWS_DEFAULT_REGION"))), None)
    config["region"] = options.get("region") or region or ("us-east-1" if endpoint else _region(bucket))
    provider = None if parts.username or os.environ.get("AWS_ACCESS_KEY_ID") else _profile()
    return clients.S3Store(bucket, config=config, credential_provider=provider, **common)


def _google_client(bucket: str, config: Any, options: dict[str, Any]) -> Any:
    try:
        return clients.GCSStore(bucket, config=config, **options)
    except BaseError:  # a kind of credentials that obstore does not know, such as workload identity federation
        from obstore.auth.google import GoogleCredentialProvider

        return clients.GCSStore(bucket, config=config, credential_provider=GoogleCredentialProvider(), **options)


def _profile() -> Any:
    """Return the credentials of AWS_PROFILE or ``~/.aws``, single sign-on too; None: obstore asks for the machine's role."""
    files = ("AWS_CONFIG_FILE", "config"), ("AWS_SHARED_CREDENTIALS_FILE", "credentials")
    paths = [Path(os.environ.get(name) or Path.home() / ".aws" / file) for name, file in files]
    if not os.environ.get("AWS_PROFILE") and not any(path.is_file() for path in paths):
        return None
    try:
        from botocore.exceptions import BotoCoreError
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ImportError:
        return None
    try:
        return Boto3CredentialProvider()
    except ValueError:  # there are none in it
        return None
    except BotoCoreError as error:
        raise InputError(f"AWS_PROFILE '{os.environ.get('AWS_PROFILE', '')}': {error}; check ~/.aws/config") from None


def _region(bucket: str) -> str:
    """Return the region of a bucket of Amazon's, which S3 tells everybody."""
    request = urllib.request.Request(f"{AMAZON}/{bucket}", method="HEAD")
    try:
        with urllib.request.urlopen(request, timeout=CONNECT_SECONDS) as answer:
            headers = answer.headers
    except urllib.error.HTTPError as refusal:
        headers = refusal.headers
    except OSError:  # the first request to the bucket says what is wrong
        headers = {}
    return headers.get("x-amz-bucket-region") or "us-east-1"


def _tag(result: Any) -> Tag:
    return {name: result[name] for name in ("e_tag", "version") if result[name] is not None}


def _entry(meta: Any) -> Entry:
    return Entry(meta["size"], meta["last_modified"].timestamp())


NO_CONDITIONS = (
    "the store there ignores or refuses conditional writes (If-None-Match, If-Match), without which two drivers could "
    "overwrite each other; take a newer version of it, another store, or a folder"
)


def _remedy(error: str, uri: str) -> str:
    if "501 Not Implemented" in error:
        return NO_CONDITIONS
    if any(answer in error for answer in UNKNOWN_KEYS):
        return f"there are no valid credentials; check {_key_names(urlsplit(uri).scheme)} or the machine's role"
    if "403 Forbidden" in error:
        return "access is denied; credentials with the right to list, read, write and delete objects there are needed"
    bucket = urlsplit(uri).netloc.rpartition("@")[2]
    if any(answer in error for answer in NO_BUCKET):
        return f"there is no bucket '{bucket}' that these credentials can see; make it first, or check the name"
    if "Received redirect" in error:
        return "the bucket is in another region; set AWS_REGION, or add ?region=NAME"
    endpoint = dict(parse_qsl(urlsplit(uri).query)).get("endpoint_override")
    return f"the store{f' at {endpoint}' if endpoint else ''} does not answer; check the network and the endpoint"


def _key_names(scheme: str) -> str:
    return {
        "s3": "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_PROFILE (which needs pip install 'raysts[s3]')",
        "gs": "GOOGLE_APPLICATION_CREDENTIALS",
        "az": "AZURE_STORAGE_ACCOUNT_KEY, AZURE_CLIENT_ID",
    }[scheme]


def _text(error: BaseException) -> str:
    cause = error.__cause__ if isinstance(error, StoreFailed) else None
    return str(cause or error)


def short(error: BaseException) -> str:
    """Return what the client library says of a failure, without its address, which may hold a signature."""
    text = _text(error)
    code = re.search(r"<Code>(\w+)</Code>", text)
    answer = text.splitlines()[0].partition("<")[0].rpartition(" - ")[2][:300].strip(" :")
    return f"{answer}: {code[1]}" if code else answer


def _without_secrets(text: str) -> str:
    """Return a URI without user, password and the values of options, to be shown."""
    text = re.sub(r"//.*@", "//...@", text)  # a secret key may hold slashes
    return re.sub(r"=[^&]*", "=...", text)
