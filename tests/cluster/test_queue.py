from __future__ import annotations

import pytest

from raysts.cluster.queue import MemberQueue, Progress


def test_members_are_handed_out_once_and_in_order() -> None:
    queue = MemberQueue(3)
    assert [queue.take((run, 0)) for run in (0, 1)] == [(0, Progress()), (1, Progress())]
    assert queue.state() == ([], [0, 1], 1, 0, ())
    queue.end((1, 0), "it cannot be learned")
    assert queue.take((1, 0)) == (2, Progress()) and queue.take((2, 0)) is None
    queue.end((0, 0), None)
    assert queue.state() == ([(1, "it cannot be learned"), (0, None)], [2], 0, 0, ())
    assert queue.state() == ([], [2], 0, 0, ())  # what ended is told once


def test_what_a_dead_worker_had_is_next_and_its_deaths_are_counted() -> None:
    queue = MemberQueue(4)
    for slot in ((0, 0), (0, 1), (0, 2), (1, 0)):
        queue.take(slot)
    queue.begin((0, 1), Progress("step 5"))
    deaths = {1: ("out of memory", False), 2: ("", True)}
    assert queue.release(0, deaths, "") == (True, 3) and queue.release(2, {}, "") == (True, 0)
    # Who was ended with it, or with its node, has nothing on its account.
    assert [queue.take((0, rank)) for rank in range(3)] == [
        (0, Progress()), (1, Progress("step 5", 1, "out of memory")), (2, Progress())
    ]  # fmt: skip
    assert queue.state().restarts == 2
    queue.end((0, 1), None)
    assert queue.state().ended == [(1, None)]


def test_a_run_that_is_gone_without_a_word_counts_for_all_its_members() -> None:
    queue = MemberQueue(3)
    for slot in ((0, 0), (1, 0), (1, 1)):
        queue.take(slot)
    queue.hold(1, "its room")
    assert queue.release(1, None, "the node died") == (True, 2) and queue.rooms() == {}
    assert queue.taken == {(0, 0): 0} and list(queue.waiting) == [1, 2]
    assert queue.take((0, 0)) == (0, Progress())  # a worker that died before anybody could say so
    assert queue.take((2, 0)) == (1, Progress(None, 1, "the node died"))
    queue.begin((9, 9), Progress())  # who has nothing changes nothing
    queue.end((9, 9), None)
    assert queue.state().ended == [] and MemberQueue(0).release(0, {}, "") == (False, 0)


@pytest.mark.parametrize("deaths", [{0: ("killed", False)}, {0: ("killed", True)}])
def test_a_node_that_was_taken_away_is_nobodys_fault(deaths: dict[int, tuple[str, bool]]) -> None:
    queue = MemberQueue(1)
    queue.take((0, 0))
    queue.release(0, deaths, "")
    taken = queue.take((0, 0))
    assert taken is not None and taken[1].deaths == (0 if deaths[0][1] else 1)
