"""Word vectors as a model: the text files, the words of a text, the directories, and the systems that are made of them."""

from __future__ import annotations

import gzip
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from run_commands import overrides, raysts, result

from raysts.data.world import world_words
from raysts.errors import InputError
from raysts.models.head import CategoricalHead, Head
from raysts.models.pretrained import check, find, load, tokenizer_id
from raysts.models.sentence_model import SentenceModel
from raysts.models.shipped.latent import Categorical
from raysts.models.tokens import Tokens
from raysts.models.word_vectors import WordVectors

DIM = 8
WORDS = ["the", "dog", "cat", "runs", "do", "n't", "'s", ",", ".", "well", "known", "a", "x", "3.5", "café", "ca"]
SAID = {
    "The dog's cat, runs.": ["the", "dog", "'s", "cat", ",", "runs", "."],
    "A CAT don't, can't": ["a", "cat", "do", "n't", ",", "ca", "n't"],
    "do n't 3.5 3,5": ["do", "n't", "3.5"],
    "well-known café; xa ax": ["well", "known", "café"],
    "dog dog cat": ["dog", "dog", "cat"],
    "zebra zoo!": [],
    "": [],
}
"""Texts, and which of their words are known."""


def vector(word: str) -> np.ndarray:
    """The vector of a word, as exact as the file has it."""
    draws = np.random.default_rng(list(word.encode())).normal(size=DIM)
    return np.array([float(f"{x:.4f}") for x in draws], np.float32)


def line(word: str) -> str:
    return f"{word} {' '.join(f'{x:.4f}' for x in vector(word))}"


def write(path: Path, words: list[str]) -> Path:
    path.write_text("".join(f"{line(word)}\n" for word in words), encoding="utf-8")
    return path


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "raysts"


@pytest.fixture
def glove(tmp_path: Path) -> Path:
    return write(tmp_path / "glove.txt", WORDS)


@pytest.fixture
def of_the_world(tmp_path: Path) -> Path:
    """Vectors of the embedded world's words, without a few."""
    return write(tmp_path / "glove.world.txt", [word for word in world_words() if word not in ("the", "dog")])


# -- texts ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pooling", ["mean", "max"])
def test_a_sentence_is_the_pool_of_its_known_words(pooling: Any, glove: Path) -> None:
    expected = np.zeros((len(SAID), DIM), np.float32)
    for row, words in zip(expected, SAID.values(), strict=True):
        if words:
            row[:] = getattr(np.stack([vector(word) for word in words]), pooling)(0)
    model = load(glove, pooling=pooling, device="cpu")
    np.testing.assert_allclose(model.encode(list(SAID)), expected, rtol=0, atol=1e-6)
    for layers in ("first_last", "only-0", "only-1"):
        found = load(glove, pooling=pooling, layers=layers, device="cpu").encode(list(SAID))
        np.testing.assert_array_equal(found, model.encode(list(SAID)))
    assert (model.dim, model.encoder.depth, model.encoder.config.model_type) == (DIM, 1, "static")


def test_sentences_of_unknown_words_are_counted_and_like_nothing(
    glove: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = load(glove, device="cpu")
    texts = ["zebra", "a dog", "", "cat"]
    found = [model.represent(some) for some in (texts, texts[::-1])]
    assert not found[0]["vectors"][[0, 2]].any() and found[0]["vectors"][[1, 3]].all()
    assert model.similarity(*found).tolist() == [0.0] * 4
    first, *told = capsys.readouterr().err.splitlines()
    assert first.startswith("reading the word vectors") and told == [
        "2 of 4 sentences hold no word that the word vectors know: their vectors are zero"
    ]
    model.represent(["a dog"])
    assert not capsys.readouterr().err
    table = WordVectors(torch.eye(3), pad_id=2)  # of another library, whose first token is not the padding
    table.say_unknown(Tokens(np.array([0, 0, 2], np.int32), np.arange(4)))
    assert capsys.readouterr().err.startswith("1 of 3 sentences")


def test_case_counts_where_the_vocabulary_has_it(tmp_path: Path) -> None:
    model = load(write(tmp_path / "cased.txt", ["Dog", "dog", "the"]), device="cpu")
    np.testing.assert_array_equal(model.encode(["Dog", "dog", "DOG"]), [vector("Dog"), vector("dog"), np.zeros(DIM)])


def test_texts_are_cut_to_the_length_asked_for(glove: Path) -> None:
    model = load(glove, max_length=2, device="cpu")
    np.testing.assert_array_equal(model.encode(["zebra dog zebra cat runs"]), model.encode(["dog cat"]))


# -- text files ----------------------------------------------------------------------------------------------------------


def word2vec(path: Path) -> Path:
    """With a first line of counts, blanks at the ends of lines, and a last line that is empty."""
    lines = [f"{len(WORDS)} {DIM}", *(f"{line(word)} " for word in WORDS), ""]
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def gzipped(path: Path) -> Path:
    packed = path.with_name(f"{path.name}.gz")
    packed.write_bytes(gzip.compress(write(path, WORDS).read_bytes()))
    return packed


def untidy(path: Path) -> Path:
    """Words with blanks, of white space alone and twice, an encoding error, tabs and Windows line ends."""
    odd = [
        line("the"),
        line(". . ."),
        line("\u00a0"),
        f" {line('lost').split(' ', 1)[1]}",
        line("dog").replace("4", "7"),
    ]
    lines = [line("dog"), *odd, *(line(word).replace(" ", "\t") for word in WORDS[2:])]
    path.write_bytes("\r\n".join(lines).encode() + b"\r\n\xff\xfe" + line("").encode())
    return path


def binary(path: Path) -> Path:
    """As Google News' vectors are distributed: no line ends. The packed one has them, as word2vec writes them."""
    path = path.with_suffix(".bin")
    rows = [word.encode() + b" " + vector(word).tobytes() for word in WORDS]
    path.write_bytes(f"{len(WORDS)} {DIM}\n".encode() + b"".join(rows))
    return path


def packed_binary(path: Path) -> Path:
    packed = path.with_suffix(".bin.gz")
    rows = [word.encode() + b" " + vector(word).tobytes() + b"\n" for word in WORDS]
    packed.write_bytes(gzip.compress(f"{len(WORDS)} {DIM}\n".encode() + b"".join(rows)))
    return packed


@pytest.mark.parametrize("make", [word2vec, gzipped, untidy, binary, packed_binary])
def test_formats_of_files(make: Callable[[Path], Path], tmp_path: Path, glove: Path) -> None:
    model = load(make(tmp_path / "vectors.txt"), device="cpu")
    np.testing.assert_array_equal(model.encode(list(SAID)), load(glove, device="cpu").encode(list(SAID)))


def test_a_file_is_read_once_and_its_vectors_stay_on_disk(glove: Path, cache: Path, tmp_path: Path) -> None:
    (cache / ".aside-vectors-1-0.elsewhere").mkdir(parents=True)
    model = load(glove, device="cpu")
    folder = find(glove)
    assert folder.parent == cache and check(folder)["hidden_size"] == DIM
    weights = next(folder.rglob("*.safetensors"))
    if Path("/proc/self/maps").exists():
        assert str(weights) in Path("/proc/self/maps").read_text(encoding="utf-8")
    written = weights.stat().st_mtime_ns
    assert find(glove.rename(tmp_path / "moved.vec")) == folder, "the content counts, not the name"
    assert weights.stat().st_mtime_ns == written
    other = find(write(tmp_path / "other.txt", WORDS[1:]))
    assert other != folder and tokenizer_id(other) != tokenizer_id(folder)
    assert model.tokenize(["dog"]).flat.tolist() == [2] and load(other).tokenize(["dog"]).flat.tolist() == [1]


GOOD = f"{line('dog')}\n{line('cat')}\n"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "holds none"),
        (f"{GOOD}runs 0.5 0.5\n".encode(), "line 3: expected a word and 8 finite"),
        (f"{GOOD}5 0.1 0.2 0.3 0.4 0.5 0.6 0.7\n".encode(), "line 3"),
        (f"{GOOD}\nruns 1 2 3 4 five 6 7 8\n".encode(), "line 4"),
        (f"{GOOD}runs 1 2 3 4 nan 6 7 8\n".encode(), "line 3"),
        (b"just some text\n", "line 1"),
        (b"word\n", "line 1: expected a word and its finite numbers"),
        (f"3 {DIM}\n{GOOD}".encode(), "promises 3 words, and 2 are there"),
        (b"2 8\ndog " + bytes(range(32)) + b"cat " + bytes(range(32)), "binary format by a name that ends in .bin"),
    ],
)
def test_other_files_are_refused(content: bytes, says: str, tmp_path: Path, cache: Path) -> None:
    path = tmp_path / "vectors.txt"
    path.write_bytes(content)
    with pytest.raises(InputError, match="vectors.txt") as refused:
        load(path)
    assert says in str(refused.value)
    assert not list(cache.iterdir())


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda whole: whole[:-1], "word 16 of 16 has no whole vector; get it again"),
        (lambda whole: whole[:40], "word 1 of 16 has no whole vector"),
        (lambda whole: whole[2:], "its first line must have the numbers of words and dimensions"),
        (lambda whole: b"", "its first line must have the numbers of words and dimensions"),
        (lambda whole: whole.replace(vector("dog").tobytes(), np.full(DIM, np.nan, "<f4").tobytes()), "word 2 of 16"),
    ],
)
def test_other_binary_files_are_refused(
    change: Callable[[bytes], bytes], says: str, tmp_path: Path, cache: Path
) -> None:
    path = binary(tmp_path / "vectors.txt")
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(InputError, match=says):
        load(path)
    assert not list(cache.iterdir())


def test_a_torn_gzip_is_refused(tmp_path: Path) -> None:
    packed = gzipped(tmp_path / "vectors.txt")
    packed.write_bytes(packed.read_bytes()[:-40])
    with pytest.raises(InputError, match="get the file again"):
        load(packed)


# -- directories ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pooling", "head", "code"),
    [
        ("mean", None, False),
        ("max", None, True),
        ("mean", lambda: CategoricalHead(Categorical(DIM, 3, 4, 0.5, hidden=6)), True),
    ],
    ids=["mean", "max", "behind a head"],
)
def test_sentence_transformers_loads_what_we_save(
    pooling: Any, head: Callable[[], Head] | None, code: bool, glove: Path, tmp_path: Path
) -> None:
    sentence_transformers = pytest.importorskip("sentence_transformers")
    model = load(glove, pooling=pooling, max_length=5, device="cpu")
    if head:
        model = SentenceModel(model.encoder.followed_by(head()), model.tokenizer, model.max_length)
    model.save(tmp_path / "model")
    expected = model.encode(list(SAID))
    again = load(tmp_path / "model", device="cpu")
    assert (again.pooling, again.max_length, again.dim) == (model.pooling, 5, model.dim)
    np.testing.assert_array_equal(again.encode(list(SAID)), expected)
    assert tokenizer_id(tmp_path / "model") == tokenizer_id(find(glove))
    assert check(tmp_path / "model")["model_type"] == "static"
    theirs = sentence_transformers.SentenceTransformer(str(tmp_path / "model"), device="cpu", trust_remote_code=code)
    np.testing.assert_allclose(theirs.encode(list(SAID)), expected, rtol=0, atol=1e-5)
    assert theirs.max_seq_length == 5
    assert bool(list((tmp_path / "model").glob("*.py"))) == code


def test_what_cannot_be_pooled_is_refused(glove: Path) -> None:
    with pytest.raises(InputError, match="take mean or max"):
        load(glove, pooling="cls")
    with pytest.raises(InputError, match="1 layers"):
        load(glove, layers=2)


# -- systems -------------------------------------------------------------------------------------------------------------

SMALL = {
    "members": 1,
    "train.max_steps": 3,
    "train.eval_every": 3,
    "evaluation.resamples": 4,
    "evaluation.tasks": "[stsb]",
}


@pytest.mark.parametrize("system", ["whiten", pytest.param("flow", marks=pytest.mark.slow), "latte"])
def test_run(system: str, of_the_world: Path, small_world: Path, tmp_path: Path) -> None:
    arguments = [system, "--data", small_world, "--storage", tmp_path / "storage", "--address", "none"]
    smaller = {"latte.settings.dims": 4, "latte.settings.classes": 5} if system == "latte" else {}
    arguments += overrides(SMALL, smaller, {"backbone": of_the_world})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = result("run", *arguments)
    assert {(row["role"], row["layers"]) for row in found["results"]} == {("backbone", "1"), ("member", "1")}
    assert load(found["model"], device="cpu").encode(["the cat sleeps"]).any()
    assert result("run", *arguments) == found
    for run in (tmp_path / "storage" / "runs").glob("*/run.json"):
        assert json.loads(run.read_text(encoding="utf-8"))["backbone"] == str(of_the_world)
    moved = of_the_world.rename(tmp_path / "renamed.txt")
    arguments[-1] = f"backbone={moved}"
    nodes = result("plan", *[each for each in arguments if each not in ("--address", "none")])["nodes"]
    assert {node["status"] for node in nodes} == {"done"}, "ids are of the content"


def test_what_trains_an_encoder_is_refused(of_the_world: Path, small_world: Path, tmp_path: Path) -> None:
    common = ["--data", small_world, "--storage", tmp_path / "storage", "--address", "none"]
    several = overrides(SMALL, {"backbone": of_the_world})
    for system, stages in {"nli-ct-flow": ("nli", "ct"), "simcse-unsup-sed": ("simcse-unsup", "sed")}.items():
        outcome = raysts("run", system, *common, *several)
        assert outcome.code == 2
        for stage in stages:
            assert f"raysts: {stage}: trains the encoder" in outcome.err
        assert "flow, whiten, centre, latte" in outcome.err and "--set backbone=MODEL" in outcome.err
    outcome = raysts("run", "flow", *common, *several, "--set", "flow.pooling=cls")
    assert outcome.code == 2 and "flow.pooling=cls: word vectors" in outcome.err
    assert not (tmp_path / "storage").exists()
