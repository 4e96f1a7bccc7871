"""Axes and labels of charts: ticks are round, inside and true; names stand beside their points and each other."""

from typing import Any
from xml.etree import ElementTree

import pytest

from raysts.report.charts import Dot, Scale, draw_line, fit_scale, place_labels, tick_text


@pytest.mark.parametrize(("values", "log", "low", "high"), [
    ([0.0, 1.0], False, -0.06, 1.06), ([-5.0, 1e6], False, -60005.3, 1060000.3), ([], False, -0.06, 1.06),
    ([3.0, 3.0], False, 2.7, 3.3), ([-3.0, -3.0 + 1e-10], False, -3.3, -2.7), ([0.0, 0.0], False, -0.5, 0.5),
    ([1.0, 1e5], True, 1e-5**0.06, 1e5**1.06), ([1.0, 2.0], True, 1 / 1.05, 2.1),
])  # fmt: skip
def test_a_scale_has_a_margin_and_a_constant_a_range(values: list[float], log: bool, low: float, high: float) -> None:
    scale = fit_scale(values, 0, 100, log=log)
    assert (scale.low, scale.high) == pytest.approx((low, high))
    assert 2 <= len(ticks := scale.ticks(5)) <= 8 and all(low <= tick <= high for tick in ticks)
    middle = (low * high) ** 0.5 if log else (low + high) / 2
    assert (scale(low), scale(middle), scale(high)) == pytest.approx((0, 50, 100), abs=1e-5)


@pytest.mark.parametrize(("scale", "count", "integers", "ticks"), [
    (Scale(0, 10, 0, 1), 5, False, "0 2 4 6 8 10"),
    (Scale(0, 4, 0, 1), 8, False, "0 0.5 1 1.5 2 2.5 3 3.5 4"),
    (Scale(1.1, 1.6, 0, 1), 5, False, "1.1 1.2 1.3 1.4 1.5 1.6"),  # 1.1 / 0.1 is a little above 11
    (Scale(0.2, 0.7, 0, 1), 5, False, "0.2 0.3 0.4 0.5 0.6 0.7"),  # and 0.7 / 0.1 a little below 7
    (Scale(1, 100, 0, 1, log=True), 5, False, "1 2 5 10 20 50 100"),
    (Scale(1e-3, 50, 0, 1, log=True), 8, False, "0.001 0.003 0.01 0.03 0.1 0.3 1 3 10 30"),
    (Scale(1e-3, 50, 0, 1, log=True), 5, False, "0.001 0.01 0.1 1 10"),
    (Scale(1e-12, 1e12, 0, 1, log=True), 5, False, "1e-12 1e-7 0.01 1,000 1e8"),
    (Scale(0.5, 3.5, 0, 1), 5, True, "1 2 3"),
    (Scale(-0.9, 4.9, 0, 1), 5, True, "0 1 2 3 4"),  # there is room for all
    (Scale(-0.9, 4.9, 0, 1), 4, True, "0 2 4"),
])  # fmt: skip
def test_ticks_are_round_and_inside_and_of_counts_whole(scale: Scale, count: int, integers: bool, ticks: str) -> None:
    marks = scale.marks(count, integers)
    assert [text for _, text in marks] == ticks.split()
    assert [place for place, _ in marks] == pytest.approx([scale(float(text.replace(",", ""))) for _, text in marks])


def test_the_text_of_a_tick_is_its_value() -> None:
    values = [0.0, 0.5, 1e-3, 99_999.0, 1e5, 150_000.0, 123_450.0, 1e-6, 2.5e-5, -1.25e-4]
    texts = ["0", "0.5", "0.001", "99,999", "1e5", "1.5e5", "1.2345e5", "1e-6", "2.5e-5", "-1.25e-4"]
    assert list(map(tick_text, values)) == texts


@pytest.mark.parametrize(("points", "name", "last"), [
    ([(100, 100)], "ab", (106, 94, None)),
    ([(536, 100)], "ab", (542, 94, None)),  # two letters, 18 pixels, end at the right edge
    ([(537, 100)], "ab", (531, 94, "end")),
    ([(366, 100)], "w" * 40, (360, 94, "end")),  # begins at the left edge
    ([(365, 100)], "w" * 40, (371, 94, None)),  # has no room
    ([(100, 20)], "ab", (106, 14, None)),
    ([(100, 19)], "ab", (106, 39, None)),  # would be cut above
    ([(100, 214)], "ab", (106, 208, None)),
    ([(100, 215)], "ab", (106, 191, None)),  # would lie on the axis
    ([(100, 100), (118, 100)], "ab", (124, 94, None)),  # beside the first name
    ([(100, 100), (117, 100)], "ab", (123, 120, None)),
    ([(100, 100), (112, 100)], "ab", (106, 94, "end")),
    ([(100, 100), (113, 100)], "ab", (119, 120, None)),
    ([(100, 100), (100, 114)], "ab", (106, 108, None)),  # a line below the first name
    ([(100, 100), (100, 113)], "ab", (94, 107, "end")),
    ([(100, 188)] * 3, "ab", (106, 208, None)),
    ([(100, 189)] * 3, "ab", (106, 165, None)),
])  # fmt: skip
def test_a_name_stands_by_its_point_alone_and_inside(points: list[tuple[float, float]], name: str, last: Any) -> None:
    label = ElementTree.fromstring(place_labels([(*point, name) for point in points])[-1])
    assert (float(label.attrib["x"]), float(label.attrib["y"]), label.get("text-anchor"), label.text) == (*last, name)


def test_dots_have_error_bars_to_both_sides_and_many_do_not_hide_their_line() -> None:
    dot, scale = Dot(x=1, y=5, text="t", std=2, singles=[4, 9], ring=True), Scale(0, 10, 0, 100)
    assert dot.ends == [3, 7, 4, 9] and Dot(x=1, y=5, text="t").ends == [5, 5]
    bar, *circles = map(ElementTree.fromstring, draw_line([dot], scale, scale, joined=False))
    assert [bar.get(key) for key in ("x1", "x2", "y1", "y2")] == ["10", "10", "70", "30"]
    places = [(circle.get("class"), circle.get("cy")) for circle in circles]
    assert places == [("faint", "40"), ("faint", "90"), ("dot", "50"), ("ring", "50")]
    for count, kind in ((24, "dot"), (25, "touch")):
        line, *dots = map(ElementTree.fromstring, draw_line([Dot(x=1, y=1, text="t")] * count, scale, scale))
        assert (line.tag, [each.get("class") for each in dots]) == ("polyline", [kind] * count)
