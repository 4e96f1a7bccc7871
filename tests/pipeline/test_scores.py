"""What the evaluation of a role measures, of models that are there: nothing is trained."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
from evaluation_fakes import write_table
from run_commands import listening
from safetensors.torch import load_file, save_file
from small_runs import distillation, write_backbone, write_vectors

from raysts.data.corpora import Corpus
from raysts.data.user import UserData
from raysts.errors import RunFailed
from raysts.ids import folder_id
from raysts.models.head import GaussianHead
from raysts.models.pretrained import load
from raysts.pipeline.executor import LocalExecutor
from raysts.pipeline.plan import Plan
from raysts.pipeline.step import Context
from raysts.pipeline.steps.scores import PartialSums
from raysts.recipes.names import pipeline
from raysts.recipes.recipe import DEFAULTS, Pipeline
from raysts.storage.store import Store

EVALUATED = {"evaluation.tasks": ["stsb"], "evaluation.resamples": 0, "evaluation.layers": [1], "student_pooling": 1}


@pytest.fixture
def planned(few_world: Path, tiny_backbone: Path, tmp_path: Path) -> Any:
    def made(name: str | Pipeline, **settings: Any) -> Plan:
        asked = {"backbone": str(tiny_backbone), "members": 2, **EVALUATED}
        asked |= {key.replace("__", "."): value for key, value in settings.items()}
        chosen = pipeline(name, asked) if isinstance(name, str) else name
        return Plan(pipeline=chosen, corpus=Corpus(few_world), storage=tmp_path / "storage")

    return made


def measure(plan: Plan, role: str, metric: str = "spearman") -> list[dict[str, Any]]:
    """The rows of a role that is measured, on whole sets."""
    (evaluation,) = (each for each in plan.evaluations if each.role == role)
    assert evaluation.step.work is not None
    evaluation.step.work(Context(LocalExecutor(threads=1, device="cpu"), plan.store))
    of_sets = [row for row in evaluation.rows() if row["metric"] == metric and row["subset"] is None]
    return [row for row in of_sets if row["aggregation"] in ("all", None)]


def test_an_ensemble_of_models_from_elsewhere_takes_each_as_it_pools(planned: Any, tmp_path: Path) -> None:
    """The first by its first token in its last two layers, although the table has those of the last one."""
    models = [
        load(write_backbone(tmp_path / "plain" / name, "bert", seed=seed), pooling=pooling, layers=layers, device="cpu")
        for seed, (name, pooling, layers) in enumerate((("a", "cls", 2), ("b", "mean", 1)), 1)
    ]
    for name, model in zip("ab", models, strict=True):
        model.save(tmp_path / name)
    recipe = DEFAULTS["sed"].replace(settings=DEFAULTS["sed"].settings.replace(target="concat"))
    given = {"recipe": recipe, "evaluated": {**EVALUATED, "evaluation.layers": [1, 2]}, "student_pooling": 1}
    plan = planned(distillation(tmp_path / "b", tmp_path / "a", tmp_path / "b", **given))
    rows = measure(plan, "member")
    assert [(row["pooling"], row["layers"]) for row in rows if row["role"] == "member"] == [
        ("cls", "1"), ("cls", "2"), ("mean", "1"), ("mean", "2")
    ]  # fmt: skip
    pairs, cosines = plan.corpus.read("sts/stsb_test").to_pydict(), []
    for model in models:
        one, two = (model.encode(pairs[side], normalize=True) for side in ("sentence1", "sentence2"))
        cosines.append((one * two).sum(1))
    expected = scipy.stats.spearmanr(np.mean(cosines, axis=0), pairs["score"]).statistic
    (ensemble,) = (row for row in rows if row["role"] == "ensemble")
    assert ensemble["value"] == pytest.approx(expected, abs=1e-5)


def test_a_model_with_a_head_is_measured_as_it_was_trained(planned: Any, tiny_backbone: Path) -> None:
    plan = planned("gausscse-ent", members=1, layers="only-1", evaluation__layers=[2])
    model = load(tiny_backbone, layers="only-1", device="cpu")
    model.encoder = model.encoder.followed_by(GaussianHead(model.dim, model.dim))
    with plan.store.put_dir(plan.members[0].output) as draft:
        model.save(draft)
    assert {row["layers"] for row in measure(plan, "member")} == {"only-1"}


def test_vectors_that_lack_texts_are_not_measured(planned: Any, tiny_backbone: Path, tmp_path: Path) -> None:
    vectors = write_vectors(tmp_path / "v.parquet", ["a dog"], np.ones((1, 32), np.float32))
    made = distillation(tiny_backbone, tiny_backbone, vectors, evaluated=EVALUATED, student_pooling=1)
    lines: list[str] = []
    with listening(lines.append):
        rows = measure(planned(made), "member")
    assert {(row["role"], row["run_id"] == folder_id(tiny_backbone)) for row in rows} == {("member", True)}
    (said,) = (line for line in lines if "v.parquet" in line)
    assert "v.parquet has no vectors of the test texts; neither it nor an ensemble is" in said


def test_a_model_that_has_collapsed_is_named(planned: Any, tiny_backbone: Path) -> None:
    plan = planned("nli", members=1)
    with plan.store.put_dir(plan.members[0].output) as draft:
        shutil.copytree(tiny_backbone, draft, dirs_exist_ok=True)
        weights = {name: 0 * value for name, value in load_file(draft / "model.safetensors").items()}
        save_file(weights, draft / "model.safetensors", metadata={"format": "pt"})
    said = f"evaluate members: '{plan.members[0].output}': stsb: all .* similarities are 0"
    with pytest.raises(RunFailed, match=said):
        measure(plan, "member")


def test_a_sum_of_vectors_goes_on(tmp_path: Path) -> None:
    """Weighted, by choice of layers, from what is stored."""
    vectors, store = {1: np.ones((2, 3), np.float32), "only-2": np.eye(2, dtype=np.float32)}, Store(tmp_path)
    PartialSums(store, "s").add(vectors, weight=2.0)
    again = PartialSums(store, "s")
    assert again.count == 1 and {layers: total.tolist() for layers, total in again.totals.items()} == {
        1: [[2, 2, 2], [2, 2, 2]], "only-2": [[2, 0], [0, 2]]
    }  # fmt: skip
    again.add(vectors)
    assert PartialSums(store, "s").count == 2 and PartialSums(store, "s").totals[1][0, 0] == 3


def test_queries_find_documents_that_the_teacher_embedded(few_world: Path, tiny_backbone: Path, tmp_path: Path) -> None:
    """Beside those that it embeds itself."""
    texts = Corpus(few_world).read("wikipedia/sentences")["sentence"].unique().to_pylist()[:30]
    queries, ids = [" ".join(text.split()[:5]) for text in texts], [f"d{n}" for n in range(30)]
    folder = tmp_path / "found"
    write_table(folder, "corpus", {"doc_id": ids, "text": texts})
    write_table(folder, "queries", {"query_id": ids, "text": queries})
    write_table(folder, "qrels", {"query_id": ids, "doc_id": ids, "score": [1] * 30})
    teacher = write_backbone(tmp_path / "teacher", "bert", seed=3)
    given = {"evaluated": EVALUATED | {"evaluation.tasks": []}, "student_pooling": 1, "keep_index": True}
    made = distillation(tiny_backbone, teacher, **given)
    corpus = Corpus(None, user=UserData.of(test={"found": folder}, text=few_world / "wikipedia/sentences.parquet"))
    plan = Plan(pipeline=made, corpus=corpus, storage=tmp_path / "storage")
    (student,) = plan.outcomes
    with plan.store.put_dir(student.output) as draft:
        shutil.copytree(tiny_backbone, draft, dirs_exist_ok=True)
    plan.agreement.step.work(Context(LocalExecutor(threads=1, device="cpu"), plan.store))
    rows = [row for row in measure(plan, "student", "ndcg@10") if row["rows"] == "all"]
    values = {row["similarity"]: row["value"] for row in rows if row["dataset"].startswith("retrieval")}
    asks = load(tiny_backbone, device="cpu").encode(queries, normalize=True)
    for similarity, model in (("cosine", tiny_backbone), ("cosine, documents by the teacher", teacher)):
        cosines = asks @ load(model, device="cpu").encode(texts, normalize=True).T
        ranks = 1 + (cosines > np.diag(cosines)[:, None]).sum(1)
        gains = np.where(ranks <= 10, 1 / np.log2(1 + ranks), 0)
        assert values.pop(similarity) == pytest.approx(gains.mean(), abs=1e-6)
    assert not values
