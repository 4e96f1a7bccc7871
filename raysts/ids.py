"""Named seeds and content ids: everything random or cached in raysts is a function of what went in."""

import contextlib
import functools
import hashlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from raysts.errors import InputError, RunFailed


def derive_seed(root: int, *names: object) -> int:
    """Return a seed in [0, 2**63) for the stream ``names`` of a root seed, equal on every machine."""
    return int.from_bytes(hashlib.sha256(json.dumps([root, *names]).encode()).digest()[:8], "big") >> 1


def content_id(value: Any) -> str:
    """Return 16 hex digits that name a JSON value by its content."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def cpu_name() -> str:
    """Return the name of this machine's CPU, by which rates and run records tell devices apart."""
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line for line in lines if line.lower().startswith("model name")).split(":")[1].strip()
    return "CPU"


def file_digest(path: Path) -> bytes:
    """Return the SHA-256 of a file, which a process reads once while its state stays the same."""
    return _digest(path, file_state(path))


def folder_id(folder: Path) -> str:
    """Return 16 hex digits over names and bytes of the files of a model folder.

    The card, checksums and hidden files do not count. What git and the hub's library keep there changes, and the model
    does not.
    """
    digest = hashlib.sha256()
    for path in _files(folder):
        name = str(path.relative_to(folder)).encode(errors="surrogateescape")  # it may be no UTF-8
        digest.update(name + b"\0" + file_digest(path))
    return digest.hexdigest()[:16]


@contextlib.contextmanager
def guard_content(model: Path, content: str | None, content_of: Callable[[Path], str] = folder_id) -> Iterator[None]:
    """Check that the files of a model have the id ``content`` and do not change in a block.

    Raises:
        RunFailed: they have another id (None: any), or they changed.
    """
    before, failure = _states(model), None
    try:
        yield
    except Exception as error:  # the change may be the reason
        failure = error
    after = _states(model)
    if content is not None and (after != before or _content(model, content_of) != content):
        changed_last = max(after, key=lambda path: after[path][-1], default=model)
        raise RunFailed(
            f"{changed_last} (on {os.uname().nodename}): model '{model}' was changed after its id was made; leave it as it is "
            f"while it is used, and run the same command again: what is made of another model has other ids"
        ) from failure
    if failure is not None:
        raise failure


def _files(model: Path) -> list[Path]:
    """Return the files of a model that decide its id."""
    ignored = ("README.md", ".gitattributes", "data_config.json")
    return [
        path
        for path in (sorted(model.rglob("*")) if model.is_dir() else [model])
        if path.is_file()
        and path.name not in ignored
        and not path.name.endswith(".checksum")
        and not any(part.startswith(".") for part in path.relative_to(model).parts)
    ]


def _states(model: Path) -> dict[Path, tuple[int, ...]]:
    with contextlib.suppress(OSError):
        return {path: file_state(path) for path in _files(model)}
    return {}


def file_state(path: Path) -> tuple[int, ...]:
    """Return numbers that change with the content of a file."""
    stat = path.stat()
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns


@functools.lru_cache(maxsize=65_536)
def _digest(path: Path, state: tuple[int, ...]) -> bytes:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


def _content(model: Path, content_of: Callable[[Path], str]) -> str | None:
    """Return the content id of a model, or None if it cannot be read."""
    with contextlib.suppress(OSError, InputError):
        return content_of(model)
    return None


@functools.cache
def sources() -> str:
    """Return 12 hex digits that name raysts' code, for records without a commit."""
    root, digest = Path(__file__).parent, hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]
