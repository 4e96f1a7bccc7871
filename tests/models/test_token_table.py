"""Static students: a vector for each token, made of an encoder, trained by it, and read by sentence-transformers."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import raysts
from raysts.commands.distill import _common_backbone
from raysts.data.corpora import Corpus
from raysts.errors import InputError
from raysts.models.pretrained import check, load, weight_bytes
from raysts.models.weights import FREQUENT, token_table
from raysts.storage.store import Store

TEXTS = ["a dog runs in the park", "the tall man is not tall", "dog", "", "  zzqx!"]


def test_a_token_has_what_the_encoder_gives_for_it_alone(tiny_backbone: Path, tmp_path: Path) -> None:
    """And sentence-transformers reads the table."""
    from sentence_transformers import SentenceTransformer

    model = load(tiny_backbone, device="cpu")
    made = token_table(model)
    words = [word for word in model.tokenizer.get_vocab() if word.isalpha()]
    alone = model.encode(words)
    alone /= np.linalg.norm(alone, axis=1, keepdims=True)
    ids = np.array([model.tokenizer.get_vocab()[word] for word in words])
    vectors = made.encoder.backbone.weight.detach().numpy()
    share = 1 / (ids + 1) / np.log(len(vectors))
    centred = vectors[ids] / (FREQUENT / (FREQUENT + share))[:, None]
    np.testing.assert_allclose(centred - centred[0], alone - alone[0], atol=2e-5)
    assert np.abs(centred.mean(0)).max() < 0.1 < np.abs(alone.mean(0)).max(), "what all tokens share is taken off"
    assert not vectors[model.tokenizer.all_special_ids].any()
    made.save(tmp_path)
    read = load(tmp_path, device="cpu").encode(TEXTS)
    np.testing.assert_allclose(SentenceTransformer(str(tmp_path), device="cpu").encode(TEXTS), read, atol=1e-6)
    np.testing.assert_array_equal(read[2:4], [vectors[model.tokenizer.get_vocab()["dog"]], np.zeros(model.dim)])
    assert check(tmp_path)["vocab_size"] == len(vectors) and weight_bytes(tmp_path) == 4 * vectors.size
    (module,) = json.loads((tmp_path / "modules.json").read_text())
    assert module["type"].endswith(".StaticEmbedding")


def distilled(teacher: Path, text: Path, storage: Path, **sets: Any) -> raysts.commands.result.Result:  # type: ignore[name-defined]
    asked = {"student": "static", "backbone": str(teacher), "evaluation.resamples": 20, "sed.batch": 32, **sets}
    return raysts.distill([str(teacher)], asked, text=text, storage=storage, address="none")


@pytest.mark.whole
def test_a_static_student_is_trained(tiny_backbone: Path, small_corpus: Corpus, tmp_path: Path) -> None:
    texts = small_corpus.read("wikipedia/sentences").column("sentence").to_pylist()[:1200]
    pq.write_table(pa.table({"text": texts}), tmp_path / "texts.parquet")
    done = distilled(tiny_backbone, tmp_path / "texts.parquet", tmp_path / "storage", **{"sed.train.epochs": 4})
    folder = Path(done["model"])
    (start,) = (path for path in (tmp_path / "storage" / "backbones").glob("static-*") if path.is_dir())
    teacher, before, after = (load(path, device="cpu") for path in (tiny_backbone, start, folder))
    expected, cosines = teacher.encode(texts), []
    for model in (before, after):
        given = model.encode(texts)
        lengths = np.linalg.norm(given, axis=1) * np.linalg.norm(expected, axis=1)
        cosines.append(float(((given * expected).sum(1) / lengths.clip(1e-9)).mean()))
    assert cosines[1] > max(0.5, cosines[0] + 0.1), "it learns the teacher's vectors"
    assert not after.encoder.backbone.weight[after.tokenizer.pad_token_id].any()
    assert any("a table of token vectors" in note for note in done["notes"])
    (by_heart,) = (note for note in done["notes"] if "by heart" in note)
    assert re.search(r"on \d+ held-out texts it keeps \d+\.\d\d of 100 of the teacher", by_heart)
    assert json.loads((folder.parent / "run.json").read_text())["student"] == "static"
    assert _common_backbone([folder], Store.of(tmp_path / "storage")) == str(start), "and not the teacher"


def test_what_makes_no_sense_is_refused(tiny_backbone: Path, tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("a dog runs\na man sits\n")
    for sets, why in (
        ({"backbone_layers": 1}, "has no layers"),
        ({"student": "table"}, "student='table': must be one of encoder, static"),
    ):
        with pytest.raises(InputError, match=why):
            distilled(tiny_backbone, tmp_path / "texts.txt", tmp_path / "storage", **sets)
    with pytest.raises(InputError, match="of distillation by named models"):
        raysts.run("nli-ct-sed", {"student": "static"}, storage=tmp_path / "storage", address="none")


@pytest.mark.parametrize("layout", ["root", "folder", "model2vec"])
def test_tables_of_other_libraries_are_loaded(layout: str, tiny_backbone: Path, tmp_path: Path) -> None:
    from safetensors.numpy import save_file
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Normalize, StaticEmbedding

    tokenizer, draw = load(tiny_backbone, device="cpu").tokenizer, np.random.default_rng(0)
    weight = draw.normal(size=(len(tokenizer), 8)).astype(np.float32)
    folder = tmp_path / "foreign"
    modules = [StaticEmbedding(tokenizer, embedding_weights=weight), Normalize()]
    SentenceTransformer(modules=modules, device="cpu").save(str(folder))
    if layout == "folder":  # as versions before 5 write it
        (folder / "0_StaticEmbedding").mkdir()
        for name in ("model.safetensors", "tokenizer.json"):
            (folder / name).rename(folder / "0_StaticEmbedding" / name)
        written = json.loads((folder / "modules.json").read_text())
        (folder / "modules.json").write_text(json.dumps([{**written[0], "path": "0_StaticEmbedding"}, written[1]]))
    if layout == "model2vec":  # with a mapping of tokens to fewer vectors, and a factor for each
        (folder / "config.json").write_text(json.dumps({"model_type": "model2vec", "normalize": True}))
        arrays = {"mapping": np.arange(len(tokenizer)) % 50, "weights": draw.random(len(tokenizer))}
        save_file({**arrays, "embeddings": weight[:50]}, folder / "model.safetensors")
    expected = SentenceTransformer(str(folder), device="cpu").encode(TEXTS)
    np.testing.assert_allclose(load(folder, device="cpu").encode(TEXTS), expected, atol=1e-6)
    model = raysts.load(folder)
    model.save(tmp_path / "again")
    np.testing.assert_allclose(load(tmp_path / "again", device="cpu").encode(TEXTS), expected, atol=1e-6)
    (folder / "modules.json").write_text(json.dumps([{"type": "a.StaticEmbedding", "path": "none"}]))
    with pytest.raises(InputError, match="not a readable StaticEmbedding"):
        load(folder)
