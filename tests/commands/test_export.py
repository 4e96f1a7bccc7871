"""Models as ONNX: what onnxruntime makes of them is what the model says."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from run_commands import raysts as command
from run_commands import result
from small_runs import HIDDEN, write_backbone

import raysts
from raysts.errors import InputError
from raysts.models import onnx
from raysts.models.embedders import load_embedder
from raysts.models.head import Dense, FlowHead, GaussianHead, Head
from raysts.models.pretrained import load
from raysts.models.sentence_model import SentenceModel
from raysts.models.shipped.glow import Glow

pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

TEXTS = ["a dog runs", "a cat", "the small dog and the cat are sleeping near the house", "dog", "", "A CAT sleeps"]


def embedded(folder: Path, texts: list[str], batch: int = 4) -> np.ndarray:
    """What the files alone give: the tokenizer by transformers, the graph by onnxruntime."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    session = onnxruntime.InferenceSession(str(folder / "model.onnx"), providers=["CPUExecutionProvider"])
    assert [each.name for each in session.get_inputs()] == ["input_ids", "attention_mask"]
    assert [each.name for each in session.get_outputs()] == ["sentence_embedding", "last_hidden_state"]
    found = []
    for first in range(0, len(texts), batch):
        read = tokenizer(texts[first : first + batch], padding=True, truncation=True, return_tensors="np")
        given = {name: read[name].astype(np.int64) for name in ("input_ids", "attention_mask")}
        found.append(session.run(None, given)[0])
    vectors = np.concatenate(found)
    assert vectors.dtype == np.float32
    return vectors


def headed(folder: Path, *heads: Head, normalize: bool = False, **options: Any) -> SentenceModel:
    model = load(folder, device="cpu", **options)
    encoder = model.encoder
    for head in heads:
        encoder = encoder.followed_by(head)
    return SentenceModel(encoder.eval(), model.tokenizer, model.max_length, normalize)


@pytest.mark.whole
@pytest.mark.parametrize(
    ("family", "pooling", "layers"),
    [("bert", "cls", "only-0"), ("distilbert", "mean+lasttoken", "first_last"), ("roberta", "max", 2)],
)
def test_families_poolings_and_layers(family: str, pooling: Any, layers: Any, tmp_path: Path) -> None:
    write_backbone(tmp_path / family, family)
    model = load(tmp_path / family, pooling=pooling, layers=layers, max_length=9, device="cpu")
    expected = model.encode(TEXTS)
    onnx.save(model, tmp_path / "out")
    np.testing.assert_array_equal(model.encode(TEXTS), expected, "the model is as it was")
    for batch in (1, 4):
        np.testing.assert_allclose(embedded(tmp_path / "out", TEXTS, batch), expected, rtol=0, atol=2e-6)


@pytest.mark.whole
def test_heads(tiny_backbone: Path, tmp_path: Path) -> None:
    """Dense ones and normalisation, and of Gaussians the mean."""
    torch.manual_seed(0)
    dense = [Dense(HIDDEN, 24, "tanh"), Dense(24, 5, "identity", bias=False)]
    models = {
        "dense": headed(tiny_backbone, *dense, normalize=True),
        "gaussian": headed(tiny_backbone, GaussianHead(HIDDEN, 7), pooling="cls"),
        "large": headed(tiny_backbone, Dense(HIDDEN, 5, "identity")),
    }
    with torch.no_grad():
        models["large"].encoder.heads[0].linear.weight *= 1e4
    for name, model in models.items():
        onnx.check(model)
        onnx.save(model, tmp_path / name)
        expected = model.encode(TEXTS)
        for found in (embedded(tmp_path / name, TEXTS), load_embedder(tmp_path / name).model.encode(TEXTS)):
            np.testing.assert_allclose(found, expected, rtol=0, atol=2e-6 * max(1, np.abs(expected).max()))


@pytest.mark.slow  # a real model; small ones of three families are exported always
def test_minilm_as_sentence_transformers_reads_it(minilm: Path, tmp_path: Path) -> None:
    sentence_transformers = pytest.importorskip("sentence_transformers")
    expected = sentence_transformers.SentenceTransformer(str(minilm), device="cpu", local_files_only=True).encode(TEXTS)
    onnx.save(load(minilm, device="cpu"), tmp_path / "out")
    np.testing.assert_allclose(embedded(tmp_path / "out", TEXTS), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("pooling", ["mean", "max"])
def test_word_vectors(pooling: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    draws = np.random.default_rng(0).normal(size=(4, 6))
    lines = [f"{word} {' '.join(map(str, row))}" for word, row in zip(["a", "dog", "cat", "runs"], draws, strict=True)]
    (tmp_path / "glove.txt").write_text("\n".join(lines), encoding="utf-8")
    model = load(tmp_path / "glove.txt", pooling=pooling, device="cpu")
    onnx.save(model, tmp_path / "out")
    texts = ["a dog runs", "zebra", "the cat", "a"]
    found = embedded(tmp_path / "out", texts)
    assert not found[1].any()
    np.testing.assert_allclose(found, model.encode(texts), rtol=0, atol=1e-6)


@pytest.mark.whole
def test_sentence_transformers_finds_its_modules_beside_the_graph(tiny_backbone: Path, tmp_path: Path) -> None:
    """Without optimum, which needs another transformers: its own modules, given the token vectors that the graph gives."""
    sentence_transformers = pytest.importorskip("sentence_transformers")
    kinds = pytest.importorskip("sentence_transformers.models")
    torch.manual_seed(0)
    heads = [Dense(HIDDEN, 24, "tanh")]
    model = headed(tiny_backbone, *heads, normalize=True, layers=2, pooling="max")
    onnx.save(model, tmp_path / "out")
    assert not (tmp_path / "out" / "model.safetensors").exists()
    session = onnxruntime.InferenceSession(str(tmp_path / "out" / "model.onnx"), providers=["CPUExecutionProvider"])
    modules = json.loads((tmp_path / "out" / "modules.json").read_text())
    assert [each["type"].rsplit(".")[-1] for each in modules] == ["Transformer", "Pooling", "Dense", "Normalize"]
    read = model.tokenizer(TEXTS, padding=True, return_tensors="np")
    given = {name: read[name].astype(np.int64) for name in ("input_ids", "attention_mask")}
    features = {"token_embeddings": torch.tensor(session.run(["last_hidden_state"], given)[0])}
    features["attention_mask"] = torch.tensor(given["attention_mask"])
    for each in modules[1:]:
        kind = getattr(kinds, each["type"].rsplit(".")[-1])
        loaded = kind.load(str(tmp_path / "out" / each["path"])) if each["type"][-9:] != "Normalize" else kind()
        features = loaded(features)
    found = features["sentence_embedding"].detach().numpy()
    np.testing.assert_allclose(found, model.encode(TEXTS), rtol=0, atol=2e-6)
    backend = sentence_transformers.backend.utils.backend_should_export
    assert backend(tmp_path / "out", True, {}, "model.onnx", "*.onnx", "ONNX")[0] is False


@pytest.mark.whole
def test_an_exported_graph_is_a_model(tiny_backbone: Path, few_world: Path, tmp_path: Path) -> None:
    """By the command as from Python; it is evaluated as the model that it was made of, and what its graph decides is refused."""
    storage = tmp_path / "storage"
    graph = ["--layers", 2, "--format", "onnx", "--to", tmp_path / "a"]
    told = result("export", tiny_backbone, "--storage", storage, *graph)
    assert told["model"] == str(tmp_path / "a")
    assert {"model.onnx", "tokenizer.json"} <= {path.name for path in (tmp_path / "a").iterdir()}
    called = raysts.export(tiny_backbone, tmp_path / "b", storage=storage, layers=2, format="onnx")
    assert called == told | {"model": str(tmp_path / "b")}
    expected = load(tiny_backbone, layers=2, device="cpu").encode(TEXTS)
    np.testing.assert_allclose(embedded(tmp_path / "a", TEXTS), expected, rtol=0, atol=2e-6)
    model = raysts.load(tmp_path / "b", storage=storage)
    np.testing.assert_allclose(model.encode(TEXTS), expected, rtol=0, atol=2e-6)
    np.testing.assert_allclose(model.encode(TEXTS[0]), expected[0], rtol=0, atol=2e-6)
    options: dict[str, Any] = {"data": few_world, "tasks": ["stsb"], "resamples": 0, "storage": storage}
    scores = [
        [row["value"] for row in raysts.evaluate(name, **options, **more)["results"] if row["metric"] == "spearman"]
        for name, more in ((tmp_path / "a", {}), (tiny_backbone, {"layers": 2}))
    ]
    assert scores[0] == pytest.approx(scores[1], abs=1e-4)
    with pytest.raises(InputError, match="is ONNX. Its graph decides layers"):
        raysts.evaluate(tmp_path / "a", **options, layers=2)


def test_what_makes_no_graph_is_refused(tiny_backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(model: Path, *words: str, code: int = 2) -> None:
        outcome = command("export", model, "--to", tmp_path / "out", "--format", "onnx")
        assert outcome.code == code and all(word in outcome.err for word in words), outcome.err
        assert not (tmp_path / "out").exists()

    headed(tiny_backbone, FlowHead(Glow(HIDDEN, 2, 1, 4))).save(tmp_path / "model")
    refused(tmp_path / "model", "'raysts_glow.Glow'", "--format sentence-transformers")
    with pytest.raises(InputError, match="sentence-transformers, onnx"):
        raysts.export(tiny_backbone, tmp_path / "out", format="tflite")
    right, found = onnx.Graph.forward, importlib.util.find_spec
    with monkeypatch.context() as patch:
        patch.setattr(onnx.Graph, "forward", lambda *given: (right(*given)[0] + 1e-3, right(*given)[1]))
        refused(tiny_backbone, "gives other embeddings than the model", code=3)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name == "onnx" else found(name, *more))
    refused(tiny_backbone, "onnx not installed; pip install 'raysts[onnx]'")


def test_what_an_export_leaves_out_is_said(tiny_backbone: Path, tmp_path: Path) -> None:
    headed(tiny_backbone, GaussianHead(HIDDEN, 5)).save(tmp_path / "model")
    outcome = command("export", tmp_path / "model", "--to", tmp_path / "graph", "--format", "onnx")
    assert outcome.code == 0 and "model.onnx gives the mean alone: the variance of each text" in outcome.err
    raysts.export(tmp_path / "model", tmp_path / "whole")
    found, expected = (load(tmp_path / name, device="cpu").represent(TEXTS) for name in ("whole", "model"))
    np.testing.assert_array_equal(found["log_var"], expected["log_var"])
    outcome = command("export", tmp_path / "model", "--to", tmp_path / "out", "--layers", 2)
    assert outcome.code == 2 and "--layers 2: the model's heads were trained on layers '1'" in outcome.err
    assert not (tmp_path / "out").exists()
