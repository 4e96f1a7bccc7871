"""What the report about merging shows: every way of merging in every regime, and what a rule predicts of them.

A configuration is the members of one regime and one seed. A rule is fitted to scores on the development set and judged on
the test sets of configurations that it was not fitted on.
"""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from statistics import fmean, stdev

import numpy as np

from raysts.evaluation.compare import compare_systems
from raysts.evaluation.merging import Rule, fit, predicted
from raysts.evaluation.results import AVERAGED
from raysts.evaluation.row_scores import ModelScores
from raysts.evaluation.statistics import CORRELATIONS
from raysts.pipeline.nodes.distances import DistancesNode
from raysts.pipeline.plan import Plan
from raysts.recipes.experiments import FROM_SOUP
from raysts.report.run.data import environment
from raysts.storage.store import Store

WAYS = ("soup", "greedy-soup", "sed", "sed-from-soup")
"""Ways to make one model of the members, the cheapest first: what a rule chooses among."""
SYSTEMS = ("backbone", "members", "best member", "ensemble", *WAYS)
"""Rows of the table. The best member is that on the development set; the ensemble is as many models as there are members."""
REFERENCE = "best member"
"""What the ways are compared with: what is there without merging."""
DISTANCES = {"weights": "weights, relative L2", "cosine": "1 - cosine on dev", "cka": "1 - CKA on dev"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """The members of one regime and one seed, and what was made of them.

    Attributes:
        regime: how they were trained.
        distances: between them, by the names of ``DISTANCES``.
        scores: of the models behind a system: scores of the rows of every test set.
    """

    regime: str
    seed: int
    distances: Mapping[str, float]
    scores: Mapping[str, Sequence[ModelScores]]
    dev: Mapping[str, float]

    def test(self, system: str) -> float:
        rows = [found for model in self.scores[system] for found in model.values()]
        return fmean(CORRELATIONS["spearman"](each.values, each.gold) for each in rows if each.gold is not None)


@dataclass(frozen=True, slots=True)
class Cell:
    """A system in a regime: mean and deviation over seeds, and its paired difference from the reference (not times 100)."""

    mean: float
    std: float | None
    difference: float | None = None
    low: float | None = None
    high: float | None = None

    @property
    def shown(self) -> bool:
        """Whether the interval of the difference does not hold 0."""
        return self.low is not None and self.high is not None and not self.low <= 0 <= self.high


@dataclass(frozen=True, slots=True)
class Judged:
    """What came of letting rules choose for configurations that they were not fitted on; constant choices beside them.
    ``right``: of how many configurations it says the way that is best on the test sets. ``lost``: mean test score below that
    of the best way.
    """

    rule: str
    held_out: str
    right: int
    lost: float
    worst: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MergingData:
    """Everything the report shows. ``distances``: mean and deviation over seeds, by regime and distance."""

    name: str
    command: str
    created_at: str
    backbone: str
    members: int
    sets: tuple[str, ...]
    table: Mapping[str, Mapping[str, Cell]]
    distances: Mapping[str, Mapping[str, tuple[float, float | None]]]
    rules: Mapping[str, Rule]
    judged: Sequence[Judged]
    configurations: Sequence[Configuration]
    environment: Mapping[str, str]


def merging_data(plans: Mapping[str, Plan], name: str, command: str) -> MergingData:
    """What the finished pipelines of the experiment show, by their points (``REGIME.seed=N``, ``.from-soup`` behind some)."""
    found: dict[str, dict[str, Plan]] = {}
    for point, plan in plans.items():
        found.setdefault(point.removesuffix(FROM_SOUP), {})["sed-from-soup" if point.endswith(FROM_SOUP) else "sed"] = (
            plan
        )
    configurations = [_configuration(point.partition(".")[0], by_start) for point, by_start in found.items()]
    first = next(iter(plans.values()))
    regimes = list(dict.fromkeys(each.regime for each in configurations))
    by_regime = {regime: [each for each in configurations if each.regime == regime] for regime in regimes}
    resamples = first.pipeline.evaluation.resamples
    return MergingData(
        name=name,
        command=command,
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        backbone=first.pipeline.backbone,
        members=first.pipeline.members,
        sets=tuple(configurations[0].scores["ensemble"][0]),
        table={
            regime: {system: _cell(several, system, resamples) for system in SYSTEMS}
            for regime, several in by_regime.items()
        },
        distances={
            regime: {distance: _spread([each.distances[distance] for each in several]) for distance in DISTANCES}
            for regime, several in by_regime.items()
        },
        rules=rules(configurations),
        judged=judged(configurations),
        configurations=configurations,
        environment=environment(
            first.members[0].record, data=first.corpus.described, storage=Store.of(first.storage).uri
        ),
    )


def _configuration(regime: str, plans: Mapping[str, Plan]) -> Configuration:
    plan = plans["sed"]
    layers, evaluations = str(plan.pipeline.compared), {node.role: node for node in plan.evaluations}

    def kept(plan: Plan, role: str, model: str) -> tuple[ModelScores, float]:
        node = next(node for node in plan.evaluations if node.role == role)
        scores, dev = node.row_scores(model)
        choice = node.pooling, layers
        return {name: rows for name, rows in scores[choice].items() if name in AVERAGED}, dev[choice]

    members = [kept(plan, "member", member.id) for member in plan.members]
    models = {
        "backbone": [kept(plan, "backbone", "backbone")],
        "members": members,
        REFERENCE: [max(members, key=lambda member: member[1])],
        "ensemble": [kept(plan, "member", "ensemble")],
        **{soup.role: [kept(plan, soup.role, soup.id)] for soup in plan.soups},
        **{way: [kept(each, "student", each.outcomes[0].id)] for way, each in plans.items()},
    }
    assert evaluations.keys() >= {"backbone", "member", "student"}
    return Configuration(
        regime=regime,
        seed=plan.pipeline.seed,
        distances=DistancesNode.of(plan, plan.members).distances,
        scores={system: [scores for scores, _ in several] for system, several in models.items()},
        dev={system: fmean(score for _, score in several) for system, several in models.items()},
    )


def _spread(values: Sequence[float]) -> tuple[float, float | None]:
    return fmean(values), stdev(values) if len(values) > 1 else None


def _cell(configurations: Sequence[Configuration], system: str, resamples: int) -> Cell:
    """One model a seed on either side, so that the interval covers another draw of rows and of seeds."""
    mean, std = _spread([each.test(system) for each in configurations])
    if system in ("members", REFERENCE):
        return Cell(mean, std)
    sides = [[each.scores[which][0] for each in configurations] for which in (system, REFERENCE)]
    row = compare_systems(sides[0], sides[1], resamples, ("spearman",))[-1]
    return Cell(mean, std, row["difference"], row["ci_low"], row["ci_high"])


def _table(configurations: Sequence[Configuration], distance: str) -> tuple[np.ndarray, np.ndarray]:
    """Distances [C], and scores on the development set [C, W]."""
    return (
        np.array([each.distances[distance] for each in configurations]),
        np.array([[each.dev[way] for way in WAYS] for each in configurations]),
    )


def judged(configurations: Sequence[Configuration]) -> list[Judged]:
    """Rules of each distance on held-out seeds and regimes, then every way taken always."""
    test_CW = np.array([[each.test(way) for way in WAYS] for each in configurations])
    lost_CW = test_CW.max(axis=1, keepdims=True) - test_CW

    def of(rule: str, held_out: str, ways_C: np.ndarray) -> Judged:
        lost_C = lost_CW[np.arange(len(ways_C)), ways_C]
        return Judged(rule, held_out, int((lost_C == 0).sum()), float(lost_C.mean()), float(lost_C.max()))

    groups: dict[str, list[Hashable]] = {
        "a seed": [each.seed for each in configurations],
        "a regime": [each.regime for each in configurations],
    }
    found = [
        of(f"by {text}", held_out, predicted(*_table(configurations, distance), group))
        for held_out, group in groups.items()
        for distance, text in DISTANCES.items()
        if len(set(group)) > 1
    ]
    every = np.zeros(len(configurations), dtype=int)
    return [*found, *(of(f"always {way}", "", every + number) for number, way in enumerate(WAYS))]


def rules(configurations: Sequence[Configuration]) -> dict[str, Rule]:
    """By distance the rule that is fitted to every configuration."""
    return {distance: fit(*_table(configurations, distance)) for distance in DISTANCES}


def said(rule: Rule) -> str:
    """A rule in words."""
    if math.isinf(rule.threshold):
        return f"always {WAYS[rule.near]}"
    return f"{WAYS[rule.near]} below {rule.threshold:.3g}, else {WAYS[rule.far]}"
