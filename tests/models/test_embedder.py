"""What embeds besides encoders: ONNX graphs and precomputed vectors."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from small_runs import write_backbone, write_vectors

from raysts.errors import InputError, RunFailed
from raysts.models import onnx
from raysts.models.embedders import load_embedder, open_embedder, short_names
from raysts.models.head import Dense
from raysts.models.pretrained import load
from raysts.models.prompts import Prompts, SideText

TEXTS = ["a dog runs", "the small dog and the cat are sleeping near the house", "a cat"]


def test_vectors_are_found_by_their_texts(tmp_path: Path) -> None:
    vectors = np.random.default_rng(0).normal(scale=10, size=(3, 5)).astype(np.float32)
    path = write_vectors(tmp_path / "vectors.parquet", TEXTS, vectors)
    teacher = load_embedder(path)
    assert open_embedder(path).kind == open_embedder(tmp_path).kind == "vectors" and teacher.dim == 5
    np.testing.assert_array_equal(teacher.vectors(teacher.tokenize([TEXTS[2], TEXTS[0], TEXTS[2]])), vectors[[2, 0, 2]])
    assert teacher.find_missing([SideText(TEXTS[0], "query"), TEXTS[1]]) is None
    rounded = vectors[0] * (1 + 2**-7)  # as bf16 may in another batch
    again = load_embedder(write_vectors(tmp_path / "again.parquet", [*TEXTS, TEXTS[0]], np.stack([*vectors, rounded])))
    np.testing.assert_array_equal(again.vectors(again.tokenize(TEXTS[:1])), vectors[:1])
    raw = load_embedder(write_vectors(tmp_path / "raw.parquet", [f" {text}\n" for text in TEXTS], vectors))
    np.testing.assert_array_equal(raw.vectors(raw.tokenize(TEXTS)), vectors)  # --text is read without blanks around it
    with pytest.raises(RunFailed, match="no vector of 'a mouse'"):
        teacher.tokenize(["a cat", "a mouse"])
    write_vectors(tmp_path / "vectors.parquet", TEXTS, vectors[::-1])
    assert open_embedder(path).id != load_embedder(write_vectors(tmp_path / "b.parquet", TEXTS, vectors)).id


@pytest.mark.parametrize(("table", "why"), [
    ({"sentence": ["a", "b", "a"], "embedding": [[1.0], [1.0], [1.1]]}, "rows 0 and 2 are of one text"),
    ({"id": [1, 2], "embedding": [[1.0], [1.0]]}, "found by their texts, never by an id"),
    ({"sentence": ["a", "b"], "embedding": [[1.0], [1.0, 2.0]]}, "a vector of one width"),
    ({"sentence": ["a", "b"], "embedding": [[1.0], [float("nan")]]}, "vector of row 1 is not finite"),
    ({"title": ["a"], "embedding": [[1.0]]}, "has columns title, embedding"),
    ({"text": ["a"], "vector": [[1.0]]}, "has columns text, vector"),
    ({"text": ["a"], "embedding": ["1.0"]}, "column 'embedding' .string. must have a vector of one width"),
    ({"text": ["a"], "embedding": [[]]}, "a vector of one width"),
    ({"text": [1], "embedding": [[1.0]]}, "column 'text' has type int64; text must be a string column"),
    ({"text": pa.array([], pa.string()), "embedding": pa.array([], pa.list_(pa.float32()))}, "has no rows"),
])  # fmt: skip
def test_vectors_that_cannot_teach(table: dict[str, Any], why: str, tmp_path: Path) -> None:
    pq.write_table(pa.table(table), tmp_path / "vectors.parquet")
    with pytest.raises(InputError, match=why):
        load_embedder(tmp_path / "vectors.parquet")


def test_files_of_vectors_that_do_not_fit_together(tmp_path: Path) -> None:
    write_vectors(tmp_path / "a.parquet", TEXTS, np.ones((3, 2), np.float32))
    for name in ("sentence", "embedding"):
        table = pa.table({"sentence": ["x"], "embedding": [[1.0, 2.0]]}).rename_columns({name: "other"})
        pq.write_table(table, tmp_path / "b.parquet")
        with pytest.raises(InputError, match=f"b.parquet' has no column '{name}', as a.parquet beside it has"):
            load_embedder(tmp_path)


def test_names_are_as_short_as_they_may_be() -> None:
    names = ["a/x/model", "b/x/model", "/c/y/model", "hub/mini", "mini.parquet", "model"]
    assert short_names(names) == ["a/x/model", "b/x/model", "y/model", "mini", "mini.parquet", "model"]
    assert short_names(["same", "same"]) == ["same", "same"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a model that gives vectors of unit length."""
    folder = tmp_path_factory.mktemp("model")
    model = load(write_backbone(folder / "distilbert", "distilbert", seed=2), device="cpu")
    model.normalize = True
    model.save(folder / "model")
    return folder / "model"


def test_a_named_prompt_stands_before_queries_and_documents_too(folder: Path, tmp_path: Path) -> None:
    model = load(folder, device="cpu")
    model.prompts = Prompts(texts={"query": "the cat ", "document": "a dog "})
    model.save(tmp_path / "model")
    texts = [SideText(TEXTS[0], "query"), SideText(TEXTS[0], "document")]
    for prompt, expected in {None: ["query", "document"], "": ["", ""], "the house: ": ["the house: "] * 2}.items():
        (found,) = load_embedder(tmp_path / "model", prompt=prompt, device="cpu").represent_layers(texts, (1,)).values()
        alone = [model.encode(TEXTS[0], prompt=name) for name in expected]
        np.testing.assert_allclose(found["vectors"], alone, atol=1e-6)


def test_a_graph_has_the_dimensions_the_similarity_and_the_prompts_of_its_model(folder: Path, tmp_path: Path) -> None:
    """The tokens of a prompt are left out as the model leaves them out, and the first token behind them is found."""
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    model = load(folder, pooling="cls", device="cpu")
    model.truncate_dim, model.similarity_name = 8, "dot"
    before = {"query": "the cat and the dog ", "document": "a dog sat "}
    model.prompts = Prompts(texts=before, default="query", pooled=False)
    model.save(tmp_path / "model")
    model = load(tmp_path / "model", device="cpu")
    onnx.save(model, tmp_path / "graph")
    graph = load_embedder(tmp_path / "graph")
    assert list(graph.similarities) == list(model.similarities) == ["dot", "cosine"]
    texts = [SideText(TEXTS[0], "query"), SideText(TEXTS[0], "document"), SideText(TEXTS[1], "query")]
    np.testing.assert_allclose(graph.model.encode(texts), model.represent(texts)["vectors"], atol=1e-5)
    teacher = load_embedder(tmp_path / "graph", prompt="document", device="cpu")
    expected = model.encode(TEXTS, prompt="document")
    np.testing.assert_allclose(teacher.vectors(teacher.tokenize(TEXTS)), expected, atol=1e-5)
    assert (teacher.kind, teacher.dim) == ("onnx", 8)
    assert teacher.vectors(teacher.tokenize([])).shape == (0, 8), "where nothing is evaluated"
    with pytest.raises(InputError, match="an ONNX graph, which has no weights to save"):
        teacher.model.save(tmp_path / "copy")


def test_a_graph_that_gives_no_vectors(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    helper = pytest.importorskip("onnx.helper")

    def graph(name: str = "input_ids") -> bytes:
        ids, tokens = (helper.make_tensor_value_info(each, 7, ["texts", "tokens"]) for each in (name, "y"))
        made = helper.make_graph([helper.make_node("Identity", [name], ["y"])], "g", [ids], [tokens])
        opset = [helper.make_opsetid("", 17)]
        return bytes(helper.make_model(made, opset_imports=opset, ir_version=8).SerializeToString())

    headed = load(folder, device="cpu")
    headed.encoder = headed.encoder.followed_by(Dense(headed.dim, 3, "identity"))
    headed.save(tmp_path / "headed")
    for number, (model, content, why) in enumerate((
        (folder, graph(), "its graph gives no vector of a text .'y' has 2 axes"),
        (folder, graph("pixels"), "its graph reads pixels, which raysts does not give"),
        (folder, b"no graph", "onnxruntime does not load it"),
        (tmp_path / "headed", graph(), "has modules behind its pooling, which are not in the graph"),
    )):  # fmt: skip
        place = shutil.copytree(model, tmp_path / str(number), ignore=shutil.ignore_patterns("model.safetensors"))
        (place / "model.onnx").write_bytes(content)
        with pytest.raises(InputError, match=why):
            open_embedder(place).dim  # noqa: B018
