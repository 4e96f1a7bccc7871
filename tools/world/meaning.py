"""Formal semantics of the embedded world: what a sentence means, what follows from it, how close two meanings are.

A sentence describes one situation: who (a kind, its properties, how many) does what, to what, where, when and how. A
`Meaning` denotes the set of situations in which it is true; entailment is inclusion of these sets and contradiction is
their disjointness, both decided dimension by dimension. Numerals are exact ("two" is not "three") and, as in caption
inference, both sentences of a pair speak of the same situation.
"""

import math
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from tools.world.lexicon import (
    ACTIONS,
    COUNTS,
    KINDS,
    MANNER_DIMENSIONS,
    MANNERS,
    PLACES,
    PROPERTIES,
    PROPERTIES_OF,
    PROPERTY_PARENTS,
    ROOT,
    TIMES,
)

ENTAILMENT, NEUTRAL, CONTRADICTION = "entailment", "neutral", "contradiction"
DIMENSION_OF: dict[str, str] = {level: dimension for dimension, levels in PROPERTIES.items() for level in levels}
MANNER_DIMENSION_OF: dict[str, str] = {pole: dim for dim, poles in MANNER_DIMENSIONS.items() for pole in poles}
EXCHANGED_ROLES = 0.7  # what of two participants' closeness remains when their roles are exchanged
ANYTHING = "anything"  # the count of "something", which does not say how many


@dataclass(frozen=True, slots=True)
class Noun:
    """A participant: a kind, at most one level of each property dimension (sorted), and a count."""

    kind: str
    properties: tuple[str, ...] = ()
    count: str = "one"


class Meaning(NamedTuple):
    """What a sentence says; `negated` denies everything but the agent ("a dog is not chasing a cat at night")."""

    agent: Noun
    action: str
    patient: Noun | None = None
    place: str | None = None
    time: str | None = None
    manner: str | None = None
    negated: bool = False

    @property
    def core(self) -> tuple[str, str, str]:
        """Agent kind, action, patient kind: the fact by which splits are kept apart."""
        return (self.agent.kind, self.action, "" if self.patient is None else self.patient.kind)


_PARENTS: dict[str, dict[str, str]] = {
    "kind": {name: kind.parent for name, kind in KINDS.items()},
    "action": {name: action.parent for name, action in ACTIONS.items()},
    "place": {name: place.parent for name, place in PLACES.items()},
    "property": {level: PROPERTY_PARENTS.get(level, "") for level in DIMENSION_OF},
    "time": dict.fromkeys(TIMES, ""),
    "manner": dict.fromkeys(MANNERS, ""),
}


@cache
def lineage(tree: str, name: str) -> tuple[str, ...]:
    """The concept and its ancestors, nearest first."""
    parent = _PARENTS[tree][name]
    return (name, *lineage(tree, parent)) if parent else (name,)


@cache
def children(tree: str, name: str) -> tuple[str, ...]:
    """The concepts whose parent is `name` ("" gives the roots)."""
    return tuple(child for child, parent in _PARENTS[tree].items() if parent == name)


@cache
def relation(tree: str, a: str, b: str) -> str:
    """How the set of `a` lies to that of `b`: `within` (or equal), `around` or `disjoint`."""
    if b in lineage(tree, a):
        return "within"
    return "around" if a in lineage(tree, b) else "disjoint"


@cache
def count_relation(a: str, b: str) -> str:
    """As `relation`, for counts, which may also `overlap`."""
    if b == ANYTHING or a == b:
        return "within"
    if a == ANYTHING:
        return "around"
    first, second = COUNTS[a], COUNTS[b]
    if first.low >= second.low and first.high <= second.high:
        return "within"
    if second.low >= first.low and second.high <= first.high:
        return "around"
    return "disjoint" if first.high < second.low or second.high < first.low else "overlap"


def property_dimensions(kind: str) -> tuple[str, ...]:
    """The property dimensions that sentences use of a kind."""
    for ancestor in lineage("kind", kind):
        if ancestor in PROPERTIES_OF:
            return PROPERTIES_OF[ancestor]
    return PROPERTIES_OF[""]


def _optional(tree: str, a: str | None, b: str | None) -> str:
    if b is None:
        return "within"
    return "around" if a is None else relation(tree, a, b)


def _noun_relations(a: Noun, b: Noun) -> list[str]:
    relations = [relation("kind", a.kind, b.kind), count_relation(a.count, b.count)]
    of_a = {DIMENSION_OF[level]: level for level in a.properties}
    of_b = {DIMENSION_OF[level]: level for level in b.properties}
    relations += [_optional("property", of_a.get(dim), of_b.get(dim)) for dim in sorted(of_a.keys() | of_b.keys())]
    return relations


def _predicate_relations(a: Meaning, b: Meaning) -> list[str]:
    relations = [relation("action", a.action, b.action)]
    if a.patient is not None and b.patient is not None:
        relations += _noun_relations(a.patient, b.patient)
    elif a.patient is not None or b.patient is not None:
        relations.append("disjoint")
    relations += [_optional("place", a.place, b.place), _optional("time", a.time, b.time)]
    of_a = MANNER_DIMENSION_OF[a.manner] if a.manner else None
    of_b = MANNER_DIMENSION_OF[b.manner] if b.manner else None
    if of_a is not None and of_b is not None and of_a != of_b:
        relations.append("overlap")
    else:
        relations.append(_optional("manner", a.manner, b.manner))
    return relations


def _joint(relations: list[str]) -> str:
    """The relation of two products of sets from those of their factors."""
    if "disjoint" in relations:
        return "disjoint"
    if all(r == "within" for r in relations):
        return "within"
    return "other"


def infer(premise: Meaning, hypothesis: Meaning) -> str:
    """`entailment`, `neutral` or `contradiction`."""
    agent = _joint(_noun_relations(premise.agent, hypothesis.agent))
    if agent == "disjoint":
        return CONTRADICTION
    forward = _joint(_predicate_relations(premise, hypothesis))
    backward = _joint(_predicate_relations(hypothesis, premise))
    if not premise.negated and not hypothesis.negated:
        predicate = forward
    elif premise.negated and hypothesis.negated:
        predicate = "within" if backward == "within" else "other"
    elif hypothesis.negated:
        predicate = {"within": "disjoint", "disjoint": "within"}.get(forward, "other")
    else:
        predicate = "disjoint" if backward == "within" else "other"
    if predicate == "disjoint":
        return CONTRADICTION
    return ENTAILMENT if agent == predicate == "within" else NEUTRAL


@cache
def concept_similarity(tree: str, a: str, b: str) -> float:
    """Closeness of two concepts in their tree, 0..1: 1 for one concept, less with every step to the common ancestor."""
    of_a, of_b = lineage(tree, a), lineage(tree, b)
    shared = next((name for name in of_a if name in of_b and name != ROOT), None)
    if shared is None:
        return 0.0
    steps = of_a.index(shared) + of_b.index(shared)
    return {0: 1.0, 1: 0.75, 2: 0.45, 3: 0.3}.get(steps, 0.2)


@cache
def count_similarity(a: str, b: str) -> float:
    """Closeness of two counts, 0..1: falls with the ratio of the numbers."""
    if a == b:
        return 1.0
    if ANYTHING in (a, b):
        return 0.5
    first, second = COUNTS[a], COUNTS[b]
    distance = 0.5 * abs(math.log2(first.low * first.high / (second.low * second.high)))
    return max(0.0, (0.75 if count_relation(a, b) != "disjoint" else 0.5) - 0.1 * distance)


def _property_similarity(a: Noun, b: Noun) -> float:
    of_a = {DIMENSION_OF[level]: level for level in a.properties}
    of_b = {DIMENSION_OF[level]: level for level in b.properties}
    dimensions = sorted(of_a.keys() | of_b.keys())
    if not dimensions:
        return 1.0
    total = 0.0
    for dimension in dimensions:
        first, second = of_a.get(dimension), of_b.get(dimension)
        if first is None or second is None:
            total += 0.5
        else:
            total += 1.0 if first == second else (0.7 if relation("property", first, second) != "disjoint" else 0.0)
    return total / len(dimensions)


def noun_similarity(a: Noun, b: Noun) -> float:
    """Closeness of two participants, 0..1: the kinds', lowered by differing properties and counts."""
    kinds = concept_similarity("kind", a.kind, b.kind)
    if ROOT in (a.kind, b.kind) and a.kind != b.kind:
        kinds = 0.4
    return kinds * (0.4 + 0.3 * _property_similarity(a, b) + 0.3 * count_similarity(a.count, b.count))


def similarity(a: Meaning, b: Meaning) -> float:
    """Closeness of two meanings, 0..1 and symmetric: weighted over the roles that either one fills."""
    parts = [(0.35, concept_similarity("action", a.action, b.action))]
    if a.patient is not None and b.patient is not None:
        agents, patients = noun_similarity(a.agent, b.agent), noun_similarity(a.patient, b.patient)
        crossed = noun_similarity(a.agent, b.patient) + noun_similarity(a.patient, b.agent)
        # the same participants in each other's roles are still the same participants
        parts.append((0.65, max((0.35 * agents + 0.3 * patients) / 0.65, EXCHANGED_ROLES * crossed / 2)))
    else:
        parts.append((0.35, noun_similarity(a.agent, b.agent)))
        if a.patient is not None or b.patient is not None:
            parts.append((0.3, 0.0))
    for weight, tree, first, second in (
        (0.2, "place", a.place, b.place),
        (0.12, "time", a.time, b.time),
        (0.12, "manner", a.manner, b.manner),
    ):
        if first is not None and second is not None:
            parts.append((weight, concept_similarity(tree, first, second)))
        elif first is not None or second is not None:
            parts.append((weight, 0.5))
    closeness = (sum(weight * value for weight, value in parts) / sum(weight for weight, _ in parts)) ** 1.5
    return closeness * (0.5 if a.negated != b.negated else 1.0)
