"""The two ways a raysts command ends badly: the user's input is wrong, or a run failed."""

import contextlib
import difflib
import errno
import os
import re
from collections.abc import Iterable, Iterator

SECRET_NAMES = ("TOKEN", "SECRET", "PASSWORD", "PASSPHRASE", "CREDENTIALS", "KEY")
"""Last words of the names of environment variables that hold secrets."""

USER_INFO = re.compile(r"(?:(?<=://)|(?<=\w:/)(?!/))(?!anonymous@)(?:[^\s\"/@:]*:(?!\d+/)[^\s\"]*|[^\s\"/@:]+)@")
"""User and password of a URI, also of one that was taken for a path (``s3:/``); a password may hold slashes, a port does not
begin one."""


class InputError(ValueError):
    """The user's input is wrong (exit code 2): option, value, rule and remedy.

    Several problems found together travel as one error; ``problems`` keeps them apart.
    """

    def __init__(self, problems: str | Iterable[str]) -> None:
        self.problems = [problems] if isinstance(problems, str) else list(problems)
        super().__init__("\n".join(self.problems))


class LockedError(InputError):
    """Another live process holds a lock."""


class Problems(list[str]):
    """The problems of an input, for one error."""

    @contextlib.contextmanager
    def collect(self, place: str = "") -> Iterator[None]:
        """Add the problems of an InputError in the block, each behind a ``place``."""
        try:
            yield
        except InputError as error:
            self.extend(f"{place}: {problem}" if place else problem for problem in error.problems)

    def raise_any(self) -> None:
        if self:
            raise InputError(dict.fromkeys(self))


class RunFailed(RuntimeError):  # noqa: N818
    """A run failed after the work had started (exit code 3). The message has run, reason, log and remedy."""


class Infeasible(RunFailed):
    """A run that its settings cannot train: it has no batch, or its numbers are not finite."""


class StoreFailed(RunFailed):
    """An object store did not answer, or refused, for longer than is worth waiting."""


FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)
LIMITS = {
    **dict.fromkeys(FORBIDDEN, "you have no permission for that"),
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk is full: your quota is used up",
    errno.EFBIG: "a file would be larger than this process may write (see ulimit -f)",
    errno.EMFILE: "this process may have no more files open (see ulimit -n)",
    errno.EAGAIN: "this user may have no more processes or threads (see ulimit -u, and the limit of the container)",
    errno.ENOMEM: "this process gets no more memory (see ulimit -v, the limit of the container, and what else uses it)",
}
"""What an error of the system says that the machine does not give."""

NO_MEMORY = (
    "failed to map segment",  # the loader of libraries
    "out of memory",  # CUDA
    "can't allocate memory",  # torch
    "not enough memory",
    "ALLOC_FAILED",  # cuBLAS
    "could not create a primitive",  # oneDNN
    "ZSTD_DCtx create failed",
)
LIMIT_WORDS = {
    **{os.strerror(number): number for number in LIMITS},
    "start new thread": errno.EAGAIN,
    **dict.fromkeys(NO_MEMORY, errno.ENOMEM),
}
"""How libraries say the same without the number."""


def limit_of(error: BaseException) -> int | None:
    """Return the number of the limit of the machine that an error is about."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno if error.errno in LIMITS else None
    if isinstance(error, MemoryError):
        return errno.ENOMEM
    return next((number for words, number in LIMIT_WORDS.items() if words in str(error)), None)


def lacking(error: BaseException) -> bool:
    """Return True if the machine lacks something, so that the file which was read is not to blame."""
    return limit_of(error) not in (None, *FORBIDDEN)


def limit_reached(error: BaseException) -> str | None:
    """Return the limit of the machine that an error is about, with the remedy, or None."""
    if (number := limit_of(error)) is None:
        return None
    lacks = (
        "the GPU has no memory left (nvidia-smi shows what uses it)"
        if number == errno.ENOMEM and "CUDA" in str(error)
        else LIMITS[number]
    )
    return f"{lacks} ({error}); see to that and run the same command again: it goes on where it stopped"


def redact(text: str) -> str:
    """``text`` as records, reports and messages show it.

    Secrets of the environment stand there by their names, and URIs without user and password.
    """
    secrets = {
        value: name
        for name, value in os.environ.items()
        if len(value) >= 8 and name.upper().replace("-", "_").split("_")[-1] in SECRET_NAMES
    }
    for value in sorted(secrets, key=len, reverse=True):
        text = text.replace(value, f"${{{secrets[value]}}}")
    return USER_INFO.sub("...@", text)


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message without secrets, or its type."""
    return redact((str(error).strip() or type(error).__name__).splitlines()[0])


def nearest(name: str, names: Iterable[str]) -> str:
    """`` (did you mean 'x'?)`` for the name of ``names`` nearest to ``name``, else an empty string."""
    match = difflib.get_close_matches(name, list(names), n=1, cutoff=0.5)
    return f" (did you mean '{match[0]}'?)" if match else ""
