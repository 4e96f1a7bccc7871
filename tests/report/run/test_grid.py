from __future__ import annotations

from report_samples import node, report_data

from raysts.report.run.grid import cells


def test_each_node_stands_right_of_its_needs_and_goes_on_in_their_row() -> None:
    nodes = report_data(3, ("nli", "ct")).nodes
    placed = cells(nodes)
    assert len(set(placed.values())) == len(nodes)
    for summary in nodes:
        assert all(placed[need][0] < placed[summary.id][0] for need in summary.needs)
    trained = [summary for summary in nodes if summary.title.startswith("member")]
    assert [placed[summary.id] for summary in trained] == [(1, 0), (2, 0), (1, 1), (2, 1), (1, 2), (2, 2)]
    assert [placed[name][0] for name in ("tokens-ct", "teacher", "evaluate-members", "evaluate-student")] == [
        0,
        3,
        3,
        5,
    ]
    broken = [node("a", "train", "a", "nowhere", "b"), node("b", "train", "b", "b", "a")]
    assert cells(broken) == {"a": (0, 0), "b": (1, 0)}  # what is not there, or comes later, is ignored
