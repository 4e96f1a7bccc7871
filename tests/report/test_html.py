import pytest
from jinja2 import UndefinedError

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


def test_throughput_adds_up_time_not_rates() -> None:
    # 10 steps at 100/s and 10 at 50/s of equal batches: 20 steps in the time of 30 steps at 100/s.
    lines = [{"step": 10, "examples_per_second": 100.0}, {"step": 20, "examples_per_second": 50.0}]
    assert throughput(lines) == pytest.approx(200 / 3) and throughput([]) is None
