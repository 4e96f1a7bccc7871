"""Development sets, and the metrics that compare training runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np

from raysts.data.corpora import Corpus
from raysts.data.user import DEV as STS_DEV
from raysts.errors import InputError
from raysts.evaluation import retrieval
from raysts.evaluation.entailment import DEV, load_entailment, two_way
from raysts.evaluation.scores import AREAS, RowScores
from raysts.evaluation.statistics import METRICS
from raysts.evaluation.sts import load_pairs
from raysts.evaluation.tasks import LabelledSet, Model, Represent, Similarities, lookup
from raysts.models.prompts import Text
from raysts.schema import DEVS as USER_DEVS

CORRELATION = ("spearman", "pearson")

DEVS: dict[str, tuple[str, ...]] = {STS_DEV: CORRELATION, DEV: AREAS}
"""The tables that select (``ObjectiveSpec.dev`` names one), and their metrics: the first one selects."""


@dataclass(frozen=True)
class Dev:
    """A development set, loaded once and scored often.

    Attributes:
        name: in results: ``stsb-dev``, ``snli-dev``.
        metrics: larger is better; the first one selects.
        parts: the sets, which count the same; a function reads a file that is written later.
    """

    name: str
    metrics: tuple[str, ...]
    parts: Sequence[LabelledSet] | Callable[[], Sequence[LabelledSet]]

    @cached_property
    def sets(self) -> Sequence[LabelledSet]:
        return self.parts() if callable(self.parts) else self.parts

    @cached_property
    def texts(self) -> list[Text]:
        """The distinct texts that it wants represented."""
        return list(dict.fromkeys(text for part in self.sets for text in part.texts))

    @property
    def size(self) -> int:
        """Pairs, or queries, that a score is made of."""
        return sum(part.size for part in self.sets)

    def row_scores(self, represent: Represent, similarities: Similarities) -> list[RowScores]:
        """Return the scores of the rows of all sets by the first similarity."""
        first = dict([next(iter(similarities.items()))])
        return [scores for part in self.sets for scores in part.row_scores(represent, first)]

    def values(self, scores: Sequence[RowScores]) -> dict[str, float]:
        """Return the value of each metric, the mean over sets. Raises as :meth:`RowScores.sample`."""
        by_dataset: dict[str, dict[str, float]] = {}
        for of_set in scores:
            sampled = {metric: float(values[0]) for metric, values in of_set.sample().items()}
            by_dataset.setdefault(of_set.dataset, {}).update(sampled)
        parts = list(by_dataset.values())
        if self.metrics == MEAN:
            firsts = [next(part[metric] for metric in (*CORRELATION, *part) if metric in part) for part in parts]
            return {"mean": sum(firsts) / len(firsts)}
        return {metric: sum(part[metric] for part in parts) / len(parts) for metric in self.metrics}

    def scores(self, model: Model) -> dict[str, float]:
        """Return the values of a model by its default similarity. Raises as :meth:`values`."""
        represent = lookup(self.texts, model.represent(self.texts))
        return self.values(self.row_scores(represent, model.similarities))


MEAN = ("mean",)
"""The metric of sets with different metrics: the mean of the first one of each."""


def load_dev(corpus: Corpus, table: str) -> Dev:
    """Read the development set in a table, or the user's own in its place.

    Raises:
        InputError: no model can have a score on it.
    """
    name, metrics = dev_name(table), DEVS[table]
    user = [key.removeprefix(USER_DEVS) for key in corpus if key.startswith(USER_DEVS)] if table == STS_DEV else []
    searched = dict.fromkeys(key.split("/")[0] for key in user if "/" in key)
    sets: list[LabelledSet] = []
    if searched:
        pairs = [key for key in user if "/" not in key]
        name, metrics = corpus[table].title, MEAN if pairs else retrieval.METRICS
        sets += [load_pairs(corpus, f"{USER_DEVS}{key}", name=key, split="dev") for key in pairs]
        sets += [retrieval.user_set(corpus, key) for key in searched]
    elif table in corpus.own:
        name = corpus.title(table)
        scored = load_pairs(corpus, table, name=name)
        parts = scored.subsets or {name: np.arange(scored.size)}
        sets += [replace(scored.take(rows), name=part, split="dev") for part, rows in parts.items()]
    elif table == DEV:
        sets += [two_way(name, load_entailment(corpus, table), split="dev")]
    else:
        sets += [load_pairs(corpus, table, name=name, split="dev")]
    problems = [f"development set {problem}" for part in sets for problem in part.problems()]
    if problems:
        raise InputError(problems)
    return Dev(name, metrics, tuple(sets))


def dev_name(table: str) -> str:
    """Return the name in results of the development set in a table."""
    return table.rpartition("/")[2].replace("_", "-")


LOSS = "loss"
"""Name of the training loss, smaller is better: the mean over the steps since the metrics line before the last one."""

Mode = Literal["max", "min"]


@dataclass(frozen=True, slots=True)
class RunMetric:
    """Metric of training runs.

    Attributes:
        name: a metric of the development set ``table``, or ``LOSS``.
        selecting: whether it selects checkpoints if a set of the user has other scores than ``table``.
    """

    name: str
    table: str
    selecting: bool = False

    @property
    def mode(self) -> Mode:
        return "min" if self.name == LOSS else "max"

    @property
    def key(self) -> str:
        """Its key in a line of ``metrics.jsonl``. ``dev`` is the score that selects checkpoints."""
        if self.name == LOSS:
            return LOSS
        return "dev" if self.selecting or self.name == DEVS[self.table][0] else f"dev_{self.name}"

    @property
    def factor(self) -> int:
        return 1 if self.name == LOSS else 100

    @property
    def label(self) -> str:
        return self.key.replace("_", " ")

    @property
    def title(self) -> str:
        """Its name in a report: ``Dev spearman × 100``."""
        return "Training loss" if self.name == LOSS else f"Dev {self.name} × 100"

    @property
    def description(self) -> str:
        return "training loss at the end" if self.name == LOSS else f"{self.name} of the kept model on {self.table}"

    def value_of_line(self, line: Mapping[str, Any]) -> float | None:
        """Return its value in a metrics line of an evaluation, or None."""
        return line.get(self.key) if self.name != LOSS or "dev" in line else None

    def value_of_run(self, run: Mapping[str, Any], lines: Sequence[Mapping[str, Any]]) -> float | None:
        """Return its value in the record of a finished run, or in its metrics lines, or None."""
        if self.name == LOSS:
            return lines[-1][LOSS] if lines else None
        dev = run.get("dev") or {}
        return dev.get("kept") if self.key == "dev" else (dev.get("scores") or {}).get(self.name)

    def interval(self, value: float, rows: int) -> tuple[float, float]:
        """Return the approximate 95 % interval of one score by the rows of the development set.

        Of a correlation it is by Fisher's z (Bonett & Wright 2000), of an area as of a share.
        """
        if self.name == LOSS or rows < 4 or not -1 < value < 1:
            return value, value
        if self.name in METRICS:
            z, half = math.atanh(value), 1.96 * math.sqrt((1 + value**2 / 2) / (rows - 3))
            return math.tanh(z - half), math.tanh(z + half)
        half = 1.96 * math.sqrt(max(0.0, value * (1 - value)) / rows)
        return value - half, value + half

    def text(self, value: float | None) -> str:
        """Return ``82.41`` of a score, ``0.0312`` of a loss, a dash for None."""
        if value is None:
            return "-"
        return f"{value:.4g}" if self.name == LOSS else f"{100 * value:.2f}"


def rank(value: float | None, mode: Mode) -> float:
    """Return a number by which a larger value is better, and None the worst."""
    if value is None:
        return -math.inf
    return value if mode == "max" else -value
