"""The golden record: what raysts gives today, which a rebuild must give again.

``pytest --record PATH...`` writes what tests compare into `tests/golden/NAME.json`. Without ``--record`` a difference fails. A
change of an answer on purpose is recorded in the same commit, with the reason in CHANGELOG.md.
"""

from __future__ import annotations

import difflib
import json
import math
import re
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent


class Golden:
    """Compares with the record, or writes it."""

    def __init__(self, record: bool) -> None:
        self.record = record

    def check(self, name: str, value: Any, tolerance: float = 0.0) -> None:
        """Compare ``value`` (JSON) with the record ``name``; numbers may differ by ``tolerance``."""
        path, value = FOLDER / f"{name}.json", json.loads(json.dumps(value))
        if self.record:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
            return
        assert path.exists(), f"{name}: nothing is recorded; 'pytest --record' does"
        different = differences(json.loads(path.read_text(encoding="utf-8")), value, tolerance)
        assert not different, "\n".join([f"{name}: differs from the record", *different[:20]])


def differences(before: Any, now: Any, tolerance: float, where: str = "") -> list[str]:
    """Return where two JSON values differ, a line each."""
    if isinstance(before, dict) and isinstance(now, dict):
        lines = [f"{where}.{key}: is new" for key in now if key not in before]
        lines += [f"{where}.{key}: is missing" for key in before if key not in now]
        return lines + [
            line
            for key in before
            if key in now
            for line in differences(before[key], now[key], tolerance, f"{where}.{key}")
        ]
    if isinstance(before, list) and isinstance(now, list) and all(isinstance(line, str) for line in (*before, *now)):
        return [f"{where}: {line}" for line in difflib.unified_diff(before, now, "recorded", "now", "", "", 0, "")]
    if isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        pairs = enumerate(zip(before, now, strict=True))
        return [line for index, pair in pairs for line in differences(*pair, tolerance, f"{where}[{index}]")]
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in (before, now))
    if before == now or numbers and math.isclose(before, now, rel_tol=0.0, abs_tol=tolerance):
        return []
    return [f"{where}: {before!r} is recorded, now {now!r}"]


def shape(value: Any) -> Any:
    """Return the fields and types of a JSON value: of a list those of all its items together."""
    if isinstance(value, dict):
        return {key: shape(item) for key, item in value.items()}
    if isinstance(value, list):
        merged: Any = None
        for item in map(shape, value):
            merged = item if merged is None else _merged(merged, item)
        return [] if merged is None else [merged]
    return type(value).__name__


def _merged(first: Any, second: Any) -> Any:
    if isinstance(first, dict) and isinstance(second, dict):
        return {
            key: _merged(first[key], second[key]) if key in first and key in second else first.get(key, second.get(key))
            for key in (*first, *(key for key in second if key not in first))
        }
    if isinstance(first, list) and isinstance(second, list):
        return [_merged(first[0], second[0])] if first and second else first or second
    types = {*str(first).split("|"), *str(second).split("|")}
    return first if first == second else "|".join(sorted(types))


def lines(page: str) -> list[str]:
    """Return a page without its style and script, with a line for each tag."""
    body = re.sub(r"<(style|script).*?</\1>", "", page, flags=re.DOTALL)
    return [line for line in map(str.strip, body.replace("<", "\n<").splitlines()) if line]


def without_places(text: str, *places: Path) -> str:
    """Return a message without what differs from run to run: paths, addresses of objects, seconds."""
    for number, place in enumerate(sorted(map(str, places), key=len, reverse=True)):
        text = text.replace(place, f"PLACE{number}")
    return re.sub(r"0x[0-9a-f]{6,}", "0xN", re.sub(r"/tmp/[\w./-]*", "TMP", text))
