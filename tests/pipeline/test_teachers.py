"""Teachers that are no members: of other widths and tokenizers, and vectors that are there. Students of another width."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import run_commands
from run_commands import EVALUATION, overrides, raysts, result
from small_runs import HIDDEN, write_backbone, write_vectors

from raysts.commands.distill import _models_pipeline
from raysts.commands.options import RunOptions
from raysts.data.corpora import Corpus
from raysts.evaluation.dev import CORRELATION, Dev
from raysts.evaluation.sts import pairs_from_table
from raysts.log import screen
from raysts.models.embedders import open_embedder
from raysts.models.pretrained import load
from raysts.models.sentence_model import TOKEN_BUDGET
from raysts.ops.ensemble import unit
from raysts.pipeline.steps.vectors import weigh
from raysts.pipeline.validate import fitting_target
from raysts.recipes.catalog import DistillationSettings
from raysts.recipes.recipe import DEFAULTS

PAIR = ["sentence1", "sentence2"]
TEXTS = ["a dog runs", "the small dog and the cat are sleeping near the house", "a cat"]


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


@pytest.fixture
def options(finished: run_commands.Finished, tiny_backbone: Path) -> list[str]:
    """Of a distillation that takes seconds."""
    small = {"sed.data.sample": 60, "sed.batch": 8, "train.max_steps": 3, "train.eval_every": 3}
    return [*finished.options(), "--address", "none", *overrides(EVALUATION, small, {"backbone": tiny_backbone})]


def rows_of(found: dict[str, Any], role: str) -> list[dict[str, Any]]:
    wanted = {"role": role, "metric": "spearman", "dataset": "stsb", "aggregation": "all", "rows": "all"}
    return [row for row in found["results"] if all(row[key] == value for key, value in wanted.items())]


def test_what_is_taken_unasked(unlike: list[Path]) -> None:
    def taken(folders: list[Path], width: int, **asked: Any) -> str:
        return fitting_target(folders, width, DistillationSettings(**asked))

    assert taken(unlike, 32) == taken(unlike, 32, projection=64) == taken(unlike, 32, loss="cosine") == "concat"
    assert taken(unlike, 32, loss="similarity") == "similarity"
    width = open_embedder(unlike[0]).dim
    assert taken(unlike[:1], width) == taken(unlike[:1], 1, projection=width, loss="mse") == "mean"
    assert taken(unlike[:1], width + 1) == "concat"


def test_loss_and_rate_of_a_student(unlike: list[Path], finished: run_commands.Finished, tiny_backbone: Path) -> None:
    def learnt(teacher: Path, **asked: Any) -> tuple[str, float, str]:
        options = RunOptions(None, finished.storage, "student")
        changes = {key.replace("__", "."): value for key, value in asked.items()}
        sed = _models_pipeline([str(teacher)], None, changes, {}, options).sed
        assert sed is not None and isinstance(sed.settings, DistillationSettings)
        (loss,) = sed.settings.terms
        return loss, sed.optim.lr, sed.settings.axes

    foreign, trained = unlike[0], Path(finished.results["nli-ct-sed"]["model"])
    elsewhere, papers = {"backbone": str(tiny_backbone)}, DEFAULTS["sed"].optim.lr
    assert learnt(foreign, **elsewhere) == ("cosine", 3e-4, "student")
    assert learnt(foreign, **elsewhere, sed__loss="mse") == ("mse", papers, "student")
    assert learnt(foreign, **elsewhere, sed__target="similarity") == ("similarity", 1e-4, "teachers")
    assert learnt(foreign, **elsewhere, sed__projection=32) == ("cosine", 3e-4, "teachers"), "it finds its own"
    assert learnt(foreign, **elsewhere, sed__matryoshka=[8]) == ("cosine", 3e-4, "teachers"), "most of it comes first"
    assert learnt(foreign, **elsewhere, student_start="average") == ("mse", papers, "teachers")
    assert learnt(trained) == ("mse", papers, "teachers")


def test_a_student_of_unlike_teachers(options: list[str], unlike: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Their mean is refused; what fits is taken unasked, and the ensemble is measured as the target is made. Progress comes from
    inside a block."""
    refused = raysts("distill", *unlike, *options, "--set", "sed.target=mean")
    assert refused.code == 2 and "--set sed.target=concat" in refused.err
    shares, within = list[tuple[str, float]](), screen.within
    with monkeypatch.context() as patch:
        patch.setattr(screen, "within", lambda share: (shares.append((screen.title, share)), within(share)))
        patch.setitem(TOKEN_BUDGET, "cpu", 128)
        found = raysts("distill", *unlike, *options, "--set", "sed.loss=mse", "--name", "unlike", "--json")
    assert found.code == 0 and "sed.target=concat" in found.err
    for title in ("2 teachers", "evaluate student"):
        of_step = [share for step, share in shares if title in step]
        assert len({*of_step}) > 4 and of_step == sorted(of_step) and of_step[-1] == pytest.approx(1), title
    done = json.loads(found.out)
    members, (ensemble,) = rows_of(done, "member"), rows_of(done, "ensemble")
    page = Path(done["report"]).read_text()
    assert "Teacher second" in page and "the best teacher, " in page
    assert len(rows_of(done, "student")) == 1 and load(done["model"], device="cpu").dim == 32

    best = max(row["value"] for row in members if row["layers"] == ensemble["layers"])
    assert (ensemble["value"] < best) == any(note.startswith("The ensemble is ") for note in done["notes"])

    words = [word for word in options if word not in ("--address", "none")]
    asked = ["--set", "sed.loss=mse", *overrides({"backbone": unlike[0]})]
    status = {node["kind"]: node["status"] for node in result("plan", "distill", *unlike, *words, *asked)["nodes"]}
    assert (status["vectors"], status["train"]) == ("done", "waiting"), (
        "from elsewhere it is taught by the same vectors"
    )


def test_a_file_of_vectors_teaches_as_its_model(options: list[str], unlike: list[Path], tmp_path: Path) -> None:
    """The same student to rounding."""
    world = Corpus(Path(options[options.index("--data") + 1]))
    texts = world.read("wikipedia/sentences")["sentence"].unique().to_pylist()
    model = load(unlike[0], max_length=75, device="cpu")
    path = write_vectors(tmp_path / "vectors.parquet", texts, model.encode(texts))
    students = []
    for number, teacher in enumerate((path, unlike[0])):
        same = ["sed.target=unit-mean", "sed.axes=teachers", "precision=fp32"]  # as the file was written
        asked = [word for setting in same for word in ("--set", setting)] + ["--name", f"vectors-{number}"]
        students.append(load(result("distill", teacher, *options, *asked)["model"], device="cpu").encode(TEXTS))
    np.testing.assert_allclose(*students, atol=1e-4)


def test_the_student_is_delivered_where_a_teacher_scores_higher(options: list[str], tmp_path: Path) -> None:
    """A teacher that has the gold scores: the student comes out, with its card, and the teacher is named beside it."""
    world = Corpus(Path(options[options.index("--data") + 1]))
    rng, vectors = np.random.default_rng(0), dict[str, np.ndarray]()
    tables = {"wikipedia/sentences": ["sentence"], "sts/sts12": PAIR, "sts/stsb_dev": PAIR}
    for table, columns in tables.items():
        for column in columns:
            vectors |= {text: rng.normal(size=8) for text in world.read(table)[column].unique().to_pylist()}
    for row in world.read("sts/stsb_test").to_pylist():
        first, other = np.linalg.qr(rng.normal(size=(8, 2)))[0].T
        angle = (5 - row["score"]) / 5 * np.pi / 2
        vectors |= {row["sentence1"]: first, row["sentence2"]: np.cos(angle) * first + np.sin(angle) * other}
    teacher = write_vectors(tmp_path / "gold.parquet", list(vectors), np.stack([*vectors.values()]).astype(np.float32))
    done = result("distill", teacher, *options, "--name", "below")
    model, told = Path(done["model"]), done["delivered"]
    assert (told["what"], told["by"]) == ("student", "system")
    assert json.loads((model.parent / "run.json").read_text())["role"] == "student"
    (member,) = (row["value"] for row in rows_of(done, "member") if row["layers"] == "1")
    assert (told["reference"]["model"], told["reference"]["value"]) == ("gold.parquet", pytest.approx(member))
    shown = raysts("distill", teacher, *options, "--name", "below").out
    for text in (shown, Path(done["report"]).read_text(), (model / "README.md").read_text()):
        assert f"The teacher still scores higher: {100 * member:.2f} against" in text


def test_a_run_that_teaches_has_the_name_of_the_user(options: list[str], finished: run_commands.Finished) -> None:
    """In the table, the differences and the costs, of a run by its name; a run id is a member as of --from-run."""
    members = finished.results["nli-ct-sed"]["results"]
    run = next(row["run_id"] for row in members if row["role"] == "member")
    command = ["distill", "nli-ct-sed:student", run, *options, "--name", "runs-teach"]
    done, text = result(*command), raysts(*command).out
    by_run = {row["run_id"] for row in rows_of(done, "member")}
    assert run in by_run and len(by_run) == 2
    assert [*done["teachers"].values()] == ["nli-ct-sed:student"] and done["teachers"].keys() == by_run - {run}
    assert {model["model"] for model in done["models"] if model["role"] == "member"} == {"nli-ct-sed:student", run}
    record = json.loads((finished.storage / "pipelines/runs-teach.json").read_text())
    assert "teacher nli-ct-sed:student" in record["against"] and not any(name in text for name in record["members"])


def test_a_teacher_that_says_nothing_gets_little_weight() -> None:
    """The gain is that of rows that did not choose: of teachers that both say nothing there is none."""
    draw, texts = np.random.default_rng(0), [f"text {number}" for number in range(400)]
    good, noise, more = (draw.normal(size=(400, 8)).astype(np.float32) for _ in range(3))
    cosines = (unit(good[:200]) * unit(good[200:])).sum(1)
    table = pa.table({"sentence1": texts[:200], "sentence2": texts[200:]})
    table = table.append_column("score", pa.array(cosines + 0.1 * draw.normal(size=200)))
    dev = Dev("mine", CORRELATION, (pairs_from_table(table, "mine", "sha"),))
    order = [texts.index(text) for text in dev.texts]
    found = weigh(dev, [good[order], noise[order]], "concat", 200)
    assert found["weights"][0] > 0.9 and found["gain"][1] > 0 and "above that with equal weights" in found["note"]
    assert weigh(dev, [noise[order], more[order]], "concat", 0)["gain"][0] < 0


def test_weights_by_the_development_set(options: list[str], unlike: list[Path]) -> None:
    command = ["distill", *unlike, *options, "--set", "sed.weights=dev", "--name", "weighed"]
    done = result(*command)
    assert any("Weights of the teachers by" in note for note in done["notes"])
    (weights,) = Path(done["storage"]).glob("embeddings/*/weights.json")
    before = weights.read_bytes()
    weights.write_text("damaged")
    shutil.rmtree(Path(done["storage"]) / "results")
    result(*command)
    assert weights.read_bytes() == before, "they are made again"


def test_members_of_another_width_need_a_projection(options: list[str], finished: run_commands.Finished) -> None:
    """A student of 32 dimensions learns members of the tiny encoder's width behind a linear layer that it keeps."""
    members = sorted({row["run_id"] for row in finished.results["nli"]["results"] if row["role"] == "member"})
    wide = load(finished.storage / "runs" / members[0] / "model", device="cpu").dim
    asked = overrides({"deliver": "system", "sed.projection": wide, "student_pooling": 2})
    found = result("distill", *members, *options, "--name", "narrow", *asked)
    page = Path(found["report"]).read_text(encoding="utf-8")
    assert "the student scores" in page.lower() and "last layer pooled" in page, "a projection belongs to its layers"
    student = load(found["model"], device="cpu")
    assert student.encoder.width == HIDDEN and student.dim == wide
    sentence_transformers = pytest.importorskip("sentence_transformers")
    theirs = sentence_transformers.SentenceTransformer(found["model"], device="cpu").encode(TEXTS)
    np.testing.assert_allclose(student.encode(TEXTS), theirs, rtol=0, atol=1e-5)


@pytest.mark.whole
def test_a_student_of_mean_and_variance(few_world: Path, tiny_backbone: Path, tmp_path: Path) -> None:
    """It has the direction of entailment, which a student of vectors has not; one of another width has it too."""

    def similarities(found: dict[str, Any]) -> set[str]:
        return {row["similarity"] for row in found["results"] if row["role"] == "student"}

    place = ["--data", few_world, "--storage", tmp_path, "--address", "none"]
    settings = {"sed.target": "gaussian", "train.max_steps": 3, "train.max_length": 16, "data.sample": 64,
                "evaluation.resamples": 0, "evaluation.tasks": ["snli-direction"]}  # fmt: skip
    made = ["gausscse-ent+rev-sed", *place, *overrides(settings | {"backbone": "tiny", "members": 1})]
    found = result("run", *made)
    assert {"gauss", "variance"} <= similarities(found) and "without variance" not in str(found["notes"])
    student = load(found["model"], device="cpu")
    assert {"vectors", "log_var"} <= {*student.represent_layers(["a text"], (student.layers,))[student.layers]}
    teacher = next(row["run_id"] for row in found["results"] if row["role"] == "member")
    narrow = ["distill", teacher, *place, "--name", "narrow", *overrides(settings | {"backbone": tiny_backbone})]
    projection = f"sed.projection={load(tmp_path / 'runs' / teacher / 'model', device='cpu').dim}"
    refused = raysts(*narrow)
    assert refused.code == 2 and f"--set {projection}" in refused.err
    assert {"gauss", "variance"} <= similarities(result(*narrow, "--set", projection))
