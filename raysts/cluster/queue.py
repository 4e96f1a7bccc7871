"""The queue of members, from which the workers of several Ray Train runs take one after the other. No torch here."""

from collections import Counter, deque
from typing import Any, NamedTuple

Slot = tuple[int, int]
"""A worker: number of its Ray Train run, rank in it."""

Deaths = dict[int, tuple[str, bool]]
"""The workers of a run that died, by rank: the cause, and whether their node was taken away."""


class Progress(NamedTuple):
    """The progress of a member that was begun: what lay on disk, and the deaths since then with the last cause."""

    stand: Any = None
    deaths: int = 0
    cause: str = ""


class QueueState(NamedTuple):
    """What a queue tells its driver.

    Attributes:
        ended: members that ended since the last call, each with the reason why it failed, or None.
        training: members that workers have.
        waiting: members that wait.
        restarts: workers that have died so far.
        refused: reasons why nodes cannot take part.
    """

    ended: list[tuple[int, str | None]]
    training: list[int]
    waiting: int
    restarts: int
    refused: tuple[str, ...] = ()


class MemberQueue:
    """An actor that hands out members by their numbers. The member of a dead worker is the next to be taken."""

    def __init__(self, count: int) -> None:
        self.waiting = deque(range(count))
        self.taken: dict[Slot, int] = {}
        self.progress: dict[int, Progress] = {}
        self.ended: list[tuple[int, str | None]] = []
        self.begun: Counter[int] = Counter()
        self.held: dict[int, str] = {}
        self.restarts = 0
        self.refused: tuple[str, ...] = ()

    def take(self, slot: Slot) -> int | None:
        """Return the next member, or None when none is left."""
        self._put_back(slot)  # of a worker that died before the driver noticed
        if not self.waiting:
            return None
        self.taken[slot] = self.waiting.popleft()
        self.begun[slot[0]] += 1
        return self.taken[slot]

    def begin(self, slot: Slot, stand: Any) -> Progress:
        """Return the progress of a slot's member; deaths count only as long as what lies on disk stays the same."""
        progress = self.progress.get(self.taken[slot], Progress())
        self.progress[self.taken[slot]] = progress._replace(
            stand=stand, deaths=progress.deaths if progress.stand == stand else 0
        )
        return self.progress[self.taken[slot]]

    def end(self, slot: Slot, reason: str | None) -> None:
        """Take note that a slot's member has ended."""
        if slot in self.taken:
            self.ended.append((self.taken.pop(slot), reason))

    def hold(self, run: int, group: str) -> None:
        """Keep the id of a run's placement group, which the driver removes where the run no longer can."""
        self.held[run] = group

    def groups(self) -> dict[int, str]:
        """Return id of the placement group by run."""
        return self.held

    def refuse(self, reason: str) -> None:
        """Take note that a node cannot take part."""
        self.refused += (reason,)

    def release(self, run: int, deaths: Deaths | None, cause: str) -> tuple[bool, int]:
        """Take back the members of a run that has ended.

        Args:
            run: its number.
            deaths: of its workers. None: all died, of ``cause``.
            cause: of deaths that are not named.

        Returns:
            Whether members are left, and how many the run's workers have begun so far.
        """
        for slot in sorted((slot for slot in self.taken if slot[0] == run), reverse=True):
            why, preempted = (cause, False) if deaths is None else deaths.get(slot[1], ("", True))
            if not preempted:
                progress = self.progress.get(self.taken[slot], Progress())
                self.progress[self.taken[slot]] = progress._replace(deaths=progress.deaths + 1, cause=why)
            self._put_back(slot)
        self.held.pop(run, None)
        self.restarts += 1 if deaths is None else len(deaths)
        return bool(self.waiting), self.begun[run]

    def state(self) -> QueueState:
        """Return how the members stand."""
        ended, self.ended = self.ended, []
        return QueueState(ended, sorted(self.taken.values()), len(self.waiting), self.restarts, self.refused)

    def _put_back(self, slot: Slot) -> None:
        if slot in self.taken:
            self.waiting.appendleft(self.taken.pop(slot))
