from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats
from words_fakes import sentences, words_of

from raysts.evaluation import words as word_scores
from raysts.evaluation.word_components import contextual_words, find_words, principal
from raysts.evaluation.words import UNKNOWN, WordTable
from raysts.models.sentence_model import SentenceModel

RNG = np.random.default_rng(0)


# -- vectors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("occurrences", "width"), [(1, 5), (3, 5), (5, 5), (40, 5)])
def test_principal_is_the_first_right_singular_vector(occurrences: int, width: int) -> None:
    rows = RNG.normal(size=(7, occurrences, width)).astype(np.float32) + RNG.normal(size=(7, 1, width)) * 2
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
    cut = SentenceModel(small.encoder, small.tokenizer, 5)
    assert len(find_words(cut, [text])[1]) < len(index)


def test_unknown_words_have_the_mean_vector() -> None:
    words = words_of("abcde")
    rows = words.rows(["a", "B", "zebra"])
    assert rows.tolist() == [0, 1, UNKNOWN]
    found = words.vectors(rows)
    units = words.raw_VH / np.linalg.norm(words.raw_VH, axis=1, keepdims=True)
    np.testing.assert_allclose(found, [units[0], units[1], units.mean(axis=0)], atol=1e-6)


def test_word_vectors_are_used_as_they_are(static: SentenceModel) -> None:
    from raysts.evaluation.words import static_words

    words = static_words(static)
    assert set(words.index) == {"cat", "dog", "car", "t-shirt", "Rome", "nothing"}
    rows = words.rows(["t-shirt", "Rome", "rome", "nothing", "Cat"])
    assert rows.tolist() == [words.index["t-shirt"], words.index["Rome"], UNKNOWN, UNKNOWN, words.index["cat"]]
    np.testing.assert_allclose(words.vectors(rows[1:2])[0], np.array([1, 2, 3]) / np.sqrt(14), atol=1e-6)
    known = words.raw_VH[[words.index[word] for word in ("cat", "dog", "car", "t-shirt", "Rome")]]
    expected = (known / np.linalg.norm(known, axis=1, keepdims=True)).mean(axis=0)
    np.testing.assert_allclose(words.mean_H, expected, atol=1e-6)


# -- scores -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", [2, 3, 100])
def test_analogies_are_those_of_a_double_loop(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    words = words_of("abcdefghij", width=2)
    asked = [list(question) for question in RNG.choice([*"abcdefghij", "unknown"], size=(300, 4))]
    expected = []
    vectors = {name: words.vectors(words.rows([name]))[0].astype(np.float64) for name in [*"abcdefghij", "unknown"]}
    for a, b, c, d in asked:
        best, answer = -np.inf, None
        for name in "abcdefghij":
            score = vectors[name] @ (vectors[b] - vectors[a] + vectors[c])
            if name not in (a, b, c) and score > best:
                best, answer = score, name
        expected.append(answer == d)
    monkeypatch.setattr(word_scores, "BLOCK", block)
    monkeypatch.setattr(word_scores, "_QUESTIONS", 2 * block)
    found = word_scores.analogies(words, dict(zip("abcd", zip(*asked, strict=True), strict=True)))
    assert found.tolist() == expected and 0 < sum(expected) < len(expected)


def test_degrees_of_a_relation() -> None:
    words = words_of("abcdefgh")
    examples, pairs = [("a", "b"), ("c", "d")], [("e", "f"), ("a", "d"), ("g", "h"), ("f", "zebra")]
    gold = np.array([3.0, -1.0, 3.0, 10.0])
    vector = {name: words.vectors(words.rows([name]))[0] for name in [*"abcdefgh", "zebra"]}
    like = np.mean([vector[a] - vector[b] for a, b in examples], axis=0)
    expected = stats.spearmanr([(vector[c] - vector[d]) @ like for c, d in pairs], gold).statistic
    relation = tuple([pair[side] for pair in group] for group in (examples, pairs) for side in (0, 1))
    strangers = (["x"], ["y"], ["x", "z"], ["y", "q"])
    found = word_scores.degrees_of(words, [(relation, gold), (strangers, np.array([1.0, 2.0]))])
    assert found == pytest.approx([expected, 0.0])


def test_purity_counts_the_largest_class_of_each_cluster() -> None:
    for _ in range(20):
        clusters, classes = RNG.integers(0, 4, 30), RNG.integers(0, 5, 30)
        largest = 0
        for cluster in range(4):
            members = [classes[i] for i in range(30) if clusters[i] == cluster]
            largest += max((members.count(each) for each in set(members)), default=0)
        assert word_scores.select_largest(clusters, classes).mean() == pytest.approx(largest / 30)


def test_categories_that_lie_apart_are_found() -> None:
    names = [f"w{i}" for i in range(24)]
    centres = np.repeat(np.eye(3, 8) * 5, 8, axis=0)
    words = WordTable(
        {name: i for i, name in enumerate(names)}, (centres + RNG.normal(size=(24, 8))).astype(np.float32)
    )
    classes = np.repeat([0, 1, 2], 8)
    assert word_scores.best_clusters(words, names, classes, 0).mean() == 1.0
    shuffled = RNG.permutation(classes)
    assert 1 / 3 <= word_scores.best_clusters(words, names, shuffled, 0).mean() < 0.9
