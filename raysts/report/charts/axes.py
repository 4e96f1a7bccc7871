"""Axes of the SVG charts: scales with round ticks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Scale:
    """Values in [low, high] -> pixels from ``start`` to ``end``; on a log scale, low is positive."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """The pixel of ``value``."""
        low, high, value = (math.log(v) if self.log else v for v in (self.low, self.high, value))
        return self.start + (value - low) / (high - low) * (self.end - self.start)

    def ticks(self, wanted: int) -> list[float]:
        """About ``wanted`` round values inside the scale."""
        return _log_ticks(self.low, self.high, wanted) if self.log else _linear_ticks(self.low, self.high, wanted)


def fitted(values: Sequence[float], start: float, end: float, pad: float = 0.06, log: bool = False) -> Scale:
    """A scale that shows all (finite) ``values`` with some room; constant or no values get a range around them."""
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    if log:
        room = max((high / low) ** pad, 1.05)
        return Scale(low / room, high * room, start, end, True)
    # A range far below the values' precision would make ticks that all read the same.
    room = max(pad * (high - low), 1e-9 * max(abs(low), abs(high)))
    if high - low <= 1e-9 * max(abs(low), abs(high), 1e-300):
        room = max(abs(low) * 0.1, 0.5 if low == 0 else abs(low) * 0.1)
    return Scale(low - room, high + room, start, end)


def _linear_ticks(low: float, high: float, wanted: int) -> list[float]:
    rough = (high - low) / max(1, wanted)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(index * step, 12) for index in range(first, last + 1)]


def _log_ticks(low: float, high: float, wanted: int) -> list[float]:
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ((1.0, 2.0, 5.0), (1.0, 3.0), (1.0,)):
        found = [factor * 10.0**power for power in powers for factor in factors if low <= factor * 10.0**power <= high]
        if len(found) <= wanted + 2:
            return found
    return found[:: math.ceil(len(found) / wanted)]


def tick_text(value: float) -> str:
    """A tick's label: short, never wrong."""
    if value != 0 and not 1e-3 <= abs(value) < 1e5:
        return f"{value:.0e}".replace("e-0", "e-").replace("e+0", "e")
    return f"{value:,.6g}"
