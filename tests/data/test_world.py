import hashlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch

from raysts.data import world
from raysts.data.world import EMBEDDED, WORLD_VERSION, unknown_fraction, world_path, world_tokenizer

TEXTS = ("sentence", "sentence1", "sentence2", "premise", "hypothesis", "text", "title")


def test_the_world_is_what_its_version_names() -> None:
    """A change of any table needs a new WORLD_VERSION, or runs on another world would have the ids of this one."""
    digest = hashlib.sha256()
    for file in sorted(EMBEDDED.rglob("*.parquet")):
        table = pq.read_table(file)
        head = (str(file.relative_to(EMBEDDED)), table.schema.names, [str(kind) for kind in table.schema.types])
        digest.update(repr(head).encode() + repr(table.to_pydict()).encode())
    assert WORLD_VERSION == "3870a7d0e3f5"
    assert digest.hexdigest() == "56833ee1e164beacf3af122bcfda191d432b8ee8e29f2bb91ddf7bd867a5b723"


def test_tokenizer_knows_every_word(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = world_tokenizer()
    words: set[str] = set()
    for file in EMBEDDED.rglob("*.parquet"):
        table = pq.read_table(file)
        for column in {*TEXTS, "word", "word1", "word2", "a", "b", "c", "d"} & set(table.column_names):
            texts = table[column].to_pylist()
            words.update(word for text in texts for word in text.split())
            assert unknown_fraction(texts) == 0.0, (file, column)
    assert len(words) > 500 and unknown_fraction(["A dog zorbs."]) == pytest.approx(1 / 4)
    for word, ids in zip(sorted(words), tokenizer(sorted(words))["input_ids"], strict=True):
        assert tokenizer.unk_token_id not in ids, word
    assert tokenizer.tokenize("Wolves chase Three bumblebees.") == ["wolves", "chase", "three", "bumblebee", "##s", "."]
    assert len(set(world.world_vocabulary())) == len(tokenizer) < 1500 < 3 * len(world.world_words())
    tokenizer.save_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    text = "A physician does not care for the horses at midday."
    assert again(text)["input_ids"] == tokenizer(text)["input_ids"]
    assert again.decode(again(text)["input_ids"], skip_special_tokens=True) == text.lower()


def test_tiny_backbone_is_a_hugging_face_directory(tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer
    from transformers import AutoModel

    state = torch.random.get_rng_state()
    for name, seed in (("a", 7), ("b", 7), ("c", 8)):
        world.write_tiny_backbone(tmp_path / name, seed)
    assert torch.equal(state, torch.random.get_rng_state())
    world.write_tiny_backbone(tmp_path / "c", 8)
    weights = {name: (tmp_path / name / "model.safetensors").read_bytes() for name in "abc"}
    assert weights["a"] == weights["b"] != weights["c"]
    model = AutoModel.from_pretrained(tmp_path / "a", add_pooling_layer=False)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert model.config.vocab_size == len(world_tokenizer())
    vectors = SentenceTransformer(str(tmp_path / "a"), device="cpu").encode(["A dog runs.", "Two physicians sleep."])
    assert vectors.shape == (2, model.config.hidden_size)


def test_world_path_is_written_once_if_several_ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ThreadPoolExecutor(4) as pool:
        paths = [*pool.map(world_path, [tmp_path] * 4)]
    assert set(paths) == {tmp_path / f"world-{WORLD_VERSION}"}
    assert [path.name for path in tmp_path.iterdir()] == [paths[0].name]
    before = paths[0].stat().st_mtime_ns
    assert world_path(tmp_path).stat().st_mtime_ns == before
    tables = {path.relative_to(EMBEDDED) for path in EMBEDDED.rglob("*.parquet")}
    assert {path.relative_to(paths[0]) for path in paths[0].rglob("*") if path.is_file()} == tables
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert world_path().parent == tmp_path / "xdg" / "raysts"
