"""Row scores: the value that a model gives each row of a labelled set.

Values, intervals, clean rows, development scores and comparisons are arithmetic on them.

Shapes: N rows, R resamples.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from raysts.errors import InputError
from raysts.evaluation import statistics
from raysts.evaluation.results import ResultRow
from raysts.storage.store import Store

AREAS = ("auc_pr", "average_precision")
"""Metrics of scores that tell rows of one class (``gold`` 1) from the others: two areas under one curve."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowScores:
    """The values that one similarity of one model gives the N rows of one set.

    Attributes:
        sha256: of the set's files; scores are comparable if it is equal.
        similarity: name of the similarity; None of a trained classifier.
        metrics: correlations with ``gold``, ``AREAS``, or the name of what the mean of the values is.
        values: [N] float64: similarities, predictions, or a metric of each row.
        gold: [N] float64 labels, or None if the values are a metric already.
        subsets: rows of each subset by its name, int64.
        aggregations: how subsets are combined (``all``, ``mean``, ``wmean``); None names a plain value.
        draw: name of the random numbers of resamples; None: no interval.
        role: ``baseline`` if the values are of no model.
        compared: two models are compared by these scores.
        counted: the ``n`` of results; None: the number of values.
    """

    dataset: str
    split: str
    sha256: str
    similarity: str | None
    metrics: tuple[str, ...]
    values: np.ndarray
    gold: np.ndarray | None = None
    subsets: Mapping[str, np.ndarray] = field(default_factory=dict)
    aggregations: tuple[str | None, ...] = (None,)
    draw: str | None = None
    role: str | None = None
    compared: bool = True
    counted: int | None = None

    @property
    def key(self) -> str:
        """Name of the set, with the metric if a set has several."""
        has_one = self.gold is not None or self.metrics == ("accuracy",)
        return self.dataset if has_one else f"{self.dataset} {self.metrics[0]}"

    def take(self, rows: np.ndarray) -> RowScores:
        """Return the scores of some rows: a mask [N] bool, or their numbers in ascending order."""
        rows = np.flatnonzero(rows) if rows.dtype == bool else rows
        subsets = {name: np.flatnonzero(np.isin(rows, members)) for name, members in self.subsets.items()}
        subsets = {name: members for name, members in subsets.items() if len(members)}
        gold = None if self.gold is None else self.gold[rows]
        return replace(self, values=self.values[rows], gold=gold, subsets=subsets)

    def sample(self, resamples: int = 0, metrics: Sequence[str] | None = None) -> dict[str, np.ndarray]:
        """Return the value of each metric, followed by that of each resample [1 + R].

        Raises:
            UndefinedCorrelationError: all values are equal, or some are not finite.
            InputError: fewer than two labels, or labels that are all equal.
        """
        metrics = self.metrics if metrics is None else metrics
        if self.gold is not None and metrics[0] in statistics.CORRELATIONS:
            try:
                values: Any = {name: [statistics.CORRELATIONS[name](self.values, self.gold)] for name in metrics}  # type: ignore[index]
            except (statistics.UndefinedCorrelationError, InputError) as error:
                raise type(error)(f"{self.dataset}: {error}") from error
            samples: Any = statistics.correlation_samples(self.values, self.gold, self._drawn(resamples), metrics)  # type: ignore[arg-type]
            return {metric: np.concatenate([values[metric], samples[metric]]) for metric in metrics}
        counts_NR = self.counts(resamples)
        if self.gold is not None:
            return dict(
                zip(AREAS, statistics.precision_recall_areas(self.values, self.gold == 1, counts_NR), strict=True)
            )
        return dict.fromkeys(metrics, _means(self.values, counts_NR))

    def value(self, metric: str) -> float:
        """Return the value of a metric. Raises as :meth:`sample`."""
        return float(self.sample(0, [metric])[metric][0])

    def _drawn(self, resamples: int) -> np.ndarray:
        return statistics.resample_set(self.draw or "", len(self.values), resamples if self.draw else 0)

    def counts(self, resamples: int) -> np.ndarray:
        """Return how often each row counts: once, then as each resample draws it [N, 1 + R]."""
        drawn_NR = self._drawn(resamples)
        return np.concatenate([np.ones_like(drawn_NR, shape=(len(drawn_NR), 1)), drawn_NR], axis=1)


def _means(values_N: np.ndarray, counts_NR: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):
        return values_N @ counts_NR / counts_NR.sum(axis=0, dtype=np.int64)


def result_rows(scores: RowScores, resamples: int, clean: np.ndarray | None = None) -> list[ResultRow]:
    """Return the results rows of a set: each metric and aggregation, then each subset.

    Intervals are percentile bootstrap intervals of rows. Those of ``mean``, ``wmean`` and of a subset of correlations draw
    within the subsets. ``clean`` [N] bool: the rows to use; a value that is not defined on them has no result.

    Raises:
        UndefinedCorrelationError: similarities of a set or subset are all equal, or some are not finite.
    """
    shared: ResultRow = {
        "dataset": scores.dataset, "split": scores.split, "rows": "all" if clean is None else "clean",
        "dataset_sha256": scores.sha256, "similarity": scores.similarity, **({"role": scores.role} if scores.role else {}),
    }  # fmt: skip
    if clean is None:
        return [shared | row for row in _values(scores, resamples)]
    with contextlib.suppress(statistics.UndefinedCorrelationError, InputError):
        return [shared | row for row in _values(scores.take(clean), resamples)] if clean.any() else []
    return []


def _values(scores: RowScores, resamples: int) -> list[ResultRow]:
    """Return subset, aggregation, metric, value, ci_low, ci_high and n of each value."""
    of_all, subsets = scores.sample(resamples), scores.subsets
    size = len(scores.values) if scores.counted is None else scores.counted
    if scores.gold is None or len(subsets) < 2:  # all aggregations are one number
        rows = [_value(metric, values_R, size, scores.aggregations[0]) for metric, values_R in of_all.items()]
        if subsets and scores.gold is None:
            counts_NR = scores.counts(resamples)
            for subset, numbers in subsets.items():
                values_R = _means(scores.values[numbers], counts_NR[numbers])
                rows += [_value(metric, values_R, len(numbers), None, subset) for metric in scores.metrics]
        return rows
    parts = []
    for name, numbers in subsets.items():
        draw = scores.draw and f"{scores.draw.removesuffix('all')}{name}"
        part = replace(scores.take(numbers), dataset=f"{scores.dataset}, subset '{name}'", draw=draw)
        parts.append(part.sample(resamples))
    sizes = np.array([len(numbers) for numbers in subsets.values()])
    rows = []
    for metric, values_R in of_all.items():
        columns = np.stack([part[metric] for part in parts], axis=1)  # [1 + R, subsets]
        by_name = {"mean": columns.mean(axis=1), "wmean": columns @ (sizes / sizes.sum())}
        rows += [_value(metric, by_name.get(name or "", values_R), size, name) for name in scores.aggregations]
        of_subsets = zip(subsets, columns.T, sizes, strict=True)
        rows += [_value(metric, of_subset, int(n), None, name) for name, of_subset, n in of_subsets]
    return rows


def _value(metric: str, values_R: np.ndarray, n: int, aggregation: str | None, subset: str | None = None) -> ResultRow:
    low, high = statistics.percentile_interval(values_R[1:]) or (None, None)
    value = {"metric": metric, "value": float(values_R[0]), "ci_low": low, "ci_high": high, "n": n}
    return {"subset": subset, "aggregation": aggregation, **value}


ModelScores = Mapping[str, RowScores]
"""The scores by which a model is compared, by set (:attr:`RowScores.key`)."""


def scores_by_set(scores: Iterable[RowScores]) -> ModelScores:
    """Return the scores that two models are compared by, of the model's first similarity."""
    first: dict[str, RowScores] = {}
    for of_set in scores:
        if of_set.compared and of_set.split != "dev":
            first.setdefault(of_set.key, of_set)
    return first


Choice = tuple[str, str]
"""Pooling and layers, as a results row names them."""

COST = b"cost"
"""Key of the cost in the metadata of a file."""

_TEXTS = ("dataset", "split", "sha256", "similarity", "draw", "role")
_LISTS = ("metrics", "aggregations")
_TABLE = pa.schema(
    [
        *[(name, pa.string()) for name in ("pooling", "layers", *_TEXTS)],
        *[(name, pa.list_(pa.string())) for name in _LISTS],
        *[(name, pa.list_(pa.float64())) for name in ("values", "gold")],
        ("subsets", pa.list_(pa.struct([("name", pa.string()), ("rows", pa.list_(pa.int64()))]))),
        ("compared", pa.bool_()),
    ]
)


def write(path: Path, scores: Mapping[Choice, Sequence[RowScores]], cost: Mapping[str, Any] | None = None) -> None:
    """Write the scores of one model by choice, complete or absent, with the cost of its vectors."""
    rows: list[dict[str, Any]] = []
    for (pooling, layers), sets in scores.items():
        for of_set in sets:
            row = {name: getattr(of_set, name) for name in (*_TEXTS, *_LISTS, "values", "gold", "compared")}
            subsets = [{"name": name, "rows": numbers} for name, numbers in of_set.subsets.items()]
            rows.append({"pooling": pooling, "layers": layers, "subsets": subsets, **row})
    with Store.of(path).put(path) as draft:
        schema = _TABLE.with_metadata({COST: json.dumps(cost)}) if cost else _TABLE
        pq.write_table(pa.Table.from_pylist(rows, schema=schema), draft, compression="zstd")


def read_cost(path: Path) -> dict[str, Any] | None:
    """Return the cost that :func:`write` wrote, or None."""
    file = Store.of(path).get(path)
    metadata = (pq.read_schema(file).metadata if file else None) or {}
    return json.loads(metadata[COST]) if COST in metadata else None


def read(path: Path) -> dict[Choice, list[RowScores]] | None:
    """Return the scores that :func:`write` wrote, or None if the file is missing."""
    file = Store.of(path).get(path)
    if file is None:
        return None
    scores: dict[Choice, list[RowScores]] = {}
    table = pq.ParquetFile(file).read()
    arrays = {name: table.column(name) for name in ("values", "gold", "subsets")}
    for number, row in enumerate(table.drop_columns([*arrays]).to_pylist()):
        choice = row.pop("pooling"), row.pop("layers")
        values, gold, subsets = (column[number] for column in arrays.values())
        row |= {name: tuple(row[name]) for name in _LISTS}
        row["gold"] = None if gold.values is None else gold.values.to_numpy()
        row["subsets"] = {part["name"].as_py(): part["rows"].values.to_numpy() for part in subsets}
        scores.setdefault(choice, []).append(RowScores(values=values.values.to_numpy(), **row))
    return scores
