"""Record of a trial in a study."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from raysts.search.space import Point, key_of
from raysts.storage.bucket import check_inside
from raysts.storage.checksums import set_aside
from raysts.storage.store import Store


@dataclass(frozen=True, kw_only=True)
class Record:
    """Record of a trial that has ended."""

    id: str
    point: Point
    seed: int
    status: Literal["finished", "stopped", "infeasible"]
    value: float | None = None  # of ``Search.metric``; of a stopped trial the last one that it reported
    step: int | None = None  # of the kept model, or at which the trial was stopped
    steps: int | None = None  # of the complete run
    seconds: float | None = None
    reason: str | None = None
    curve: tuple[tuple[int, float], ...] = ()  # step and value of every evaluation
    cost: float | None = None  # value of ``Search.cost``
    earlier: tuple[str, ...] = ()  # paths in the storage of what it made before, and not all points share
    finished_at: str

    @cached_property
    def key(self) -> str:
        """Return the id of the point. All records are grouped by it after every trial."""
        return key_of(self.point)


def read_records(study: Path) -> list[Record]:
    """Return the records in the folder of a study, in the order in which the trials ended.

    Raises:
        InputError: a record does not name a run.
    """
    store, records = Store.of(study), []
    for path in store.get_all(study / "trials", "*.json"):
        try:
            if (plain := store.read_json(path)) is not None:
                records.append(Record(**plain))
        except TypeError:  # missing or additional fields
            set_aside(path)
    for record in records:
        check_inside(record.id, f"{study}: a trial", folders=False)  # the id names a folder that may be removed
    return sorted(records, key=lambda record: (record.finished_at, record.id))


KINDS = dict.fromkeys(("seed", "step", "steps"), pa.int64()) | dict.fromkeys(("value", "seconds"), pa.float64())


def as_table(records: list[Record]) -> pa.Table:
    """Return a table of one row per trial, with a column per searched option, named by its path."""
    keys = dict.fromkeys(key for record in records for key in record.point)
    columns = {key: _column([record.point.get(key) for record in records]) for key in keys}
    for name in ("id", "seed", "status", "value", "step", "steps", "seconds", "reason", "finished_at"):
        columns[name] = pa.array([getattr(record, name) for record in records], KINDS.get(name, pa.string()))
    return pa.table(columns)


def _column(values: list[Any]) -> pa.Array:
    try:
        return pa.array(values)
    except pa.ArrowException:  # mixed types: pooled layers are numbers and words
        return pa.array([None if value is None else str(value) for value in values], pa.string())
