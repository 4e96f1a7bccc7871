from __future__ import annotations

import pytest

from raysts.report.charts import fit_scale


def test_ticks_are_round_and_inside() -> None:
    for values in ([0.0, 1.0], [0.681, 0.692], [-5.0, 1e6], [3.0, 3.0], [0.0, 0.0], []):
        scale = fit_scale(values, 0, 100)
        ticks = scale.ticks(5)
        assert 2 <= len(ticks) <= 8 and all(scale.low <= tick <= scale.high for tick in ticks)
        assert all(0 <= scale(value) <= 100 for value in values)
    scale = fit_scale([1e-3, 50.0], 0, 100, log=True)
    assert all(scale.low <= tick <= scale.high for tick in scale.ticks(5)) and 0.01 in scale.ticks(5)
    assert scale((scale.low * scale.high) ** 0.5) == pytest.approx(50)
