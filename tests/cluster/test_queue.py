from __future__ import annotations

import math

import pytest

from raysts.cluster.queue import Piece, WorkQueue, widths


def test_pieces_are_handed_out_once_and_in_order() -> None:
    queue = WorkQueue(3)
    assert [queue.take((run, 0)) for run in (0, 1)] == [(0, Piece()), (1, Piece())]
    assert queue.state() == ([], [0, 1], 1, 0, ())
    queue.end((1, 0), ["it cannot be learned"])
    assert queue.take((1, 0)) == (2, Piece()) and queue.take((2, 0)) is None
    queue.end((0, 0), [None])
    assert queue.state() == ([(1, ["it cannot be learned"]), (0, [None])], [2], 0, 0, ())
    assert queue.state() == ([], [2], 0, 0, ())  # what ended is told once


def test_what_a_dead_worker_had_is_next_and_its_deaths_are_counted() -> None:
    queue = WorkQueue(3)
    for rank in (0, 1):
        queue.take((0, rank))
    queue.begin((0, 1), Piece(stand="step 5"))
    queue.died((0, 1), "out of memory", preempted=False)
    assert queue.take((1, 0)) == (1, Piece("step 5", 1, "out of memory"))  # whoever is free first
    queue.begin((1, 0), Piece("step 5", 1, "out of memory"))
    queue.died((1, 0), "", preempted=True)
    assert queue.take((0, 1)) == (1, Piece("step 5", 1, "out of memory"))
    assert queue.state().restarts == 2
    queue.end((1, 0), [None])  # it lived after all; another has its piece
    assert queue.state().ended == []


def test_what_the_workers_of_a_run_had_goes_back() -> None:
    queue = WorkQueue(4)
    for slot in ((0, 0), (1, 0), (1, 1)):
        queue.take(slot)
    assert queue.release(1) == (True, 2) and queue.release(2) == (True, 0)
    assert sorted(queue.waiting) == [1, 2, 3] and queue.taken == {(0, 0): 0}
    assert queue.take((0, 0)) is not None and 0 in {*queue.waiting, *queue.taken.values()}
    assert WorkQueue(0).release(0) == (False, 0)


@pytest.mark.parametrize(
    ("slots", "expected"),
    [(0, [1]), (1, [1]), (2, [1, 1]), (3, [1, 1, 1]), (8, [1, 1, 2, 4]), (14, [1, 1, 2, 4, 6])],
)
def test_widths(slots: int, expected: list[int]) -> None:
    assert widths(slots) == expected


def test_few_runs_hold_many_slots_and_half_of_what_is_there_works() -> None:
    for slots in range(1, 1001):
        found = widths(slots)
        assert sum(found) == slots and len(found) <= 1 + math.ceil(math.log2(slots))
        for there in range(1, slots + 1):  # nodes come one by one, and the narrowest run that still waits begins
            working = 0
            for width in found:
                working += width if working + width <= there else 0
            assert 2 * working >= there, (slots, there)
