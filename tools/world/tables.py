"""Tables of the embedded world: articles, NLI pairs, graded STS and SICK pairs, all computed from the meanings."""

from dataclasses import dataclass
from typing import Any

from tools.world.facts import Facts, leaves
from tools.world.lexicon import ACTIONS, KINDS, ROOT
from tools.world.meaning import CONTRADICTION, ENTAILMENT, NEUTRAL, Meaning, infer, similarity
from tools.world.text import Draws, Realiser, plural

Row = dict[str, Any]
LEAVE_WORDS, KEEP_WORDS = 0.5, 0.3  # how strongly the wording of STS pairs works against word overlap
LABELS = (ENTAILMENT, NEUTRAL, CONTRADICTION)
WHOLE_PREMISES = 0.1  # share of premises with a hypothesis of each label; a quarter of the rows is theirs


@dataclass(frozen=True, slots=True)
class Sizes:
    """Row counts of the tables."""

    articles: int
    sentences_per_article: int
    nli_train: int
    nli_eval: int
    sts_train: int
    sts_eval: int
    sts_year: int
    sick: int
    transfer: int


SIZES: dict[str, Sizes] = {
    "default": Sizes(1_600, 25, 28_000, 1_500, 2_000, 1_000, 400, 1_000, 400),
    "small": Sizes(60, 20, 1_500, 200, 200, 150, 60, 120, 60),
}

# edits that a hypothesis is made by, listed under the label they usually lead to (the label itself is always computed);
# every cue that shows in one sentence alone (a general word, a modifier more or less, a denial) occurs under each label
_NLI_EDITS: dict[str, tuple[tuple[str, ...], ...]] = {
    ENTAILMENT: (
        *[()] * 7, ("widen",), ("widen",), ("widen", "widen"), ("drop",), ("drop",), ("widen_count",),
        ("other_action", "negate"), ("contrast", "negate"), ("other_kind", "other_action", "negate"),
    ),
    NEUTRAL: (
        *[("add",)] * 6, ("add", "drop"), ("add", "add"), ("narrow",), ("narrow",), ("add", "widen"),
        ("narrow", "drop"), ("add", "negate"), ("narrow", "negate"), ("widen_count", "add"),
    ),
    CONTRADICTION: (
        ("sibling",), ("other_kind",), ("other_kind",), ("other_action",), ("other_action",), ("contrast",), ("count",),
        ("negate",), ("negate", "widen"), ("other_kind", "widen"), ("other_action", "widen"), ("other_kind", "drop"),
        ("other_kind", "other_action"), *[("other_kind", "other_kind", "other_action")] * 6, ("other_action", "add"),
        ("other_kind", "widen_count"), ("swap",), ("scene",), ("scene",), ("scene", "widen"), ("scene", "add"),
        ("fresh",), ("fresh", "widen"), ("fresh", "drop"),
    ),
}  # fmt: skip

# what the second sentence of an STS pair is made by; lists of edits are taken in turn, so every grade gets its share
PROFILES: dict[str, tuple[tuple[str, ...], ...]] = {
    "paraphrases": (
        (), (), ("drop",), ("sibling",), ("sibling", "contrast"), ("other_kind", "other_action"), ("scene",),
        ("fresh",),
    ),
    "quantities": (
        (), ("count",), ("count", "count"), ("widen_count",), ("count", "other_kind"), ("other_action", "other_kind"),
        ("count", "other_action", "other_kind"), ("scene", "count"),
    ),
    "properties": (
        (), ("contrast",), ("contrast", "contrast"), ("contrast", "sibling"), ("contrast", "other_action"),
        ("contrast", "other_kind", "other_action"), ("scene",), ("negate", "drop"),
    ),
    "kinds": (
        (), ("widen",), ("sibling",), ("sibling", "sibling"), ("other_kind",), ("other_kind", "other_action"),
        ("other_kind", "other_kind", "other_action"), ("scene",),
    ),
    "events": (
        (), ("other_action",), ("other_action", "other_kind"), ("other_action", "other_kind", "other_kind"),
        ("negate",), ("negate", "other_action"), ("scene",), ("scene", "negate"),
    ),
    "scenes": (
        (), (), ("fresh",), ("fresh",), ("scene",), ("scene", "negate"), ("other_action", "other_kind", "contrast"),
        ("sibling", "drop"),
    ),
}  # fmt: skip
STS_SUBSETS: dict[str, tuple[str, ...]] = {
    "sts12": ("paraphrases", "quantities", "events"),
    "sts13": ("kinds", "properties", "scenes"),
    "sts14": ("paraphrases", "kinds", "quantities", "scenes"),
    "sts15": ("properties", "events", "paraphrases", "scenes"),
    "sts16": ("quantities", "kinds", "events", "scenes"),
}


@dataclass(frozen=True, slots=True)
class Pair:
    """Two meanings and their wordings."""

    first: Meaning
    second: Meaning
    sentence1: str
    sentence2: str


class Writer:
    """Writes rows of one split from one named stream of choices. ``name``: name of the table; streams of other tables are
    independent."""

    def __init__(self, seed: int, name: str, split: str) -> None:
        self.draws = Draws(seed, name)
        self.facts = Facts(split, self.draws)
        self.realiser = Realiser(self.draws)

    def _derived(self, meaning: Meaning, edits: tuple[str, ...]) -> Meaning:
        for edit in edits:
            if edit == "fresh":
                meaning = self.facts.fresh()
            elif edit == "scene":
                other = self.facts.fresh(modifiers=0.35, negated=0.0)
                # much the same words in other surroundings: another event
                meaning = meaning._replace(agent=other.agent, action=other.action, patient=other.patient)
            else:
                meaning = self.facts.edited(meaning, edit)
        return meaning

    def _pair(self, first: Meaning, second: Meaning) -> Pair:
        """Word both meanings; the closer they are, the more likely the second leaves the words of the first."""
        sentence1 = self.realiser.sentence(first)
        used = set(self.realiser.used)
        closeness = similarity(first, second)
        away = self.draws.chance(LEAVE_WORDS * closeness)
        toward = not away and self.draws.chance(KEEP_WORDS * (1.0 - closeness))
        avoid = used if away else frozenset[str]()
        prefer = used if toward else frozenset[str]()
        sentence2 = self.realiser.sentence(second, avoid=avoid, prefer=prefer)
        if self.draws.chance(0.5):
            return Pair(second, first, sentence2, sentence1)
        return Pair(first, second, sentence1, sentence2)

    def nli_pairs(self, rows: int) -> list[tuple[Pair, str]]:
        """Premise and hypothesis with their label; some premises stand with one hypothesis of each label, as in SNLI, the
        others with one: a premise seen once teaches more, and triplets need all three."""
        pairs: list[tuple[Pair, str]] = []
        seen: set[str] = set()
        singles = 0
        while len(pairs) < rows:
            premise = self.facts.fresh(modifiers=0.2, negated=0.12)
            if self.draws.chance(0.2):
                premise = self.facts.edited(premise, "widen")
            text = self.realiser.sentence(premise)
            used = set(self.realiser.used)
            whole = self.draws.chance(WHOLE_PREMISES)
            labels = LABELS if whole else (LABELS[singles % len(LABELS)],)
            found = [(self._hypothesis(premise, text, used, label), label) for label in labels]
            if text not in seen and all(pair for pair, _ in found):
                seen.add(text)
                singles += not whole
                pairs += [(pair, label) for pair, label in found if pair]
        return self.draws.shuffled(pairs[:rows])

    def _hypothesis(self, premise: Meaning, text: str, used: set[str], label: str, tries: int = 12) -> Pair | None:
        """A hypothesis of ``label`` in words that avoid those of the premise, prefer them, or do neither."""
        for _ in range(tries):
            hypothesis = self._derived(premise, self.draws.pick(_NLI_EDITS[label]))
            if infer(premise, hypothesis) != label:
                continue
            wording = self.draws.uniform()
            avoid = used if wording < 0.4 else frozenset[str]()
            prefer = used if wording > 0.7 else frozenset[str]()
            other = self.realiser.sentence(hypothesis, avoid=avoid, prefer=prefer)
            if text != other:
                return Pair(premise, hypothesis, text, other)
        return None

    def sts_pairs(self, rows: int, profile: str) -> list[Pair]:
        """Pairs made by the edits of a profile, each list of edits in turn."""
        edits = PROFILES[profile]
        pairs: list[Pair] = []
        seen: set[tuple[str, str]] = set()
        while len(pairs) < rows:
            first = self.facts.fresh(modifiers=0.35, negated=0.08)
            chosen = edits[len(pairs) % len(edits)]
            second = self._derived(first, chosen)
            if chosen and second == first:
                continue
            pair = self._pair(first, second)
            key = (pair.sentence1, pair.sentence2)
            if pair.sentence1 != pair.sentence2 and key not in seen:
                seen.add(key)
                pairs.append(pair)
        return self.draws.shuffled(pairs)

    def articles(self, count: int, sentences: int) -> tuple[list[Row], list[Row]]:
        """Articles and their sentences: a definition of the title's kind, then facts about it; no sentence twice."""
        people = [*leaves("kind", "person"), *leaves("kind", "animal")]
        rows: list[Row] = []
        lines: list[Row] = []
        seen: set[str] = set()
        for article in range(count):
            kind = people[article % len(people)]
            form = self.draws.pick(KINDS[kind].forms)
            said = [definition(self.draws, kind, form)]
            tries = 0
            while len(said) < sentences and tries < 40 * sentences:
                tries += 1
                meaning = self.facts.fresh(modifiers=0.4, negated=0.08)
                if self.draws.chance(0.6):
                    meaning = self._about(meaning, kind)
                if self.draws.chance(0.25):
                    meaning = self.facts.edited(meaning, "widen")
                said.append(self.realiser.sentence(meaning))
            new = [sentence for sentence in dict.fromkeys(said) if sentence not in seen]
            seen.update(new)
            identity = f"world-{article:05d}"
            rows.append({"article_id": identity, "title": plural(form).capitalize(), "text": "\n".join(said)})
            lines.extend({"sentence": sentence, "article_id": identity} for sentence in new)
        return rows, lines

    def _about(self, meaning: Meaning, kind: str) -> Meaning:
        """A fact of the split like `meaning` whose agent is of the kind; `meaning` itself where there is none."""
        for _ in range(8):
            other = self.facts.recast_agent(meaning, kind)
            if other is not None:
                return other
            meaning = self.facts.fresh(modifiers=0.4, negated=0.08)
        return meaning


def definition(draws: Draws, kind: str, form: str) -> str:
    """A defining sentence of the kind, as an article begins."""
    parent = KINDS[kind].parent
    above = draws.pick(KINDS[parent].forms) if parent != ROOT else "entity"
    article = "An" if form[0] in "aeiou" else "A"
    if draws.chance(0.5):
        return f"{article} {form} is a kind of {above}."
    return f"{article} {form} is {'an' if above[0] in 'aeiou' else 'a'} {above}."


def grade(pair: Pair) -> float:
    """The STS score 0..5 of a pair, in steps of 0.1."""
    return round(5.0 * similarity(pair.first, pair.second), 1)


def sts_rows(seed: int, name: str, split: str, rows: int, subsets: tuple[str, ...]) -> list[Row]:
    """Rows of an STS table: the subsets in turn, about equally many rows each."""
    table: list[Row] = []
    for index, subset in enumerate(subsets):
        share = rows * (index + 1) // len(subsets) - rows * index // len(subsets)
        for pair in Writer(seed, f"{name}/{subset}", split).sts_pairs(share, subset):
            table.append(
                {"subset": subset, "sentence1": pair.sentence1, "sentence2": pair.sentence2, "score": grade(pair)}
            )
    return Draws(seed, f"{name}/order").shuffled(table)


def nli_rows(seed: int, name: str, split: str, rows: int) -> list[Row]:
    """Rows of an NLI table, the three labels equally often."""
    return [
        {
            "premise": pair.sentence1,
            "hypothesis": pair.sentence2,
            "label": label,
            "genre": "transitive" if ACTIONS[pair.first.action].patients else "intransitive",
            "source": "world",
        }
        for pair, label in Writer(seed, name, split).nli_pairs(rows)
    ]


def sick_rows(seed: int, name: str, split: str, rows: int) -> list[Row]:
    """Rows of a SICK table: relatedness 1..5, the label and the inference in both directions."""
    table: list[Row] = []
    writer = Writer(seed, name, split)
    pairs: list[Pair] = [pair for pair, _ in writer.nli_pairs(rows // 2)]
    for index, profile in enumerate(PROFILES):
        share = (rows - rows // 2) * (index + 1) // len(PROFILES) - (rows - rows // 2) * index // len(PROFILES)
        pairs += writer.sts_pairs(share, profile)
    for pair in writer.draws.shuffled(pairs):
        label = infer(pair.first, pair.second)
        table.append(
            {
                "sentence1": pair.sentence1,
                "sentence2": pair.sentence2,
                "score": round(1.0 + 4.0 * similarity(pair.first, pair.second), 1),
                "label": label,
                "entailment_ab": label,
                "entailment_ba": infer(pair.second, pair.first),
            }
        )
    return table
