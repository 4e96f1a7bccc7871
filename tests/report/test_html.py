from __future__ import annotations

import pytest
from jinja2 import UndefinedError

from raysts.report.html import quantity, render


def test_a_page_is_escaped_text_and_a_value_that_is_not_there_is_an_error() -> None:
    assert "<title></title>" in render("page.html")
    page = render("study.html", **_study("<b>\x1b&\ud800"))
    assert "<h1>&lt;b&gt;\ufffd&amp;\ufffd</h1>" in page
    page.encode("utf-8")
    with pytest.raises(UndefinedError):
        render("study.html", charts=[], trials=0)


def _study(name: str) -> dict[str, object]:
    data = {
        "name": name, "created_at": "2026-01-01T00:00:00+00:00", "headline": [], "outcomes": {}, "trial_seconds": 0.0,
        "options": {}, "table": ([], []), "command": "", "winning": None, "facts": {}, "notes": [],
    }  # fmt: skip
    return {"data": data, "charts": [], "trials": 0}


def test_numbers_as_people_read_them() -> None:
    texts = [quantity(value) for value in (None, float("nan"), 0.01234, 12.345, 99.5, 100.4, 12345.6)]
    assert texts == ["–", "–", "0.0123", "12.3", "99.5", "100", "12,346"]
