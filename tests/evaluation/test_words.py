import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from evaluation_fakes import write_table
from scipy import stats

from raysts.data.corpora import Corpus
from raysts.data.world import world_vocabulary
from raysts.errors import InputError
from raysts.evaluation import harness
from raysts.evaluation import words as word_scores
from raysts.evaluation.word_components import contextual_words, find_words, principal
from raysts.evaluation.words import UNKNOWN, WordTable, static_words
from raysts.models.sentence_model import SentenceModel

RNG = np.random.default_rng(0)
WORDS = [word for word in world_vocabulary() if word.isalpha() and word.islower()][:40]
CAT, DOG, CAR = WORDS[:3]


def words_of(names: str, width: int = 4, seed: int = 0) -> WordTable:
    """Random vectors of any length for single letters."""
    vectors = np.random.default_rng(seed).normal(size=(len(names), width)).astype(np.float32)
    return WordTable({name: row for row, name in enumerate(names)}, vectors)


def web(root: Path, **tables: list[tuple[Any, ...]]) -> Corpus:
    """A corpus of tables of words, and of sentences of the small world's words."""
    columns = {
        "word_similarity": ("dataset", "word1", "word2", "score"),
        "word_analogy": ("dataset", "category", "a", "b", "c", "d", "score"),
        "word_categorization": ("dataset", "category", "word"),
    }
    for name, rows in tables.items():
        width = max(map(len, rows))
        padded = [(*row, *[None] * (width - len(row))) for row in rows]
        values = zip(*padded, strict=True)
        write_table(root, f"web/{name}", dict(zip(columns[name][:width], map(list, values), strict=True)))
    return Corpus(root)


def sentences(n: int = 60, seed: int = 0) -> list[str]:
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, size=rng.integers(2, 9))).capitalize() + "." for _ in range(n)]


# -- vectors ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("occurrences", [1, 5, 40])
def test_principal_is_the_first_right_singular_vector(occurrences: int) -> None:
    rows = RNG.normal(size=(7, occurrences, 5)).astype(np.float32) + RNG.normal(size=(7, 1, 5)) * 2
    for found, matrix in zip(principal(rows), rows, strict=True):
        expected = np.linalg.svd(matrix.astype(np.float64))[2][0]
        assert abs(found @ expected) == pytest.approx(1.0, abs=1e-9)
        assert np.linalg.norm(found) == pytest.approx(1.0) and found @ matrix.mean(axis=0) > 0


def test_contextual_words_are_those_of_numpy_whatever_fits_into_memory(small: SentenceModel) -> None:
    texts = sentences()
    tokens, index, _ = find_words(small, texts)
    assert set(index) == {word for text in texts for word in text.lower().removesuffix(".").split()}
    layers = ("only-0", "only-2", 2)
    index, whole = contextual_words(small, texts, layers)
    # one text after the other, without packing: hidden states of the backbone itself
    vectors: dict[str, list[np.ndarray]] = {}
    for row, text in enumerate(texts):
        ids, _ = tokens.take([row]).pad(small.encoder.pad_id)
        with torch.inference_mode():
            found = small.encoder.token_layers(ids, torch.tensor([ids.shape[1]]), layers)
        states = np.stack([layer[0].numpy() for layer in found])
        pieces = small.tokenizer.convert_ids_to_tokens(ids[0].tolist())
        place = 1
        for word in text.lower().removesuffix(".").split():
            end = place + 1
            while pieces[end].startswith("##"):
                end += 1
            vectors.setdefault(word, []).append(states[:, place:end].mean(axis=1))
            place = end
    for number in range(len(layers)):
        for word, parts in vectors.items():
            matrix = np.stack([part[number] for part in parts]).astype(np.float64)
            expected = np.linalg.svd(matrix)[2][0]
            expected *= np.sign(expected @ matrix.mean(axis=0))
            assert np.abs(whole[number][index[word]] - expected).max() < 1e-5
    for rows in (1, 7, 50):  # words are cut anywhere
        memory = rows * 4 * small.encoder.width * len(layers)
        again, parts = contextual_words(small, texts, layers, memory)
        assert again == index and np.abs(whole - parts).max() < 1e-5


def test_pieces_belong_to_the_words_they_are_in(small: SentenceModel) -> None:
    text = "The dog's bone, a brand-new one (of 3.5 cm): THE end"
    tokens, index, found = find_words(small, [text])
    pieces = small.tokenizer.convert_ids_to_tokens(tokens.flat.tolist())
    names = list(index)
    spans = {(names[word], first, end) for word, _, first, end in zip(*found, strict=True)}
    assert [name for name in names if not name.isalpha()] == ["dog's", "brand-new", "3", "5"]
    assert names[0] == "the" and sum(name == "the" for name, _, _ in spans) == 2
    _, first, end = next(span for span in spans if span[0] == "brand-new")
    joined = "".join(piece.removeprefix("##") for piece in pieces[first:end])
    assert "-" in joined or "[UNK]" in joined  # the pieces from "brand" to "new", the hyphen among them
    assert all(first >= 1 and end < len(pieces) for _, first, end in spans)  # special tokens belong to none
    assert len(find_words(SentenceModel(small.encoder, small.tokenizer, 5), [text])[1]) < len(index)


def test_word_vectors_are_used_as_they_are(static: SentenceModel) -> None:
    words = static_words(static)
    assert set(words.index) == {"cat", "dog", "car", "t-shirt", "Rome", "nothing"}
    rows = words.rows(["t-shirt", "Rome", "rome", "nothing", "Cat"])
    assert rows.tolist() == [words.index["t-shirt"], words.index["Rome"], UNKNOWN, UNKNOWN, words.index["cat"]]
    np.testing.assert_allclose(words.vectors(["Rome"])[0], np.array([1, 2, 3]) / np.sqrt(14), atol=1e-6)
    known = words.raw_VH[[words.index[word] for word in ("cat", "dog", "car", "t-shirt", "Rome")]]
    expected = (known / np.linalg.norm(known, axis=1, keepdims=True)).mean(axis=0)
    np.testing.assert_allclose(words.mean_H, expected, atol=1e-6)


# -- scores -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("block", [3, 100])
def test_analogies_are_those_of_a_double_loop(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    words = words_of("abcdefghij", width=2)
    asked = [list(question) for question in RNG.choice([*"abcdefghij", "unknown"], size=(300, 4))]
    expected = []
    vectors = {name: words.vectors([name])[0].astype(np.float64) for name in [*"abcdefghij", "unknown"]}
    for a, b, c, d in asked:
        scores = {n: vectors[n] @ (vectors[b] - vectors[a] + vectors[c]) for n in "abcdefghij" if n not in (a, b, c)}
        expected.append(max(scores, key=lambda name, scores=scores: scores[name]) == d)
    monkeypatch.setattr(word_scores, "BLOCK", block)
    monkeypatch.setattr(word_scores, "_QUESTIONS", 2 * block)
    found = word_scores.analogies(words, dict(zip("abcd", zip(*asked, strict=True), strict=True)))
    assert found.tolist() == expected and 0 < sum(expected) < len(expected)
    up, right = [0.0, 1.0], [1.0, 0.0]
    assert word_scores.analogies(words_of("a"), {"a": "a", "b": "a", "c": "a", "d": ["unknown"]}).tolist() == [False]
    same = WordTable({name: row for row, name in enumerate("dabce")}, np.float32([up, right, up, right, up]))
    asked = {"a": "aa", "b": "bb", "c": "cc", "d": "de"}  # b - a + c is d, and e: the first counts
    assert word_scores.analogies(same, asked).tolist() == [True, False]


def test_degrees_of_a_relation() -> None:
    words = words_of("abcdefgh")
    examples, pairs = [("a", "b"), ("c", "d")], [("e", "f"), ("a", "d"), ("g", "h"), ("f", "zebra")]
    gold = np.array([3.0, -1.0, 3.0, 10.0])
    vector = {name: words.vectors([name])[0] for name in [*"abcdefgh", "zebra"]}
    like = np.mean([vector[a] - vector[b] for a, b in examples], axis=0)
    expected = stats.spearmanr([(vector[c] - vector[d]) @ like for c, d in pairs], gold).statistic
    relation = word_scores.Relation(dict.fromkeys(examples), dict(zip(pairs, gold, strict=True)))
    strangers = word_scores.Relation({("x", "y"): None}, {("x", "y"): 1.0, ("z", "q"): 2.0})
    assert word_scores.degrees_of(words, [relation, strangers]) == pytest.approx([expected, 0.0])


def test_purity_counts_the_largest_class_of_each_cluster() -> None:
    for _ in range(3):
        clusters, classes = RNG.integers(0, 4, 30), RNG.integers(0, 5, 30)
        largest = sum(np.bincount(classes[clusters == cluster], minlength=1).max() for cluster in range(4))
        assert word_scores.select_largest(clusters, classes).mean() == pytest.approx(largest / 30)


def test_categories_that_lie_apart_are_found() -> None:
    names = [f"w{i}" for i in range(24)]
    vectors = (np.repeat(np.eye(3, 8) * 5, 8, axis=0) + RNG.normal(size=(24, 8))).astype(np.float32)
    words = WordTable({name: i for i, name in enumerate(names)}, vectors)
    classes = np.repeat([0, 1, 2], 8)
    assert word_scores.best_clusters(words, names, classes, 0).mean() == 1.0
    assert 1 / 3 <= word_scores.best_clusters(words, names, RNG.permutation(classes), 0).mean() < 0.9


def test_similarity_is_spearman_of_the_cosine_with_ties(static: SentenceModel, tmp_path: Path) -> None:
    names = ["cat", "dog", "car", "t-shirt", "zebra"]
    pairs = [("Pets", a, b, float(number // 3)) for number, (a, b) in enumerate(itertools.combinations(names, 2))]
    rows = harness.evaluate(static, web(tmp_path, word_similarity=pairs), ["words"], resamples=20)
    value, coverage = rows
    assert value["dataset"] == coverage["dataset"] == "pets" and value["layers"] == str(static.layers)
    words = static_words(static)
    vectors = {name: words.vectors([name])[0] for name in names}
    cosines = [vectors[a] @ vectors[b] for _, a, b, _ in pairs]
    assert value["value"] == pytest.approx(stats.spearmanr(cosines, [pair[3] for pair in pairs]).statistic)
    assert (value["metric"], value["similarity"], value["n"]) == ("spearman", "cosine", 10)
    assert value["ci_low"] <= value["value"] <= value["ci_high"]
    assert (coverage["metric"], coverage["value"], coverage["n"]) == ("coverage", 0.8, 5)


# -- the task ---------------------------------------------------------------------------------------------------------
SIMILARITY = [("SimLex999", CAT, DOG, 9.0), ("SimLex999", CAT, CAR, 1.0), ("SimLex999", DOG, CAR, 2.0)]
ANALOGY = [("Google", "x", CAT, DOG, CAR, "zebra"), ("SAT", "0", CAT, DOG, CAR, "zebra")]
CATEGORIES = [("AP", "animal", CAT), ("AP", "animal", DOG), ("AP", "thing", CAR)]
STRANGERS = [("RG65", "zebra", "quagga", 1.0), ("RG65", "zebra", "okapi", 2.0)]


def test_sets_are_measured_and_the_rest_is_named(small: SentenceModel, tmp_path: Path, caplog: Any) -> None:
    web(tmp_path, word_similarity=SIMILARITY + STRANGERS, word_analogy=ANALOGY, word_categorization=CATEGORIES)
    texts = sentences()
    write_table(tmp_path, "sts/sts12", {"sentence1": texts[:30], "sentence2": texts[30:], "score": [1.0, 2.0] * 15})
    corpus = Corpus(tmp_path)
    rows = harness.evaluate(small, corpus, ["words"], context={"system": "x", "role": "backbone"}, resamples=10)
    assert {row["layers"] for row in rows} == {"only-1", "only-2"}
    assert {(row["dataset"], row["metric"]) for row in rows if row["metric"] != "coverage"} == {
        ("simlex999", "spearman"), ("google", "accuracy"), ("ap", "purity"),
    }  # fmt: skip
    assert all(row["system"] == "x" and row["split"] == "test" and row["pooling"] is None for row in rows)
    for said in (
        f"men, ws353, rw (belong in {tmp_path}/web/word_similarity.parquet)",
        f"msr, semeval2012_2 (belong in {tmp_path}/web/word_analogy.parquet)",
        f"bless (belong in {tmp_path}/web/word_categorization.parquet)",
        "3 of 6 words have no vector, and the mean vector stands for them: simlex999 0/3, rg65 3/3, google 1/4",
        "not measured: rg65 (none of its words has a vector)",
    ):
        assert said in caplog.text
    assert next(row["value"] for row in rows if (row["dataset"], row["metric"]) == ("rg65", "coverage")) == 0.0
    one = harness.evaluate(small, corpus, ["words"], layers=("only-0", 2), resamples=0)
    assert {row["layers"] for row in one} == {"only-0", "2"}
    assert {"sts12", "simlex999"} <= {row["dataset"] for row in harness.evaluate(small, corpus, resamples=0)}


def test_degrees_are_measured_where_there_are_scores(static: SentenceModel, tmp_path: Path) -> None:
    """Elsewhere they may be null."""
    pairs = (("dog", "car", 1.0), ("car", "cat", 2.5), ("cat", "t-shirt", 1.0))
    questions = [("SemEval2012_2", "1a", "cat", "dog", *pair) for pair in pairs]
    corpus = web(tmp_path, word_analogy=[*questions, ("MSR", "x", "cat", "dog", "car", "t-shirt")])
    rows = {row["dataset"]: row for row in harness.evaluate(static, corpus, ["words"]) if row["metric"] != "coverage"}
    assert {name: row["metric"] for name, row in rows.items()} == {"semeval2012_2": "spearman", "msr": "accuracy"}
    assert rows["semeval2012_2"]["n"] == 3 and -1 <= rows["semeval2012_2"]["value"] <= 1


def test_what_degrees_lack_is_named_once(tmp_path: Path) -> None:
    questions = [(name, "r", CAT, DOG, CAR, "zebra") for name in ("Google", "MSR", "SemEval2012_2")]
    corpus = web(tmp_path, word_analogy=questions)
    sets = word_scores.read_sets(corpus)
    assert [word_set.name for word_set in sets] == ["google", "msr"]
    (missing,) = (line for line in word_scores.find_absent(corpus, sets) if "semeval" in line)
    assert missing.startswith("semeval2012_2 (needs the column 'score' in ")
    degrees = [("SemEval2012_2", "r", CAT, DOG, *pair) for pair in ((CAR, DOG, None), (CAR, DOG, 1.0), (DOG, CAR, 2.0))]
    (word_set,) = word_scores.read_sets(web(tmp_path, word_analogy=degrees))
    (problem,) = word_set.problems()
    assert ": row 0, column 'score': null, and other rows of semeval2012_2 have one;" in problem


@pytest.mark.parametrize(("tables", "says"), [
    ({"word_similarity": [*SIMILARITY, ("MEN", "a", "b", None)]}, "word_similarity.parquet: row 3, column 'score'"),
    ({"word_categorization": [*CATEGORIES, ("AP", "x", " ")]}, "word_categorization.parquet: row 3, column 'word'"),
    ({"word_similarity": [*SIMILARITY, ("MEN", "a", "b", 1.0)]}, "'men' (row 3) has 1 row(s) and 1 distinct"),
    ({"word_categorization": [*CATEGORIES, ("BLESS", "x", "y")]}, "'bless' (row 3) has 1 row(s)"),
    ({"word_categorization": [("AP", "x", CAT), ("AP", "y", CAR)]}, "'ap' (rows 0 to 1) has 2 row(s) and 2 distinct"),
    ({"word_categorization": [("AP", "x", CAT), ("AP", "x", CAR)]}, "'ap' (rows 0 to 1) has 2 row(s) and 1 distinct"),
    ({"word_analogy": [("SemEval2012_2", "r", "a", "b", "c", str(d), d or None) for d in (1.0, 2.0, 0.0)]},
        "web/word_analogy: row 2, column 'score': null"),
    ({"word_analogy": [("SemEval2012_2", "r", "a", "b", "c", "d", d) for d in (1.0, 2.0)]},
        "row 1, column 'score': 2 for 'c', 'd' in relation 'r', which row 0 gives 1"),
])  # fmt: skip
def test_rows_that_cannot_be_scored_are_refused(tables: dict[str, Any], says: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        harness.check_tasks(web(tmp_path, **tables), ["words"])
    assert says in str(caught.value)


def test_missing_files_are_named(small: SentenceModel, tmp_path: Path) -> None:
    (tmp_path / "web").mkdir()
    with pytest.raises(InputError, match=r"task 'words' has no files.*web/word_similarity.parquet"):
        harness.check_tasks(Corpus(tmp_path), ["words"])
    corpus = web(tmp_path, word_similarity=SIMILARITY)
    assert "words" not in harness.default_tasks(corpus), "unasked it would refuse what else is there"
    with pytest.raises(InputError, match=r"holds none of sts/sts12.parquet"):
        harness.evaluate(small, corpus, ["words"])
