from __future__ import annotations

import pytest

from raysts.report.charts import fit_scale, tick_text


def test_ticks_are_round_and_inside() -> None:
    for values in ([0.0, 1.0], [0.681, 0.692], [-5.0, 1e6], [3.0, 3.0], [0.0, 0.0], []):
        scale = fit_scale(values, 0, 100)
        ticks = scale.ticks(5)
        assert 2 <= len(ticks) <= 8 and all(scale.low <= tick <= scale.high for tick in ticks)
        assert all(0 <= scale(value) <= 100 for value in values)
    scale = fit_scale([1e-3, 50.0], 0, 100, log=True)
    assert all(scale.low <= tick <= scale.high for tick in scale.ticks(5)) and 0.01 in scale.ticks(5)
    assert scale((scale.low * scale.high) ** 0.5) == pytest.approx(50)


def test_the_text_of_a_tick_is_its_value() -> None:
    values = [0.0, 0.5, 1e5, 150_000.0, 250_000.0, 123_450.0, 1e-6, 2.5e-5, 7.5e-5, -1.25e-4]
    texts = ["0", "0.5", "1e5", "1.5e5", "2.5e5", "1.2345e5", "1e-6", "2.5e-5", "7.5e-5", "-1.25e-4"]
    assert list(map(tick_text, values)) == texts
