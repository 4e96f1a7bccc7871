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
from raysts.models import static
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
    "A CAT don't, can't": ["a", "cat", "do", "n't", ",", "ca", "n't"], "do n't 3.5 3,5": ["do", "n't", "3.5"],
    "well-known café; xa ax": ["well", "known", "café"], "dog dog cat": ["dog", "dog", "cat"], "zebra zoo!": [], "": [],
}  # fmt: skip
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


def test_texts_of_unknown_words_are_counted_and_like_nothing(glove: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = load(glove, device="cpu")
    texts = ["zebra", "a dog", "", "cat"]
    found = [model.represent(some) for some in (texts, texts[::-1])]
    assert not found[0]["vectors"][[0, 2]].any() and found[0]["vectors"][[1, 3]].all()
    assert model.similarity(*found).tolist() == [0.0] * 4
    first, told = capsys.readouterr().err.splitlines()
    assert first.startswith("reading the word vectors")
    assert told == "2 of 4 sentences hold no word that the word vectors know: their vectors are zero"
    model.represent(["a dog"])
    assert not capsys.readouterr().err
    table = WordVectors(torch.eye(3), pad_id=2)  # of another library, whose first token is not the padding
    table.say_unknown(Tokens(np.array([0, 0, 2], np.int32), np.arange(4)))
    assert capsys.readouterr().err.startswith("1 of 3 sentences")


def test_case_counts_where_the_vocabulary_has_it_and_texts_are_cut(tmp_path: Path) -> None:
    path = write(tmp_path / "cased.txt", ["Dog", "dog", "the"])
    encode = load(path, device="cpu").encode
    np.testing.assert_array_equal(encode(["Dog", "dog", "DOG"]), [vector("Dog"), vector("dog"), np.zeros(DIM)])
    rarely = ["Dog", "dog", *(f"w{number}" for number in range(999))]  # one word of 1001 is a typing error
    (found,) = load(write(tmp_path / "rarely.txt", rarely), device="cpu").encode(["DOG"])
    np.testing.assert_array_equal(found, vector("dog"))
    np.testing.assert_array_equal(load(write(tmp_path / "one.txt", ["dog"]), device="cpu").encode("dog"), vector("dog"))
    cut = load(path, max_length=2, device="cpu")
    np.testing.assert_array_equal(cut.encode(["zebra dog zebra the Dog"]), encode(["dog the"]))


# -- text files ----------------------------------------------------------------------------------------------------------


def word2vec(path: Path) -> Path:
    """With a first line of counts, blanks at the ends of lines, and a last line that is empty."""
    lines = [f"{len(WORDS)} {DIM}", *(f"{line(word)} " for word in WORDS), ""]
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def packed(path: Path) -> Path:
    other = path.with_name(f"{path.name}.gz")
    other.write_bytes(gzip.compress(path.read_bytes()))
    return other


def gzipped(path: Path) -> Path:
    return packed(write(path, WORDS))


def untidy(path: Path) -> Path:
    """Words with blanks, of white space alone and twice, an encoding error, tabs and Windows line ends."""
    without_word = f" {line('lost').split(' ', 1)[1]}"
    odd = [line("the"), line(". . ."), line("\u00a0"), without_word, line("dog").replace("4", "7")]
    lines = [line("dog"), *odd, *(line(word).replace(" ", "\t") for word in WORDS[2:])]
    path.write_bytes("\r\n".join(lines).encode() + b"\r\n\xff\xfe" + line("").encode())
    return path


def binary(path: Path, end: bytes = b"") -> Path:
    """As Google News' vectors are distributed: no line ends."""
    path = path.with_suffix(".bin")
    rows = [word.encode() + b" " + vector(word).tobytes() + end for word in WORDS]
    path.write_bytes(f"{len(WORDS)} {DIM}\n".encode() + b"".join(rows))
    return path


def packed_binary(path: Path) -> Path:
    """With line ends, as word2vec writes them."""
    return packed(binary(path, b"\n"))


@pytest.mark.parametrize("make", [word2vec, gzipped, untidy, binary, packed_binary])
def test_file_formats(
    make: Callable[[Path], Path], tmp_path: Path, glove: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = load(glove, device="cpu").encode(list(SAID))
    monkeypatch.setattr(static, "BLOCK", 3)
    np.testing.assert_array_equal(load(make(tmp_path / "vectors.txt"), device="cpu").encode(list(SAID)), expected)


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


def in_text(content: str | bytes) -> Callable[[Path], Path]:
    def make(path: Path) -> Path:
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return make


def in_binary(change: Callable[[bytes], bytes]) -> Callable[[Path], Path]:
    def make(path: Path) -> Path:
        path = binary(path)
        path.write_bytes(change(path.read_bytes()))
        return path

    return make


def torn(path: Path) -> Path:
    path = gzipped(path)
    path.write_bytes(path.read_bytes()[:-40])
    return path


NO_NUMBER = vector("dog").tobytes(), np.full(DIM, np.nan, "<f4").tobytes()


@pytest.mark.parametrize(("make", "says"), [
    (in_text(""), "holds none"), (in_text(f"{GOOD}runs 0.5 0.5\n"), "line 3: expected a word and 8 finite"),
    (in_text(f"{GOOD}5 0.1 0.2 0.3 0.4 0.5 0.6 0.7\n"), "line 3"),
    (in_text(f"{GOOD}\nruns 1 2 3 4 five 6 7 8\n"), "line 4"), (in_text(f"{GOOD}runs 1 2 3 4 nan 6 7 8\n"), "line 3"),
    (in_text("just some text\n"), "line 1"), (in_text("word\n"), "line 1: expected a word and its finite numbers"),
    (in_text(f"3 {DIM}\n{GOOD}"), "promises 3 words, and 2 are there"),
    (in_text(b"2 8\ndog " + bytes(range(32)) + b"cat " + bytes(range(32))), "by a name that ends in .bin"),
    (in_binary(lambda whole: whole[:-1]), "word 16 of 16 has no whole vector; get it again"),
    (in_binary(lambda whole: whole[:40]), "word 1 of 16 has no whole vector"),
    (in_binary(lambda whole: whole[2:]), "its first line must have the numbers of words and dimensions"),
    (in_binary(lambda whole: b""), "its first line must have the numbers of words and dimensions"),
    (in_binary(lambda whole: whole.replace(*NO_NUMBER)), "word 2 of 16"), (torn, "get the file again"),
])  # fmt: skip
def test_other_files_are_refused(make: Callable[[Path], Path], says: str, tmp_path: Path, cache: Path) -> None:
    with pytest.raises(InputError, match=r"vectors\.(txt|bin)") as refused:
        load(make(tmp_path / "vectors.txt"))
    assert says in str(refused.value) and not list(cache.iterdir())


# -- directories ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("pooling", "head", "code"), [
    ("mean", None, False), ("max", None, True),
    ("mean", lambda: CategoricalHead(Categorical(DIM, 3, 4, 0.5, hidden=6)), True),
], ids=["mean", "max", "behind a head"])  # fmt: skip
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
    assert theirs.max_seq_length == 5 and bool(list((tmp_path / "model").glob("*.py"))) == code


def test_what_cannot_be_pooled_is_refused(glove: Path) -> None:
    with pytest.raises(InputError, match="take mean or max"):
        load(glove, pooling="cls")
    with pytest.raises(InputError, match="1 layers"):
        load(glove, layers=2)


# -- systems -------------------------------------------------------------------------------------------------------------

SMALL = {
    "members": 1, "train.max_steps": 3, "train.eval_every": 3, "evaluation.resamples": 4, "evaluation.tasks": "[stsb]",
}  # fmt: skip


@pytest.mark.parametrize("system", ["latte", *(pytest.param(of, marks=pytest.mark.slow) for of in ("whiten", "flow"))])
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
    common += overrides(SMALL, {"backbone": of_the_world})
    for system, stages in {"nli-ct-flow": ("nli", "ct"), "simcse-unsup-sed": ("simcse-unsup", "sed")}.items():
        outcome = raysts("run", system, *common)
        assert outcome.code == 2 and all(f"raysts: {stage}: trains the encoder" in outcome.err for stage in stages)
        assert "flow, whiten, centre, latte" in outcome.err and "--set backbone=MODEL" in outcome.err
    outcome = raysts("run", "flow", *common, "--set", "flow.pooling=cls")
    assert outcome.code == 2 and "flow.pooling=cls: word vectors" in outcome.err
    assert not (tmp_path / "storage").exists()
