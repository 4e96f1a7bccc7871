"""The report of a study: every chart shows what its points are, and stays inside its frame."""

from __future__ import annotations

import itertools
import re
from typing import Any
from xml.etree import ElementTree

import pytest

from raysts.evaluation.dev import RunMetric
from raysts.report.study import PointResult, StudyData, render


def data(options: dict[str, str], points: list[PointResult], **more: Any) -> StudyData:
    given: dict[str, Any] = {
        "name": "a <study>", "command": "raysts tune x", "created_at": "2026-01-01T00:00:00+00:00", "headline": ["Chosen."],
        "winning": "raysts run x --set a=1", "metric": RunMetric("spearman", "sts/stsb_dev"),
        "options": options, "points": points,
        "ended": [score for point in points for score in point.scores],
        "importance": {"a.lr": (0.75, 0.5, 0.9), "a.b": (0.25, 0.1, 0.5)},
        "table": (["lr", "dev × 100"], [[1e-5, "70.00"]]), "outcomes": {"finished": 3, "stopped early": 1, "infeasible": 0},
        "trial_seconds": 7200.0, "facts": {"device": "cpu"}, "notes": ["A note."],
    }  # fmt: skip
    return StudyData(**{**given, **more})


def drawings(html: str) -> dict[str, ElementTree.Element]:
    """Every chart by its name."""
    found = re.findall(r'<svg.*?id="([\w-]+)-t".*?</svg>', html, re.S)
    texts = re.findall(r"<svg.*?</svg>", html, re.S)
    return dict(zip(found, map(ElementTree.fromstring, texts), strict=True))


def inside(drawing: ElementTree.Element) -> bool:
    width, height = float(drawing.get("width", 0)), float(drawing.get("height", 0))
    xs = [float(e.get(k, 0)) for e in drawing.iter() for k in ("x", "cx", "x1", "x2") if e.get(k)]
    ys = [float(e.get(k, 0)) for e in drawing.iter() for k in ("y", "cy", "y1", "y2") if e.get(k)]
    for line in drawing.iter("polyline"):
        pairs = [pair.split(",") for pair in line.get("points", "").split()]
        xs, ys = xs + [float(x) for x, _ in pairs], ys + [float(y) for _, y in pairs]
    return 0 <= min(xs) <= max(xs) <= width and 0 <= min(ys) <= max(ys) <= height


def test_one_option_is_a_curve_with_a_bar_per_point_of_several_seeds() -> None:
    points = [
        PointResult({"a.bound": b}, [m - 0.01, m + 0.01], m, 0.014, b == 0.3)
        for b, m in ((0.0, 0.7), (0.3, 0.8), (0.6, 0.75))
    ]
    html = render(data({"a.bound": "0,0.3,0.6"}, points))
    found = drawings(html)
    assert sorted(found) == ["best", "score-0", "seeds"] and all(inside(each) for each in found.values())
    chart = found["score-0"]
    bars = [e for e in chart.iter("line") if e.get("class") == "error"]
    assert len(bars) == 3 and len([e for e in chart.iter("circle") if e.get("class") == "ring"]) == 1
    lengths = {round(abs(float(bar.get("y1", 0)) - float(bar.get("y2", 0))), 1) for bar in bars}
    assert len(lengths) == 1 and lengths.pop() > 0  # one standard deviation to both sides, the same for all three
    assert "3 finished" in html and "1 stopped early" in html and "infeasible" not in html
    assert "2 h 00 min of training in all trials" in html and "30 min 00 s a trial" in html
    assert "<details>" not in html and "<summary>" in render(
        data({}, [], winning="raysts distill a" + " --set b=1" * 90)
    )
    assert "raysts run x --set a=1" in html and "a &lt;study&gt;" in html and "75 %" in html


def test_every_option_has_a_chart_and_names_stand_beside_each_other() -> None:
    every = itertools.product(("mse", "cosine", True), (1e-5, 3e-5))
    points = [PointResult({"a.loss": b, "a.lr": r}, [0.1 * i], 0.1 * i, None, i == 5) for i, (b, r) in enumerate(every)]
    found = drawings(render(data({"a.loss": "mse,cosine,true", "a.lr": "1e-5,3e-5"}, points)))
    assert sorted(found) == ["best", "parallel", "score-0", "score-1"] and all(inside(each) for each in found.values())
    named = found["score-0"]
    dots = [e for e in named.iter("circle") if e.get("class") == "dot"]
    where = {(dot[0].text or "").split(":")[0]: float(dot.get("cx", 0)) for dot in dots}
    assert len(dots) == 6 and list(where) == ["a.loss=True", "a.loss=cosine", "a.loss=mse"]
    ticks = {e.text: float(e.get("x", 0)) for e in named.iter("text")}
    assert [where[f"a.loss={name}"] for name in ("True", "cosine", "mse")] == [
        ticks[n] for n in ("True", "cosine", "mse")
    ]
    assert len(set(where.values())) == 3 and not list(named.iter("polyline"))
    assert [float(e.get("cx", 0)) for e in named.iter("circle") if e.get("class") == "ring"] == [ticks["True"]]


def test_numbers_stand_in_their_order_beside_words_and_where_an_option_is_absent() -> None:
    layers: tuple[Any, ...] = (2, 12, None, "all")
    points = [PointResult({"a.layers": value}, [0.5], 0.5, None) for value in layers]
    for number, rate in enumerate((3e-6, 2e-5, 1e-4, None)):
        points[number].values.update({} if rate is None else {"a.lr": rate})
    found = drawings(render(data({"a.layers": "2,12,none,all", "a.lr": "log(1e-6,1e-3)"}, points)))
    ticks = {e.text: float(e.get("x", 0)) for e in found["score-0"].iter("text")}
    assert ticks["2"] < ticks["12"] < ticks["None"] < ticks["all"]
    lines = [e.get("points", "").split() for e in found["parallel"].iter("polyline")]
    heights = [float(line[1].split(",")[1]) for line in lines]
    assert heights[3] > heights[0] > heights[1] > heights[2], "the point without the option is at the foot"
    assert heights[0] - heights[1] == pytest.approx(heights[1] - heights[2], rel=0.2), "on a log scale"
    assert "-" in {e.text for e in found["parallel"].iter("text")}


@pytest.mark.parametrize(
    "models, ticks", [(("/m/bert", "/m/glove"), {"bert", "glove"}), (("/a/m", "/b/m"), {"/a/m", "/b/m"})]
)
def test_a_chart_names_models_by_the_last_parts_of_their_paths(models: tuple[str, ...], ticks: set[str]) -> None:
    points = [PointResult({"backbone": model}, [0.5], 0.5, None) for model in models]
    chart = drawings(render(data({"backbone": ",".join(models)}, points)))["score-0"]
    assert ticks <= {text.text for text in chart.iter("text")}


def test_of_a_loss_the_smallest_is_the_best_and_nothing_is_shown_times_a_hundred() -> None:
    every = list(itertools.product((8, 16), (1e-5, 3e-5)))
    points = [
        PointResult({"a.b": b, "a.lr": r}, [0.4 - 0.1 * i], 0.4 - 0.1 * i, None) for i, (b, r) in enumerate(every)
    ]
    loss = RunMetric("loss", "sts/stsb_dev")
    html = render(data({"a.b": "8,16", "a.lr": "1e-5,3e-5"}, points, metric=loss, ended=[0.3, 0.4, 0.1, 0.2]))
    found = drawings(html)
    assert all(inside(each) for each in found.values()) and "× 100" not in html.replace("dev × 100</th>", "")
    assert "best 0.1 at 3e-05" in html and "4 trials, best 0.1" in html
    (steps,) = (e.get("points", "") for e in found["best"].iter("polyline"))
    heights = [float(pair.split(",")[1]) for pair in steps.split()]
    assert heights == sorted(heights) and heights[0] < heights[-1]  # downwards, and never back


@pytest.mark.parametrize("points", [[], [PointResult({"a.b": 1}, [0.0], 0.0, None, True)]], ids=["none", "one"])
def test_a_study_of_nothing_or_of_one_trial_is_a_report_too(points: list[PointResult]) -> None:
    html = render(data({"a.b": "1"}, points, outcomes={}, trial_seconds=0.0))
    assert ("No trial has finished." in html) == (not points) and all(inside(each) for each in drawings(html).values())


def test_two_measures_have_a_front_and_points_level_with_the_best_stand_out() -> None:
    points = [
        PointResult({"a.lr": lr, "a.layers": n}, [score], score, None, score == 0.8, score > 0.75, cost, score != 0.6)
        for lr, n, score, cost in ((1e-5, 1, 0.7, 10.0), (1e-4, 2, 0.6, 20.0), (1e-3, 3, 0.8, 30.0))
    ]
    found = drawings(render(data({"a.lr": "log(1e-5,1e-3)", "a.layers": "1,2,3"}, points, cost="bytes")))
    assert {"front", "parallel"} <= found.keys() and all(inside(each) for each in found.values())
    assert len([e for e in found["front"].iter("circle") if e.get("class") == "ring"]) == 2
    lines = [e.get("class") for e in found["parallel"].iter("polyline")]
    assert sorted(filter(None, lines)) == ["line", "others", "others"]


def test_an_option_of_whole_numbers_has_whole_ticks_and_no_label_is_cut() -> None:
    points = [
        PointResult({"backbone_layers": n, "sed.optim.lr": lr}, [0.5], 0.5, None) for n, lr in ((1, 1e-4), (2, 5e-4))
    ]
    found = drawings(render(data({"backbone_layers": "1,2", "sed.optim.lr": "1e-4,5e-4"}, points)))
    dots = [float(e.get("cx", 0)) for e in found["score-0"].iter("circle") if e.get("class") == "dot"]
    ticks = {e.text: float(e.get("x", 0)) for e in found["score-0"].iter("text") if e.get("class") == "tick"}
    assert {name for name, x in ticks.items() if x >= min(dots)} == {"1", "2"}
    assert not {"1.2", "1.5"} & {e.text for e in found["parallel"].iter("text")}
    (label,) = (e for e in found["parallel"].iter("text") if e.text == "backbone_layers")
    assert label.get("text-anchor") == "start", "its middle is at the left edge"
