"""Teachers that are no members: of other widths and tokenizers, ONNX, and vectors that are there."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import run_commands
import scipy.stats
from run_commands import EVALUATION, overrides, raysts, result
from small_runs import write_backbone

from raysts.commands.distill import _models_pipeline
from raysts.commands.options import RunOptions
from raysts.data.corpora import Corpus
from raysts.errors import InputError, RunFailed
from raysts.models import onnx
from raysts.models.pretrained import load
from raysts.pipeline import teachers
from raysts.pipeline.validate import fitting_target
from raysts.recipes.catalog import DistillationSettings
from raysts.recipes.recipe import DEFAULTS

TEXTS = ["a dog runs", "the small dog and the cat are sleeping near the house", "a cat"]


def write_vectors(path: Path, texts: list[str], vectors: np.ndarray, **options: Any) -> Path:
    """Precomputed vectors, in several row groups."""
    table = pa.table({"sentence": texts, "embedding": vectors.tolist()} | options)
    pq.write_table(table, path, row_group_size=1 + len(texts) // 3)
    return path


def test_vectors_are_found_by_their_texts(tmp_path: Path) -> None:
    vectors = np.random.default_rng(0).normal(size=(3, 5)).astype(np.float32)
    path = write_vectors(tmp_path / "vectors.parquet", TEXTS, vectors)
    teacher = teachers.load(path)
    assert teachers.kind(path) == teachers.kind(tmp_path) == "vectors" and teachers.dim(path) == 5
    np.testing.assert_array_equal(teacher.vectors(teacher.tokenize([TEXTS[2], TEXTS[0], TEXTS[2]])), vectors[[2, 0, 2]])
    rounded = vectors[0] * (1 + 2**-7)  # as bf16 may in another batch
    again = teachers.load(write_vectors(tmp_path / "again.parquet", [*TEXTS, TEXTS[0]], np.stack([*vectors, rounded])))
    np.testing.assert_array_equal(again.vectors(again.tokenize(TEXTS[:1])), vectors[:1])
    raw = teachers.load(write_vectors(tmp_path / "raw.parquet", [f" {text}\n" for text in TEXTS], vectors))
    np.testing.assert_array_equal(raw.vectors(raw.tokenize(TEXTS)), vectors)  # --text is read without blanks around it
    with pytest.raises(RunFailed, match="no vector of 'a mouse'"):
        teacher.tokenize(["a cat", "a mouse"])
    write_vectors(tmp_path / "vectors.parquet", TEXTS, vectors[::-1])
    assert teachers.content_of(path) != teachers.content_of(write_vectors(tmp_path / "b.parquet", TEXTS, vectors))


@pytest.mark.parametrize(
    ("table", "why"),
    [
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
    ],
)
def test_vectors_that_cannot_teach(table: dict[str, Any], why: str, tmp_path: Path) -> None:
    pq.write_table(pa.table(table), tmp_path / "vectors.parquet")
    with pytest.raises(InputError, match=why):
        teachers.check(tmp_path / "vectors.parquet")
        teachers.dim(tmp_path / "vectors.parquet")


def test_files_of_vectors_that_do_not_fit_together(tmp_path: Path) -> None:
    write_vectors(tmp_path / "a.parquet", TEXTS, np.ones((3, 2), np.float32))
    for name in ("sentence", "embedding"):
        table = pa.table({"sentence": ["x"], "embedding": [[1.0, 2.0]]}).rename_columns({name: "other"})
        pq.write_table(table, tmp_path / "b.parquet")
        with pytest.raises(InputError, match=f"b.parquet' has no column '{name}', as a.parquet beside it has"):
            teachers.check(tmp_path)
            teachers.dim(tmp_path)


@pytest.fixture(scope="module")
def unlike(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two models without a record: a BERT pooled by its first token, and a DistilBERT that gives vectors of unit length."""
    folder = tmp_path_factory.mktemp("unlike")
    first = load(write_backbone(folder / "bert", "bert", seed=1), pooling="cls", device="cpu")
    second = load(write_backbone(folder / "distilbert", "distilbert", seed=2), device="cpu")
    second.normalize = True
    for name, model in {"first": first, "second": second}.items():
        model.save(folder / name)
    return [folder / "first", folder / "second"]


def test_names_are_as_short_as_they_may_be() -> None:
    names = ["a/x/model", "b/x/model", "/c/y/model", "hub/mini", "mini.parquet", "model"]
    assert teachers.short_names(names) == ["a/x/model", "b/x/model", "y/model", "mini", "mini.parquet", "model"]
    assert teachers.short_names(["same", "same"]) == ["same", "same"]


def test_a_graph_gives_the_vectors_of_its_model(unlike: list[Path], tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    model = load(unlike[1], device="cpu")
    onnx.save(model, tmp_path / "graph")
    assert teachers.kind(tmp_path / "graph") == "onnx" and teachers.dim(tmp_path / "graph") == model.dim
    teacher = teachers.load(tmp_path / "graph", device="cpu")
    np.testing.assert_allclose(teacher.vectors(teacher.tokenize(TEXTS)), model.encode(TEXTS), atol=1e-5)
    assert teacher.vectors(teacher.tokenize([])).shape == (0, model.dim)  # where nothing is evaluated


def test_a_graph_that_gives_no_vectors(unlike: list[Path], tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    helper = pytest.importorskip("onnx.helper")
    ids, tokens = (helper.make_tensor_value_info(name, 7, ["texts", "tokens"]) for name in ("input_ids", "y"))
    graph = helper.make_graph([helper.make_node("Identity", ["input_ids"], ["y"])], "g", [ids], [tokens])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    folder = Path(
        shutil.copytree(unlike[1], tmp_path / "graph", ignore=shutil.ignore_patterns("*.safetensors", "modules.json"))
    )
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(InputError, match="its graph gives no vector of a text .'y' has 2 axes"):
        teachers.dim(folder)


# -- whole runs ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def options(finished: run_commands.Finished, tiny_backbone: Path) -> list[str]:
    """Of a distillation that takes seconds."""
    small = {
        "sed.data.sample": 60,
        "sed.batch": 8,
        "train.max_steps": 3,
        "train.eval_every": 3,
        "backbone": tiny_backbone,
        "deliver": "system",
    }
    return [*finished.options(), "--address", "none", *overrides(small, EVALUATION)]


def rows_of(found: dict[str, Any], role: str) -> list[dict[str, Any]]:
    wanted = {"role": role, "metric": "spearman", "dataset": "stsb", "aggregation": "all", "rows": "all"}
    return [row for row in found["results"] if all(row[key] == value for key, value in wanted.items())]


def test_what_is_taken_unasked(unlike: list[Path]) -> None:
    def taken(folders: list[Path], width: int, **asked: Any) -> str:
        return fitting_target(folders, width, DistillationSettings(**asked))

    assert taken(unlike, 32) == taken(unlike, 32, projection=64) == taken(unlike, 32, loss="cosine") == "concat"
    assert taken(unlike, 32, loss="similarity") == "similarity"
    width = teachers.dim(unlike[0])
    assert taken(unlike[:1], width) == taken(unlike[:1], 1, projection=width, loss="mse") == "mean"
    assert taken(unlike[:1], width + 1) == "concat"


def test_a_student_that_starts_elsewhere_learns_directions(
    unlike: list[Path], finished: run_commands.Finished, tiny_backbone: Path
) -> None:
    def learnt(teacher: Path, **asked: Any) -> tuple[str, float, str]:
        options = RunOptions(None, finished.storage, "student", say=lambda text: None)
        sed = _models_pipeline(
            [str(teacher)], None, {key.replace("__", "."): v for key, v in asked.items()}, {}, options
        ).sed
        assert sed is not None
        assert isinstance(sed.settings, DistillationSettings)
        return sed.settings.matched, sed.optim.lr, sed.settings.axes

    foreign, trained = unlike[0], Path(finished.results["nli-ct-sed"]["model"])
    elsewhere, papers = {"backbone": str(tiny_backbone)}, DEFAULTS["sed"].optim.lr
    assert learnt(foreign, **elsewhere) == ("cosine", 3e-4, "student")
    assert learnt(foreign, **elsewhere, sed__loss="mse") == ("mse", papers, "student")
    assert learnt(foreign, **elsewhere, sed__target="similarity") == ("similarity", 1e-4, "teachers")
    assert learnt(foreign, **elsewhere, sed__projection=32) == ("cosine", 3e-4, "teachers"), "it finds its own"
    assert learnt(foreign, **elsewhere, sed__matryoshka=[8]) == ("cosine", 3e-4, "teachers"), (
        "those that hold most come first"
    )
    assert learnt(foreign, **elsewhere, student_start="average") == ("mse", papers, "teachers")
    assert learnt(trained) == ("mse", papers, "teachers")


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"sed.loss": "similarity"}, "cosines"),
        ({"sed.projection": 64}, "projection"),
        ({"student_start": "average"}, "student_start=average"),
        ({"sed.train.init": "random"}, "random weights"),
    ],
)
def test_axes_that_make_no_sense(asked: dict[str, Any], why: str, options: list[str], unlike: list[Path]) -> None:
    said = overrides({"sed.target": "concat", "sed.axes": "student", **asked})
    refused = raysts("distill", *unlike, *options, *said)
    assert refused.code == 2 and "axes=student" in refused.err and why in refused.err


def test_a_student_of_unlike_teachers(options: list[str], unlike: list[Path]) -> None:
    """Their mean is refused; what fits is taken unasked, and the ensemble is measured as the target is made."""
    refused = raysts("distill", *unlike, *options, "--set", "sed.target=mean")
    assert refused.code == 2 and "--set sed.target=concat" in refused.err
    found = raysts("distill", *unlike, *options, "--set", "sed.loss=mse", "--name", "unlike", "--json")
    assert found.code == 0 and "sed.target=concat" in found.err
    done = json.loads(found.out)
    members, (ensemble,) = rows_of(done, "member"), rows_of(done, "ensemble")
    assert [row["pooling"] for row in members if row["layers"] == "1"] == ["cls", "mean"]
    told = raysts("distill", *unlike, *options, "--set", "sed.loss=mse", "--name", "unlike").out
    assert "teacher first" in told and "teacher second" in told and "  member" not in told
    page = Path(done["report"]).read_text()
    assert "Teacher second" in page and "the best teacher, " in page
    assert len(rows_of(done, "student")) == 2 and load(done["model"], device="cpu").dim == 32

    world = pq.read_table(Path(options[options.index("--data") + 1]) / "sts" / "stsb_test.parquet").to_pydict()
    cosines = []
    for folder in unlike:
        model = load(folder, device="cpu")
        a, b = model.encode(world["sentence1"]), model.encode(world["sentence2"])
        cosines.append((a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1))
    expected = scipy.stats.spearmanr(np.mean(cosines, axis=0), world["score"]).statistic
    assert ensemble["value"] == pytest.approx(expected, abs=1e-4)
    best = max(row["value"] for row in members if row["layers"] == ensemble["layers"])
    assert (ensemble["value"] < best) == any(note.startswith("ensemble: ") for note in done["notes"])

    def written() -> dict[str, tuple[Path, int]]:
        folders = Path(options[options.index("--storage") + 1]) / "embeddings"
        return {
            path.name: (path, path.stat().st_mtime_ns) for path in folders.glob("*/[!.]*") if path.suffix != ".json"
        }

    before = written()
    other = raysts("distill", *unlike, *options, "--set", "sed.loss=mse", *overrides({"backbone": unlike[0]}), "--json")
    assert other.code == 0 and json.loads(other.out)["model"] != done["model"]
    assert before.items() < written().items() and [name[:4] for name in written().keys() - before.keys()] == ["map-"], (
        "a student that starts elsewhere is taught by the same vectors"
    )


def test_a_file_of_vectors_teaches_as_the_model_that_wrote_them(
    options: list[str], unlike: list[Path], tmp_path: Path
) -> None:
    """The same student to rounding; a sentence without its vector is named by its row before anything starts."""
    texts = (
        Corpus(Path(options[options.index("--data") + 1])).read("wikipedia/sentences")["sentence"].unique().to_pylist()
    )
    model = load(unlike[0], max_length=75, device="cpu")
    path = write_vectors(tmp_path / "vectors.parquet", texts, model.encode(texts))
    students = []
    for number, teacher in enumerate((path, unlike[0])):
        same = ["sed.target=unit-mean", "sed.axes=teachers", "precision=fp32"]  # as the file was written
        asked = [word for setting in same for word in ("--set", setting)] + ["--name", f"vectors-{number}"]
        students.append(load(result("distill", teacher, *options, *asked)["model"], device="cpu").encode(TEXTS))
    np.testing.assert_allclose(*students, atol=1e-4)
    half = write_vectors(tmp_path / "half.parquet", texts[::2], model.encode(texts[::2]))
    refused = raysts("distill", half, *options, "--name", "missing")
    assert refused.code == 2 and "has no vector of row " in refused.err and "wikipedia/sentences" in refused.err
