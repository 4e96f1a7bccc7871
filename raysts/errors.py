"""The two ways a raysts command ends badly: the user's input is wrong, or a run failed."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """The user's input is wrong (exit code 2). The message says what, the value, the rule and the remedy.

    Several problems found together travel as one error; ``problems`` keeps them apart.
    """

    def __init__(self, problems: str | Iterable[str]) -> None:
        self.problems = [problems] if isinstance(problems, str) else list(problems)
        super().__init__("\n".join(self.problems))


class RunFailed(RuntimeError):  # noqa: N818
    """A run failed after the work had started (exit code 3): which, why, where its log is, how to go on."""


class StoreFailed(RunFailed):
    """An object store did not answer, or refused, for longer than is worth waiting."""


def nearest(name: str, known: Iterable[str]) -> str:
    """`` (did you mean 'x'?)`` for the known name nearest to ``name``, else an empty string."""
    match = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f" (did you mean '{match[0]}'?)" if match else ""
