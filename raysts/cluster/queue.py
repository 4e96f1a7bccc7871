"""The queue of members that the workers of several Ray Train runs take from, one after the other.

No torch here: the queue is a process on the head.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Any, NamedTuple

Slot = tuple[int, int]
"""A worker: number of its Ray Train run, rank in it."""

Deaths = dict[int, tuple[str, bool]]
"""The workers of a run that died, by rank: what is known of it, and whether their node was taken away."""


@dataclass
class Progress:
    """What is known of a member that was begun.

    Attributes:
        stand: how far it was when it was last begun; anything that compares.
        deaths: of processes that worked on it, without its getting on in between.
        cause: what was known of the last of them.
    """

    stand: Any = None
    deaths: int = 0
    cause: str = ""


class QueueState(NamedTuple):
    """What a queue says to its driver.

    Attributes:
        ended: members that ended since it was last asked, each with the reason it failed, or None.
        training: members that workers have now.
        waiting: how many members wait.
        restarts: how many workers have died so far.
        refused: why nodes cannot take part.
    """

    ended: list[tuple[int, str | None]]
    training: list[int]
    waiting: int
    restarts: int
    refused: tuple[str, ...] = ()


@dataclass
class MemberQueue:
    """An actor that hands out members, of which it knows no more than their numbers.

    A member whose worker died is the next that a worker gets: the one that takes its place, or another that is free sooner.
    """

    count: int
    waiting: deque[int] = field(init=False)
    taken: dict[Slot, int] = field(default_factory=dict)
    progress: dict[int, Progress] = field(default_factory=dict)
    ended: list[tuple[int, str | None]] = field(default_factory=list)
    begun: dict[int, int] = field(default_factory=dict)
    held: dict[int, Any] = field(default_factory=dict)
    restarts: int = 0
    refused: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.waiting = deque(range(self.count))

    def take(self, slot: Slot) -> tuple[int, Progress] | None:
        """Hand out the next member, with what is known of it; None when none is left."""
        self._put_back(slot)  # of a worker that died before anybody could say so
        if not self.waiting:
            return None
        number = self.waiting.popleft()
        self.taken[slot] = number
        self.begun[slot[0]] = self.begun.get(slot[0], 0) + 1
        return number, self.progress.get(number, Progress())

    def begin(self, slot: Slot, progress: Progress) -> None:
        if slot in self.taken:
            self.progress[self.taken[slot]] = progress

    def end(self, slot: Slot, reason: str | None) -> None:
        number = self.taken.pop(slot, None)
        if number is not None:
            self.progress.pop(number, None)
            self.ended.append((number, reason))

    def hold(self, run: int, room: Any) -> None:
        """Keep the placement group of a run, for the driver to remove where the run no longer can."""
        self.held[run] = room

    def rooms(self) -> dict[int, Any]:
        return self.held

    def refuse(self, why: str) -> None:
        self.refused += (why,)

    def release(self, run: int, deaths: Deaths | None, cause: str) -> tuple[bool, int]:
        """Take back what the workers of a run had, which has ended; count who died.

        Args:
            run: its number.
            deaths: by rank; None: nobody knows who died first, so each had a part in it.
            cause: of those that are not named.

        Returns:
            Whether members are left, and how many the run's workers have begun so far.
        """
        for slot in sorted((slot for slot in self.taken if slot[0] == run), reverse=True):
            why, preempted = (cause, False) if deaths is None else deaths.get(slot[1], ("", True))
            if not preempted:
                progress = self.progress.setdefault(self.taken[slot], Progress())
                progress.deaths, progress.cause = progress.deaths + 1, why
            self._put_back(slot)
        self.held.pop(run, None)
        self.restarts += 1 if deaths is None else len(deaths)
        return bool(self.waiting), self.begun.get(run, 0)

    def state(self) -> QueueState:
        ended, self.ended = self.ended, []
        return QueueState(ended, sorted(self.taken.values()), len(self.waiting), self.restarts, self.refused)

    def _put_back(self, slot: Slot) -> None:
        number = self.taken.pop(slot, None)
        if number is not None:
            self.waiting.appendleft(number)
