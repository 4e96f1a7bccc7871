"""Sentences of the embedded world: the words there are, and how a meaning becomes one of its many wordings."""

from collections.abc import Iterator, Sequence
from functools import cache
from typing import TypeVar
from zlib import crc32

import numpy as np

from tools.world.lexicon import (
    ACTIONS,
    COUNTS,
    IRREGULAR_PLURALS,
    IRREGULAR_VERBS,
    KINDS,
    MANNERS,
    PLACES,
    PROPERTIES,
    TIMES,
)
from tools.world.meaning import ANYTHING, DIMENSION_OF, Meaning, Noun

T = TypeVar("T")
_VOWELS = "aeiou"
_NEVER: frozenset[str] = frozenset()
# words that only hold sentences together
FUNCTION_WORDS = [
    ".", ",", "?", "a", "an", "the", "is", "are", "was", "were", "be", "been", "being", "by", "not", "did", "do",
    "does", "never", "there", "that", "who", "of", "kind", "it", "in", "on", "at", "what", "where", "when", "how",
    "many", "which", "why", "mean", "it", "place", "i", "think", "believe", "feel", "entity",
]  # fmt: skip


class Draws:
    """A stream of random choices: uniform numbers of `np.random.default_rng([seed, crc32(name)])`, drawn in blocks."""

    def __init__(self, seed: int, name: str) -> None:
        self._rng = np.random.default_rng([seed, crc32(name.encode())])
        self._block: Iterator[float] = iter(())

    def uniform(self) -> float:
        for value in self._block:
            return value
        self._block = iter(self._rng.random(16_384).tolist())
        return next(self._block)

    def chance(self, probability: float) -> bool:
        return self.uniform() < probability

    def pick(self, options: Sequence[T]) -> T:
        return options[int(self.uniform() * len(options))]

    def shuffled(self, options: Sequence[T]) -> list[T]:
        order = list(options)
        for last in range(len(order) - 1, 0, -1):
            other = int(self.uniform() * (last + 1))
            order[last], order[other] = order[other], order[last]
        return order


def _with_s(word: str, hissing: tuple[str, ...]) -> str:
    if word.endswith(hissing):
        return word + "es"
    return word[:-1] + "ies" if word.endswith("y") and word[-2] not in _VOWELS else word + "s"


@cache
def plural(noun: str) -> str:
    """The plural of a (possibly two-word) noun."""
    *before, word = noun.split(" ")
    form = IRREGULAR_PLURALS.get(word) or _with_s(word, ("s", "x", "ch", "sh", "potato"))
    return " ".join([*before, form])


@cache
def inflect(verb: str) -> dict[str, str]:
    """Forms of a (possibly two-word) verb: base, s, ing, past, participle."""
    word, *after = verb.split(" ")
    third = _with_s(word, ("s", "x", "ch", "sh", "z"))
    if word in IRREGULAR_VERBS:
        ing, past, participle = IRREGULAR_VERBS[word]
    else:
        stem = word[:-1] if word.endswith("e") else word
        ing = stem + "ing"
        past = participle = word[:-1] + "ied" if word.endswith("y") and word[-2] not in _VOWELS else stem + "ed"
    forms = {"base": word, "s": third, "ing": ing, "past": past, "participle": participle}
    return {name: " ".join([form, *after]) for name, form in forms.items()}


def all_surfaces() -> Iterator[tuple[str, str]]:
    """Every (concept, surface form), uninflected; adjectives and adverbs included."""
    for tree, table in (("kind", KINDS), ("action", ACTIONS), ("place", PLACES), ("count", COUNTS)):
        for concept, entry in table.items():
            yield from ((f"{tree}:{concept}", form) for form in entry.forms if form)
    for levels in PROPERTIES.values():
        for level, forms in levels.items():
            yield from ((f"property:{level}", form) for form in forms)
    for tree, phrases in (("time", TIMES), ("manner", MANNERS)):
        for concept, forms in phrases.items():
            yield from ((f"{tree}:{concept}", form) for form in forms)


class Realiser:
    """Chooses wordings; `used` holds those of the last sentence, which a paraphrase may want to leave."""

    def __init__(self, draws: Draws) -> None:
        self.draws = draws
        self._avoid: frozenset[str] | set[str] = _NEVER
        self._prefer: frozenset[str] | set[str] = _NEVER
        self.used: set[str] = set()

    def sentence(
        self, meaning: Meaning, avoid: frozenset[str] | set[str] = _NEVER, prefer: frozenset[str] | set[str] = _NEVER
    ) -> str:
        """One wording of the meaning; words to avoid only where there is no synonym, words to prefer where possible. ``avoid``:
        wordings (entries of `used`) to leave. ``prefer``: wordings to take."""
        self._avoid, self._prefer, self.used = avoid, prefer, set()
        passive = meaning.patient is not None and self.draws.chance(0.3)
        clause = self._passive(meaning) if passive else self._active(meaning)
        place = self._choose(PLACES[meaning.place].forms) if meaning.place else ""
        time = self._choose(TIMES[meaning.time]) if meaning.time else ""
        adjuncts = [phrase for phrase in (place, time) if phrase]
        if len(adjuncts) == 2 and self.draws.chance(0.5):
            adjuncts.reverse()
        front = adjuncts.pop() + ", " if adjuncts and self.draws.chance(0.3) else ""
        text = " ".join([front + clause, *adjuncts]) + "."
        return text[0].upper() + text[1:]

    def noun(self, noun: Noun) -> tuple[str, bool]:
        """A noun phrase and whether it is plural."""
        forms = KINDS[noun.kind].forms
        if noun.count == ANYTHING:
            return self._choose(forms), False
        many = noun.count != "one"
        head = self._choose(forms)
        head = plural(head) if many else head
        adjectives = [self._choose(PROPERTIES[DIMENSION_OF[level]][level]) for level in noun.properties]
        if len(adjectives) == 2 and self.draws.chance(0.5):
            adjectives.reverse()
        trailing = ""
        if adjectives and self.draws.chance(0.12):
            trailing = f" that {'are' if many else 'is'} {adjectives.pop()}"
        words = " ".join([*adjectives, head])
        determiner = self._choose(COUNTS[noun.count].forms)
        if determiner == "a" and words[0] in _VOWELS:
            determiner = "an"
        return (f"{determiner} {words}" if determiner else words) + trailing, many

    def _choose(self, forms: Sequence[str]) -> str:
        if len(forms) > 1:
            kept = self._prefer and [form for form in forms if form in self._prefer]
            kept = kept or (self._avoid and [form for form in forms if form not in self._avoid])
            choice = self.draws.pick(kept or forms)
        else:
            choice = forms[0]
        self.used.add(choice)
        return choice

    def _with_manner(self, verb: str, manner: str | None) -> tuple[str, str]:
        """The verb with its adverb, and what is left to say at the end of the clause."""
        if manner is None:
            return verb, ""
        adverb = self._choose(MANNERS[manner])
        return (f"{adverb} {verb}", "") if self.draws.chance(0.5) else (verb, " " + adverb)

    def _active(self, meaning: Meaning) -> str:
        subject, many = self.noun(meaning.agent)
        forms = inflect(self._choose(ACTIONS[meaning.action].forms))
        style = self.draws.uniform()
        tail = " " + self.noun(meaning.patient)[0] if meaning.patient is not None else ""
        if style < 0.45 or (style < 0.6 and meaning.negated):
            verb, after = self._with_manner(forms["ing"], meaning.manner)
            copula = "are" if many else "is"
            return f"{subject} {copula} {'not ' if meaning.negated else ''}{verb}{tail}{after}"
        if style < 0.6:
            verb, after = self._with_manner(forms["ing"], meaning.manner)
            return f"there {'are' if many else 'is'} {subject} {verb}{tail}{after}"
        if style < 0.8:
            verb, after = self._with_manner(forms["base" if meaning.negated else "past"], meaning.manner)
            return f"{subject} {'did not ' if meaning.negated else ''}{verb}{tail}{after}"
        base = forms["base" if many or meaning.negated else "s"]
        verb, after = self._with_manner(base, meaning.manner)
        auxiliary = ("do not " if many else "does not ") if meaning.negated else ""
        return f"{subject} {auxiliary}{verb}{tail}{after}"

    def _passive(self, meaning: Meaning) -> str:
        assert meaning.patient is not None
        subject, many = self.noun(meaning.patient)
        by, _ = self.noun(meaning.agent)
        participle = inflect(self._choose(ACTIONS[meaning.action].forms))["participle"]
        verb, after = self._with_manner(participle, meaning.manner)
        negation = "not " if meaning.negated else ""
        if self.draws.chance(0.5):
            return f"{subject} {'are' if many else 'is'} {negation}being {verb} by {by}{after}"
        return f"{subject} {'were' if many else 'was'} {negation}{verb} by {by}{after}"
