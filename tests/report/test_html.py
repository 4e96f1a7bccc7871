from __future__ import annotations

import pytest
from jinja2 import UndefinedError

from raysts.report.charts import Scale, fit_scale, tick_text
from raysts.report.html import quantity, render
from raysts.report.run import throughput


def test_a_page_is_escaped_text_and_a_value_that_is_not_there_is_an_error() -> None:
    assert "<title></title>" in render("page.html")
    page = render("index.html", storage="<b>\x1b&\ud800", created_at="2026-01-01T00:00:00+00:00", runs=[], studies=[])
    assert "<title>&lt;b&gt;\ufffd&amp;\ufffd" in page
    page.encode("utf-8")
    with pytest.raises(UndefinedError):
        render("index.html", storage="s")


def test_numbers_as_people_read_them() -> None:
    texts = [quantity(value) for value in (None, float("nan"), 0.01234, 12.345, 99.5, 100.4, 12345.6)]
    assert texts == ["–", "–", "0.0123", "12.3", "99.5", "100", "12,346"]


def test_ticks_are_round_and_inside() -> None:
    for values in ([0.0, 1.0], [0.681, 0.692], [-5.0, 1e6], [3.0, 3.0], [0.0, 0.0], []):
        scale = fit_scale(values, 0, 100)
        ticks = scale.ticks(5)
        assert 2 <= len(ticks) <= 8 and all(scale.low <= tick <= scale.high for tick in ticks)
        assert all(0 <= scale(value) <= 100 for value in values)
    scale = fit_scale([1e-3, 50.0], 0, 100, log=True)
    assert all(scale.low <= tick <= scale.high for tick in scale.ticks(5)) and 0.01 in scale.ticks(5)
    assert scale((scale.low * scale.high) ** 0.5) == pytest.approx(50)
    assert scale.ticks(5) == pytest.approx([0.001, 0.01, 0.1, 1, 10])
    assert scale.ticks(8) == pytest.approx([0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30])
    # A margin of 6 % on both sides, or a range of its own around a constant.
    for values, ends in (([0.0, 1.0], (-0.06, 1.06)), ([3.0, 3.0], (2.7, 3.3)), ([0.0, 0.0], (-0.5, 0.5))):
        scale = fit_scale(values, 0, 100)
        assert (scale.low, scale.high) == pytest.approx(ends)
    assert fit_scale([0.0, 1.0], 0, 100).ticks(5) == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert Scale(0.5, 3.5, 0, 30).marks(5, integers=True) == [(5.0, "1"), (15.0, "2"), (25.0, "3")]
    halves, every = Scale(0, 4, 0, 8).marks(8), Scale(0, 4, 0, 8).marks(3, integers=True)
    assert [text for _, text in halves] == ["0", "0.5", "1", "1.5", "2", "2.5", "3", "3.5", "4"]
    assert every == [(0.0, "0"), (4.0, "2"), (8.0, "4")], "five whole numbers, of which there is room for three"


def test_the_text_of_a_tick_is_its_value() -> None:
    values = [0.0, 0.5, 1e5, 150_000.0, 250_000.0, 123_450.0, 1e-6, 2.5e-5, 7.5e-5, -1.25e-4]
    texts = ["0", "0.5", "1e5", "1.5e5", "2.5e5", "1.2345e5", "1e-6", "2.5e-5", "7.5e-5", "-1.25e-4"]
    assert list(map(tick_text, values)) == texts


def test_throughput_adds_up_time_not_rates() -> None:
    # 10 steps at 100/s and 10 at 50/s of equal batches: 20 steps in the time of 30 steps at 100/s.
    lines = [{"step": 10, "examples_per_second": 100.0}, {"step": 20, "examples_per_second": 50.0}]
    assert throughput(lines) == pytest.approx(200 / 3)
    assert throughput([]) is None
