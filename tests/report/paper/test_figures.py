from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest
from run_commands import raysts, result

from raysts.cli import execute
from raysts.evaluation import results
from raysts.recipes.names import pipeline
from raysts.recipes.tree import to_plain
from raysts.report.paper.data import every_row, report_data
from raysts.report.paper.figures import Chart, Figure
from raysts.report.paper.page import render
from raysts.schema import RESULTS
from raysts.storage.atomic import write_json


def row(dataset: str, value: float, **columns: Any) -> dict[str, Any]:
    given = {
        "schema_version": 1, "system": "/models/some-encoder", "role": "backbone", "dataset": dataset, "split": "test",
        "rows": "all", "parent_run_ids": ["content"], "metric": "spearman", "value": value,
        "created_at": "2026-01-01T00:00:00+00:00",
    }  # fmt: skip
    return dict.fromkeys(RESULTS.names) | given | columns


def sts(layer: int, value: float, **columns: Any) -> dict[str, Any]:
    known = {"layers": f"only-{layer}", "aggregation": "all", "pooling": "mean", "similarity": "cosine", "n": 1379}
    return row("stsb", value, **(known | columns))


def write_runs(storage: Path, system: str, ids: tuple[str, ...]) -> None:
    """What a storage knows of the runs of a system with one stage."""
    ((stage, recipe),) = pipeline(system).recipes.items()
    for name in ids:
        record = {"stage": stage, "backbone": "/models/some-encoder", "backbone_id": "content", "parents": []}
        write_json(storage / "runs" / name / "run.json", record)
        write_json(storage / "runs" / name / "recipe.json", to_plain(recipe))


def of(paper: str, storage: Path) -> list[Figure]:
    return list(report_data(paper, storage).figures)


def lines(chart: Chart, published: bool = False) -> dict[str, list[tuple[str, float, float | None]]]:
    return {
        line.name: [(chart.places[place], value, std) for place, value, std in line.points]
        for line in chart.lines
        if line.published == published
    }


def drawn(paper: str, storage: Path) -> ElementTree.Element:
    page = render(report_data(paper, storage))
    return ElementTree.fromstring(page.removeprefix("<!DOCTYPE html>\n"))


def test_words_by_layer_beside_the_published_ones(tmp_path: Path) -> None:
    words = [row("msr", value, metric="accuracy", layers=f"only-{i}") for i, value in ((1, 0.41), (2, 0.3), (3, 0.25))]
    results.write(tmp_path, "evaluate-0a", [*words, row("ap", 0.5, metric="purity", layers="only-2")])
    two, three = of("latte-mix", tmp_path)
    assert [chart.title for chart in two.charts] == ["MSR", "AP"] and not three.charts
    msr, ap = two.charts
    assert lines(msr) == {"some-encoder": [("1", 41.0, None), ("2", 30.0, None), ("3", 25.0, None)]}
    paper = lines(msr, published=True)
    assert set(paper) == {"BERT-base, published", "BERT-large, published"} and len(msr.places) == 24
    assert paper["BERT-base, published"][0] == ("1", 40.49, None) and len(paper["BERT-base, published"]) == 12
    assert lines(ap) == {"some-encoder": [("2", 50.0, None)]} and (msr.quantity, ap.quantity) == (
        "accuracy × 100", "purity × 100",
    )  # fmt: skip


def test_sentences_by_layer_and_what_latte_mix_makes_of_them(tmp_path: Path) -> None:
    results.write(tmp_path, "evaluate-0a", [sts(1, 0.6), sts(2, 0.5), sts(2, 0.9, pooling="max"), sts(3, 0.4, n=1000)])
    latte = {"system": "latte", "role": "member", "parent_run_ids": None}
    members = [sts(2, value, run_id=f"r{i}", member=i, **latte) for i, value in enumerate((0.5, 0.6))]
    results.write(tmp_path, "a-study", members)
    write_runs(tmp_path, "latte", ("r0", "r1"))
    three = of("latte-mix", tmp_path)[1]
    (stsb,) = three.charts
    found = lines(stsb)
    assert found["some-encoder: mean"] == [("1", 60.0, None), ("2", 50.0, None)]
    assert found["some-encoder, other data: mean"] == [("3", 40.0, None)]
    assert found["some-encoder: Latte-Mix"] == [("2", pytest.approx(55.0), pytest.approx(7.0711, abs=1e-3))]
    published = lines(stsb, published=True)
    assert published["BERT-base: Latte-Mix, published"][0] == ("1", 61.47, 1.44)
    root = drawn("latte-mix", tmp_path)
    charts = [svg for svg in root.iter("svg") if svg.get("class") == "chart"]
    assert len(charts) == 1
    bars = [element for element in charts[0].iter("line") if element.get("class") == "error"]
    assert len(bars) == 12 + 24 + 1  # the deviations of both published models, and of ours
    dots = {title.text for dot in charts[0].iter("circle") for title in dot}
    assert "some-encoder: mean, 2: 50.00" in dots and "BERT-base: Latte-Mix, published, 1: 61.47 ± 1.44" in dots


def direction(dataset: str, share: float, low: str, high: str, n: int, **columns: Any) -> dict[str, Any]:
    given = {"subset": f"log length ratio [{low}, {high})", "metric": "accuracy", "n": n, "similarity": "gauss"}
    model = {"system": "gausscse-ent", "role": "member", "run_id": "r0", "member": 0, "parent_run_ids": ["content"]}
    return row(dataset, share, **({"dataset_sha256": "new"} | given | model | columns))


def test_ratios_of_lengths_and_accuracy_by_them(tmp_path: Path) -> None:
    longer = {"role": "baseline", "similarity": "length"}
    rows = [
        direction("snli-direction", 0.5, "-inf", "-1.75", 3), direction("snli-direction", 0.8, "-0.25", "0.25", 40),
        direction("snli-direction", 0.9, "0.25", "0.75", 70), direction("snli-direction", 0.7, "1.75", "inf", 5),
        direction("snli-direction", 0.6, "-0.25", "0.25", 40, run_id="r1", member=1),
        direction("snli-direction", 0.0, "-0.25", "0.25", 40, **longer),
        direction("snli-direction", 0.9, "-0.25", "0.25", 999, dataset_sha256="old", created_at="2025-01-01"),
        direction("sick-direction", 0.55, "-0.25", "0.25", 90, similarity="variance"),
    ]  # fmt: skip
    results.write(tmp_path, "part", rows)
    write_runs(tmp_path, "gausscse-ent", ("r0", "r1"))
    (figure,) = of("gausscse", tmp_path)
    histogram, snli, sick = figure.charts
    assert histogram.bars and histogram.places == ("≤ -1.75", "0", "0.5", "≥ 1.75")
    assert lines(histogram) == {
        "SNLI": [("≤ -1.75", 3.0, None), ("0", 40.0, None), ("0.5", 70.0, None), ("≥ 1.75", 5.0, None)],
        "SICK": [("0", 90.0, None)],
    }
    found = lines(snli)
    assert found["the longer sentence is the premise"] == [("0", 0.0, None)]
    gauss = found["gausscse-ent on some-encoder, gauss"]
    assert gauss[1] == ("0", pytest.approx(70.0), pytest.approx(14.142, abs=1e-2)) and gauss[2] == ("0.5", 90.0, None)
    (variance,) = lines(sick)
    assert variance.endswith("variance")
    charts = [svg for svg in drawn("gausscse", tmp_path).iter("svg") if svg.get("class") == "chart"]
    bars = [bar for bar in charts[0].iter("rect") if bar.get("class") == "bar"]
    heights = sorted(float(bar.get("height") or 0) for bar in bars)
    assert len(bars) == 5 and heights[-1] / heights[0] == pytest.approx(90 / 3, rel=0.05)


def test_what_was_not_measured_is_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for paper, numbers in (("latte-mix", [2, 3]), ("gausscse", [3]), ("sed", [])):
        assert [(figure.number, figure.charts) for figure in of(paper, tmp_path)] == [(n, ()) for n in numbers]
        root = drawn(paper, tmp_path)
        said = [p.text or "" for p in root.iter("p") if (p.text or "").startswith("Nothing of it was measured")]
        assert len(said) == len(numbers) and not list(root.iter("svg"))
    assert execute(["report", "--paper", "latte-mix", "--storage", str(tmp_path)]) == 0
    assert "LM Figure 2: words as first principal components, by layer: not measured" in capsys.readouterr().out


def test_evaluate_measures_every_layer_and_the_report_finds_it(
    tiny_backbone: Path, small_world: Path, tmp_path: Path
) -> None:
    where = ("--data", small_world, "--storage", tmp_path)
    arguments = ("evaluate", tiny_backbone, *where, "--tasks", "stsb,words", "--layer", "all", "--resamples", 0)
    found = result(*arguments)["results"]
    assert {row["layers"] for row in found} == {"only-1", "only-2"}
    alone = result("evaluate", tiny_backbone, *where, "--tasks", "stsb", "--layer", 2, "--resamples", 0)["results"]
    key = ("metric", "aggregation")
    wanted = {tuple(row[name] for name in key): row["value"] for row in alone}
    assert wanted == {
        tuple(row[name] for name in key): row["value"]
        for row in found
        if row["dataset"] == "stsb" and row["layers"] == "only-2"
    }
    parts = sorted(path.name for path in (tmp_path / "results").glob("[!.]*"))
    assert len(parts) == 2 and all(name.startswith(results.EVALUATION) for name in parts)
    result(*arguments)  # again: it replaces its part
    assert sorted(path.name for path in (tmp_path / "results").glob("[!.]*")) == parts
    report = json.loads(raysts("report", "--paper", "latte-mix", "--storage", tmp_path, "--json").out)
    (chart,) = report["figures"][1]["charts"]
    (line,) = (line for line in chart["lines"] if not line["published"])
    assert line["name"].startswith(tiny_backbone.name) and len(line["points"]) == 2


def test_a_member_measured_again_is_one_of_its_pipeline(small_world: Path, tmp_path: Path) -> None:
    where = ("--data", small_world, "--storage", tmp_path)
    small = {"backbone": "tiny", "members": 2, "train.max_steps": 2, "train.eval_every": 2, "evaluation.resamples": 0}
    settings = [part for key, value in small.items() for part in ("--set", f"{key}={value}")]
    found = result("run", "nli", *where, *settings, "--set", "evaluation.tasks=[stsb]", "--address", "none")["results"]
    member = next(row["run_id"] for row in found if row["role"] == "member")
    assert raysts("evaluate", member, *where, "--tasks", "sts12", "--resamples", 0).code == 0
    again = [each for each in every_row(tmp_path) if each.row["dataset"] == "sts12"]
    assert again and {(each.run, each.backbone, each.row["role"]) for each in again} == {("nli", "tiny", "member")}
    named = raysts("run", "nli", *where, *settings, "--set", "evaluation.tasks=[words]", "--address", "none")
    assert named.code == 2 and "evaluation.tasks: 'words' is measured on a model itself" in named.err
