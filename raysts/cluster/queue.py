"""The queue of work that the workers of several Ray Train runs take from, one piece after the other.

No torch here: the queue is a process on the head.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

Slot = tuple[int, int]
"""A worker: number of its Ray Train run, rank in it."""


@dataclass
class Piece:
    """What is known of a piece of work.

    Attributes:
        stand: how far it was when it was last begun; anything that compares.
        deaths: of processes that worked on it, without its getting on in between.
        cause: what was known of the last of them.
    """

    stand: Any = None
    deaths: int = 0
    cause: str = ""


class QueueState(NamedTuple):
    """What a queue says to its driver. ``ended``: pieces that ended since it was last asked, each with its outcome.
    ``restarts``: how often a worker died, so far."""

    ended: list[tuple[int, Any]]
    training: list[int]
    waiting: int
    restarts: int
    refused: tuple[str, ...] = ()


@dataclass
class WorkQueue:
    """An actor. It knows of a piece of work no more than its number.

    A piece whose worker died is the next that a worker gets: the one that takes its place, or another that is free sooner.
    """

    count: int
    waiting: deque[int] = field(init=False)
    taken: dict[Slot, int] = field(default_factory=dict)
    pieces: dict[int, Piece] = field(default_factory=dict)
    ended: list[tuple[int, Any]] = field(default_factory=list)
    begun: dict[int, int] = field(default_factory=dict)
    restarts: int = 0
    refused: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.waiting = deque(range(self.count))

    def take(self, slot: Slot) -> tuple[int, Piece] | None:
        """The next piece, with what is known of it; None when none is left."""
        self._put_back(slot)  # a worker that died before anybody could say so
        if not self.waiting:
            return None
        number = self.waiting.popleft()
        self.taken[slot] = number
        self.begun[slot[0]] = self.begun.get(slot[0], 0) + 1
        return number, self.pieces.get(number, Piece())

    def begin(self, slot: Slot, piece: Piece) -> None:
        self.pieces[self.taken[slot]] = piece

    def end(self, slot: Slot, outcome: Any) -> None:
        number = self.taken.pop(slot, None)
        if number is not None:
            self.pieces.pop(number, None)
            self.ended.append((number, outcome))

    def died(self, slot: Slot, cause: str, preempted: bool) -> None:
        """A worker is no more; that its node was taken away is nobody's fault."""
        self.restarts += 1
        number = self.taken.get(slot)
        if number is not None and not preempted:
            known = self.pieces.setdefault(number, Piece())
            known.deaths, known.cause = known.deaths + 1, cause
        self._put_back(slot)

    def refuse(self, why: str) -> None:
        self.refused += (why,)

    def release(self, run: int) -> tuple[bool, int]:
        """Nothing is left of a run's workers; whether work is left, and how many pieces they have begun so far."""
        for slot in [slot for slot in self.taken if slot[0] == run]:
            self._put_back(slot)
        return bool(self.waiting), self.begun.get(run, 0)

    def state(self) -> QueueState:
        ended, self.ended = self.ended, []
        return QueueState(ended, sorted(self.taken.values()), len(self.waiting), self.restarts, self.refused)

    def _put_back(self, slot: Slot) -> None:
        number = self.taken.pop(slot, None)
        if number is not None:
            self.waiting.appendleft(number)


def tell_death(queue: Any, run: int, rank: int, cause: str, preempted: bool) -> None:
    """In a controller: what it learned of a worker."""
    queue.died.remote((run, rank), cause, preempted)


def widths(slots: int) -> Sequence[int]:
    """How many of ``slots`` workers each Ray Train run gets: 1, 1, 2, 4, 8 ...

    A run costs the head 0.23 GB, so there are few: 1 + log2(slots). A run begins when there is room for all of its workers:
    of so many as can be there at least half work, however few.
    """
    found = [1]
    while sum(found) < slots:
        found.append(min(sum(found), slots - sum(found)))
    return found
