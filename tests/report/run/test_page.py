import math
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from golden.golden import Golden, lines
from report_samples import DATASETS, exact, recorded, report_data, run

from raysts.evaluation import results
from raysts.evaluation.standings import main_standings
from raysts.report.dots import dot_plot
from raysts.report.run import cost_chart, render, training_curves, write_report
from raysts.report.run import report_data as read_report
from raysts.storage.store import Store


class Page(HTMLParser):
    """Checks that elements nest, and collects text, links and the cells of tables."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.tables: dict[str, list[list[str]]] = {}
        self.caption = ""
        self.feed(text)
        self.close()
        assert not self.open

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self.open.append(tag)
        if tag == "caption":
            self.caption = ""
        if tag == "tr":
            self.tables.setdefault(self.caption, []).append([])
        if tag in ("td", "th"):
            self.tables[self.caption][-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)
        if self.open and self.open[-1] == "caption":
            self.caption += data
        if "td" in self.open or "th" in self.open:
            self.tables[self.caption][-1][-1] += " " * ("small" in self.open) + data

    def table(self, start: str) -> dict[str, dict[str, str]]:
        rows = next(rows for caption, rows in self.tables.items() if caption.startswith(start))
        heads = [re.sub(" n = .*", "", head) for head in rows[0]]
        return {row[0]: dict(zip(heads[1:], row[1:], strict=True)) for row in rows[1:]}


def svgs(text: str) -> list[ElementTree.Element]:
    return [ElementTree.fromstring(found) for found in re.findall(r"<svg.*?</svg>", text, re.S)]


def test_the_page_is_well_formed_accessible_and_loads_nothing() -> None:
    text = render(report_data())
    page = Page(text)
    assert text.startswith("<!DOCTYPE html>") and "http" not in text and "url(" not in text and "@import" not in text
    for name, attributes in page.elements:
        assert name not in ("script", "img", "iframe", "object", "embed") and not attributes.get("src")
        assert attributes.get("href") in (None, "data:,") and not any(key.startswith("on") for key in attributes)
        assert name != "th" or attributes["scope"] in ("col", "row")
    count = [name for name, _ in page.elements].count
    assert count("table") == count("caption") > 5
    ids = [attributes["id"] for _, attributes in page.elements if attributes.get("id")]
    assert len(ids) == len(set(ids))
    drawn = svgs(text)
    assert len(drawn) == len(DATASETS) + 2 * 3
    for svg in drawn:
        assert svg.attrib["role"] == "img" and [child.tag for child in svg][:2] == ["title", "desc"]
        assert set(svg.attrib["aria-labelledby"].split()) == {svg[0].attrib["id"], svg[1].attrib["id"]} <= set(ids)


def test_the_sections_come_in_order_and_hold_what_the_reader_needs() -> None:
    text = render(report_data())
    titles = ["quickstart", "Scores", "Notes", "Members, ensemble, student", "Training", "Time and throughput"]
    assert re.findall("<h[12]>(.*?)</h[12]>", text) == [*titles, "How it was made"]
    for wanted in ("raysts run quickstart", "name: quickstart", "labels of STS-B dev chose", "node-1", "AMD EPYC"):
        assert wanted in text


def test_the_pages_are_those_of_the_golden_record(golden: Golden) -> None:
    whole, few = report_data(), report_data(2, ("nli",))
    costs = [
        {"model": name, "role": role, "parameters": size, "bytes": size, "dimensions": 9, "tokens": 12.4, "texts_per_second": n}
        for name, role, size, n in (("raw", "backbone", 4_000_000, 900.0), ("nli0", "member", 8_000_000, 850.0),
                                    ("nli1", "member", 8_000_000, 450.0), ("sed", "student", 4_000_000, 1810.0))
    ]  # fmt: skip
    running = {**few.nodes[0], "status": "running", "seconds_expected": 9.0}
    stopped = replace(recorded(few, status="stopped"), nodes=[running, *few.nodes[1:]])
    failed = replace(few, runs=[run("nli", "member", 0, status="failed", reason="no <space>")])
    before: set[str] = set()
    for name, data in {"whole": recorded(whole, models=costs), "stopped": stopped, "failed": failed}.items():
        page = lines(re.sub(r"\d{4}-\d\d-\d\d[T ][\d:+]*", "NOW", render(data)))
        golden.check(f"pages/run-{name}", [line for line in page if line not in before])
        before |= {*page}


def test_everything_is_escaped() -> None:
    evil = "<script>alert('x')</script>\"&\x1b[31m\x00\ud800"
    data = report_data()
    pipeline = {**data.record["pipeline"], "prompt": evil}
    data = replace(
        recorded(data, name=evil, command=evil, pipeline=pipeline, notes=[evil]), environment={evil: evil},
        nodes=[{**n, "title": evil, "status": evil, "kind": evil} for n in data.nodes],
        runs=[replace(r, stage=evil, record={**r.record, "status": "failed", "reason": evil, "device": evil})
              for r in data.runs],
        rows=[{**r, "dataset": evil, "system": evil, "selected_by": evil, "similarity": evil, "metric": evil,
               "layers": evil} for r in data.rows],
    )  # fmt: skip
    text = render(data)
    page = Page(text)
    assert "<script" not in text and "script" not in {name for name, _ in page.elements}
    assert "<script>alert('x')</script>\"&\ufffd[31m\ufffd\ufffd" in page.texts and svgs(text)
    text.encode("utf-8")


@pytest.mark.parametrize("missing", [{"student", "ensemble", "member"}, {"backbone"}])
def test_what_was_not_measured_is_left_out(missing: set[str]) -> None:
    data = report_data()
    page = Page(render(replace(data, rows=[row for row in data.rows if row["role"] not in missing])))
    names = {re.sub(r"s? \(\d+\),.*| as distributed", "", name).lower() for name in page.table("Spearman")}
    names = {name.replace("starting model", "backbone") for name in names}
    assert not names & missing and {"backbone", "member", "ensemble", "student"} - missing <= names


def test_failures_are_shown_with_their_reason_verbatim() -> None:
    data = report_data()
    reason = "run x: the loss is nan between steps 1 and 10;\n  lower ct.optim.lr"
    bad = run("ct", "member", 1, status="failed", reason=reason, timings={}, layout={}, kept=None)
    runs = [replace(bad, metrics=[]) if r.id == bad.id else r for r in data.runs]
    nodes = [{**n, "seconds": None, "status": "failed" if n["id"] == bad.id else "waiting"} for n in data.nodes]
    text = render(replace(data, runs=runs, nodes=nodes, rows=[]))
    page = Page(text)
    assert page.texts.count(reason) == 1 and "There is no result on a test set yet." in page.texts
    assert page.table("Training")["ct"]["Runs"] == "3 of 4 members, 1 failed"
    assert any(text.startswith("1 failed") for text in page.texts)
    assert [replace(bad, metrics=metrics).steps for metrics in (bad.metrics, [{"step": 5}], [])] == [200, 200, 200]
    bad.record.pop("steps")
    assert [replace(bad, metrics=metrics).steps for metrics in (bad.metrics, [{"step": 5}], [])] == [200, 5, None]


def test_a_run_that_did_not_end_says_so_first() -> None:
    for status, words in {"failed": "failed", "stopped": "was stopped", "running": "is running"}.items():
        texts = Page(render(recorded(report_data(), status=status))).texts
        first = next(number for number, text in enumerate(texts) if text.startswith("The student scores"))
        assert texts.index(f"The run {words}.") < first
        assert ("The same command continues it: " in texts) == (status != "running")


def test_an_empty_report_and_empty_or_constant_or_broken_metrics_are_drawn() -> None:
    data = report_data()
    empty = replace(recorded(data, notes=[]), nodes=[], runs=[], rows=[], environment={})
    assert Page(render(empty)).table
    for metrics in (
        [],
        [{"step": 1, "loss": 0.0}],
        [{"step": 1, "loss": 0.0}, {"step": 2, "loss": 1.0}],
        [{"step": step, "loss": 0.5, "dev": 0.5, "examples_per_second": 0.0} for step in range(5)],
        [{"step": 1, "loss": float("nan"), "dev": None}, {"step": 2, "loss": float("inf")}],
        [{"step": 1, "loss": 1e-30}, {"step": 2, "loss": 1e30}],
    ):
        text = render(replace(data, runs=[replace(r, metrics=metrics, record={}) for r in data.runs]))
        Page(text)
        has_loss = any(math.isfinite(line.get("loss", math.nan)) for line in metrics)
        assert text.count("No values were logged.") == (0 if has_loss else 3), "once in each stage"
        for svg in svgs(text):
            for element in svg.iter():
                assert not any("nan" in value or "inf" in value for value in element.attrib.values())


def test_the_report_replaces_an_earlier_one_and_a_failure_leaves_it(tmp_path: Path) -> None:
    path = write_report(report_data(), tmp_path / "reports" / "quickstart")
    assert path == tmp_path / "reports" / "quickstart" / "index.html"
    before = path.read_text(encoding="utf-8")
    with pytest.raises(KeyError):
        write_report(replace(report_data(), nodes=[{"id": "a"}]), path.parent)
    assert path.read_text(encoding="utf-8") == before
    assert sorted(path.parent.glob("[!.]*")) == [path, path.parent / "tensorboard"]
    write_report(recorded(report_data(), name="another"), path.parent)
    assert "<h1>another</h1>" in path.read_text(encoding="utf-8")


def test_tensorboard_finds_the_curves_of_every_run_beside_the_page(tmp_path: Path) -> None:
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    data = report_data()
    longer, left_out = [number for number, summary in enumerate(data.runs) if summary.metrics][:2]
    before = [*data.runs]
    before[longer] = replace(before[longer], metrics=before[longer].metrics[:1])
    now = [summary for number, summary in enumerate(data.runs) if number != left_out]
    written = {}
    for runs in (before, now, now):  # a run has gone on, another is no part of it any more; then nothing has changed
        write_report(replace(data, runs=runs), tmp_path)
        former, written = written, {path: path.stat().st_mtime_ns for path in tmp_path.rglob("events*")}
    assert written == former and len(written) == sum(bool(summary.metrics) for summary in now)
    for summary in (summary for summary in now if summary.metrics):
        folder = tmp_path / "tensorboard" / f"{summary.stage} {summary.name} {summary.id}"
        events = reader.EventAccumulator(str(folder)).Reload()
        losses = [(line["step"], pytest.approx(line["loss"])) for line in summary.metrics if "loss" in line]
        assert losses and [(event.step, event.value) for event in events.Scalars("loss")] == losses


def test_the_models_to_choose_from_are_called_as_they_are_elsewhere() -> None:
    data = report_data()
    (run, *_) = (summary for summary in data.runs if summary.member == 1)
    pooled = {"pooling": "mean", "layers": 1}
    options = [
        {"what": "backbone", "id": "b", "score": 0.5} | pooled,
        {"what": "member", "id": run.id, "score": 0.6} | pooled,
    ]
    text = re.sub(r"<[^>]+>", " ", render(recorded(data, outcome={"candidates": options})))
    assert re.search(rf"starting model\s+50.00\s.*member 1\s+delivered\s+60.00\s+mean\s+1\s+{run.id}", text, re.DOTALL)


@pytest.mark.parametrize("first, log", [(80.0, False), (81.0, True)])
def test_curves_say_what_they_show_and_the_axis_of_scores_spans_their_interval(first: float, log: bool) -> None:
    """Of 0.6 on 103 rows the interval of 95 % is 0.46 to 0.71, by Fisher's z."""
    lines = [{"step": 1, "loss": first}, {"step": 4, "loss": 2.0, "dev": 0.5}, {"step": 8, "loss": 3.0, "dev": 0.6}]
    one = replace(run("ct", "member", 0, kept={"step": 8}), metrics=lines)
    dev = {"metric": "spearman", "table": "sts/stsb_dev", "rows": 103}
    loss, score = map(str, training_curves("c", "ct", [one], {"dev": {"ct": dev}}))
    assert f"<figcaption>Loss{' (log scale)' * log}</figcaption>" in loss
    assert f"Loss from 2 to {first:g}; at the last step: member 0 3." in loss and 'class="ring"' not in loss
    assert "<title>member 0, step 4: 50</title>" in score and "<title>member 0, step 8: 60 (kept)</title>" in score
    assert score.count('class="ring"') == 1 and re.findall('class="tick">([5-9]0)<', score) == ["50", "60", "70"]


@pytest.mark.parametrize("start, is_far", [(0.45, False), (0.44, True)])
def test_a_starting_model_that_is_far_below_the_others_is_an_arrow(start: float, is_far: bool) -> None:
    """From 60 to 70 there are ten points; one and a half times as many below 60 is 45."""
    rows = [*exact("backbone", start), *exact("member", 0.6, 0), *exact("member", 0.65, 1), *exact("student", 0.7)]
    table = main_standings(rows, 1, ("mean", 1))
    assert table is not None
    drawn = str(dot_plot("d", "stsb", table.plot_lines))
    assert (f"starting model: {100 * start:.2f}, outside the axis" in drawn) == is_far == ('class="arrow"' in drawn)
    assert "<title>member 1: 65.00</title>" in drawn and drawn.count('class="mean"') == 1 and "members (2)" in drawn


@pytest.mark.parametrize(("status", "training", "shown"), [
    ("running", "running", "waiting waiting running done"), ("running", "stopped", "running waiting waiting done"),
    ("stopped", "running", "waiting waiting waiting done"),
])  # fmt: skip
def test_what_runs_is_its_training_or_the_first_step(status: str, training: str, shown: str, tmp_path: Path) -> None:
    store, (a, b) = Store.open(tmp_path), ("a" * 16, "b" * 16)
    begun = {"status": training, "stage": "ct", "timings": {"train_seconds": 3.0}, "versions": {"torch": "2.13"}}
    store.write_json(f"runs/{b}/run.json", begun)
    results.write(tmp_path, "d", exact("member", 0.6, 0))
    outputs = {"t": "tokens/t", a: f"runs/{a}/model", b: f"runs/{b}/model", "d": "results/d.parquet"}
    kinds = ({"kind": "tokens"}, {"kind": "train", "member": 0}, {"kind": "train", "member": 1}, {"kind": "scores"})
    made = zip(outputs.items(), kinds, strict=True)
    steps = [{"id": step, "title": "", "sentences": 1, "output": output, **kind} for (step, output), kind in made]
    record = {"steps": steps, "seconds": {"t": 4.0}, "status": status, "teachers": {}, "sources": "", "model": ""}
    data = read_report(store, record)
    assert [node["status"] for node in data.nodes] == shown.split()
    assert [node["seconds"] for node in data.nodes] == [4.0, None, 3.0, None]
    assert [(run.id, run.member, run.stage) for run in data.runs] == [(b, 1, "ct")]
    assert {row["value"] for row in data.rows} == {0.6} and data.environment["torch"] == "2.13" and not data.model


def test_a_long_name_of_a_teacher_is_cut_to_its_room() -> None:
    table = main_standings([*exact(f"teacher {'a' * 21}", 0.6), *exact(f"teacher {'b' * 22}", 0.7)], 1, ("mean", 1))
    assert table is not None
    drawn = str(dot_plot("d", "stsb", table.plot_lines))
    assert f">{'a' * 21}</text>" in drawn and f">{'b' * 20}…</text>" in drawn


def test_a_cost_chart_compares_systems_of_which_there_are_two() -> None:
    table = main_standings([*exact("backbone", 0.5), *exact("student", 0.7)], 1, ("mean", 1))
    models = [{"model": role, "role": role, "texts_per_second": 100.0} for role in ("backbone", "student")]
    assert table is not None and cost_chart(table, models[:1]) is None
    assert "student: 70.00, 100 texts a second" in str(cost_chart(table, models))
