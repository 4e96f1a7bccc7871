from __future__ import annotations

import pytest

from raysts.report.run import throughput


def test_throughput_adds_up_time_not_rates() -> None:
    # 10 steps at 100/s and 10 at 50/s of equal batches: 20 steps in the time of 30 steps at 100/s.
    lines = [{"step": 10, "examples_per_second": 100.0}, {"step": 20, "examples_per_second": 50.0}]
    assert throughput(lines) == pytest.approx(200 / 3)
    assert throughput([]) is None
