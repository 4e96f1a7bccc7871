from __future__ import annotations

from raysts.training.monitor import duration


def test_durations_as_people_read_them() -> None:
    seconds = (None, float("inf"), 0.04, 9.94, 9.96, 59.4, 59.6, 61.0, 3599.4, 3600.0, 7325.0)
    assert [duration(value) for value in seconds] == [
        "–", "–", "0.0 s", "9.9 s", "10 s", "59 s", "1 min 00 s", "1 min 01 s", "59 min 59 s", "1 h 00 min", "2 h 02 min",
    ]  # fmt: skip
