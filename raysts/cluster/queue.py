"""The queue of members for the workers of several Ray Train runs. No torch here."""

from collections import Counter, deque
from typing import Any, NamedTuple

Slot = tuple[int, int]  # a worker: number of its Ray Train run, rank in it


class RunEnd(NamedTuple):
    """The end of a Ray Train run."""

    cause: str = ""
    # The cause by rank, and whether its node was taken away. None: all died of the run's cause.
    deaths: dict[int, tuple[str, bool]] | None = {}  # noqa: RUF012
    waited: bool = False  # it found no room


class Progress(NamedTuple):
    """A member's state on disk when it last began, the deaths since then, and their last cause."""

    stand: Any = None
    deaths: int = 0
    cause: str = ""


class QueueState(NamedTuple):
    """The state of all members. Each that ended since the last call has a reason to fail, or None."""

    ended: list[tuple[int, str | None]]
    training: list[int]
    waiting: list[int]
    restarts: int
    refused: tuple[str, ...]
    begun: list[int]  # numbers of the runs that have workers


class MemberQueue:
    """An actor that hands out members by number. A dead worker's member is the next."""

    def __init__(self, count: int) -> None:
        self.waiting = deque(range(count))
        self.taken: dict[Slot, int] = {}
        self.progress = [Progress()] * count
        self.ended: list[tuple[int, str | None]] = []
        self.failures: Counter[int] = Counter()  # by run, how often it ended since its workers last began a member
        self.groups: dict[int, str] = {}  # by run, the id of its placement group
        self.restarts = 0
        self.refused: tuple[str, ...] = ()

    def take(self, slot: Slot) -> int | None:
        """Return the next member, or None when none is left."""
        self._put_back(slot)  # of a worker that died before the driver noticed
        if not self.waiting:
            return None
        self.taken[slot], self.failures[slot[0]] = self.waiting.popleft(), -1
        return self.taken[slot]

    def begin(self, slot: Slot, stand: Any) -> Progress:
        """Return the progress of a slot's member. Deaths count while its state on disk stays the same."""
        before, member = self.progress[self.taken[slot]], self.taken[slot]
        self.progress[member] = before._replace(stand=stand, deaths=before.deaths if before.stand == stand else 0)
        return self.progress[member]

    def end(self, slot: Slot, reason: str | None) -> None:
        if slot in self.taken:
            self.ended.append((self.taken.pop(slot), reason))

    def hold(self, run: int, group: str) -> None:
        """Note the id of a run's placement group, which the driver removes where the run no longer can."""
        self.groups[run] = group

    def refuse(self, reason: str) -> None:
        self.refused += (reason,)

    def release(self, run: int, ended: RunEnd) -> tuple[bool, int, set[str], set[str]]:
        """Take back a run's members.

        Return if members wait, how often the run ended without any, its placement group and those of the other runs.
        """
        silent = (ended.cause, False) if ended.deaths is None else ("", True)
        for slot in sorted((slot for slot in self.taken if slot[0] == run), reverse=True):
            cause, preempted = (ended.deaths or {}).get(slot[1], silent)
            before, member = self.progress[self.taken[slot]], self.taken[slot]
            if not preempted:
                self.progress[member] = before._replace(deaths=before.deaths + 1, cause=cause)
            self._put_back(slot)
        group = {self.groups.pop(run)} if run in self.groups else set()
        self.restarts += 1 if ended.deaths is None else len(ended.deaths)
        self.failures[run] = 0 if ended.waited else self.failures[run] + 1
        return bool(self.waiting), self.failures[run], group, set(self.groups.values())

    def state(self) -> QueueState:
        ended, self.ended = self.ended, []
        training, waiting = sorted(self.taken.values()), [*self.waiting]
        return QueueState(ended, training, waiting, self.restarts, self.refused, [*self.groups])

    def _put_back(self, slot: Slot) -> None:
        if slot in self.taken:
            self.waiting.appendleft(self.taken.pop(slot))
