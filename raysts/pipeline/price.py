"""Price of steps: seconds by rates that finished steps have measured, bytes by shapes, and money.

``rates/<id>.json`` of a storage holds what steps of one kind took at one precision on one device. The seconds of a step are
``start + sentences x tokens x parameters / rate``, fitted to the steps on record that are most like it. What a training run
embeds to be scored on its development set counts as less work.
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
from raysts.ids import content_id
from raysts.log import duration
from raysts.pipeline.step import Load, Step, ready
from raysts.recipes.recipe import Resources
from raysts.recipes.tree import load_yaml
from raysts.storage.store import Store

START = 1.0
"""Assumed seconds that a step takes besides its sentences. Measurements of other sizes correct it."""
PRIOR = 0.2
ASSUMED, ON_GPU = 4e10, 300.0
"""Assumed parameters times tokens that one CPU embeds in a second (MiniLM on an EPYC), and how often that a GPU does."""
TRAINING = 3.0
"""Assumed time of training relative to embedding."""
KEPT = 16
"""Observations that a rate file keeps, the last ones."""
ALIKE = 1.5
"""Steps are alike if their parameters and their tokens differ by less than this factor."""
UNITS = "gpu-hour", "cpu-hour", "gb-moved", "1000-requests"
"""What prices are of."""


class Expected(NamedTuple):
    """What a step is expected to take. ``measured``: by a rate of its kind on this device, not by an assumed one."""

    seconds: float
    measured: bool


@cache
def device_of(gpus: float | None) -> str:
    """Return the name of the device that work on this machine uses, as torch names it. ``gpus`` None: a GPU if one is there."""
    places = [Path("/proc/cpuinfo")]
    if gpus != 0:
        places = [*Path("/proc/driver/nvidia/gpus").glob("*/information"), *places]
    for path in places:
        with contextlib.suppress(OSError, StopIteration):
            lines = path.read_text().splitlines()
            return (
                next(line for line in lines if line.lower().startswith(("model:", "model name"))).split(":")[1].strip()
            )
    return "CPU"


def observe(store: Store, steps: Iterable[Step], seconds: Mapping[str, float], slots: int = 1) -> None:
    """Keep what finished steps took. Those of a map took ``seconds`` by the clock on at most ``slots`` devices."""
    for step in steps:
        record, taken, sentences = step.record, seconds.get(step.id, 0.0) * min(slots, step.load.units), step.sentences
        device = device_of(step.resources["gpus"])
        if job := step.job:
            taken, device = (record.get("timings") or {}).get("train_seconds") or 0.0, record.get("device", device)
            sentences = (record.get("steps") or 0) * job.recipe.batch * job.recipe.spec.sentences
        if not (taken and sentences):
            continue
        about = {"what": step.load.what, "precision": step.load.precision, "device": device}
        load = step.load._replace(besides=step.load.besides * sentences / step.sentences)
        observed = {"size": load.size, "sentences": sentences, "tokens": load.tokens, "work": _work(load, sentences)}
        observed |= {"seconds": round(taken, 3), "cpus": step.resources["cpus"]}
        keep(store, {**about, "observed": [observed]})


def keep(store: Store, table: Mapping[str, Any]) -> None:
    """Add observations to the rate file of their kind, precision and device."""
    about = {key: value for key, value in table.items() if key != "observed"}
    path = store.path(f"rates/{content_id(about)}.json")
    before = (store.read_json(path, fresh=True) or {}).get("observed", [])
    store.write_json(path, {**about, "observed": [*before, *table["observed"]][-KEPT:]})


class Rates:
    """The rates of a storage."""

    def __init__(self, store: Store) -> None:
        self.tables = [table for path in store.get_all("rates", "*.json") if (table := store.read_json(path))]

    def expected(self, step: Step) -> Expected:
        """Return what a step is expected to take on one device."""
        load, device = step.load, device_of(step.resources["gpus"])
        training, tokens = step.job is not None, step.kind == "tokens"
        like = [
            (table["what"] == load.what, table["device"] == device, table["precision"] == load.precision, table)
            for table in self.tables
            if table["what"].startswith("train ") == training and (table["what"] == "tokens") == tokens
        ]
        on_gpu = step.resources["gpus"] != 0 and device != device_of(0)
        rate = ASSUMED * (ON_GPU if on_gpu else step.resources["cpus"] or 1) / (TRAINING if training else 1.0)
        if not like:
            return Expected(START + _work(load, step.sentences) / rate, False)
        same, here, _, table = max(like, key=lambda one: one[:3])
        observed = [
            o for o in table["observed"] if all(1 / ALIKE < o[k] / getattr(load, k) < ALIKE for k in ("size", "tokens"))
        ] or table["observed"]
        threads = 1.0 if on_gpu else (step.resources["cpus"] or 1)
        work = [o["work"] * (1.0 if on_gpu else threads / o["cpus"]) for o in observed]
        start, slope = fit(work, [o["seconds"] for o in observed])
        return Expected(start + slope * _work(load, step.sentences), bool(same and here))


def _work(load: Load, sentences: float) -> float:
    return load.size * (sentences * load.tokens + load.besides / TRAINING)


def fit(work: Sequence[float], seconds: Sequence[float]) -> tuple[float, float]:
    """Return start and slope, not negative, of the seconds by least squares of relative errors.

    One further row says that the start is ``START``, with the weight ``PRIOR``.
    """
    taken = np.array(seconds)
    rows = np.array([[1.0, w] for w in work]) / taken[:, None]
    rows, goal = np.vstack([rows, [PRIOR / START, 0.0]]), np.array([*np.ones(len(rows)), PRIOR])
    start, slope = np.linalg.lstsq(rows, goal, rcond=None)[0]
    if start < 0 or slope <= 0:
        start, slope = 0.0, float(np.mean(taken / np.array(work)))
    return float(start), float(slope)


def priced(
    nodes: Sequence[dict[str, Any]],
    steps: Sequence[Step],
    rates: Rates,
    seconds: Mapping[str, float],
    states: Mapping[str, str],
) -> list[dict[str, Any]]:
    """Return the described steps with the seconds that each is expected to take and took, and states that are known better."""
    return [
        {**node, "seconds_expected": round(rates.expected(step).seconds, 2), "seconds": seconds.get(step.id),
         "status": states.get(step.id, node["status"])}
        for node, step in zip(nodes, steps, strict=True)
    ]  # fmt: skip


# -- the price of a plan -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Price:
    """What the steps that are left take.

    Attributes:
        seconds: by the clock, ``slots`` devices at once.
        device_seconds: of all devices.
        bytes: that they write.
        moved: bytes that go to and from an object store, none for a folder.
        objects: files that they write.
        requests: that they send to the storage.
        measured: share of the device seconds that is by measured rates.
        money: by the prices, None without prices.
    """

    seconds: float
    device_seconds: float
    bytes: int
    moved: int
    objects: int
    requests: int
    measured: float
    slots: int
    money: float | None = None

    def plus(self, other: Price, times: float) -> Price:
        """Return the price with ``times`` what the other one is of, on as many devices."""
        device_seconds = self.device_seconds + times * other.device_seconds
        known = self.measured * self.device_seconds + times * other.measured * other.device_seconds
        return replace(
            self,
            seconds=self.seconds + times * other.device_seconds / self.slots,
            device_seconds=device_seconds,
            measured=known / (device_seconds or 1.0),
            money=None if self.money is None else self.money + times * (other.money or 0.0),
            **{name: round(getattr(self, name) + times * getattr(other, name))
               for name in ("bytes", "moved", "objects", "requests")},
        )  # fmt: skip

    @property
    def text(self) -> str:
        """Return it in one line."""
        parts = [
            f"{duration(self.seconds)} by the clock ({self.slots} at once)",
            f"{duration(self.device_seconds)} of devices",
        ]
        parts += [
            f"{_size(self.bytes)} in {self.objects:,} files",
            f"{_size(self.moved)} to move",
            f"{self.requests:,} requests",
        ]
        parts += [] if self.money is None else [f"costs {self.money:,.2f}"]
        how = "by rates measured on this device" if self.measured > 0.99 else "by assumed rates"
        if 0.01 < self.measured <= 0.99:
            how = f"{self.measured:.0%} of it by rates measured on this device, the rest by those of other work"
        return f"expected: {', '.join(parts)}; {how}"


def price(
    steps: Sequence[Step],
    left: Mapping[str, Expected],
    store: Store,
    slots: int,
    prices: Mapping[str, float] | None = None,
) -> Price:
    """Return the price of the steps that are ``left``, by id, of all steps of a plan."""
    waiting, sizes = [step for step in steps if step.id in left], {step.id: step.bytes for step in steps}
    seconds, done = 0.0, {step.id for step in steps} - left.keys()
    while batch := ready(steps, done):
        seconds += clock(batch, left, slots)
        done |= {step.id for step in batch}
    written = sum(step.bytes for step in waiting)
    objects = sum(step.load.units for step in waiting)
    units = {step.id: step.load.units for step in steps}
    read = [need for step in waiting for need in step.needs if need in units]
    moved = written + sum(sizes[need] for need in read) if store.remote else 0
    device_seconds = sum(left[step.id].seconds for step in waiting)
    requests = 2 * objects + sum(units[need] for need in read)
    money = None
    if prices is not None:
        hours = {"gpu-hour": 0.0, "cpu-hour": 0.0, "gb-moved": moved / 1e9, "1000-requests": requests / 1e3}
        for step in waiting:
            gpus = step.resources["gpus"]
            has_gpu = (gpus or 0) > 0 or (gpus is None and device_of(None) != device_of(0))
            amount = (gpus or 1.0) if has_gpu else (step.resources["cpus"] or 1)
            hours["gpu-hour" if has_gpu else "cpu-hour"] += amount * left[step.id].seconds / 3600
        money = sum(prices.get(unit, 0.0) * amount for unit, amount in hours.items())
    measured = sum(left[step.id].seconds for step in waiting if left[step.id].measured) / (device_seconds or 1.0)
    return Price(seconds=seconds, device_seconds=device_seconds, bytes=written, moved=moved, objects=objects,
                 requests=requests, measured=measured, slots=slots, money=money)  # fmt: skip


def clock(batch: Sequence[Step], expected: Mapping[str, Expected], slots: int) -> float:
    """Return the seconds of a batch by the clock: training runs at once, other steps one after the other."""
    if not batch[0].job:
        return sum(expected[step.id].seconds / max(1, min(slots, step.load.units)) for step in batch)
    ends: dict[str, float] = {}
    for step in batch:
        ends[step.id] = max((ends.get(need, 0.0) for need in step.needs), default=0.0) + expected[step.id].seconds
    return max(max(ends.values()), sum(expected[step.id].seconds for step in batch) / slots)


def grown(steps: Sequence[Step], factor: float) -> list[Step]:
    """Return the steps as they would be with ``factor`` times as many texts."""

    def grow(step: Step) -> Step:
        load = step.load._replace(units=max(1, round(step.load.units * factor)) if step.job is None else 1)
        size = step.bytes if step.job else round(step.bytes * factor)
        return replace(step, sentences=round(step.sentences * factor), bytes=size, load=load)

    return [grow(step) if step.load.grows else step for step in steps]


def parse_prices(text: str) -> dict[str, float]:
    """Return prices by unit of ``3.2/gpu-hour,0.05/cpu-hour``, or of a YAML file of them.

    Raises:
        InputError: an unknown unit, or no number.
    """
    rule = f"--price {text}: must be NUMBER/UNIT, several with commas, or a YAML file UNIT: NUMBER; units are {', '.join(UNITS)}"
    plain: Any = [part.partition("/")[::2] for part in text.split(",")]
    if Path(text).is_file():
        plain = load_yaml(Path(text).read_text(encoding="utf-8"))
        plain = [(number, unit) for unit, number in plain.items()] if isinstance(plain, dict) else [(None, "")]
    try:
        prices = {str(unit): float(number) for number, unit in plain}
    except (TypeError, ValueError):
        raise InputError(rule) from None
    if any(unit not in UNITS or not 0 <= number < float("inf") for unit, number in prices.items()):
        raise InputError(rule)
    return prices


def here(resources: Resources) -> int:
    """Return how many runs with these resources this machine trains at once."""
    gpus = len([*Path("/proc/driver/nvidia/gpus").glob("*")])
    if gpus and resources.gpus != 0:
        return max(1, int(gpus / (resources.gpus or 1.0)))
    return max(1, (os.cpu_count() or 1) // resources.cpus)


def _size(amount: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000:
            return f"{amount:,.3g} {unit}"
        amount /= 1000
    return f"{amount:,.3g} TB"
