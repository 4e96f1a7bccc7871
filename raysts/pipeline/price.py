"""Price of steps: seconds by rates that finished steps have measured, bytes by shapes, and money.

``rates/<id>.json`` of a storage has what steps of one kind took at one precision on one device. The seconds of a step are
``start + sentences x tokens x parameters / rate``, fitted to the steps on record that are most like it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from raysts.errors import InputError
from raysts.ids import content_id, cpu_name
from raysts.log import duration
from raysts.pipeline.step import Load, Step, batches
from raysts.recipes.recipe import Resources
from raysts.recipes.tree import load_yaml
from raysts.storage.store import Store

START, PRIOR = 1.0, 0.2
"""Assumed seconds of a step besides its sentences, and the weight of that beside one measurement."""
ASSUMED, ON_GPU, TRAINING = 4e10, 300.0, 3.0
"""Parameters times tokens that a CPU embeds in a second, times as many on a GPU, and time of training relative to that."""
OVERHEAD = 5e-4
"""Assumed seconds of a sentence on a CPU besides its products, most of those of small models (measured: 0.5 to 0.9 ms)."""
KEPT, ALIKE = 16, 1.5
"""Observations in a rate file, and the factor of parameters and tokens within which steps are alike."""
UNITS = "gpu-hour", "cpu-hour", "gb-moved", "1000-requests"
GPUS = Path("/proc/driver/nvidia/gpus")


class ExpectedTime(NamedTuple):
    """Expected seconds of a step on one device. ``measured``: by a rate of its kind on this device."""

    seconds: float
    measured: bool


@cache
def device_of(gpus: float | None) -> str:
    """Return the name of the device that work here uses. ``gpus`` None: a GPU if the machine has one."""
    for path in GPUS.glob("*/information") if gpus != 0 else ():
        with contextlib.suppress(OSError, StopIteration):
            lines = path.read_text().splitlines()
            return next(line for line in lines if line.lower().startswith("model:")).split(":")[1].strip()
    return cpu_name()


def devices(resources: Resources) -> int:
    """Return how many runs with these resources this machine trains at once."""
    gpus = len([*GPUS.glob("*")]) if resources.gpus != 0 else 0
    return max(1, int(gpus / (resources.gpus or 1.0)) if gpus else (os.cpu_count() or 1) // resources.cpus)


# -- rates -----------------------------------------------------------------------------------------------------------------


def seconds_of(record: Mapping[str, Any]) -> float:
    """Return the seconds of a training run with its start, from its record."""
    timings = record.get("timings") or {}
    trained, start = (timings.get(f"{name}_seconds") or 0.0 for name in ("train", "startup"))
    return max(trained + start, timings.get("last_start_seconds") or 0.0) if trained else 0.0


def record_rates(store: Store, steps: Iterable[Step], seconds: Mapping[str, float], slots: int) -> None:
    """Add finished steps, by their ``seconds`` by the clock or on record, to the rates of a storage."""
    for step in steps:
        record, sentences, device = step.record, step.sentences, device_of(step.resources["gpus"])
        taken = seconds.get(step.id, 0.0) * min(slots, step.load.units)
        if job := step.job:
            taken, device = seconds_of(record), record.get("device", device)
            sentences = (record.get("steps") or 0) * job.recipe.batch * job.recipe.spec.sentences
        if taken and sentences:
            load = step.load._replace(besides=step.load.besides * sentences / step.sentences)
            row: dict[str, Any] = {"size": load.size, "tokens": load.tokens, "sentences": sentences}
            row |= {"work": _work(load, sentences), "cpus": step.resources["cpus"], "seconds": round(taken, 3)}
            add_rates(store, {"what": step.work_name, "precision": load.precision, "device": device, "observed": [row]})


def add_rates(store: Store, table: Mapping[str, Any]) -> None:
    """Add a table of observations to the rate file of its kind, precision and device."""
    about = {key: value for key, value in table.items() if key != "observed"}
    path = store.path(f"rates/{content_id(about)}.json")
    before = (store.read_json(path, fresh=True) or {}).get("observed", [])
    store.write_json(path, {**about, "observed": [*before, *table["observed"]][-KEPT:]})


class Rates:
    """The rates of a storage."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.tables = [table for path in store.get_all("rates", "*.json") if (table := store.read_json(path))]

    def predict(self, step: Step) -> ExpectedTime:
        """Return what a step is expected to take on one device."""
        load, device, cpus = step.load, device_of(step.resources["gpus"]), step.resources["cpus"] or 1
        sentences, kind = step.sentences * step.left(self.store), (step.job is not None, step.kind == "tokens")
        tables = [t for t in self.tables if (t["what"].startswith("train "), t["what"] == "tokens") == kind]
        on_gpu = device != device_of(0)
        if not tables:
            rate = ASSUMED * (ON_GPU if on_gpu else cpus) / (TRAINING if step.job else 1.0)
            overhead = 0.0 if on_gpu or step.kind == "tokens" else OVERHEAD * sentences
            return ExpectedTime(START + overhead + _work(load, sentences) / rate, False)
        about = {"what": step.work_name, "device": device, "precision": load.precision}
        table = max(tables, key=lambda table: [table[key] == value for key, value in about.items()])
        close = [
            row for row in table["observed"]
            if all(1 / ALIKE < row[key] / getattr(load, key) < ALIKE for key in ("size", "tokens"))
        ]  # fmt: skip
        rows = close or table["observed"]
        work = [row["work"] * (1.0 if on_gpu else cpus / row["cpus"]) for row in rows]
        start, slope = fit(work, [row["seconds"] for row in rows])
        measured = table["what"] == step.work_name and table["device"] == device
        return ExpectedTime(start + slope * _work(load, sentences), measured)


def _work(load: Load, sentences: float) -> float:
    return load.size * (sentences * load.tokens + load.besides / TRAINING)


def fit(work: Sequence[float], seconds: Sequence[float]) -> tuple[float, float]:
    """Return start and slope of the seconds, by least squares of relative errors. Neither is negative."""
    taken = np.array(seconds)
    rows = np.vstack([np.stack([np.ones(len(work)), work], 1) / taken[:, None], [PRIOR / START, 0.0]])
    start, slope = np.linalg.lstsq(rows, np.array([*np.ones(len(work)), PRIOR]), rcond=None)[0]
    if start < 0 or slope <= 0:  # the largest tells most: a small one may have warmed the process up
        start, slope = 0.0, taken[np.argmax(work)] / max(work)
    return float(start), float(slope)


# -- the price of a plan -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Price:
    """Price of the steps that a plan has left."""

    seconds: float  # by the clock, with ``slots`` devices at once
    device_seconds: float
    bytes: int  # written
    moved: int  # bytes to and from an object store, none of a folder
    objects: int  # files that are written
    requests: int
    measured: float  # share of the device seconds that is by measured rates
    slots: int
    money: float | None = None  # None without prices

    def plus(self, other: Price, times: float) -> Price:
        """Return the price with ``times`` the work of the other one, on as many devices."""
        device_seconds = self.device_seconds + times * other.device_seconds
        sure = self.measured * self.device_seconds + times * other.measured * other.device_seconds
        amounts = {
            k: round(getattr(self, k) + times * getattr(other, k)) for k in ("bytes", "moved", "objects", "requests")
        }
        money = None if self.money is None else self.money + times * (other.money or 0.0)
        seconds = self.seconds + times * other.device_seconds / self.slots
        shared: dict[str, Any] = {
            "device_seconds": device_seconds,
            "measured": sure / (device_seconds or 1.0),
            **amounts,
        }
        return replace(self, seconds=seconds, money=money, **shared)

    @property
    def text(self) -> str:
        share = f"{self.measured:.0%} of it by rates measured on this device"
        return f"expected: {self.amounts}; {share if self.measured > 0.005 else 'by assumed rates'}"

    @property
    def amounts(self) -> str:
        """Return hours, bytes and money as text."""
        money = "" if self.money is None else f", costs {self.money:,.2f}"
        hours, devices = duration(self.seconds), duration(self.device_seconds)
        time = f"{hours} by the clock ({self.slots} at once), {devices} of devices"
        size, traffic = _size(self.bytes), _size(self.moved)
        files = f"{size} in {self.objects:,} files, {traffic} to move, {self.requests:,} requests"
        return f"{time}, {files}{money}"


def price(
    steps: Sequence[Step],
    left: Mapping[str, ExpectedTime],
    store: Store,
    slots: int,
    prices: Mapping[str, float] | None = None,
) -> Price:
    """Return the price of the steps that are ``left``, by id, of all steps of a plan."""
    by_id, waiting = {step.id: step for step in steps}, [step for step in steps if step.id in left]
    seconds = sum((clock(batch, left, slots) for batch in batches(steps, by_id.keys() - left.keys())), 0.0)
    read = [by_id[need] for step in waiting for need in step.needs if need in by_id]
    objects, written = sum(step.load.units for step in waiting), sum(step.bytes for step in waiting)
    moved = written + sum(step.bytes for step in read) if store.remote else 0
    requests = 2 * objects + sum(step.load.units for step in read)
    amounts = {"gpu-hour": 0.0, "cpu-hour": 0.0, "gb-moved": moved / 1e9, "1000-requests": requests / 1e3}
    for step in waiting:
        on_gpu = bool(step.resources["gpus"]) or device_of(step.resources["gpus"]) != device_of(0)
        count = (step.resources["gpus"] or 1.0) if on_gpu else (step.resources["cpus"] or 1)
        amounts["gpu-hour" if on_gpu else "cpu-hour"] += count * left[step.id].seconds / 3600
    device_seconds = sum((expected.seconds for expected in left.values()), 0.0)
    measured = sum(expected.seconds for expected in left.values() if expected.measured) / (device_seconds or 1.0)
    money = None if prices is None else sum(prices.get(unit, 0.0) * amount for unit, amount in amounts.items())
    return Price(seconds=seconds, device_seconds=device_seconds, bytes=written, moved=moved, objects=objects,
                 requests=requests, measured=measured, slots=slots, money=money)  # fmt: skip


def clock(batch: Sequence[Step], expected: Mapping[str, ExpectedTime], slots: int) -> float:
    """Return the seconds of a batch by the clock. Only training runs go at once."""
    if not batch[0].job:
        return sum(expected[step.id].seconds / max(1, min(slots, step.load.units)) for step in batch)
    ends: dict[str, float] = {}
    for step in batch:
        ends[step.id] = max((ends.get(need, 0.0) for need in step.needs), default=0.0) + expected[step.id].seconds
    return max(*ends.values(), sum(expected[step.id].seconds for step in batch) / slots)


def scale_texts(steps: Sequence[Step], factor: float) -> list[Step]:
    """Return the steps as they would be with ``factor`` times as many texts."""
    scaled = []
    for step in steps:
        times = factor if step.load.grows else 1.0
        size = 1.0 if step.job else times  # a model is as large however many texts it read
        sentences, load = round(step.sentences * times), step.load
        units = max(1, min(round(load.units * size), max(load.units, -(-sentences // load.most))))
        scaled.append(
            replace(step, sentences=sentences, bytes=round(step.bytes * size), load=load._replace(units=units))
        )
    return scaled


def parse_prices(text: str) -> dict[str, float]:
    """Return prices by unit of ``3.2/gpu-hour,0.05/cpu-hour``, or of a YAML file, or raise InputError."""
    pairs: Any = [part.partition("/")[::2] for part in text.split(",")]
    with contextlib.suppress(TypeError, ValueError, AttributeError):
        if Path(text).is_file():
            pairs = [(number, unit) for unit, number in load_yaml(Path(text).read_text(encoding="utf-8")).items()]
        prices = {str(unit): float(number) for number, unit in pairs}
        if all(unit in UNITS and 0 <= number < float("inf") for unit, number in prices.items()):
            return prices
    if Path(text).suffix in (".yaml", ".yml") and not Path(text).is_file():
        raise InputError(f"--price {text}: the file is not there")
    rule = f"must be NUMBER/UNIT, NUMBER from 0, several with commas, or a YAML file (UNIT: NUMBER); units: {', '.join(UNITS)}"
    raise InputError(f"--price {text}: {rule}")


def _size(amount: float) -> str:
    power = max(p for p in range(5) if p == 0 or amount >= 1000**p)
    return f"{amount / 1000**power:,.3g} {('B', 'kB', 'MB', 'GB', 'TB')[power]}"
