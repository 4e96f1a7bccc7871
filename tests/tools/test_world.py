"""The generator of the embedded world: labels follow from meaning, and the same seed gives the same world."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Mapping
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from scipy.stats import spearmanr

from raysts.data.world import EMBEDDED, world_vocabulary, world_words
from tools.world import generate
from tools.world.facts import SPLITS, Facts, leaves, split_of
from tools.world.lexicon import (
    ACTIONS,
    COUNTS,
    KINDS,
    MANNER_DIMENSIONS,
    MAX_COUNT,
    PLACES,
    PROPERTIES,
    PROPERTY_PARENTS,
    TIMES,
    Action,
    Kind,
    Place,
)
from tools.world.meaning import ANYTHING, Meaning, Noun, infer, similarity
from tools.world.tables import LABELS, PROFILES, Writer
from tools.world.text import Draws, Realiser, all_surfaces

TEXTS = ("sentence", "sentence1", "sentence2", "premise", "hypothesis", "text", "title")
FUNCTION_WORDS = {
    "a", "an", "the", "is", "are", "was", "were", "being", "by", "not", "did", "do", "does", "there", "that", "of",
}  # fmt: skip


def rows(name: str) -> list[dict[str, object]]:
    return pq.read_table(EMBEDDED / f"{name}.parquet").to_pylist()


def digests(root: Path) -> dict[str, str]:
    files = sorted(root.rglob("*.parquet"))
    return {str(file.relative_to(root)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


@pytest.mark.slow  # the small world, of which golden numbers are, is made always
def test_the_generator_makes_the_embedded_files(tmp_path: Path) -> None:
    generate.write_world(tmp_path)
    names = {path.relative_to(root) for root in (tmp_path, EMBEDDED) for path in root.rglob("*.parquet")}
    for name in sorted(names):
        assert pq.read_table(tmp_path / name).equals(pq.read_table(EMBEDDED / name), check_metadata=False), name
    assert generate.world_words() == list(world_words())
    assert generate.world_vocabulary() == list(world_vocabulary())


# possible worlds: a situation gives every dimension one exact value; written from the lexicon's tables alone


def below(table: dict[str, str], name: str) -> set[str]:
    """The name and everything under it, by the parents in `table`."""
    found = {name}
    while grown := {child for child, parent in table.items() if parent in found} - found:
        found |= grown
    return found


def parents(table: Mapping[str, Kind | Action | Place]) -> dict[str, str]:
    return {name: entry.parent for name, entry in table.items()}


def constraints(meaning: Meaning) -> tuple[dict[str, set[object]], dict[str, set[object]]]:
    """The values that the agent part and the predicate part of a meaning allow, by dimension."""

    def noun(role: str, what: Noun) -> dict[str, set[object]]:
        allowed: dict[str, set[object]] = {f"{role}.kind": {*below(parents(KINDS), what.kind)}}
        if what.count != ANYTHING:
            count = COUNTS[what.count]
            allowed[f"{role}.count"] = set(range(count.low, count.high + 1))
        for level in what.properties:
            dimension = next(name for name, levels in PROPERTIES.items() if level in levels)
            allowed[f"{role}.{dimension}"] = {*below(PROPERTY_PARENTS, level)}
        return allowed

    predicate: dict[str, set[object]] = {"action": {*below(parents(ACTIONS), meaning.action)}}
    if meaning.patient is not None:
        predicate |= noun("patient", meaning.patient)
    if meaning.place is not None:
        predicate["place"] = {*below(parents(PLACES), meaning.place)}
    if meaning.time is not None:
        predicate["time"] = {meaning.time}
    if meaning.manner is not None:
        dimension = next(name for name, poles in MANNER_DIMENSIONS.items() if meaning.manner in poles)
        predicate[dimension] = {meaning.manner}
    return noun("agent", meaning.agent), predicate


def lowest(table: Mapping[str, Kind | Action | Place]) -> list[object]:
    """The names that are nobody's parent."""
    return [name for name in table if all(other.parent != name for other in table.values())]


def domain(dimension: str) -> list[object]:
    """Every exact value of a dimension; "other" stands for what no word names."""
    name = dimension.split(".")[-1]
    exact = {"kind": [*leaves("kind", "entity")], "count": [*range(1, MAX_COUNT + 1)], "time": [*TIMES]}
    exact |= {"action": lowest(ACTIONS), "place": lowest(PLACES)}
    return exact[name] if name in exact else [*(MANNER_DIMENSIONS | PROPERTIES)[name], "other"]


def label_by_possible_worlds(premise: Meaning, hypothesis: Meaning) -> str:
    parts = [(*constraints(meaning), meaning.negated) for meaning in (premise, hypothesis)]
    dimensions = sorted({name for agent, predicate, _ in parts for name in (*agent, *predicate)})
    values = []
    for dimension in dimensions:
        by_signature: dict[tuple[bool, ...], object] = {}
        for value in domain(dimension):
            signature = tuple(
                dimension not in part or value in part[dimension]
                for agent, predicate, _ in parts
                for part in (agent, predicate)
            )
            by_signature.setdefault(signature, value)
        values.append(list(by_signature.values()))
    seen = set()
    for situation in itertools.product(*values):
        value_of = dict(zip(dimensions, situation, strict=True))
        truths = []
        for agent, predicate, negated in parts:
            who = all(value_of[name] in allowed for name, allowed in agent.items())
            does = all(value_of[name] in allowed for name, allowed in predicate.items())
            truths.append(who and does != negated)
        seen.add(tuple(truths))
    assert (True, True) in seen or (True, False) in seen, "the premise is true nowhere"
    if (True, True) not in seen:
        return "contradiction"
    return "neutral" if (True, False) in seen else "entailment"


def test_labels_hold_in_every_possible_world() -> None:
    pairs = Writer(11, "soundness", "train").nli_pairs(150)
    assert {label for _, label in pairs} == set(LABELS)
    for pair, label in pairs:
        assert label_by_possible_worlds(pair.first, pair.second) == label, (pair, label)
    for profile in PROFILES:
        for pair in Writer(12, profile, "test").sts_pairs(20, profile):
            for first, second in ((pair.first, pair.second), (pair.second, pair.first)):
                assert label_by_possible_worlds(first, second) == infer(first, second), pair


def test_similarity_orders_meanings() -> None:
    base = Meaning(Noun("dog", ("small",)), "chase", Noun("cat"), place="garden")
    sibling = Meaning(Noun("rabbit", ("small",)), "chase", Noun("cat"), place="garden")
    denied = Meaning(Noun("dog", ("small",)), "chase", Noun("cat"), place="garden", negated=True)
    opposite = Meaning(Noun("dog", ("huge",)), "chase", Noun("cat"), place="garden")
    far = Meaning(Noun("doctor"), "repair", Noun("car"))
    assert similarity(base, base) == 1.0
    assert similarity(base, opposite) > similarity(base, sibling) > similarity(base, denied) > similarity(base, far)
    assert similarity(base, Meaning(Noun("dog"), "chase", Noun("cat", count="two"))) > similarity(
        base, Meaning(Noun("dog"), "chase", Noun("cat", count="many"))
    )
    facts = Facts("train", Draws(3, "symmetry"))
    for _ in range(200):
        first = facts.fresh()
        second = facts.edited(facts.edited(first, "widen"), "contrast")
        assert similarity(first, second) == pytest.approx(similarity(second, first))
        assert 0.0 <= similarity(first, facts.fresh()) <= 1.0


def test_a_sentence_has_one_meaning_and_a_word_one_concept() -> None:
    concepts: dict[str, set[str]] = {}
    for concept, surface in all_surfaces():
        concepts.setdefault(surface, set()).add(concept)
    assert {surface: names for surface, names in concepts.items() if len(names) > 1} == {}
    draws = Draws(5, "one meaning")
    facts, realiser = Facts("train", draws), Realiser(draws)
    meanings: dict[str, Meaning] = {}
    for _ in range(1500):
        meaning = facts.fresh(modifiers=draws.pick((0.0, 0.5)))
        assert meanings.setdefault(realiser.sentence(meaning), meaning) == meaning


def test_same_seed_same_bytes_other_seed_other_world(small_world: Path, tmp_path: Path) -> None:
    generate.write_world(tmp_path / "again", size="small")
    generate.write_world(tmp_path / "other", seed=4, size="small")
    same, again, other = map(digests, (small_world, tmp_path / "again", tmp_path / "other"))
    assert same == again
    assert same.keys() == other.keys()
    # only the categories of words have nothing drawn in them
    assert [name for name in same if same[name] == other[name]] == ["web/word_categorization.parquet"]


def test_splits_share_no_fact() -> None:
    cores = {}
    for split in SPLITS:
        writer = Writer(0, f"disjoint/{split}", split)
        pairs = [pair for pair, _ in writer.nli_pairs(300)]
        pairs += writer.sts_pairs(100, "kinds") + writer.sts_pairs(100, "scenes")
        cores[split] = {meaning.core for pair in pairs for meaning in (pair.first, pair.second)}
        assert {split_of(core) for core in cores[split]} == {split} and len(cores[split]) > 100
    for one, other in itertools.combinations(SPLITS, 2):
        assert not cores[one] & cores[other]


# Properties of the embedded tables, which stay as they are while tests/data/test_world.py holds their digest.


@pytest.mark.slow
def test_no_evaluation_sentence_in_the_training_tables() -> None:
    training: set[str] = set()
    held_out: dict[str, set[str]] = {}
    for file in sorted(EMBEDDED.rglob("*.parquet")):
        name = str(file.relative_to(EMBEDDED).with_suffix(""))
        table = pq.read_table(file)
        texts = {text for column in TEXTS if column in table.column_names for text in table[column].to_pylist()}
        if name.endswith("train") or name.startswith("wikipedia/"):
            training |= texts
        elif not name.startswith("web/"):
            held_out[name] = texts
    assert len(held_out) == 21
    for name, texts in held_out.items():
        assert not texts & training, (name, sorted(texts & training)[:3])


@pytest.mark.slow
def test_word_overlap_says_little_about_similarity() -> None:
    def words(row: dict[str, object]) -> list[set[str]]:
        return [{*str(row[key]).lower().strip(".").split()} for key in ("sentence1", "sentence2")]

    for name in ("stsb_dev", "stsb_test", "sts12", "sts13", "sts14", "sts15", "sts16"):
        table = rows(f"sts/{name}")
        pairs = [words(row) for row in table]
        overlaps = [len(first & second) / len(first | second) for first, second in pairs]
        assert spearmanr(overlaps, [row["score"] for row in table])[0] < 0.35, name
    alike = [words(row) for row in rows("sts/stsb_test") if float(str(row["score"])) > 4.5]
    assert any(not (first & second) - FUNCTION_WORDS for first, second in alike)


@pytest.mark.slow
def test_the_hypothesis_alone_does_not_give_the_label() -> None:
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.linear_model import LogisticRegression

    training, held_out = rows("nli/train")[:6000], rows("nli/snli_test")
    words = CountVectorizer(token_pattern=r"\w+").fit([str(row["hypothesis"]) for row in training])
    model = LogisticRegression(max_iter=300)
    model.fit(words.transform([str(row["hypothesis"]) for row in training]), [row["label"] for row in training])
    inputs = words.transform([str(row["hypothesis"]) for row in held_out])
    assert model.score(inputs, [row["label"] for row in held_out]) < 0.6
