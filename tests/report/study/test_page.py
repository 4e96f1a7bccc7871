"""The report of a study: every chart shows what its points are, and stays inside its frame."""

import itertools
import math
import re
from typing import Any
from xml.etree import ElementTree

import pytest
from golden.golden import Golden, lines

from raysts.evaluation.dev import RunMetric
from raysts.report.html import render
from raysts.report.study import draw_charts
from raysts.search import scores
from raysts.search.record import Record
from raysts.search.scores import PointScores

SPEARMAN = RunMetric("spearman", "sts/stsb_dev")


def point(values: dict[str, Any], *scores: float, cost: float | None = None) -> PointScores:
    same: dict[str, Any] = {"point": values, "status": "finished", "cost": cost, "finished_at": ""}
    records = [Record(id=f"{seed}", seed=seed, value=score, **same) for seed, score in enumerate(scores)]
    return PointScores(len(records), records)


def drawings(points: list[PointScores], metric: RunMetric = SPEARMAN, **more: Any) -> dict[str, ElementTree.Element]:
    """Every chart of points by its name. None leaves its frame."""
    options = list(dict.fromkeys(option for each in points for option in each.point))
    ended = more.pop("ended", [score for each in points for score in each.values])
    text = "".join(draw_charts(options, points, metric, ended, **more))
    found = [ElementTree.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", text, re.S)]
    assert all(inside(drawing) for drawing in found)
    return {drawing[0].attrib["id"].removesuffix("-t"): drawing for drawing in found}


def inside(drawing: ElementTree.Element) -> bool:
    width, height = float(drawing.get("width", 0)), float(drawing.get("height", 0))
    xs = [float(e.get(k, 0)) for e in drawing.iter() for k in ("x", "cx", "x1", "x2") if e.get(k)]
    ys = [float(e.get(k, 0)) for e in drawing.iter() for k in ("y", "cy", "y1", "y2") if e.get(k)]
    for line in drawing.iter("polyline"):
        pairs = [pair.split(",") for pair in line.get("points", "").split()]
        xs, ys = xs + [float(x) for x, _ in pairs], ys + [float(y) for _, y in pairs]
    return 0 <= min(xs) <= max(xs) <= width and 0 <= min(ys) <= max(ys) <= height


def rings(drawing: ElementTree.Element) -> list[float]:
    return [float(e.get("cx", 0)) for e in drawing.iter("circle") if e.get("class") == "ring"]


def test_the_page_says_what_was_tried_and_folds_a_long_command() -> None:
    given: dict[str, Any] = {
        "name": "a <study>", "command": "raysts tune x", "created_at": "2026-01-01T00:00:00+00:00", "headline": ["Chosen."],
        "winning": "raysts run x --set a=1", "options": {"a.lr": "1e-5,3e-5"}, "charts": ["A chart."], "reach": (),
        "importance": {"a.lr": (0.75, 0.5, 0.9)}, "heads": ["lr", "dev × 100"], "trials": [[1e-5, "70.00"]] * 4,
        "outcomes": {"finished": 3, "stopped early": 1, "infeasible": 0}, "trial_seconds": 7200.0, "remarks": [],
        "environment": {},
    }  # fmt: skip
    page = render("study.html", **given)
    assert "3 finished" in page and "1 stopped early" in page and "infeasible" not in page
    assert "2 h 00 min of training in all trials" in page and "30 min 00 s a trial" in page
    assert "raysts run x --set a=1" in page and "a &lt;study&gt;" in page and "75 %" in page
    assert "<details>" not in page and "No trial has finished." not in page
    given |= {"winning": "raysts distill a" + " --set b=1" * 90, "charts": [], "outcomes": {}, "trials": []}
    page = render("study.html", **given)
    assert "<summary>" in page and "No trial has finished." in page


def test_the_charts_are_those_of_the_golden_record(golden: Golden) -> None:
    studies = {
        "one option": [point({"a": value}, 0.6 + value / 10, 0.62 + value / 10) for value in (0.1, 0.2, 0.4)],
        "words and numbers": [point({"a": word, "b": 10.0**-n}, 0.5 + n / 50) for n in (1, 2, 3) for word in "xy"],
        "costs": [point({"a": n}, 0.7 - 0.01 * (n - 3) ** 2, cost=10.0 * n) for n in range(1, 6)],
        "one point": [point({"a": 1}, 0.5)],
    }
    for name, points in studies.items():
        options = list(points[0].point)
        ended = [score for each in points for score in each.values]
        charts = draw_charts(options, points, SPEARMAN, ended, (0.5, 0.75), "latency")
        text = scores.table(points, SPEARMAN, {"a": 1, "b": 0.1}, 0.55, 4, "latency").splitlines()
        golden.check(f"pages/study-{name.replace(' ', '-')}", [*text, *lines("".join(charts))])


def test_the_interval_of_a_correlation_is_fishers_and_that_of_an_area_of_a_share() -> None:
    half = 1.96 * math.sqrt((1 + 0.8**2 / 2) / 100)
    assert SPEARMAN.interval(0.8, 103) == pytest.approx([math.tanh(math.atanh(0.8) + sign * half) for sign in (-1, 1)])
    assert RunMetric("ndcg@10", "dev").interval(0.8, 100) == pytest.approx((0.8 - 1.96 * 0.04, 0.8 + 1.96 * 0.04))


def test_every_option_has_a_chart_and_names_stand_beside_each_other() -> None:
    every = itertools.product(("mse", "cosine", True), (1e-5, 3e-5))
    found = drawings([point({"a.loss": b, "a.lr": r}, 0.1 * i) for i, (b, r) in enumerate(every)])
    assert sorted(found) == ["best", "parallel", "score-0", "score-1"]
    named = found["score-0"]
    dots = [e for e in named.iter("circle") if e.get("class") == "dot"]
    where = {(dot[0].text or "").split(":")[0]: float(dot.get("cx", 0)) for dot in dots}
    assert len(dots) == 6 and list(where) == ["a.loss=True", "a.loss=cosine", "a.loss=mse"]
    ticks = {e.text: float(e.get("x", 0)) for e in named.iter("text")}
    assert [*where.values()] == [ticks[name] for name in ("True", "cosine", "mse")]
    assert len(set(where.values())) == 3 and not list(named.iter("polyline")) and rings(named) == [ticks["True"]]


def test_numbers_stand_in_their_order_beside_words_and_where_an_option_is_absent() -> None:
    layers: tuple[Any, ...] = (2, 12, None, "all")
    rates = (3e-6, 2e-5, 1e-4, None)
    *options, last = [{"a.layers": value, "a.lr": rate} for value, rate in zip(layers, rates, strict=True)]
    found = drawings([*(point(each, 0.5) for each in options), point({"a.layers": last["a.layers"]}, 0.6)])
    ticks = {e.text: float(e.get("x", 0)) for e in found["score-0"].iter("text")}
    assert ticks["2"] < ticks["12"] < ticks["None"] < ticks["all"]
    lines = [e.get("points", "").split() for e in found["parallel"].iter("polyline")]
    heights = [float(line[1].split(",")[1]) for line in lines]
    assert heights[3] > heights[0] > heights[1] > heights[2], "the point without the option is at the foot"
    assert heights[0] - heights[1] == pytest.approx(heights[1] - heights[2], rel=0.2), "on a log scale"
    assert "-" in {e.text for e in found["parallel"].iter("text")}


@pytest.mark.parametrize("models, ticks", [(("/m/bert", "/m/glove"), ("bert", "glove")), (("/a/m", "/b/m"),) * 2])
def test_a_chart_names_models_by_the_last_parts_of_their_paths(models: tuple[str], ticks: tuple[str]) -> None:
    chart = drawings([point({"backbone": model}, 0.5) for model in models])["score-0"]
    assert {*ticks} <= {text.text for text in chart.iter("text")}


def test_of_a_loss_the_smallest_is_the_best_and_nothing_is_shown_times_a_hundred() -> None:
    every = itertools.product((8, 16), (1e-5, 3e-5))
    points = [point({"a.b": b, "a.lr": r}, 0.4 - 0.1 * i) for i, (b, r) in enumerate(every)]
    found = drawings(points, RunMetric("loss", "sts/stsb_dev"), ended=[0.3, 0.4, 0.1, 0.2])
    texts = " ".join(text for drawing in found.values() for text in drawing.itertext())
    assert "× 100" not in texts and "best 0.1 at 3e-05" in texts and "4 trials, best 0.1" in texts
    (steps,) = (e.get("points", "") for e in found["best"].iter("polyline"))
    heights = [float(pair.split(",")[1]) for pair in steps.split()]
    assert heights == sorted(heights) and heights[0] < heights[-1]  # downwards, and never back


def test_two_measures_have_a_front_and_points_level_with_the_best_stand_out() -> None:
    trials = ((1e-5, 1, 0.7, 10.0), (1e-4, 2, 0.6, 20.0), (1e-3, 3, 0.8, 30.0))
    points = [point({"a.lr": lr, "a.layers": n}, score, cost=cost) for lr, n, score, cost in trials]
    found = drawings(points, cost="bytes")
    assert {"front", "parallel"} <= found.keys() and len(rings(found["front"])) == 2
    lines = [e.get("class") for e in found["parallel"].iter("polyline")]
    assert sorted(filter(None, lines)) == ["line", "others", "others"]


def test_an_option_of_whole_numbers_has_whole_ticks_and_no_label_is_cut() -> None:
    found = drawings([point({"backbone_layers": n, "sed.optim.lr": lr}, 0.5) for n, lr in ((1, 1e-4), (2, 5e-4))])
    dots = [float(e.get("cx", 0)) for e in found["score-0"].iter("circle") if e.get("class") == "dot"]
    ticks = {e.text: float(e.get("x", 0)) for e in found["score-0"].iter("text") if e.get("class") == "tick"}
    assert {name for name, x in ticks.items() if x >= min(dots)} == {"1", "2"}
    assert not {"1.2", "1.5"} & {e.text for e in found["parallel"].iter("text")}
    (label,) = (e for e in found["parallel"].iter("text") if e.text == "backbone_layers")
    assert label.get("text-anchor") == "start", "its middle is at the left edge"


@pytest.mark.parametrize(("largest", "share"), [(18.0, 0.25), (18.1, 0.5)])
def test_an_option_of_more_than_ninefold_values_has_a_log_scale(largest: float, share: float) -> None:
    """Of 2 to 18 the 6 stands at a quarter, and of logarithms in the middle."""
    chart = drawings([point({"a.lr": value}, 0.5) for value in (2.0, 6.0, largest)])["score-0"]
    first, middle, last = sorted(float(e.get("cx", 0)) for e in chart.iter("circle") if e.get("class") == "dot")
    assert (middle - first) / (last - first) == pytest.approx(share, abs=0.01)
