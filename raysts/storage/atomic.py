"""Files that are complete or absent: written aside, then renamed."""

import contextlib
import errno
import fcntl
import fnmatch
import functools
import hashlib
import itertools
import json
import os
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from raysts.errors import InputError, LockedError, RunFailed, limit_of

FULL = 2**20
"""Free bytes below which a disk counts as full."""

ASIDE = ".aside-"
"""Prefix of names under which files are written before they become visible; readers ignore them."""

REPLACED = ".replaced"
"""Ends the name under which a folder stands while another one takes its place."""

DRAFT = re.compile(rf"{re.escape(ASIDE)}(.+)\.([0-9a-f]{{12}})\.(\d+)\.(\d*)\.\d+({re.escape(REPLACED)})?")
"""The name of a draft: what it becomes, the place of its writer (:func:`place`), the writer's number and its start."""

os.umask(UMASK := os.umask(0o077))
"""What others may not do with new files; asked for once, for that sets it."""

ONE_DRIVER = "one driver at a time may write here; wait for it to end, stop it, or choose another --name or --storage"
GLANCE = 0.2
"""Seconds for which a lock is always waited for: a look at it (:func:`is_locked`) is over by then."""

ABANDONED = 24 * 3600.0
"""Seconds after which a draft of another place, on which nobody wrote since, counts as left behind."""


@contextlib.contextmanager
def atomic_write(path: Path, synced: bool = True) -> Iterator[Path]:
    """Yield a path beside ``path``, and rename it to ``path`` unless the block raises.

    A folder is replaced by two renames. If a kill comes between them, :func:`remove_drafts` restores the old folder. A
    visible file survives a loss of power, unless ``synced`` is False.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.parent / draft_name(path.name)
    replaced = draft.with_name(f"{draft.name}{REPLACED}")
    try:
        yield draft
        for written in (*draft.rglob("*"), draft):
            if written.is_file() and (mode := written.stat().st_mode) != (usual := mode | 0o666 & ~UMASK):
                with contextlib.suppress(OSError):  # not every file system has modes
                    written.chmod(usual)  # safetensors lets nobody else read
            if synced:
                _sync(written)
        if draft.is_dir() and path.exists():
            path.replace(replaced)
        draft.replace(path)
        if synced:
            _sync(path.parent)
    except Exception as error:
        limit = limit_of(error)
        # Writers in C++ and Rust (torch, Arrow, safetensors) may not say that the disk is full.
        if limit is None and not isinstance(error, OSError) and shutil.disk_usage(path.parent).free < FULL:
            limit = errno.ENOSPC
        if limit and getattr(error, "filename", None) is None and not isinstance(error, (InputError, RunFailed)):
            raise OSError(limit, os.strerror(limit), str(path)) from error
        raise
    finally:
        for leftover in (replaced, draft):
            _take_away(leftover, path.name)


def _take_away(draft: Path, name: str) -> None:
    """Remove a draft of ``name`` (empty: unknown), or rename it back if its successor never came."""
    if name and draft.name.endswith(REPLACED) and draft.exists() and not draft.with_name(name).exists():
        with contextlib.suppress(FileNotFoundError):  # somebody else did
            draft.replace(draft.with_name(name))
    else:
        remove(draft)


def remove(path: Path) -> None:
    """Remove a file or a folder of this machine if it exists."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def draft_name(name: str) -> str:
    """Return the name of a draft, which holds the place, number and start of this process."""
    return f"{ASIDE}{name}.{_writer(os.getpid())}.{time.monotonic_ns()}"


@functools.cache
def _writer(pid: int) -> str:
    return f"{_place_id()}.{pid}.{start_of(pid) or ''}"


def place() -> str:
    """Return the boot and the PID namespace, which give a process number its meaning."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return os.uname().nodename


def _place_id() -> str:
    return hashlib.sha256(place().encode()).hexdigest()[:12]


def _sync(path: Path) -> None:
    """Write a file, or the names in a folder, to the disk before anything that is written later."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network file systems sync no folder
            raise
    finally:
        os.close(handle)


def cache_folder() -> Path:
    """Return the folder for what can be made again: ``$XDG_CACHE_HOME/raysts``, else ``~/.cache/raysts``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "raysts"


def as_json(value: Any) -> str:
    """Return ``value`` as the indented JSON text that every record here is."""
    return json.dumps(value, indent=1, ensure_ascii=False) + "\n"


def write_json(path: Path, value: Any) -> None:
    """Write ``value`` as indented JSON, complete or absent."""
    with atomic_write(path) as draft:
        draft.write_text(as_json(value), encoding="utf-8")


def remove_drafts(folder: Path, name_of: str | None = None) -> None:
    """Remove drafts of killed writers below a folder, or of one name in the folder itself."""
    # Folders may go while they are looked through, which os.walk does not mind.
    for parent, folders, files in itertools.islice(os.walk(folder), None if name_of is None else 1):
        for name in fnmatch.filter([*folders, *files], f"{ASIDE}*" if name_of is None else f"{ASIDE}{name_of}.*"):
            if not _may_live(path := Path(parent, name)):
                _take_away(path, named[1] if (named := DRAFT.fullmatch(name)) else "")


def _may_live(draft: Path) -> bool:
    """Return True if the writer of a draft lives, or is in another place and wrote not long ago."""
    named = DRAFT.fullmatch(draft.name)
    if named and named[2] == _place_id():
        return process_lives(int(named[3]), named[4] or None)
    try:
        return time.time() - max(path.stat().st_mtime for path in (draft, *draft.rglob("*"))) < ABANDONED
    except OSError:  # it is being renamed
        return True


def process_lives(pid: int, started: str | None = None) -> bool:
    """Return True if a process of this machine runs and has the start time ``started``."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    if (fields := _stat(pid)) is None:
        return not Path("/proc/self/stat").exists()
    # A killed process that nobody has waited for yet still has a number, and writes no more.
    return fields[0] != "Z" and started in (None, fields[19])


def start_of(pid: int) -> str | None:
    """Return the start time of a process in ticks since the boot, or None if the system has no /proc."""
    return fields[19] if (fields := _stat(pid)) else None


def _stat(pid: int) -> list[str] | None:
    """Return the fields of ``/proc/<pid>/stat`` from the state on."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return None


@contextlib.contextmanager
def lock(path: Path, holder: str, wait: float = 0.0) -> Iterator[None]:
    """Hold a file lock, which ends with this process. Raise InputError after ``wait`` seconds."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = path.open("a+", encoding="utf-8")
    try:
        deadline = time.monotonic() + max(wait, GLANCE)
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(file.fileno()).st_nlink:
                    break
                file.close()  # its holder has removed it, and others lock the next one of its name
                file = path.open("a+", encoding="utf-8")
            except OSError as error:
                if error.errno not in (errno.EAGAIN, errno.EACCES):
                    raise InputError(
                        f"{path}: the file system there has no locks ({error.strerror}), and one driver at a time may write; "
                        f"mount it with locks (NFS: not with nolock), or take a --storage on another one, or a bucket"
                    ) from None
                if time.monotonic() >= deadline:
                    file.seek(0)
                    other = file.read().strip() or "another process"
                    raise LockedError(f"{path} is held by {other}: {ONE_DRIVER}") from None
                time.sleep(0.1)
        file.truncate(0)
        file.write(f"{holder} (process {os.getpid()} on {os.uname().nodename})")
        file.flush()
        yield
    finally:
        file.close()


def is_locked(path: Path) -> bool:
    """Return True if a process of any machine holds a file lock, or if the file system has no answer."""
    try:
        with path.open(encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return not isinstance(error, FileNotFoundError)
    return False


@contextlib.contextmanager
def no_empty_folders(folder: Path) -> Iterator[None]:
    """Remove ``folder`` and its parents after the block if the block made them and left them empty."""
    absent = [path for path in (folder, *folder.parents) if not os.path.exists(path)]  # noqa: PTH110
    try:
        yield
    finally:
        for path in absent:
            with contextlib.suppress(OSError):  # it is used, or was not made
                path.rmdir()


def check_place(folder: Path, option: str) -> None:
    """Raise InputError if ``folder`` cannot be made, because a file stands there or above."""
    if any(os.path.isfile(path) for path in (folder, *folder.parents)):  # noqa: PTH113
        raise _not_writable(folder, option, os.strerror(errno.ENOTDIR))


def writable(folder: Path, option: str) -> Path:
    """Create ``folder`` if necessary, check that it takes files, and return it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / draft_name("probe")
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise _not_writable(folder, option, error.strerror) from None
    return folder


def _not_writable(folder: Path, option: str, reason: str | None) -> InputError:
    return InputError(
        f"{option} '{folder}' cannot be written to ({reason}): it must be a folder that you may write in; choose another one "
        f"with {option} PATH"
    )
