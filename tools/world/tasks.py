"""Transfer and word tasks of the embedded world: classes and word relations that follow from the meanings."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations

from tools.world.facts import leaves, split_of
from tools.world.lexicon import ACTIONS, KINDS, PROPERTIES, ROOT
from tools.world.meaning import (
    DIMENSION_OF,
    ENTAILMENT,
    Meaning,
    Noun,
    children,
    concept_similarity,
    infer,
    lineage,
)
from tools.world.tables import Row, Writer
from tools.world.text import Draws, inflect, plural

_QUALITIES = tuple(PROPERTIES["quality"])  # from excellent to awful
_OPINIONS = ("I think that", "I believe that", "I feel that")


def task_tables(seed: int, rows: int) -> Iterator[tuple[str, list[Row]]]:
    """Every transfer and word table, about `rows` rows each."""
    yield "senteval/mr", _sentiment(seed, "senteval/mr", "test", rows, "judged", binary=True)
    yield "senteval/cr", _sentiment(seed, "senteval/cr", "test", rows, "reviewed", binary=True)
    yield "senteval/mpqa", _sentiment(seed, "senteval/mpqa", "test", rows, "phrase", binary=True)
    yield "senteval/subj", _subjectivity(seed, rows)
    for split in ("train", "dev", "test"):
        for name, binary in (("sst2", True), ("sst5", False)):
            table = f"senteval/{name}_{split}"
            yield table, _sentiment(seed, table, split, rows, "judged", binary=binary)
    for split in ("train", "test"):
        yield f"senteval/trec_{split}", _questions(seed, f"senteval/trec_{split}", split, rows)
        yield f"senteval/mrpc_{split}", _paraphrases(seed, f"senteval/mrpc_{split}", split, rows)
    yield "web/word_similarity", _word_similarity(seed, rows)
    yield "web/word_analogy", _word_analogy(seed, rows)
    yield "web/word_categorization", _word_categorization()


class _Scribe(Writer):
    """Writes the texts of transfer tasks."""

    def product(self) -> tuple[Meaning, Noun]:
        """A positive fact about goods that quality is said of, and the goods."""
        while True:
            meaning = self.facts.fresh(modifiers=0.3, negated=0.0)
            patient = meaning.patient
            if patient is not None and not {"person", "animal"} & set(lineage("kind", patient.kind)):
                return meaning, patient

    def judged(self, level: str) -> str:
        meaning, patient = self.product()
        kept = tuple(other for other in patient.properties if DIMENSION_OF[other] not in ("quality", "dirt"))[:1]
        properties = tuple(sorted((*kept, level), key=DIMENSION_OF.__getitem__))
        return self.realiser.sentence(meaning._replace(patient=replace(patient, properties=properties)))

    def reviewed(self, level: str) -> str:
        """An opinion on goods, half of them by denying the opposite quality."""
        _, patient = self.product()
        kept = tuple(other for other in patient.properties if DIMENSION_OF[other] != "quality")
        phrase, many = self.realiser.noun(replace(patient, properties=kept))
        opposite = {"excellent": "bad", "good": "bad", "bad": "good", "awful": "good"}
        denied = level in opposite and self.draws.chance(0.4)
        adjective = self.draws.pick(PROPERTIES["quality"][opposite[level] if denied else level])
        opinion = self.draws.pick(_OPINIONS)
        return f"{opinion} {phrase} {'are' if many else 'is'} {'not ' if denied else ''}{adjective}."

    def phrase(self, level: str) -> str:
        _, patient = self.product()
        kept = tuple(other for other in patient.properties if DIMENSION_OF[other] not in ("quality", "dirt"))[:1]
        return self.realiser.noun(replace(patient, properties=tuple(sorted((*kept, level)))))[0]


def _distinct(rows: int, draw: Iterator[Row]) -> list[Row]:
    found: dict[str, Row] = {}
    for row in draw:
        found.setdefault(row["text"], row)
        if len(found) == rows:
            break
    return list(found.values())


def _sentiment(seed: int, name: str, split: str, rows: int, wording: str, binary: bool) -> list[Row]:
    """Texts by the quality that they speak of: 1 good, 0 bad, or 0..4 from awful to excellent."""
    scribe = _Scribe(seed, name, split)

    def draw() -> Iterator[Row]:
        levels = [level for level in _QUALITIES if not (binary and level == "mediocre")]
        while True:
            level = scribe.draws.pick(levels)
            grade = len(_QUALITIES) - 1 - _QUALITIES.index(level)
            yield {"text": getattr(scribe, wording)(level), "label": int(grade > 2) if binary else grade}

    return _distinct(rows, draw())


def _subjectivity(seed: int, rows: int) -> list[Row]:
    """1 where the sentence judges (an opinion or a quality), 0 where it only reports."""
    scribe = _Scribe(seed, "senteval/subj", "test")

    def draw() -> Iterator[Row]:
        while True:
            if scribe.draws.chance(0.5):
                level = scribe.draws.pick(_QUALITIES)
                text = scribe.reviewed(level) if scribe.draws.chance(0.3) else scribe.judged(level)
                yield {"text": text, "label": 1}
                continue
            meaning = scribe.facts.fresh(modifiers=0.5)
            nouns = [noun for noun in (meaning.agent, meaning.patient) if noun is not None]
            if all(DIMENSION_OF[level] != "quality" for noun in nouns for level in noun.properties):
                yield {"text": scribe.realiser.sentence(meaning), "label": 0}

    return _distinct(rows, draw())


def _question(scribe: _Scribe) -> Row:
    """A question and the type of its answer: HUM, ENTY, LOC, NUM or DESC."""
    draws, realiser = scribe.draws, scribe.realiser
    meaning = scribe.facts.fresh(modifiers=0.3, negated=0.0)
    many = meaning.agent.count != "one"
    forms = inflect(draws.pick(ACTIONS[meaning.action].forms))
    tail = f" {realiser.noun(meaning.patient)[0]}" if meaning.patient is not None else ""
    subject = realiser.noun(meaning.agent)[0]
    does = "do" if many else "does"
    top = next(name for name in reversed(lineage("kind", meaning.agent.kind)) if name != ROOT)
    asked = draws.pick(("agent", "agent", "place", "number", "time", "reason", "definition", "patient"))
    if asked == "agent":
        word = draws.pick(
            ("who", f"which {draws.pick(KINDS[top].forms)}") if top == "person" else ("what", f"which {top}")
        )
        text, label = f"{word} is {forms['ing']}{tail}?", "HUM" if top == "person" else "ENTY"
    elif asked == "place":
        text, label = f"{draws.pick(('where', 'in what place'))} {does} {subject} {forms['base']}{tail}?", "LOC"
    elif asked == "number":
        heads = plural(draws.pick(KINDS[meaning.agent.kind].forms))
        text, label = f"how many {heads} {forms['base']}{tail}?", "NUM"
    elif asked == "time":
        text, label = f"when {does} {subject} {forms['base']}{tail}?", "NUM"
    elif asked == "reason":
        text, label = f"why {does} {subject} {forms['base']}{tail}?", "DESC"
    elif asked == "patient" and meaning.patient is not None:
        animate = "person" in lineage("kind", meaning.patient.kind)
        text, label = f"{'who' if animate else 'what'} {does} {subject} {forms['base']}?", "HUM" if animate else "ENTY"
    else:
        text, label = f"what does it mean that {subject} {forms['base' if many else 's']}{tail}?", "DESC"
    return {"text": text[0].upper() + text[1:], "label": label}


def _questions(seed: int, name: str, split: str, rows: int) -> list[Row]:
    """Questions whose very text belongs to the split, for a question does not say the whole fact."""
    scribe = _Scribe(seed, name, split)
    questions = iter(lambda: _question(scribe), None)
    return _distinct(rows, (row for row in questions if split_of((row["text"], "", "")) == split))


def _paraphrases(seed: int, name: str, split: str, rows: int) -> list[Row]:
    """1 where each sentence entails the other, else 0."""
    writer = Writer(seed, name, split)
    pairs = [*writer.sts_pairs(rows // 2, "paraphrases"), *writer.sts_pairs(rows - rows // 2, "properties")]
    same = [infer(pair.first, pair.second) == infer(pair.second, pair.first) == ENTAILMENT for pair in pairs]
    table = [
        {"sentence1": pair.sentence1, "sentence2": pair.sentence2, "label": int(equal)}
        for pair, equal in zip(pairs, same, strict=True)
    ]
    return writer.draws.shuffled(table)


def _words(tree: str) -> list[tuple[str, str]]:
    """(concept, word) of single words, the leaves' and the inner ones'."""
    table = KINDS if tree == "kind" else ACTIONS
    return [
        (concept, form)
        for concept, entry in table.items()
        if concept != ROOT
        for form in entry.forms
        if " " not in form
    ]


def _word_similarity(seed: int, rows: int) -> list[Row]:
    """Pairs of nouns and of verbs, scored 0..10 by the distance of their concepts, each distance about equally often."""
    table: list[Row] = []
    draws = Draws(seed, "web/word_similarity")
    for tree, dataset, share in (("kind", "world-nouns", rows // 2), ("action", "world-verbs", rows - rows // 2)):
        by_score: dict[float, list[Row]] = {}
        for (concept1, word1), (concept2, word2) in combinations(_words(tree), 2):
            score = round(10.0 * concept_similarity(tree, concept1, concept2), 2)
            by_score.setdefault(score, []).append({"dataset": dataset, "word1": word1, "word2": word2, "score": score})
        for score in sorted(by_score):
            table.extend(draws.shuffled(by_score[score])[: max(1, share // len(by_score))])
    return table


def _word_analogy(seed: int, rows: int) -> list[Row]:
    """a is to b as c is to d: number of nouns, forms of verbs, kinds and their members."""
    draws = Draws(seed, "web/word_analogy")
    nouns = [(form, plural(form)) for _, form in _words("kind")]
    verbs = [inflect(form) for _, form in _words("action")]
    relations = {
        "plural": nouns,
        "present-participle": [(forms["base"], forms["ing"]) for forms in verbs],
        "past-tense": [(forms["base"], forms["past"]) for forms in verbs if forms["base"] != forms["past"]],
        "member-kind": [(leaf, parent) for parent in children("kind", "person") for leaf in leaves("kind", parent)],
    }
    table: list[Row] = []
    for category, pairs in relations.items():
        seen: set[tuple[str, str]] = set()
        while len(seen) < rows // len(relations):
            (a, b), (c, d) = draws.pick(pairs), draws.pick(pairs)
            if b != d and a != c and (a, c) not in seen:
                seen.add((a, c))
                table.append({"dataset": "world", "category": category, "a": a, "b": b, "c": c, "d": d})
    return table


def _word_categorization() -> list[Row]:
    rows: list[Row] = []
    for top in children("kind", ROOT):
        for leaf in leaves("kind", top):
            words = [form for form in KINDS[leaf].forms if " " not in form]
            rows.extend({"dataset": "world", "category": top, "word": word} for word in words)
    return rows
