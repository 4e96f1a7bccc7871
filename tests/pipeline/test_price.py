"""The price of a plan: fitted rates, seconds by the clock, bytes, money, and what a run keeps for the next one."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from run_commands import TINY, overrides, plan_of, raysts, result

from raysts.data.corpora import Corpus
from raysts.errors import InputError
from raysts.pipeline import price
from raysts.pipeline.step import Load, Step
from raysts.storage.store import Store


def step(id_: str, needs: tuple[str, ...] = (), sentences: int = 1000, **load: object) -> Step:
    return Step(
        kind="vectors", id=id_, title=id_, needs=needs, output=Path(f"{id_}.parquet"), sentences=sentences, bytes=500,
        resources={"workers": 1, "cpus": 1, "gpus": 0}, load=Load(size=1e6, tokens=10, **load),
    )  # fmt: skip


def test_start_and_slope_are_found_and_never_negative() -> None:
    start, slope = price.fit([1e3, 1e5, 1e6], [2 + 1e-3 * work for work in (1e3, 1e5, 1e6)])
    assert start == pytest.approx(2, rel=0.2) and slope == pytest.approx(1e-3, rel=0.05)
    assert price.fit([1e3, 2e3], [5.0, 1.0])[1] > 0, "a rate is never negative, whatever was measured"


def test_an_observed_step_prices_others_of_its_kind(tmp_path: Path) -> None:
    store = Store(tmp_path)
    assert not price.Rates(store).predict(step("a")).measured
    for name, sentences in (("a", 1_000), ("b", 10_000)):
        price.record_rates(store, [step(name, sentences=sentences)], {name: 1 + sentences / 100}, 1)
    expected = price.Rates(store).predict(step("c", sentences=100_000))
    assert expected.measured and expected.seconds == pytest.approx(1_001, rel=0.02)
    twice = price.Rates(store).predict(replace(step("c", sentences=100_000), load=Load(2e6, 10)))
    assert twice.seconds == pytest.approx(2_001, rel=0.02), "a model of twice the size takes twice as long"
    part = price.Rates(store).predict(replace(step("c", sentences=100_000), left=lambda store: 0.5))
    assert part.seconds == pytest.approx(501, rel=0.02), "other runs did the half"
    for number in range(price.KEPT):
        price.record_rates(store, [step("d")], {"d": 1 + number}, 1)
    (file,) = (tmp_path / "rates").glob("*.json")
    assert len(json.loads(file.read_text())["observed"]) == price.KEPT


def test_the_clock_counts_devices_and_the_longest_chain(tmp_path: Path) -> None:
    steps = [step("a", units=4), step("b", ("a",), units=1)]
    left = {one.id: price.ExpectedTime(80.0, True) for one in steps}
    of_four = price.price(steps, left, Store(tmp_path), 4, {"cpu-hour": 3.6})
    assert of_four.seconds == 80 / 4 + 80, "one unit has one device"
    assert (of_four.device_seconds, of_four.bytes, of_four.objects, of_four.moved) == (160, 1000, 5, 0)
    assert of_four.requests == 2 * 5 + 4, "two for each file that is written, one for each that is read"
    assert of_four.money == pytest.approx(0.16) and of_four.measured == 1
    on_gpus = [replace(one, resources={**one.resources, "gpus": 2}) for one in steps]
    assert price.price(on_gpus, left, Store(tmp_path), 4, {"cpu-hour": 9, "gpu-hour": 3.6}).money == pytest.approx(0.32)
    del left["a"]
    assert price.price(steps, left, Store(tmp_path), 4).bytes == 500, "what is done costs nothing"
    more = price.scale_texts([step("a", units=4, grows=True), steps[1]], 100)
    assert [(one.sentences, one.load.units, one.bytes) for one in more] == [(100_000, 400, 50_000), (1000, 1, 500)]
    (windows,) = price.scale_texts([step("a", units=4, grows=True, most=2_000)], 100)
    assert windows.load.units == 50, "a unit of a small text is part of a window, of a large one a whole window"


def test_prices_are_read_from_options_and_files(tmp_path: Path) -> None:
    assert price.parse_prices("3.2/gpu-hour,0.05/cpu-hour") == {"gpu-hour": 3.2, "cpu-hour": 0.05}
    file = tmp_path / "prices.yaml"
    file.write_text("gpu-hour: 2\ngb-moved: 0.09\n")
    assert price.parse_prices(str(file)) == {"gpu-hour": 2, "gb-moved": 0.09}
    for wrong in ("3.2", "x/gpu-hour", "-1/gpu-hour", "1/day", "1/gpu-hour,"):
        with pytest.raises(InputError, match="must be NUMBER/UNIT"):
            price.parse_prices(wrong)


def test_a_run_says_its_price_and_the_next_plan_knows_its_rates(few_world: Path, tmp_path: Path) -> None:
    short = {"batch": 8, "sed.data.sample": 200, "evaluation.tasks": ["stsb"], "evaluation.resamples": 0}
    arguments = ["ct-sed", "--data", few_world, "--storage", tmp_path, *overrides(TINY, short)]
    before = result("plan", *arguments, "--price", "1/cpu-hour")
    assert before["price"]["measured"] == 0 and before["price"]["money"] > 0
    run = raysts("run", *arguments, "--address", "none", "--price", "1/cpu-hour", "--json")
    assert run.code == 0 and "expected: " in run.err and "costs" in run.err
    after = result("plan", *arguments, "--set", "seed=7")
    assert after["price"]["measured"] > 0.9
    done = result("plan", *arguments)
    assert done["price"]["seconds"] == done["price"]["bytes"] == 0
    record = json.loads((tmp_path / "pipelines" / "ct-sed.json").read_text())
    expected = {node["id"]: node["seconds_expected"] for node in before["nodes"]}
    page = (tmp_path / "reports" / "ct-sed" / "index.html").read_text()
    assert all("costs" in record["price"][key] and record["price"][key] in page for key in ("expected", "taken"))
    assert record["expected"] == pytest.approx(expected, rel=0.01) and record["seconds"].keys() == expected.keys()
    assert [node["seconds"] for node in done["nodes"]] == [record["seconds"][node["id"]] for node in done["nodes"]]
    other = plan_of("nli", TINY | {"evaluation.tasks": ["stsb"], "evaluation.resamples": 0}, few_world, tmp_path)
    left = [evaluation.step.left(other.store) for evaluation in other.evaluations]
    assert left == [0, 1], "the backbone is scored, other members are not"


def test_a_probe_measures_training_and_leaves_rates_alone(few_world: Path, tmp_path: Path) -> None:
    short = {"batch": 8, "members": 1, "train.max_length": 16, "evaluation.tasks": ["stsb"]}
    arguments = ["ct", "--data", few_world, "--storage", tmp_path, *overrides(TINY, short)]
    probed = result("plan", *arguments, "--probe")
    assert probed["price"]["measured"] > 0.2 and {path.name for path in tmp_path.iterdir()} == {"rates"}


def test_texts_that_a_text_does_not_have_yet(small_corpus: Corpus, tmp_path: Path) -> None:
    sentences = small_corpus.read("wikipedia/sentences").column("sentence").to_pylist()
    (tmp_path / "text.txt").write_text("\n".join(sentences))
    own = ["simcse-unsup", "--text", tmp_path / "text.txt", "--storage", tmp_path / "s", *overrides(TINY)]
    large = result("plan", *own, "--texts", 100_000_000, "--slots", 64)
    assert sum(node["sentences"] for node in large["nodes"]) >= 1e8 and large["price"]["slots"] == 64
    assert raysts("plan", "ct-sed", "--storage", tmp_path / "s", "--texts", 5).code == 2
    wrong = [["--texts", 0, "--probe"], ["--slots", 0], ["--slots=-2"], ["--price", "none.yaml"]]
    for options in wrong:
        refused = raysts("plan", *own, *options)
        assert refused.code == 2 and "probe:" not in refused.err, "before anything is measured"
        assert str(options[0]).partition("=")[0] in refused.err
    assert "is not there" in refused.err
