"""Facts of the embedded world: drawing meanings that belong to a split, and editing them into related meanings.

Every core (agent kind, action, patient kind) belongs to exactly one of train, dev and test, the same one for every seed
of the world, so a model trained on one world never saw a fact of another world's test set.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from zlib import crc32

from tools.world.lexicon import (
    ACTIONS,
    COUNTS,
    KINDS,
    MANNER_DIMENSIONS,
    MANNERS,
    PLACES,
    PROPERTIES,
    PROPERTY_PARENTS,
    ROOT,
    TIMES,
)
from tools.world.meaning import (
    ANYTHING,
    DIMENSION_OF,
    MANNER_DIMENSION_OF,
    Meaning,
    Noun,
    children,
    count_relation,
    property_dimensions,
    relation,
)
from tools.world.text import Draws

SPLITS = ("train", "dev", "test")
_SHARES = (60, 75, 100)  # per cent of the cores, cumulative
_TRIES = 16


@cache
def split_of(core: tuple[str, str, str]) -> str:
    """The split to which the facts of this core belong."""
    bucket = crc32("|".join(core).encode()) % 100
    return next(split for split, bound in zip(SPLITS, _SHARES, strict=True) if bucket < bound)


@cache
def leaves(tree: str, name: str) -> tuple[str, ...]:
    """The leaves at or below a concept."""
    below = children(tree, name)
    return tuple(leaf for child in below for leaf in leaves(tree, child)) if below else (name,)


def _tops(action: str, role: str) -> tuple[str, ...]:
    return ACTIONS[action].agents if role == "agent" else ACTIONS[action].patients


@cache
def _participants(action: str, role: str) -> tuple[str, ...]:
    return tuple(leaf for top in _tops(action, role) for leaf in leaves("kind", top))


@cache
def allowed(action: str, role: str, kind: str) -> bool:
    """Whether the kind, or part of it, takes the role in the action."""
    return any(relation("kind", kind, top) != "disjoint" for top in _tops(action, role))


LEAF_ACTIONS = tuple(action for action in ACTIONS if not children("action", action))
LEAF_PLACES = tuple(place for place in PLACES if not children("place", place))
_MANY = tuple(count for count in COUNTS if count != "one")


def _roles(meaning: Meaning) -> list[tuple[str, Noun]]:
    agent = ("agent", meaning.agent)
    return [agent] if meaning.patient is None else [agent, ("patient", meaning.patient)]


class Facts:
    """Draws and edits meanings of one split."""

    def __init__(self, split: str, draws: Draws) -> None:
        assert split in SPLITS, split
        self.split = split
        self.draws = draws
        self.edits: dict[str, Callable[[Meaning], Meaning | None]] = {
            "widen": self._widen,
            "narrow": self._narrow,
            "sibling": self._sibling,
            "other_kind": self._other_kind,
            "other_action": self._other_action,
            "add": self._add,
            "drop": self._drop,
            "contrast": self._contrast,
            "count": self._count,
            "widen_count": self._widen_count,
            "negate": self._negate,
            "swap": self._swap,
        }

    def fresh(self, modifiers: float = 0.5, negated: float = 0.1) -> Meaning:
        """A new meaning of the split. ``modifiers``: how likely each place, time, manner and property is to be said.
        ``negated``: how likely the sentence is a denial."""
        draws = self.draws
        while True:
            action = draws.pick(LEAF_ACTIONS)
            agent = draws.pick(_participants(action, "agent"))
            patients = _participants(action, "patient")
            patient = draws.pick(patients) if patients else None
            if patient != agent and split_of((agent, action, patient or "")) == self.split:
                break
        return Meaning(
            agent=self._noun(agent, modifiers),
            action=action,
            patient=None if patient is None else self._noun(patient, modifiers * 0.8),
            place=draws.pick(LEAF_PLACES) if draws.chance(modifiers) else None,
            time=draws.pick(tuple(TIMES)) if draws.chance(modifiers * 0.4) else None,
            manner=draws.pick(tuple(MANNERS)) if draws.chance(modifiers * 0.4) else None,
            negated=draws.chance(negated),
        )

    def edited(self, meaning: Meaning, name: str) -> Meaning:
        """The meaning after one edit of the kind `name`; unchanged where none of this split could be found."""
        for _ in range(_TRIES):
            result = self.edits[name](meaning)
            if result is not None and split_of(result.core) == self.split and result != meaning:
                return result
        return meaning

    def recast_agent(self, meaning: Meaning, kind: str) -> Meaning | None:
        """The meaning with an agent of the kind; None where the action or the split does not allow it."""
        result = self._recast(meaning, "agent", meaning.agent, kind)
        return result if result is not None and split_of(result.core) == self.split else None

    def _noun(self, kind: str, modifiers: float) -> Noun:
        draws = self.draws
        properties: tuple[str, ...] = ()
        if draws.chance(modifiers):
            dimensions = property_dimensions(kind)
            chosen = {draws.pick(dimensions)}
            if draws.chance(0.25):
                chosen.add(draws.pick(dimensions))
            properties = tuple(draws.pick(tuple(PROPERTIES[dimension])) for dimension in sorted(chosen))
        return Noun(kind, properties, "one" if draws.chance(0.6) else draws.pick(_MANY))

    def _with(self, meaning: Meaning, role: str, noun: Noun) -> Meaning:
        return meaning._replace(agent=noun) if role == "agent" else meaning._replace(patient=noun)

    def _role(self, meaning: Meaning) -> tuple[str, Noun]:
        if meaning.patient is not None and self.draws.chance(0.5):
            return "patient", meaning.patient
        return "agent", meaning.agent

    def _recast(self, meaning: Meaning, role: str, noun: Noun, kind: str) -> Meaning | None:
        """Another kind in the role, with the properties that the kind can have."""
        if kind != ROOT and not allowed(meaning.action, role, kind):
            return None
        if kind == ROOT:
            return self._with(meaning, role, Noun(ROOT, (), ANYTHING)) if role == "patient" else None
        usable = property_dimensions(kind)
        kept = tuple(level for level in noun.properties if DIMENSION_OF[level] in usable)
        count = "one" if noun.count == ANYTHING else noun.count
        return self._with(meaning, role, Noun(kind, kept, count))

    def _widen(self, meaning: Meaning) -> Meaning | None:
        choice = self.draws.uniform()
        if choice < 0.3:
            parent = ACTIONS[meaning.action].parent
            return meaning._replace(action=parent) if parent else None
        if choice < 0.4 and meaning.place is not None:
            parent = PLACES[meaning.place].parent
            return meaning._replace(place=parent) if parent else None
        role, noun = self._role(meaning)
        if choice > 0.9:
            nested = [level for level in noun.properties if level in PROPERTY_PARENTS]
            return self._relevel(meaning, role, noun, nested[0], PROPERTY_PARENTS[nested[0]]) if nested else None
        parent = KINDS[noun.kind].parent
        return self._recast(meaning, role, noun, parent) if parent else None

    def _narrow(self, meaning: Meaning) -> Meaning | None:
        choice = self.draws.uniform()
        if choice < 0.35:
            below = children("action", meaning.action)
            return meaning._replace(action=self.draws.pick(below)) if below else None
        if choice < 0.45 and meaning.place is not None:
            below = children("place", meaning.place)
            return meaning._replace(place=self.draws.pick(below)) if below else None
        role, noun = self._role(meaning)
        below = children("kind", noun.kind)
        return self._recast(meaning, role, noun, self.draws.pick(below)) if below else None

    def _sibling(self, meaning: Meaning) -> Meaning | None:
        choice = self.draws.uniform()
        if choice < 0.35:
            siblings = children("action", ACTIONS[meaning.action].parent)
            return self._react(meaning, self.draws.pick(siblings)) if ACTIONS[meaning.action].parent else None
        role, noun = self._role(meaning)
        parent = KINDS[noun.kind].parent
        return self._recast(meaning, role, noun, self.draws.pick(children("kind", parent))) if parent else None

    def _other_kind(self, meaning: Meaning) -> Meaning | None:
        role, noun = self._role(meaning)
        return self._recast(meaning, role, noun, self.draws.pick(_participants(meaning.action, role)))

    def _other_action(self, meaning: Meaning) -> Meaning | None:
        return self._react(meaning, self.draws.pick(LEAF_ACTIONS))

    def _react(self, meaning: Meaning, action: str) -> Meaning | None:
        if not allowed(action, "agent", meaning.agent.kind) or bool(ACTIONS[action].patients) != bool(meaning.patient):
            return None
        patient = meaning.patient
        if patient is not None and patient.kind != ROOT and not allowed(action, "patient", patient.kind):
            return None
        return meaning._replace(action=action)

    def _add(self, meaning: Meaning) -> Meaning | None:
        draws = self.draws
        choice = draws.uniform()
        if choice < 0.25 and meaning.place is None:
            return meaning._replace(place=draws.pick(LEAF_PLACES))
        if choice < 0.4 and meaning.time is None:
            return meaning._replace(time=draws.pick(tuple(TIMES)))
        if choice < 0.55 and meaning.manner is None:
            return meaning._replace(manner=draws.pick(tuple(MANNERS)))
        role, noun = self._role(meaning)
        said = {DIMENSION_OF[level] for level in noun.properties}
        free = [dimension for dimension in property_dimensions(noun.kind) if dimension not in said]
        if noun.kind == ROOT or len(noun.properties) > 1 or not free:
            return None
        level = draws.pick(tuple(PROPERTIES[draws.pick(free)]))
        properties = tuple(sorted((*noun.properties, level), key=DIMENSION_OF.__getitem__))
        return self._with(meaning, role, replace(noun, properties=properties))

    def _drop(self, meaning: Meaning) -> Meaning | None:
        options = [meaning._replace(place=None), meaning._replace(time=None), meaning._replace(manner=None)]
        for role, noun in _roles(meaning):
            for level in noun.properties:
                kept = tuple(other for other in noun.properties if other != level)
                options.append(self._with(meaning, role, replace(noun, properties=kept)))
        options = [option for option in options if option != meaning]
        return self.draws.pick(options) if options else None

    def _contrast(self, meaning: Meaning) -> Meaning | None:
        """Another place, time, manner or level of a property that is said."""
        draws = self.draws
        options: list[Meaning] = []
        for role, noun in _roles(meaning):
            for level in noun.properties:
                others = [other for other in PROPERTIES[DIMENSION_OF[level]] if other != level]
                options.append(self._relevel(meaning, role, noun, level, draws.pick(others)))
        if meaning.place is not None:
            options.append(meaning._replace(place=draws.pick(LEAF_PLACES)))
        if meaning.time is not None:
            options.append(meaning._replace(time=draws.pick(tuple(TIMES))))
        if meaning.manner is not None:
            first, second = MANNER_DIMENSIONS[MANNER_DIMENSION_OF[meaning.manner]]
            options.append(meaning._replace(manner=second if meaning.manner == first else first))
        return draws.pick(options) if options else None

    def _relevel(self, meaning: Meaning, role: str, noun: Noun, old: str, new: str) -> Meaning:
        properties = tuple(new if level == old else level for level in noun.properties)
        return self._with(meaning, role, replace(noun, properties=properties))

    def _count(self, meaning: Meaning) -> Meaning | None:
        role, noun = self._role(meaning)
        if noun.count == ANYTHING:
            return None
        return self._with(meaning, role, replace(noun, count=self.draws.pick(tuple(COUNTS))))

    def _widen_count(self, meaning: Meaning) -> Meaning | None:
        role, noun = self._role(meaning)
        wider = [count for count in COUNTS if count != noun.count and count_relation(noun.count, count) == "within"]
        return self._with(meaning, role, replace(noun, count=self.draws.pick(wider))) if wider else None

    def _negate(self, meaning: Meaning) -> Meaning:
        return meaning._replace(negated=not meaning.negated)

    def _swap(self, meaning: Meaning) -> Meaning | None:
        """Agent and patient change places, where both roles allow it."""
        agent, patient = meaning.agent, meaning.patient
        if patient is None or patient.kind == ROOT:
            return None
        if not allowed(meaning.action, "agent", patient.kind) or not allowed(meaning.action, "patient", agent.kind):
            return None
        return meaning._replace(agent=patient, patient=agent)
