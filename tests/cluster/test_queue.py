from __future__ import annotations

from typing import Any

import pytest

from raysts.cluster.queue import MemberQueue, RunEnd


def test_members_are_handed_out_once_and_in_order() -> None:
    queue = MemberQueue(3)
    assert [queue.take((run, 0)) for run in (0, 1)] == [0, 1]
    queue.hold(0, "group")
    assert queue.state() == ([], [0, 1], [2], 0, (), [0])
    queue.end((1, 0), "it cannot be learned")
    assert queue.take((1, 0)) == 2 and queue.take((2, 0)) is None
    queue.end((0, 0), None)
    assert queue.state() == ([(1, "it cannot be learned"), (0, None)], [2], [], 0, (), [0])
    assert queue.state() == ([], [2], [], 0, (), [0])  # what ended is told once


@pytest.mark.parametrize(("deaths", "stands", "counts"), [
    ({0: ("killed", False)}, ["5", "5", "5"], [0, 1, 2]),
    ({0: ("killed", False)}, ["5", "5", "10", "10"], [0, 1, 0, 1]),  # it got on in between
    ({0: ("killed", True)}, ["5", "5"], [0, 0]),  # its node was taken away
    ({1: ("killed", False)}, ["5", "5"], [0, 0]),  # another worker of its run died
    (None, ["5", "5"], [0, 1]),  # nobody knows who died
])  # fmt: skip
def test_deaths_without_progress_are_counted(deaths: Any, stands: list[str], counts: list[int]) -> None:
    queue = MemberQueue(1)
    for stand, count in zip(stands, counts, strict=True):
        assert queue.take((0, 0)) == 0
        progress = queue.begin((0, 0), stand)
        assert progress.deaths == count and (not count or progress.cause == ("killed" if deaths else "gone"))
        queue.release(0, RunEnd("gone", deaths))


def test_what_a_dead_worker_had_is_next() -> None:
    queue = MemberQueue(4)
    for slot in ((0, 0), (0, 1), (0, 2), (1, 0)):
        queue.take(slot)
    assert queue.release(0, RunEnd("", {1: ("out of memory", False), 2: ("", True)})) == (True, 0, set(), set())
    assert [queue.release(2, RunEnd())[1] for _ in range(3)] == [1, 2, 3]  # it begins no member
    assert queue.release(2, RunEnd("no room", {}, waited=True)) == (True, 0, set(), set())
    assert [queue.take((0, rank)) for rank in range(3)] == [0, 1, 2]
    assert [queue.begin((0, rank), None).deaths for rank in range(3)] == [0, 1, 0]
    assert queue.state().restarts == 2
    assert queue.take((0, 1)) == 1  # of a worker that died before anybody could say so


def test_a_run_that_is_gone_without_a_word_leaves_its_room() -> None:
    queue = MemberQueue(3)
    for slot in ((0, 0), (1, 0), (1, 1)):
        queue.take(slot)
    queue.hold(0, "the room of another run")
    queue.hold(1, "its room")
    assert queue.release(1, RunEnd("the node died", None)) == (True, 0, {"its room"}, {"the room of another run"})
    assert queue.taken == {(0, 0): 0} and list(queue.waiting) == [1, 2]
    queue.end((9, 9), None)  # who has nothing changes nothing
    assert queue.state().ended == [] and MemberQueue(0).release(0, RunEnd()) == (False, 1, set(), set())
