"""The price of a plan: fitted rates, seconds by the clock, bytes, money, and what a run keeps for the next one."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from run_commands import TINY, overrides, plan_of, raysts, result

from raysts.data.corpora import Corpus
from raysts.errors import InputError
from raysts.ids import cpu_name
from raysts.pipeline import price
from raysts.pipeline.step import Load, Step
from raysts.recipes.names import pipeline
from raysts.recipes.recipe import Resources
from raysts.storage.store import Store


def step(id_: str, needs: tuple[str, ...] = (), sentences: int = 1000, cpus: int = 1, **load: Any) -> Step:
    return Step(
        kind="vectors", id=id_, title=id_, needs=needs, output=Path(f"{id_}.parquet"), sentences=sentences, bytes=500,
        resources={"workers": 1, "cpus": cpus, "gpus": 0}, load=Load(**{"size": 1e6, "tokens": 10, **load}),
    )  # fmt: skip


def training(id_: str, needs: tuple[str, ...] = (), folder: Path = Path(), **load: Any) -> Step:
    """A step that trains the recipe of nli: batches of 16 pairs."""
    job: Any = SimpleNamespace(recipe=pipeline("nli").stages["nli"])
    return replace(step(id_, needs, **load), kind="train", job=job, output=folder / "runs" / (16 * id_) / "model")


def test_start_and_slope_are_found_and_never_negative() -> None:
    start, slope = price.fit([1e3, 1e5, 1e6], [2 + 1e-3 * work for work in (1e3, 1e5, 1e6)])
    assert start == pytest.approx(2, rel=0.2) and slope == pytest.approx(1e-3, rel=0.05)
    assert price.fit([1e3, 2e3], [5.0, 1.0]) == (0, 1.0 / 2e3), "whatever was measured, the largest tells most"


def test_a_machine_trains_as_many_runs_as_its_devices_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert price.devices(Resources()) == os.cpu_count() and price.devices(Resources(cpus=500)) == 1
    for number in "ab":
        (tmp_path / number).mkdir()
        (tmp_path / number / "information").write_text("IRQ: 7\nModel: \t NVIDIA H200\n")
    monkeypatch.setattr(price, "GPUS", tmp_path)
    runs = [price.devices(Resources(gpus=gpus)) for gpus in (None, 0.5, 2, 0)]
    assert runs == [2, 4, 1, os.cpu_count()]
    assert [price.device_of.__wrapped__(gpus) for gpus in (None, 1, 0)] == ["NVIDIA H200", "NVIDIA H200", cpu_name()]


def test_an_observed_step_prices_others_of_its_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path)
    # 1 s to start, half a millisecond for each of 1,000 sentences, and 1e6 weights times 10 tokens of each at 4e10 a second
    assumed = price.Rates(store).predict
    assert assumed(step("a")) == (1 + 0.5 + 0.25, False)
    assert [assumed(one).seconds for one in (step("a", cpus=2), training("a"), replace(step("a"), kind="tokens"))] == [
        1 + 0.5 + 0.25 / 2, 1 + 0.5 + 3 * 0.25, 1 + 0.25,
    ]  # fmt: skip
    with monkeypatch.context() as patch:
        patch.setattr(price, "device_of", lambda gpus: "CPU" if gpus == 0 else "GPU")
        on_gpu = replace(step("a", cpus=2), resources={"cpus": 2, "gpus": None})
        assert assumed(on_gpu).seconds == pytest.approx(1 + 0.25 / 300), "whatever CPUs stand beside it"
    for name, sentences in (("a", 1_000), ("b", 10_000)):
        taken = {name: (1 + sentences / 100) / 2}  # with two devices for its two units
        price.record_rates(store, [step(name, sentences=sentences, units=2)], taken, 4)
    other = [replace(step("e"), kind="scores"), step("f", precision="bf16"), step("g", size=1e9)]
    price.record_rates(store, other, {"e": 1e5, "f": 1e5, "g": 1e5}, 1)  # each a thousand times as slow
    rates, c = price.Rates(store), step("c", sentences=100_000)
    assert rates.predict(c).measured and rates.predict(c).seconds == pytest.approx(1_001, rel=0.02)
    larger = rates.predict(step("c", sentences=100_000, size=1.4e6))
    assert larger.seconds == pytest.approx(1_401, rel=0.02), "a model of 1.4 times the size takes as much longer"
    faster = rates.predict(step("c", sentences=100_000, cpus=2))
    assert faster.seconds == pytest.approx(501, rel=0.02), "twice the CPUs"
    part = rates.predict(replace(c, left=lambda store: 0.5))
    assert part.seconds == pytest.approx(501, rel=0.02), "other runs did the half"
    assert not rates.predict(replace(c, kind="agreement")).measured, "by the rate of another kind"
    assert not rates.predict(training("c")).measured, "no training is on record"
    for number in range(price.KEPT):
        price.record_rates(store, [step("d")], {"d": 1 + number}, 1)
    observed = [json.loads(file.read_text())["observed"] for file in (tmp_path / "rates").glob("*.json")]
    assert sorted(map(len, observed)) == [1, 1, price.KEPT]


def test_a_training_run_is_priced_by_its_record(tmp_path: Path) -> None:
    """The longest of its starts counts where that is longer than all of what it trained."""
    store, run = Store(tmp_path), training("a", folder=tmp_path, besides=600)
    timings = {"train_seconds": 30, "startup_seconds": 2, "last_start_seconds": 5}
    assert price.seconds_of({"timings": timings | {"last_start_seconds": 50}}) == 50
    assert price.seconds_of({}) == price.seconds_of({"timings": timings | {"train_seconds": None}}) == 0
    store.write_json(run.output.parent / "run.json", {"steps": 4, "timings": timings, "device": "of a node"})
    price.record_rates(store, [run], {}, 8)
    (file,) = (tmp_path / "rates").glob("*.json")
    kept = json.loads(file.read_text())
    assert (kept["what"], kept["device"]) == ("train nli", "of a node")
    sentences = 4 * 16 * 2  # 128 of the 1,000, and so of the tokens that it embeds besides, each a third of the work
    work = 1e6 * (sentences * 10 + 600 * 0.128 / 3)
    row = {"size": 1e6, "tokens": 10, "sentences": sentences, "work": work, "cpus": 1, "seconds": 32}
    assert kept["observed"] == [pytest.approx(row)]


def test_the_clock_counts_devices_and_the_longest_chain(tmp_path: Path) -> None:
    steps = [step("a", units=4), step("b", ("a",), units=1)]
    left = {one.id: price.ExpectedTime(80.0, True) for one in steps}
    of_four = price.price(steps, left, Store(tmp_path), 4, {"cpu-hour": 3.6})
    assert of_four.seconds == 80 / 4 + 80, "one unit has one device"
    assert (of_four.device_seconds, of_four.bytes, of_four.objects, of_four.moved) == (160, 1000, 5, 0)
    assert of_four.requests == 2 * 5 + 4, "two for each file that is written, one for each that is read"
    assert of_four.money == pytest.approx(0.16) and of_four.measured == 1
    assert of_four.text == (
        "expected: 1 min 40 s by the clock (4 at once), 2 min 40 s of devices, 1 kB in 5 files, 0 B to move, 14 requests, costs "
        "0.16; 100% of it by rates measured on this device"
    )
    on_gpus = [replace(one, resources={**one.resources, "gpus": 2}) for one in steps]
    assert price.price(on_gpus, left, Store(tmp_path), 4, {"cpu-hour": 9, "gpu-hour": 3.6}).money == pytest.approx(0.32)
    bucket: Any = SimpleNamespace(remote=True)
    left["b"] = price.ExpectedTime(80.0, False)
    traffic = price.price(steps, left, bucket, 4, {"gb-moved": 1e6, "1000-requests": 1.0})
    assert traffic.moved == 1000 + 500, "both are written, and one is read"
    assert traffic.money == pytest.approx(1.5 + 0.014) and traffic.measured == 0.5
    more = of_four.plus(traffic, 3)  # of 160 seconds 160 are measured, of three times 160 the half
    assert (more.seconds, more.device_seconds, more.measured) == (100 + 3 * 160 / 4, 640, (160 + 240) / 640)
    assert (more.bytes, more.moved, more.requests, more.money) == (4000, 4500, 4 * 14, pytest.approx(0.16 + 3 * 1.514))
    del left["a"]
    assert price.price(steps, left, Store(tmp_path), 4).bytes == 500, "what is done costs nothing"
    runs = [training("a"), training("b", ("a",)), training("c")]
    taken = dict.fromkeys("abc", price.ExpectedTime(80.0, True))
    assert [price.clock(runs, taken, slots) for slots in (1, 2)] == [240, 160], "the second waits for the first"
    more = price.scale_texts([step("a", units=4, grows=True), steps[1]], 100)
    assert [(one.sentences, one.load.units, one.bytes) for one in more] == [(100_000, 400, 50_000), (1000, 1, 500)]
    (windows,) = price.scale_texts([step("a", units=4, grows=True, most=2_000)], 100)
    assert windows.load.units == 50, "a unit of a small text is part of a window, of a large one a whole window"


def test_prices_are_read_from_options_and_files(tmp_path: Path) -> None:
    assert price.parse_prices("0/gpu-hour,0.05/cpu-hour") == {"gpu-hour": 0, "cpu-hour": 0.05}
    file = tmp_path / "prices.yaml"
    file.write_text("gpu-hour: 2\ngb-moved: 0.09\n")
    assert price.parse_prices(str(file)) == {"gpu-hour": 2, "gb-moved": 0.09}
    for wrong in ("3.2", "x/gpu-hour", "-1/gpu-hour", "1/day", "1/gpu-hour,", "inf/gpu-hour", "0/gb"):
        with pytest.raises(InputError, match="must be NUMBER/UNIT"):
            price.parse_prices(wrong)


@pytest.mark.whole
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
    of_text = {"data": None, "storage": tmp_path / "s", "text": tmp_path / "text.txt"}
    plans = [plan_of("simcse-unsup", {**TINY, "train.max_steps": steps}, **of_text) for steps in (4, None)]
    grows = [[step.load.grows for step in plan.making] for plan in plans]
    assert grows == [[True, False, False], [True, True, True]], "training of so many steps reads no more texts"
    wrong = [["--texts", 0, "--probe"], ["--slots", 0], ["--slots=-2"], ["--price", "none.yaml"]]
    for options in wrong:
        refused = raysts("plan", *own, *options)
        assert refused.code == 2 and "probe:" not in refused.err, "before anything is measured"
        assert str(options[0]).partition("=")[0] in refused.err
    assert "is not there" in refused.err
